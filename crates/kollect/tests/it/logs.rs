//! Lines of the JSON log: one object each, and no key twice.
//!
//! Most JSON parsers silently keep one of two values of a key. Logs of all operators that tests run are checked here,
//! and so are the fields in the source, also of lines that no test causes.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::program::root;

/// JSON whose objects have no key twice.
struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, Self)) = map.next_entry::<String, Self>()? {
            if let Some(key) = keys.replace(key) {
                return Err(A::Error::custom(format!("the key {key} comes twice")));
            }
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
}

/// Fails for a line that has a key twice. Lines that are no JSON are not from the log.
#[track_caller]
pub(crate) fn check_lines(log: &str) {
    kollect_testbed::messages::record("log", log);
    for line in log.split_inclusive('\n').filter(|line| line.starts_with('{') && line.ends_with('\n')) {
        let error = serde_json::from_str::<UniqueKeys>(line).err().map(|error| error.to_string());
        assert_eq!(error, None, "{line}");
    }
}

/// Keys of every line, and of every span in a line.
const RESERVED_KEYS: [&str; 7] = ["timestamp", "level", "target", "message", "span", "spans", "name"];
/// Events may have a field with this name, spans may not.
const RESERVED_IN_SPANS_ONLY: &str = "name";
const MACROS: [&str; 7] = ["trace!(", "debug!(", "info!(", "warn!(", "error!(", "event!(", "span!("];

/// The fields of an event, which come before its text, or those of a span, which come after its name.
fn fields(arguments: &str, is_span: bool) -> Vec<String> {
    let (mut fields, mut field, mut depth, mut in_string, mut escaped) =
        (Vec::new(), String::new(), 0, false, false);
    for letter in arguments.chars() {
        if in_string {
            (in_string, escaped) = (letter != '"' || escaped, letter == '\\' && !escaped);
            continue;
        }
        match letter {
            '"' if field.trim().is_empty() && !is_span => return fields,
            '"' => in_string = true,
            ',' if depth == 0 => fields.push(std::mem::take(&mut field)),
            ')' if depth == 0 => break,
            _ => {
                depth += i32::from("([{".contains(letter)) - i32::from(")]}".contains(letter));
                field.push(letter);
            }
        }
    }
    fields.push(field);
    fields
}

/// The name of a field; nothing for other arguments.
fn name(field: &str) -> Option<String> {
    let name = field.split('=').next().unwrap_or_default().trim().trim_start_matches(['%', '?']);
    let is_in_name = |letter: char| letter.is_alphanumeric() || "_.".contains(letter);
    (!name.is_empty() && name.chars().all(is_in_name)).then(|| name.to_owned())
}

/// What is wrong with the fields of the events and spans of a source file.
fn wrong_fields(source: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for start in MACROS {
        for (position, _) in source.match_indices(start) {
            let (before, rest) = source.split_at(position);
            let before = before.chars().next_back().unwrap_or(' ');
            let is_span = start == "span!(";
            if !is_span && (before.is_alphanumeric() || before == '_') {
                continue;
            }
            let names: Vec<String> = fields(rest.strip_prefix(start).unwrap(), is_span)
                .iter()
                .filter_map(|field| name(field))
                .collect();
            let is_reserved =
                |name: &str| RESERVED_KEYS.contains(&name) && (is_span || name != RESERVED_IN_SPANS_ONLY);
            let mut seen = BTreeSet::new();
            let bad = names.iter().filter(|name| is_reserved(name) || !seen.insert((*name).clone()));
            wrong.extend(bad.map(|name| format!("{start} has a field {name}")));
        }
    }
    wrong
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_field_of_an_event_or_span_has_the_name_of_another_key() {
    let mut files = Vec::new();
    for name in ["kollect", "engine", "sinks", "model"] {
        sources(&root().join("crates").join(name).join("src"), &mut files);
    }
    assert!(files.len() > 100, "the sources are not where they were");
    let mut wrong = Vec::new();
    for file in files {
        let found = wrong_fields(&fs::read_to_string(&file).unwrap());
        wrong.extend(found.into_iter().map(|found| format!("{}: {found}", file.display())));
    }
    assert!(wrong.is_empty(), "fields would be written beside keys of the same name:\n{}", wrong.join("\n"));
}

#[test]
fn fields_with_the_name_of_another_key_are_found() {
    let source = r#"
        info!(kind, namespace, name, error = %told(&a, "x, message = 1"), "message = {}", message);
        warn!(binding = %name, message, "cannot write");
        debug!(%target, object, "cannot read");
        tracing::error!(message = x.message, kind, kind = 3, "twice");
        compile_error!(message, "no event");
        info_span!("watch", name = %kind);
    "#;
    let found = wrong_fields(source);
    assert_eq!(found.iter().filter(|found| found.contains("message")).count(), 2, "{found:?}");
    for expected in ["debug!( has a field target", "error!( has a field kind", "span!( has a field name"] {
        assert!(found.iter().any(|found| found == expected), "{expected} is not in {found:?}");
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

#[test]
#[should_panic(expected = "the key message comes twice")]
fn a_line_with_a_key_twice_is_found() {
    check_lines("{\"message\":\"a\",\"n\":[1,{\"b\":null}],\"message\":\"b\"}\n");
}
