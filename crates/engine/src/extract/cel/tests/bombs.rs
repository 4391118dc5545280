//! Expressions that would take forever, or all memory: they end soon, with an error that names the limit.

use std::time::{Duration, Instant};

use super::{
    super::{
        CelVariables,
        EvalError::{self, BudgetExceeded, ResultTooLarge, TextTooLong, WorkExceeded},
    },
    compile, read,
};
use crate::json::Projection;

/// Without optimisation, on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(5);

const WRITTEN: &[(&str, EvalError)] = &[
    (
        "lists.range(5000).map(i, {'a': i, 'b': i, 'c': i, 'd': [i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i, i]})",
        WorkExceeded,
    ),
    ("lists.range(1000000000)", WorkExceeded),
    ("lists.range(9223372036854775807)", WorkExceeded),
    ("lists.range(9999).map(x, lists.range(9999))", WorkExceeded),
    ("lists.range(100).map(x, lists.range(100).map(y, x))", BudgetExceeded),
    (
        "lists.range(300).map(x, lists.range(100)).flatten().flatten(9).sort().reverse().distinct()",
        WorkExceeded,
    ),
    ("object.text.split('')", WorkExceeded),
    ("object.text.matches('(a+)+[bc]')", WorkExceeded),
    ("object.text.substring(0, 30000).findAll('a*b|a')", WorkExceeded),
    ("lists.range(9000).exists(i, object.text.matches('(a+)+' + string(i)))", WorkExceeded),
    ("lists.range(9000).exists(i, 'a'.matches('(' + string(i)))", WorkExceeded),
    ("lists.range(9000).exists(i, 'a'.matches('(x{500}){500}' + string(i)))", WorkExceeded),
    ("lists.range(9000).all(i, object.text.contains('b') || true)", WorkExceeded),
    ("lists.range(9000).all(i, object.text.size() > 1)", WorkExceeded),
    ("lists.range(9000).all(i, object.text == object.text)", WorkExceeded),
    ("lists.range(9000).all(i, object.items == object.items)", WorkExceeded),
    ("lists.range(9000).all(i, object.items in [object.items])", WorkExceeded),
    ("lists.range(9000).all(i, object.?items.hasValue())", WorkExceeded),
    (
        "cel.bind(object, optional.of(object), lists.range(9000).all(i, object.items.hasValue()))",
        WorkExceeded,
    ),
    (
        "[optional.of(object)].all(o, lists.range(9000).all(i, (i < 0 ? o : o).items.hasValue()))",
        WorkExceeded,
    ),
    ("cel.bind(o, optional.of(object), lists.range(9000).all(i, o.items.hasValue()))", WorkExceeded),
    ("cel.bind(o, optional.of(object), lists.range(9000).all(i, o[?'items'].hasValue()))", WorkExceeded),
    ("cel.bind(o, optional.of(object.items), lists.range(9000).all(i, o[i % 2].hasValue()))", WorkExceeded),
    ("lists.range(9000).map(i, [object])", WorkExceeded),
    ("lists.range(9000).map(i, object)", WorkExceeded),
    ("lists.range(9000).map(i, cel.bind(x, object, 1))", WorkExceeded),
    ("lists.range(9000).map(i, object.items.exists(x, true))", WorkExceeded),
    ("lists.range(9000).map(i, '%s'.format([object]).size())", WorkExceeded),
    ("object.text + object.text", TextTooLong),
    ("[object.text, object.text]", ResultTooLarge),
    ("bytes(object.text)", ResultTooLarge),
    ("[object.text.replace('a', '\\n'), object.text.substring(0, 70000)]", ResultTooLarge),
    (".matches(object.text, '(a+)+[bc]')", WorkExceeded),
    (".lists.range(1000000000)", WorkExceeded),
    ("lists.range(9000).all(i, .size(object.text) > 1)", WorkExceeded),
];

