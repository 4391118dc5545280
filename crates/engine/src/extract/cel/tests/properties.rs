//! What must hold for any expression: its projection is enough, threads can share it, only `true` selects an object.

use super::{
    super::{
        CelVariables, Expression,
        names::{FUNCTIONS, METHODS},
    },
    OBJECT, compile, language, libraries, outcome, read,
};
use crate::{extract::cel::EvalError, json::Projection};

/// The same fields in other shapes than expressions expect.
pub(super) const SHAPES: &[&str] = &[
    OBJECT,
    "{}",
    r#"{"spec": null, "metadata": null, "status": [], "data": "x"}"#,
    r#"{"spec": [], "metadata": [{"labels": 1}, null], "status": {"conditions": {"type": "Available"}}, "data": {}}"#,
    r#"{"spec": {"containers": {"app": {"name": "app", "image": "x"}, "b": {"image": 1}}, "replicas": "3", "tags": {"a": 1}, "numbers": "12", "nested": [1]}}"#,
    r#"{"spec": {"containers": [null, {"name": "log"}, {"image": "nginx", "name": null}, [], "x"], "replicas": null, "empty": [0], "tags": [], "nothing": {"x": 1}},
        "metadata": {"name": {"a": 1}, "labels": {"app": {"x": [1]}, "web": null}, "creationTimestamp": 5}, "status": {"conditions": [[{"type": "Available"}], null, 3]}, "data": {"web": [], "a": {}}}"#,
    r#"{"spec": {"containers": [[{"name": "app"}], {"ports": {"a": 1}, "name": "x", "image": "nginx:1", "resources": {"limits": {"memory": "1x"}}}], "numbers": [1.5, 2], "replicas": {"x": 1}, "paused": "no"}}"#,
];

/// Evaluates on the whole object and on the part that the expression reads.
pub(super) fn assert_reads_enough(text: &str, expression: &Expression) {
    let mut projection = Projection::default();
    expression.add_reads_to(&mut projection);
    for shape in SHAPES {
        let expected = outcome(expression, &read(shape, &Projection::everything()));
        let part = outcome(expression, &read(shape, &projection));
        assert!(!expected.contains("the interpreter failed"), "{text} on {shape}");
        assert_eq!(part, expected, "{text} on {shape} with {projection:?}");
    }
}

#[test]
fn the_parts_that_an_expression_reads_give_the_result_of_the_whole_object() {
    for (_, text, _) in language::CASES.iter().chain(libraries::CASES) {
        assert_reads_enough(text, &compile(text));
    }
    for text in [
        "object == null",
        "object.spec.containers[0] == null",
        "object.spec.containers.exists(c, c == null)",
        "object.spec.containers.filter(c, c != 'x').size()",
        "object.spec.containers.map(c, type(c))",
        "object.spec.containers.map(c, 1).size()",
        "object.spec.containers.filter(c, true) == object.spec.containers",
        "object.spec.containers.filter(c, has(c.image)).filter(c, c.image == 'nginx').map(c, c.name)",
        "object.spec.containers[?0].hasValue()",
        "object.spec.containers[?0].optMap(c, 1)",
        "optional.ofNonZeroValue(object.spec.containers[0]).hasValue()",
        "size(object.spec.containers[0])",
        "(object.spec.paused == true ? object.spec : object.metadata).name",
        "cel.bind(l, object.metadata.labels, l.exists(k, l[k] == 'web') ? l.app : l.tier)",
        "object.metadata.labels.exists(k, k == 'app') && size(object.metadata) > 1",
        "object.?metadata.?labels.orValue(object.data).map(k, k)",
        "object.spec.containers.map(c, c.?ports.orValue([]).map(p, p.containerPort))",
        "object.spec.containers.map(c, c.?resources.limits.memory.orValue('none'))",
        "object.status.conditions.exists(c, c.type == 'Available' && c.status == 'True')",
        "object.spec.containers.map(c, object.metadata.labels[?c.name].hasValue())",
    ] {
        assert_reads_enough(text, &compile(text));
    }
}

