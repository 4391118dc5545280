//! Differences between two versions of a row.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// An attribute that was added, changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeDifference {
    /// Its name.
    pub name: String,
    /// Its JSON before, if there was one.
    pub before: Option<String>,
    /// Its JSON now, if there is one.
    pub after: Option<String>,
}

/// The attributes that differ, by name. Attributes are canonical JSON, so equal values are equal texts.
pub fn differences(before: Option<&str>, after: &str) -> Vec<AttributeDifference> {
    let mut before = before.map(attributes).unwrap_or_default();
    let mut differences = Vec::new();
    for (name, value) in attributes(after) {
        let old = before.remove(&name).map(ToString::to_string);
        if old.as_deref() != Some(value.get()) {
            differences.push(AttributeDifference { name, before: old, after: Some(value.to_string()) });
        }
    }
    let removed = before.into_iter();
    differences.extend(removed.map(|(name, old)| AttributeDifference {
        name,
        before: Some(old.to_string()),
        after: None,
    }));
    differences.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    differences
}

fn attributes(json: &str) -> BTreeMap<String, &RawValue> {
    serde_json::from_str(json).unwrap_or_default()
}

/// Longer values are cut, so that other changes stay visible.
const LONGEST_VALUE: usize = 80;

/// A value for messages, cut if it is too long.
pub fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_VALUE {
        return text.to_owned();
    }
    text.chars().take(LONGEST_VALUE - 1).chain("…".chars()).collect()
}