/// Bombs that are too long to be written.
fn built() -> Vec<(String, EvalError)> {
    let literals = format!("[{}]", ["1"; 32].join(","));
    let nested = |macro_: &str, innermost: &str| {
        (0..5).rev().fold(innermost.to_owned(), |inner, i| format!("{literals}.{macro_}(x{i}, {inner})"))
    };
    let grown = |start: &str, step: &str| {
        let binds = (0..12).fold(String::from("a"), |inner, _| format!("cel.bind(a, {step}, {inner})"));
        format!("cel.bind(a, {start}, {binds})")
    };
    let nested_binds =
        |inner: &str| (0..90).fold(inner.to_owned(), |inner, i| format!("cel.bind(v{i}, 1, {inner})"));
    let many = |text: &str, count: usize| vec![text; count].join(",");
    let wide = format!("[{}]", ["i"; 400].join(","));
    [
        (nested("all", "x4 > 0"), BudgetExceeded),
        (nested("exists", "x4 > 1"), BudgetExceeded),
        (nested("exists_one", "x4 > 0"), BudgetExceeded),
        (nested("map", "x4"), BudgetExceeded),
        (nested("filter", "true").replace(", [1", ", [] == [1"), BudgetExceeded),
        (format!("{{'a': {}}}", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("{{{}: 1}}", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("false || {0} || {0}", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("{} || true", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("[1].sortBy(y, {})", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("optional.of(1).optMap(y, {})", nested("all", "x4 > 0")), BudgetExceeded),
        (format!("lists.range(5000).map(i, {wide})"), WorkExceeded),
        (format!("lists.range(5000).map(i, {wide}.size())"), WorkExceeded),
        (
            nested_binds(&format!("lists.range(9000).map(i, [{}].size())", many("object.a.a.a.a", 60))),
            WorkExceeded,
        ),
        (nested_binds("lists.range(9000).all(i, i >= 0)"), WorkExceeded),
        (format!("lists.range(9000).map(i, '{}')", "x".repeat(7000)), WorkExceeded),
        (grown("'xxxxxxxx'", "a + a + a + a"), TextTooLong),
        (grown("b'xxxxxxxx'", "a + a + a + a"), TextTooLong),
        (grown("'xx'", "a.replace('x', 'xxxx')"), TextTooLong),
        (grown("'x'", "[a, a, a, a].join(a)"), TextTooLong),
        (grown("'x'", "'%s%s%s%s'.format([a, a, a, a])"), TextTooLong),
        (grown("'\"'", "strings.quote(strings.quote(a))"), TextTooLong),
        (grown("'x'", "base64.encode(bytes(a + a + a))"), TextTooLong),
        (grown("[1]", "a + a + a + a"), WorkExceeded),
        (grown("[1]", "[a, a, a, a]"), WorkExceeded),
        ("lists.range(9000).map(i, optional.ofNonZeroValue(object))".into(), WorkExceeded),
        ("lists.range(9000).map(i, string(object.text))".into(), WorkExceeded),
        ("lists.range(9000).map(i, regex.replace(object.text, 'b', '', 0))".into(), WorkExceeded),
        ("cel.bind(u, url('/' + object.text), lists.range(9000).map(i, u))".into(), WorkExceeded),
        ("lists.range(9000).all(i, !isSemver(object.text))".into(), WorkExceeded),
        ("lists.range(9000).all(i, !isCIDR(object.text))".into(), WorkExceeded),
        ("cel.bind(u, url('/?' + object.text.replace('a', '&')), lists.range(9000).all(i, u.getQuery() == {}))".into(), WorkExceeded),
        ("lists.range(9000).map(i, quantity('1e1000').add(quantity('1n'))).distinct()".into(), WorkExceeded),
        (grown("[1]", "{'a': a, 'b': a, 'c': a, 'd': a}"), WorkExceeded),
        (grown("[1]", "[a, a, a, a].flatten()"), WorkExceeded),
        (grown("[1, 1, 1, 1]", "a.map(x, a)"), WorkExceeded),
        (grown("optional.of([1])", "optional.of([a, a, a, a])"), WorkExceeded),
    ]
    .into()
}

#[test]
fn expressions_that_are_too_expensive_end_soon_and_name_the_exceeded_limit() {
    let items = vec![r#"{"a":{"b":[1,2,{"c":"x"}]}}"#; 2000].join(",");
    let text =
        format!(r#"{{"text":"{}","items":[{items}],"a":{{"a":{{"a":{{"a":1}}}}}}}}"#, "a".repeat(900_000));
    let object = read(&text, &Projection::everything());
    let variables = CelVariables::new(&object, &Projection::everything(), None).unwrap();
    let written = WRITTEN.iter().map(|(text, expected)| ((*text).to_owned(), expected.clone()));
    for (text, expected) in written.chain(built()) {
        let expression = compile(&text);
        let started = Instant::now();
        let found = expression.evaluate(&variables, super::MAX_BYTES);
        let took = started.elapsed();
        assert_eq!(found, Err(expected), "{text:.200}");
        assert!(took < TIME_LIMIT, "{text:.200} took {took:?}");
    }
}

#[test]
fn operands_that_do_not_fit_are_not_copied_into_errors() {
    let items = vec![r#"{"a":{"b":[1,2,{"c":"x"}]}}"#; 5000].join(",");
    let text = format!(r#"{{"text":"{}","items":[{items}]}}"#, "a".repeat(500_000));
    let object = read(&text, &Projection::everything());
    let variables = CelVariables::new(&object, &Projection::everything(), None).unwrap();
    for wrong in [
        "object + 1",
        "1 + object",
        "object - 1",
        "1 - object",
        "object * object",
        "1 / object",
        "object % 2",
        "object < 1",
        "1 < object",
        "object.text < 1",
        "1 < object.text",
        "object.text - 1",
        "-object",
        "!object",
        "object.items[1.5]",
        "object.items[object]",
        "object[object]",
        "{object: 1}",
        "object in {'a': 1}",
        "1 in object.text",
        "1 == object",
        "object == 1 && 1 + object.text",
        "object ? 1 : 2",
        "object && true",
        "object.items + object",
        "object.items.x",
        "object.text.x",
        "object.startsWith('a')",
        "size(1)",
    ] {
        let expression = compile(&format!("lists.range(3000).exists(i, [{wrong}] == [i])"));
        let started = Instant::now();
        drop(expression.evaluate(&variables, super::MAX_BYTES));
        let took = started.elapsed();
        assert!(took < TIME_LIMIT, "{wrong} took {took:?}");
    }
}

#[test]
fn nested_bindings_and_indices_do_not_grow_with_each_level() {
    let started = Instant::now();
    let nested = |open: &str, inner: &str, close: &str, count: usize| {
        format!("{}{inner}{}", open.repeat(count), close.repeat(count))
    };
    for text in [
        nested("cel.bind(x,", "object.a", ",true||x==1)", 30),
        nested("cel.bind(x,object.a,true||x==1||", "true", ")", 30),
        nested("object.?x[", "0", "]", 60),
        nested("object.?x.orValue(", "object.y", ")", 30),
        nested("[1].transformList(i,v,", "i+v", ")", 12),
    ] {
        let compiled = crate::extract::Expression::compile(&text).map(drop);
        assert!(compiled.is_ok() || text.len() > 500, "{text}: {compiled:?}");
        let schema = crate::extract::schema::ObjectSchema::of(
            r#"{"components":{"schemas":{"T":{"type":"object","properties":{"a":{"type":"object","properties":{}}},
            "x-kubernetes-group-version-kind":[{"group":"","version":"v1","kind":"T"}]}}}}"#,
            &kollect_model::crd::shapes::Gvk { group: String::new(), version: "v1".into(), kind: "T".into() },
        );
        let spec = serde_json::json!({
            "targetGVK": { "version": "v1", "kind": "T" }, "attributes": [{ "name": "a", "path": format!("cel:{text}") }],
        });
        drop(crate::extract::schema::check(&serde_json::from_value(spec).unwrap(), &schema.unwrap()));
    }
    assert!(started.elapsed() < TIME_LIMIT, "{:?}", started.elapsed());
}
