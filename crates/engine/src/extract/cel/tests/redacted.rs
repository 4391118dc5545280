//! Redacted values in expressions: no result depends on what they are, and none hides that.

use super::{
    super::{
        CelVariables, EvalError, Expression,
        names::{FUNCTIONS, METHODS},
    },
    MAX_BYTES, NAMESPACE, compile, language, libraries,
    properties::SHAPES,
    read,
};
use crate::{
    json::{Json, Projection},
    random::Random,
};

fn evaluate(expression: &Expression, object: &Json<'_>) -> Result<Json<'static>, EvalError> {
    let namespace = read(NAMESPACE, &Projection::everything());
    let variables = CelVariables::new(object, &Projection::everything(), Some(&namespace)).unwrap();
    expression.evaluate(&variables, MAX_BYTES)
}

fn text(json: &Json<'_>) -> String {
    let mut out = String::new();
    json.write(&mut out);
    out
}

/// Replaces some texts and numbers: in the first copy they are redacted, in the others they are something else.
fn planted<'a>(value: &Json<'a>, random: &mut Random) -> [Json<'a>; 4] {
    match value {
        Json::String(_) | Json::Number(_) if random.below(3) == 0 => {
            let other = |text: &'static str| Json::String(text.into());
            [Json::Redacted, value.clone(), other("s3cret, and a long one: 1Gi"), Json::Number("42".into())]
        }
        Json::List(items) => {
            let mut copies = [const { Vec::new() }; 4];
            for item in items {
                let planted = planted(item, random);
                copies.iter_mut().zip(planted).for_each(|(copy, item)| copy.push(item));
            }
            copies.map(Json::List)
        }
        Json::Map(map) => {
            let mut copies = [const { Vec::new() }; 4];
            for (key, value) in map.iter() {
                let planted = planted(value, random);
                let key = key.to_owned();
                copies
                    .iter_mut()
                    .zip(planted)
                    .for_each(|(copy, value)| copy.push((key.clone().into(), value)));
            }
            copies.map(|copy| Json::Map(copy.into_iter().collect()))
        }
        other => [(); 4].map(|()| other.clone()),
    }
}

/// Whether a result with redacted values is this result with some of its texts and numbers hidden.
fn covers(redacted: &Json<'_>, truth: &Json<'_>) -> bool {
    match (redacted, truth) {
        (Json::Redacted, Json::String(_) | Json::Number(_)) => true,
        (Json::List(a), Json::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| covers(a, b)),
        (Json::Map(a), Json::Map(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|((a, x), (b, y))| a == b && covers(x, y))
        }
        (a, b) => a == b,
    }
}

fn is_limit(error: &EvalError) -> bool {
    matches!(
        error,
        EvalError::BudgetExceeded
            | EvalError::WorkExceeded
            | EvalError::TextTooLong
            | EvalError::ResultTooLarge
    )
}

