//! Tables of expressions from the specifications, bombs, and what must hold for any expression.

mod bombs;
mod documented;
mod language;
mod libraries;
mod properties;
mod random;
mod redacted;
mod refused;

use super::*;

/// Where a rule is from, an expression, and the JSON it gives on [`OBJECT`]; or `!` and a part of the error.
type CelCase = (&'static str, &'static str, &'static str);

const OBJECT: &str = r#"{
    "apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": "web", "namespace": "shop", "labels": {"tier": "front", "app": "web"},
        "annotations": {"a.b/c": "x"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
    "spec": {"replicas": 3, "paused": false, "ratio": 0.5, "nothing": null,
        "big": 9223372036854775808, "max": 9223372036854775807,
        "containers": [
            {"name": "app", "image": "nginx:1.27", "ports": [{"containerPort": 80}, {"containerPort": 443}],
                "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}},
            {"name": "log", "image": "fluentd"}],
        "tags": ["b", "a", "c", "a"], "numbers": [3, 1, 2], "empty": [], "nested": [[1, [2, 3]], [4]]},
    "status": {"conditions": [{"type": "Available", "status": "True"}, {"type": "Progressing", "status": "False"}]},
    "data": {"b": "2", "a": "1"}}"#;

/// The most bytes of a result.
const MAX_BYTES: usize = 1 << 20;

const NAMESPACE: &str = r#"{"metadata": {"name": "shop", "labels": {"team": "x"}, "annotations": {}}}"#;

fn compile(text: &str) -> Expression {
    Expression::compile(text).unwrap_or_else(|error| unreachable!("{text}: {error:?}"))
}

fn read<'a>(text: &'a str, projection: &Projection) -> Json<'a> {
    Json::read(text, projection).unwrap_or_else(|error| unreachable!("{error}"))
}

/// The JSON that an expression gives, or `!` and the error.
fn outcome(expression: &Expression, object: &Json<'_>) -> String {
    let namespace = read(NAMESPACE, &Projection::everything());
    let variables = CelVariables::new(object, &Projection::everything(), Some(&namespace)).unwrap();
    match expression.evaluate(&variables, MAX_BYTES) {
        Ok(json) => {
            let mut out = String::new();
            json.write(&mut out);
            out
        }
        Err(error) => format!("! {error}"),
    }
}

#[test]
fn expressions_give_what_the_specifications_say() {
    let object = read(OBJECT, &Projection::everything());
    let mut wrong = Vec::new();
    for (source, text, expected) in language::CASES.iter().chain(libraries::CASES) {
        let found = match Expression::compile(text) {
            Ok(expression) => outcome(&expression, &object),
            Err(error) => format!("{error:?}"),
        };
        let fits = match expected.strip_prefix("! ") {
            Some(part) => found.starts_with("! ") && found.contains(part),
            None => found == *expected,
        };
        if !fits {
            wrong.push(format!("{source}: {text}\n    expected {expected}\n    found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Statuses contain errors, and users who may not read the object may read the status.
#[test]
fn errors_hold_no_values_of_the_object() {
    let object = read(
        r#"{"text":"hunter2","number":47110815,"negative":-47110815,"pattern":"hunter2(","list":["hunter2"],"map":{"a":"hunter2"}}"#,
        &Projection::everything(),
    );
    let mut leaks = Vec::new();
    for text in [
        "object.map[object.text]",
        "object.list[object.number]",
        "object.list[object.text]",
        "object.text.substring(object.number)",
        "object.text.substring(3, object.negative)",
        "object.text.charAt(object.number)",
        "object.list.slice(0, object.number)",
        "lists.range(object.negative)",
        "lists.range(object.number)",
        "object.list.flatten(object.negative)",
        "int(object.text)",
        "uint(object.negative)",
        "uint(object.text)",
        "double(object.text)",
        "bool(object.text)",
        "duration(object.text)",
        "timestamp(object.text)",
        "quantity(object.text)",
        "'%d'.format([object.text])",
        "object.text.format([1]) + '%d'.format([object.map])",
        "'%z'.format([object.text])",
        "('%' + object.text).format([1])",
        "object.text.matches(object.pattern)",
        "base64.decode(object.text + '!')",
        "math.bitShiftLeft(1, object.negative)",
        "object.text + object.number",
        "object.number / 0",
        "object.text.split(object.number)",
        "{object.text: 1, object.list[0]: 2}",
        "object.list.map(x, object.map[x])",
        "object.text.hunter",
        "'a'.matches('\\\\p{' + object.text + '}')",
        "'a'.matches('[[:' + object.text + ':]]')",
        "timestamp(0).getHours(object.text)",
        "semver(object.text)",
        "url(':' + object.text)",
        "ip(object.text)",
        "cidr(object.text)",
        "regex.replace('a', 'a', '\\\\' + object.text)",
        "cel.bind(x, object.map[object.text], true || x == 1) && object.map[object.text]",
    ] {
        let Ok(expression) = Expression::compile(text) else { continue };
        let found = outcome(&expression, &object);
        if ["hunter2", "47110815"].iter().any(|value| found.starts_with("! ") && found.contains(value)) {
            leaks.push(format!("{text}: {found}"));
        }
    }
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
}