#[test]
fn an_expression_reads_only_the_parts_that_it_needs() {
    for (text, expected) in [
        ("object.spec.replicas > 2", r#"{"spec":{"replicas":3}}"#),
        ("has(object.spec.containers)", r#"{"spec":{"containers":[null,null]}}"#),
        ("size(object.metadata.labels)", r#"{"metadata":{"labels":{"app":"web","tier":"front"}}}"#),
        (
            "object.spec.containers.map(c, c.image)",
            r#"{"spec":{"containers":[{"image":"nginx:1.27"},{"image":"fluentd"}]}}"#,
        ),
        (
            "object.status.conditions.filter(c, c.type == 'Available').map(c, c.status)",
            r#"{"status":{"conditions":[{"status":"True","type":"Available"},{"status":"False","type":"Progressing"}]}}"#,
        ),
        ("object.?metadata.?labels.?app.orValue('')", r#"{"metadata":{"labels":{"app":"web"}}}"#),
        ("object.metadata != null", r#"{"metadata":{}}"#),
        (
            "cel.bind(m, object.metadata, m.name + m.namespace)",
            r#"{"metadata":{"name":"web","namespace":"shop"}}"#,
        ),
        ("namespaceObject.metadata.name", "{}"),
    ] {
        let expression = compile(text);
        let mut projection = Projection::default();
        expression.add_reads_to(&mut projection);
        let mut found = String::new();
        read(OBJECT, &projection).write(&mut found);
        assert_eq!(found, expected, "{text}");
        assert_eq!(expression.reads_namespace(), text.contains("namespaceObject"), "{text}");
    }
    let mut projection = Projection::default();
    compile("string(object)").add_reads_to(&mut projection);
    assert!(projection.is_everything());
}

#[test]
fn an_object_is_selected_only_if_the_expression_is_true() {
    let object = read(OBJECT, &Projection::everything());
    let variables = CelVariables::new(&object, &crate::json::Projection::everything(), None).unwrap();
    for (text, expected) in [
        ("object.spec.replicas == 3", true),
        ("object.spec.replicas == 4", false),
        ("object.spec.replicas", false),
        ("'true'", false),
        ("object.nope == 1", false),
        ("optional.of(true)", false),
        ("namespaceObject == null", true),
        ("lists.range(1000000).all(x, true)", false),
        ("lists.range(9000).all(x, [1, 2, 3].all(y, true)) || true", false),
    ] {
        assert_eq!(compile(text).is_true(&variables), Some(expected), "{text}");
    }
    let missing = |error: EvalError| matches!(error, EvalError::NoSuchKey(_) | EvalError::NoSuchIndex(_));
    assert!(compile("object.nope").evaluate(&variables, super::MAX_BYTES).is_err_and(missing));
    assert!(compile("object.spec.tags[9]").evaluate(&variables, super::MAX_BYTES).is_err_and(missing));
    assert!(compile("1 / 0").evaluate(&variables, super::MAX_BYTES).is_err_and(|error| !missing(error)));
}

#[test]
fn expressions_can_be_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Expression>();
    shared::<CelVariables<'_>>();
    let expression = compile("object.spec.containers.map(c, c.image.replace('nginx', 'n'))");
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let object = read(OBJECT, &Projection::everything());
                assert_eq!(outcome(&expression, &object), r#"["n:1.27","fluentd"]"#);
            });
        }
    });
}

#[test]
fn every_known_name_can_be_called() {
    const MACROS: &[&str] = &["cel.bind", "has", "math.greatest", "math.least"];
    let object = read(OBJECT, &Projection::everything());
    let calls = FUNCTIONS
        .iter()
        .filter(|(name, ..)| !MACROS.contains(name))
        .map(|(name, count, _)| format!("{name}({})", vec!["null"; *count].join(", ")));
    let methods = METHODS.iter().map(|(name, count, _)| {
        // The first arguments of a macro are variables.
        let args = ["x", "y", "x"].iter().take(*count).copied().collect::<Vec<_>>().join(", ");
        format!("cel.bind(x, null, cel.bind(y, null, x.{name}({args})))")
    });
    for text in calls.chain(methods) {
        let found = outcome(&compile(&text), &object);
        assert!(!found.contains("there is no"), "{text}: {found}");
    }
}