/// Whether the result on an object with redacted values is right, whatever they are. Returns whether a value was hidden.
fn assert_never_lies(expression: &Expression, copies: &[Json<'_>; 4], source: &str) -> bool {
    let [redacted, truths @ ..] = copies;
    let found = evaluate(expression, redacted);
    for truth in truths {
        match (&found, &evaluate(expression, truth)) {
            (Err(EvalError::Redacted), _) => return true,
            (Ok(found), Ok(truth)) => {
                assert!(covers(found, truth), "{source}\n  {}\n  {}", text(found), text(truth));
            }
            (Err(_), Err(_)) => {}
            (Err(error), _) | (_, Err(error)) if is_limit(error) => {}
            (Ok(found), Err(error)) => unreachable!("{source}\n  {}\n  {error} on {truth:?}", text(found)),
            (Err(error), Ok(truth)) => unreachable!("{source}\n  {error} on {redacted:?}\n  {}", text(truth)),
        }
    }
    found.is_ok_and(|found| text(&found).contains("sensitive-key"))
}

#[test]
fn no_result_depends_on_a_redacted_value_in_silence() {
    let mut random = Random(0x9e6c_63d0_876a_3f6b);
    let count = std::env::var("EXPRESSIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(3000);
    let mut hidden = 0;
    let known = language::CASES.iter().chain(libraries::CASES).map(|(_, text, _)| (*text).to_owned());
    let mut sources: Vec<String> = known.collect();
    sources.extend((0..count).map(|_| random.closed_expression()));
    for source in sources {
        let Ok(expression) = Expression::compile(&source) else { continue };
        for shape in SHAPES {
            let copies = planted(&read(shape, &Projection::everything()), &mut random);
            hidden += usize::from(assert_never_lies(&expression, &copies, &source));
        }
    }
    assert!(hidden > count / 10, "{hidden} of {count}");
}

/// Each function gets a redacted value as each of its arguments, alone and in a list.
#[test]
fn every_function_refuses_redacted_values_or_passes_them_on() {
    let copies = |value: &'static str| {
        let object = |value: Json<'static>| Json::Map([("v".into(), value)].into_iter().collect());
        let other = |text: &'static str| object(Json::String(text.into()));
        [object(Json::Redacted), other(value), other("b"), other("2026-01-02T03:04:05Z")]
    };
    let mut calls = Vec::new();
    for argument in ["object.v", "[object.v]", "[object.v, 'a']", "{'k': object.v}", "optional.of(object.v)"]
    {
        for (name, fewest, most) in FUNCTIONS {
            for count in *fewest..=(*most).min(fewest + 2) {
                for position in 0..count {
                    for other in ["'a'", "1", "['a']", "timestamp(0)"] {
                        let mut args = vec![other; count];
                        args[position] = argument;
                        calls.push(format!("{name}({})", args.join(", ")));
                    }
                }
            }
        }
        for (name, fewest, most) in METHODS {
            for count in *fewest..=*most {
                for other in ["'a'", "1", "['a']"] {
                    calls.push(format!("({argument}).{name}({})", vec![other; count].join(", ")));
                    for position in 0..count {
                        let mut args = vec![other; count];
                        args[position] = argument;
                        calls.push(format!("({other}).{name}({})", args.join(", ")));
                    }
                }
                calls.push(format!("({argument}).{name}(x, x == 'a')"));
                calls.push(format!("({argument}).{name}(x, y, y == 'a')"));
            }
        }
        for operator in ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||"] {
            for other in ["'a'", "1", "['a']", "{'k': 'a'}", "object.v", "true", "optional.of('a')"] {
                calls.push(format!("{argument} {operator} {other}"));
                calls.push(format!("{other} {operator} {argument}"));
            }
        }
        let forms = [
            "-(_)",
            "!(_)",
            "(_) ? 1 : 2",
            "(_)[0]",
            "(_)[?0]",
            "(_).k",
            "has((_).k)",
            "{'a': 1}[?_]",
            "{'a': 1}[_]",
        ];
        calls.extend(forms.map(|form| form.replace('_', argument)));
    }
    let mut refused = 0;
    for call in calls {
        let Ok(expression) = Expression::compile(&call) else { continue };
        refused += usize::from(assert_never_lies(&expression, &copies("a"), &call));
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn what_is_passed_on_counted_or_asked_for_still_works() {
    let object =
        r#"{"env":[{"name":"A","value":"x"},{"name":"B","value":"hidden"},{"name":"C"}],"m":{"k":"hidden"}}"#;
    let mut object = read(object, &Projection::everything());
    hide(&mut object);
    let marker = r#"{"reason":"sensitive-key","redacted":true}"#;
    for (text_of, expected) in [
        ("object.env.size()", "3"),
        ("object.env.map(e, e.name)", r#"["A","B","C"]"#),
        ("object.env.map(e, has(e.value))", "[true,true,false]"),
        ("object.env.map(e, e.?value.hasValue())", "[true,true,false]"),
        ("object.env.filter(e, has(e.value)).map(e, e.value)", r#"["x",MARKER]"#),
        ("object.env.map(e, e.?value.orValue('none'))", r#"["x",MARKER,"none"]"#),
        ("object.env.filter(e, e.name == 'B')[0]", r#"{"name":"B","value":MARKER}"#),
        ("object.env.exists(e, e.name == 'A' && e.value == 'x')", "true"),
        ("{'a': object.m.k}", r#"{"a":MARKER}"#),
        ("cel.bind(k, object.m.k, 'yes')", r#""yes""#),
        ("[object.m.k, 'a'].reverse()", r#"["a",MARKER]"#),
        ("[[object.m.k], ['a']].flatten()", r#"[MARKER,"a"]"#),
        ("[object.m.k, 'a'].size() == 2 ? 'two' : ''", r#""two""#),
        ("object.m.size()", "1"),
        ("'k' in object.m", "true"),
        ("[object.m.k, 'a'] == ['b', 'c']", "false"),
        ("object.m == {'k': 'a', 'l': 'b'}", "false"),
        ("true ? 'a' : object.m.k", r#""a""#),
    ] {
        let found = text(&evaluate(&compile(text_of), &object).unwrap_or(Json::Redacted));
        assert_eq!(found, expected.replace("MARKER", marker), "{text_of}");
    }
    for text in [
        "object.m.k == ''",
        "object.m.k == 'a' || true",
        "object.env.exists(e, has(e.value) && e.value == 'y')",
        "object.env.map(e, has(e.value) ? e.value + '!' : '')",
        "size(object.m.k)",
        "type(object.m.k) == string",
        "object.m.k.startsWith('a') ? 'a' : 'b'",
        "{'a': 1}[?object.m.k].orValue(2)",
        "object.m.k.?x.orValue('none')",
        "object.m == {'k': 'a'}",
        "[object.m.k].join(',')",
        "object.env.map(e, e.?value.orValue('')).distinct()",
    ] {
        assert_eq!(evaluate(&compile(text), &object), Err(EvalError::Redacted), "{text}");
    }
}

fn hide(value: &mut Json<'_>) {
    match value {
        Json::String(text) if text == "hidden" => *value = Json::Redacted,
        Json::List(items) => items.iter_mut().for_each(hide),
        Json::Map(map) => (0..map.len()).for_each(|index| hide(map.entry_at(index).1)),
        _ => {}
    }
}
