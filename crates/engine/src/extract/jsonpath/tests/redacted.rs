//! Redacted values in paths: what a filter cannot decide is marked, and nothing is left out in silence.

use super::*;
use crate::random::Random;

/// Texts that begin with `hidden` are redacted.
fn hide(value: &mut Json<'_>) {
    match value {
        Json::String(text) if text.starts_with("hidden") => *value = Json::Redacted,
        Json::List(items) => items.iter_mut().for_each(hide),
        Json::Map(map) => (0..map.len()).for_each(|index| hide(map.entry_at(index).1)),
        _ => {}
    }
}

const OBJECT: &str = r#"{
    "env": [{"name":"A","value":"x"},{"name":"B","value":"hidden"},{"name":"C"},{"name":"D","value":"y"}],
    "password": "hidden", "list": ["hidden", "a"], "deep": [{"items":[{"k":"hidden","n":1},{"k":"z","n":2}]}]
}"#;

#[test]
fn a_filter_that_depends_on_a_redacted_value_marks_the_item() {
    let mut object = read(OBJECT, &Projection::everything());
    hide(&mut object);
    let marker = r#"{"reason":"sensitive-key","redacted":true}"#;
    for (path, expected) in [
        ("$.password", "•"),
        ("$.password.x", "null"),
        ("$.list", r#"[•,"a"]"#),
        ("$.list[0]", "•"),
        ("$.env[*].value", r#"["x",•,"y"]"#),
        ("$.env[?(@.value == 'x')].name", r#"["A",•]"#),
        ("$.env[?(@.value != 'x')].name", r#"[•,"D"]"#),
        ("$.env[?(!(@.value == 'x'))].name", r#"[•,"C","D"]"#),
        ("$.env[?(@.value > 'x')].name", r#"[•,"D"]"#),
        ("$.env[?(@.value)].name", r#"["A","B","D"]"#),
        ("$.env[?(!@.value)].name", r#"["C"]"#),
        ("$.env[?(@.name == 'B' && @.value == 'x')].name", "[•]"),
        ("$.env[?(@.name == 'A' && @.value == 'x')].name", r#"["A"]"#),
        ("$.env[?(@.name == 'B' || @.value == 'x')].name", r#"["A","B"]"#),
        ("$.env[?(@.value == $.password)].name", "[•,•,•]"),
        ("$.env[?($.password)].name", r#"["A","B","C","D"]"#),
        ("$.deep[?(@.items[?(@.k == 'z')])].items[*].n", "[1,2]"),
        ("$.deep[?(@.items[?(@.k == 'q')])].items[*].n", "[•]"),
        ("$..items[?(@.k == 'q')].n", "[•]"),
        ("$..[?(@.k == 'z')].n", "[•,2]"),
    ] {
        let mut out = String::new();
        parsed(path).value(&object, 1 << 20).unwrap().write(&mut out);
        assert_eq!(out, expected.replace('•', marker), "{path}");
    }
}

#[test]
fn what_may_be_removed_is_marked() {
    let mut object = read(OBJECT, &Projection::everything());
    hide(&mut object);
    let mut removals = RemovalTree::default();
    parsed("$.env[?(@.value == 'x')]").add_removals(&object, &mut removals);
    parsed("$.env[?(@.name == 'D')]").add_removals(&object, &mut removals);
    removals.add_pointer(&object, &["list", "0"]);
    removals.add_pointer(&object, &["list", "9"]);
    removals.add_pointer(&object, &["nope", "x"]);
    removals.apply(&mut object);
    let found = written(&object);
    assert!(
        found.contains(r#""env":[{"reason":"sensitive-key","redacted":true},{"name":"C"}],"list":["a"]"#),
        "{found}"
    );
}

/// Whether a list with markers, each of which may be any number of items, is this list.
fn covers(redacted: &[Json<'_>], truth: &[Json<'_>]) -> bool {
    match redacted {
        [] => truth.is_empty(),
        [Json::Redacted, rest @ ..] => (0..=truth.len()).any(|skipped| covers(rest, &truth[skipped..])),
        [first, rest @ ..] => {
            truth.split_first().is_some_and(|(item, others)| same(first, item) && covers(rest, others))
        }
    }
}

fn same(redacted: &Json<'_>, truth: &Json<'_>) -> bool {
    match (redacted, truth) {
        (Json::Redacted, Json::String(_)) => true,
        (Json::List(a), Json::List(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Json::Map(a), Json::Map(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|((a, x), (b, y))| a == b && same(x, y))
        }
        (a, b) => a == b,
    }
}

#[test]
fn no_result_depends_on_a_redacted_value_in_silence() {
    const PATHS: &[&str] = &[
        "$.a[?(@.b == 'x')]",
        "$.a[?(@.b != 'x')].c",
        "$.a[?(@.b > @.c)]",
        "$..[?(@.b == 'x')].c",
        "$.a[?(@.b && @.c == 'y')].b",
        "$.a[?(!(@.b == 'x') || @.c == 'y')]",
        "$.a[?(@.d[?(@.b == 'x')])].c",
        "$.a[*].b",
        "$..b",
        "$.a[?(@.b == $.k)]",
        "$.a[0,1]['b','c']",
        "$.a[?(@.d == @.e)].c",
        "$.a[?(@..b == 'x')].c",
        "$.a[-1:].b",
        "$.a[?(@.b <= 'x')]['c','b']",
    ];
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut marked = 0;
    for _ in 0..4_000 {
        let text = |random: &mut Random| {
            if random.below(3) == 0 { "hidden".to_owned() } else { random.pick(&["x", "y"]).to_owned() }
        };
        let items: Vec<String> = (0..random.below(4))
            .map(|_| {
                let [b, c, d, e] = [(); 4].map(|()| text(&mut random));
                format!(r#"{{"b":"{b}","c":"{c}","d":[{{"b":"{d}"}}],"e":[{{"b":"{e}"}}]}}"#)
            })
            .collect();
        let object = format!(r#"{{"a":[{}],"k":"{}"}}"#, items.join(","), text(&mut random));
        let mut redacted = read(&object, &Projection::everything());
        hide(&mut redacted);
        for path in PATHS {
            let path = parsed(path);
            let value = |object: &Json<'_>| written(&path.value(object, 1 << 20).unwrap());
            let found = value(&redacted);
            marked += usize::from(found.contains("redacted"));
            let Ok(Json::List(found)) = path.value(&redacted, 1 << 20) else { unreachable!("a list") };
            for instead in ["x", "y", "z", "hidden"] {
                let truth = object.replace("hidden", instead);
                let truth = read(&truth, &Projection::everything());
                let Ok(Json::List(truth)) = path.value(&truth, 1 << 20) else { unreachable!("a list") };
                assert!(covers(&found, &truth), "{path:?} on {object} with {instead}: {found:?} {truth:?}");
            }
        }
    }
    assert!(marked > 1_000, "{marked}");
}

#[test]
fn keys_with_dots_are_named_alone_and_in_unions() {
    let object =
        r#"{"metadata":{"labels":{"app.kubernetes.io/name":"a","app.kubernetes.io/part-of":"b","x.y":"c"}}}"#;
    let object = read(object, &Projection::everything());
    for (path, expected) in [
        ("$.metadata.labels['app.kubernetes.io/name']", r#""a""#),
        ("$.metadata.labels['app.kubernetes.io/name','app.kubernetes.io/part-of','x.y']", r#"["a","b","c"]"#),
    ] {
        assert_eq!(written(&parsed(path).value(&object, 1 << 20).unwrap()), expected, "{path}");
    }
    for (path, hint) in [
        ("$.metadata.labels.app.kubernetes.io/name", Some("['app.kubernetes.io/name']")),
        ("{.spec.template.metadata.annotations.a.b}", Some("['a.b']")),
        ("$.spec.selector.matchLabels.app.kubernetes.io/name", Some("['app.kubernetes.io/name']")),
        ("{.items[*]['metadata.name', 'status.capacity']}", Some("'metadata.name' for one key")),
        ("$.metadata.labels.app", None),
        ("$.metadata.labels['a.b']", None),
        ("$.metadata.labels['app.kubernetes.io/name','x']", None),
        ("$.status.labels.a.b", None),
        ("$.metadata.labels[*]", None),
    ] {
        let found = parsed(path).hint();
        assert!(
            found.as_deref().is_some_and(|found| hint.is_some_and(|hint| found.contains(hint)))
                || found == hint.map(Into::into),
            "{path}: {found:?}"
        );
    }
}
