//! Random paths: nothing panics, and the invariants hold.

use std::collections::{BTreeSet, HashSet};

use super::*;
use crate::random::Random;

/// Pieces that make a path when they are put together, almost always.
const VALID_PIECES: &[&str] = &[
    ".a",
    ".b",
    ".c",
    ".*",
    "..a",
    "..*",
    "[0]",
    "[-1]",
    "[1:]",
    "[:2]",
    "[::2]",
    "[-2:9:1]",
    "[0,1]",
    "['a','b']",
    "['a']",
    "[\"c\"]",
    "[*]",
    "..[0]",
    "..['b']",
    "[?(@.a)]",
    "[?(@.a == 1)]",
    "[?(!@.b || @.c > 'x')]",
    "[?(@..a != 2)]",
    "[?(@[0] < 2 && (@.a))]",
    "[?(@.a[?(@.b)].c == true)]",
    "..[?(@ >= 1)]",
    "[9223372036854775807]",
    "[-9223372036854775808:9223372036854775807:9223372036854775807]",
];

/// Pieces that spoil a path most of the time, and one whose result depends on where the path starts.
const INVALID_PIECES: &[&str] = &[
    "[?(@.a == $.b.b)]",
    "..",
    ".",
    "[",
    "]",
    "(",
    ")",
    "?",
    "'",
    "\"",
    "\\",
    "{",
    "}",
    "$",
    "@",
    ",",
    ":",
    "-",
    " ",
    "==",
    "&&",
    "||",
    "!",
    "1",
    "x",
    "null",
    "é",
    "🦀",
    "[?(",
    ")]",
    "@.a",
];

const OBJECTS: &[&str] = &[
    r#"{"a":[{"a":1,"b":"x","c":{"a":[1,2]}},{"a":2,"b":[true]},[0,1,2]],"b":{"a":{"a":{"a":null}},"b":1},"c":[[[]],{}]}"#,
    r#"[{"a":1},{"a":{"b":[1,2,3],"c":"y"}},[{"a":1.0,"b":2}],"s",null]"#,
    "7",
];

impl Random {
    fn piece(&mut self, invalid_percent: usize) -> &'static str {
        let pieces = if self.below(100) < invalid_percent { INVALID_PIECES } else { VALID_PIECES };
        pieces[self.below(pieces.len())]
    }

    fn path(&mut self) -> String {
        let invalid_percent = [0, 20, 90][self.below(3)];
        let mut text = String::from(["$", "", "{", "{$"][self.below(4)]);
        for _ in 0..=self.below(6) {
            text.push_str(self.piece(invalid_percent));
        }
        if text.starts_with('{') && self.below(8) > 0 {
            text.push('}');
        }
        text
    }
}

fn all_found<'v, 'a>(path: &Path, object: &'v Json<'a>) -> Vec<&'v Json<'a>> {
    match path.find(object) {
        PathMatches::One(value) => value.into_iter().collect(),
        PathMatches::Many(values) => values,
    }
}

/// The addresses of all values, in document order.
fn addresses<'a>(value: &Json<'a>, seen: &mut Vec<*const Json<'a>>) {
    seen.push(std::ptr::from_ref(value));
    match value {
        Json::List(items) => items.iter().for_each(|item| addresses(item, seen)),
        Json::Map(map) => map.iter().for_each(|(_, value)| addresses(value, seen)),
        _ => {}
    }
}

fn without<'a>(value: &Json<'a>, removed_values: &HashSet<*const Json<'a>>) -> Json<'a> {
    let kept = |value: &Json<'a>| !removed_values.contains(&std::ptr::from_ref(value));
    match value {
        Json::List(items) => Json::List(
            items.iter().filter(|item| kept(item)).map(|item| without(item, removed_values)).collect(),
        ),
        Json::Map(map) => {
            let entries = map.iter().filter(|(_, value)| kept(value));
            Json::Map(
                entries.map(|(key, value)| (key.to_owned().into(), without(value, removed_values))).collect(),
            )
        }
        scalar => scalar.clone(),
    }
}

fn check(text: &str, path: &Path, object: &str) {
    let everything = read(object, &Projection::everything());
    let values = all_found(path, &everything);

    let mut all = Vec::new();
    addresses(&everything, &mut all);
    let positions: Vec<usize> = values
        .iter()
        .filter_map(|value| all.iter().position(|at| *at == std::ptr::from_ref(*value)))
        .collect();
    assert_eq!(positions.len(), values.len(), "{text}: a value that is not in {object}");
    assert!(positions.is_sorted_by(|a, b| a < b), "{text}: not in document order, or twice, in {object}");

    let mut projection = Projection::default();
    path.project(&mut projection);
    assert_eq!(
        found(path, &read(object, &projection)),
        found(path, &everything),
        "{text}: projection of {object}"
    );

    let removed_values = values.iter().map(|value| std::ptr::from_ref(*value)).collect();
    let mut removed = everything.clone();
    path.remove(&mut removed);
    assert_eq!(
        written(&removed),
        written(&without(&everything, &removed_values)),
        "{text}: removal from {object}"
    );
}

#[test]
fn random_paths_never_panic() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let text = random.path();
        match Path::parse(&text) {
            Ok(path) => {
                accepted += 1;
                check(&text, &path, OBJECTS[random.below(OBJECTS.len())]);
            }
            Err(error) => assert!(error.at <= text.chars().count(), "{text}: {error:?}"),
        }
    }
    assert!(accepted > 5_000, "only {accepted} paths were right");
}

/// A path finds what its last step finds below everything that the steps before it find.
#[test]
fn steps_can_be_taken_one_after_another() {
    let mut random = Random(0xd1b5_4a32_d192_ed03);
    for _ in 0..5_000 {
        let front = format!("${}{}{}", random.piece(0), random.piece(0), random.piece(0));
        let back = random.piece(0);
        let Ok(together) = Path::parse(&format!("{front}{back}")) else { continue };
        let object = read(OBJECTS[random.below(OBJECTS.len())], &Projection::everything());
        let mut all = Vec::new();
        addresses(&object, &mut all);
        let position =
            |value: &&Json<'_>| all.iter().position(|at| at.addr() == std::ptr::from_ref(*value).addr());

        let back = parsed(&format!("${back}"));
        let below = all_found(&parsed(&front), &object).into_iter().flat_map(|value| all_found(&back, value));
        let expected: BTreeSet<_> = below.map(|value| position(&value)).collect();
        let found: Vec<_> = all_found(&together, &object).iter().map(position).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{front} and {back:?} in {object:?}");
    }
}
