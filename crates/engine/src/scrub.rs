//! Protects secrets: removes fields of an object before an expression reads it, and redacts sensitive values.
//!
//! Redaction runs twice: on what was read of the object, so that no expression can copy a secret to another name, and
//! on the finished attributes, whose own names may be sensitive.

use std::borrow::Cow;

use kollect_model::crd::shapes::Gvk;

use crate::json::{Json, JsonMap, Projection};

/// Keys whose values are redacted: equal to one of these, or ending in one, without case.
const SENSITIVE: [&str; 17] = [
    "password",
    "passwd",
    "secret",
    "token",
    "apikey",
    "api_key",
    "privatekey",
    "private_key",
    "credential",
    "auth",
    "clientsecret",
    "connectionstring",
    "credentials",
    "accesskey",
    "access_key",
    "secretkey",
    "secret_key",
];

/// This field ends in a sensitive word, but holds a boolean and no secret.
const HARMLESS: &str = "automountServiceAccountToken";

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether the kind keeps secrets in `data` and `stringData`.
pub(crate) fn is_secret(gvk: &Gvk) -> bool {
    gvk.group.is_empty() && gvk.kind == "Secret"
}

/// Removes what no expression may see: kubectl's copy of the whole object, which repeats everything
/// that is removed or redacted elsewhere, and the data of a Secret unless it was opted in.
pub(crate) fn remove_hidden_fields(object: &mut JsonMap<'_>, without_data: bool) {
    if without_data {
        object.remove("data");
        object.remove("stringData");
    }
    if let Some(Json::Map(metadata)) = object.get_mut("metadata")
        && let Some(Json::Map(annotations)) = metadata.get_mut("annotations")
    {
        annotations.remove(LAST_APPLIED);
    }
}

/// Redacts values by their keys.
#[derive(Clone, Debug, Default)]
pub struct Scrubber {
    extra: Vec<String>,
}

impl Scrubber {
    /// A scrubber with further sensitive keys.
    pub fn new<'k>(extra: impl IntoIterator<Item = &'k String>) -> Self {
        let extra = extra.into_iter().map(|key| key.trim().to_lowercase()).filter(|key| !key.is_empty());
        Self { extra: extra.collect() }
    }

    /// Redacts everything sensitive in a map and below.
    pub(crate) fn scrub(&self, map: &mut JsonMap<'_>) {
        for (key, value) in map.iter_mut() {
            if !value.is_null() && self.is_sensitive(key) || holds_secret(key, value) {
                *value = marker();
            } else {
                self.scrub_value(value);
            }
        }
        // In an environment variable, `name` holds the sensitive word and `value` the secret.
        let named = map.get("name").and_then(Json::as_str).is_some_and(|name| self.is_sensitive(name));
        if named && let Some(value) = map.get_mut("value") {
            *value = marker();
        }
    }

    fn scrub_value(&self, value: &mut Json<'_>) {
        match value {
            Json::Map(map) => self.scrub(map),
            Json::List(items) => items.iter_mut().for_each(|item| self.scrub_value(item)),
            _ => {}
        }
    }

    fn is_sensitive(&self, key: &str) -> bool {
        let key = key.trim();
        let ends_in = |word: &str| {
            let tail = key.len().checked_sub(word.len()).and_then(|at| key.as_bytes().get(at..));
            let same = |(a, b): (&u8, u8)| a.eq_ignore_ascii_case(&b) || *a == b'-' && b == b'_';
            tail.is_some_and(|tail| tail.iter().zip(word.bytes()).all(same))
                && (word.len() > 2 || key.len() == word.len())
        };
        let extra = |word: &String| {
            if word.is_ascii() { ends_in(word) } else { key.to_lowercase().ends_with(word.as_str()) }
        };
        (SENSITIVE.iter().any(|word| ends_in(word)) || self.extra.iter().any(extra)) && key != HARMLESS
    }
}

/// Adds fields that redaction needs: the `name` beside a `value`, and the fields that mark a map with a secret. Without
/// them, redaction would depend on which other fields a profile reads.
pub(crate) fn add_redaction_fields(projection: &mut Projection) {
    if projection.is_everything() {
        return;
    }
    if projection.has_key("value") {
        projection.key("name").take_all();
    }
    for (key, marking_field) in [("tls", "key"), ("valueFrom", "secretKeyRef")] {
        if projection.has_key(key) {
            projection.key(key).key(marking_field);
        }
        // A wildcard may stand for the key of such a map.
        if let Some(each) = projection.each_mut() {
            each.key(marking_field);
        }
    }
    projection.children_mut().for_each(add_redaction_fields);
}

fn holds_secret(key: &str, value: &Json<'_>) -> bool {
    let Json::Map(map) = value else { return false };
    match key {
        "valueFrom" => map.get("secretKeyRef").is_some(),
        "secretKeyRef" | "secretRef" => true,
        "tls" => map.get("key").is_some(),
        _ => false,
    }
}

/// The value that replaces a redacted one.
pub(crate) fn marker() -> Json<'static> {
    let entries = [
        (Cow::Borrowed("reason"), Json::String(Cow::Borrowed("sensitive-key"))),
        (Cow::Borrowed("redacted"), Json::Bool(true)),
    ];
    Json::Map(entries.into_iter().collect())
}

/// Whether a value is the marker.
pub(crate) fn is_marker(value: &Json<'_>) -> bool {
    let Json::Map(map) = value else { return false };
    map.len() == 2
        && map.get("redacted") == Some(&Json::Bool(true))
        && map.get("reason").and_then(Json::as_str) == Some("sensitive-key")
}

/// Whether the part of a value that the projection reads contains the marker.
pub(crate) fn reads_marker(projection: &Projection, value: &Json<'_>) -> bool {
    if is_marker(value) {
        return true;
    }
    match value {
        Json::Map(map) => map.iter().any(|(key, value)| {
            projection.of_key(key).is_some_and(|projection| reads_marker(&projection, value))
        }),
        Json::List(items) => {
            let each = projection.of_items();
            items.iter().any(|item| each.is_some_and(|each| reads_marker(each, item)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(text: &str) -> String {
        let mut value = Json::read(text, &Projection::everything()).unwrap();
        Scrubber::new(&["Pin".to_owned(), "Ключ".to_owned()]).scrub_value(&mut value);
        let mut out = String::new();
        value.write(&mut out);
        out
    }

    #[test]
    fn sensitive_keys_and_environment_variables_are_redacted() {
        let dump = scrubbed(
            r#"{
            "dbPassword": "hunter2", "pin": "hunter2", "PIN": 7, "Ключ": "hunter2",
            "env": [
                { "name": "DB_PASSWORD", "value": "hunter2" },
                { "value": "hunter2", "name": "API_TOKEN" },
                { "name": "AWS_SECRET_ACCESS_KEY", "value": "hunter2" },
                { "name": "x-api-key", "value": "hunter2" },
                { "name": "TZ", "value": "UTC" },
                { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "hunter2" } } }
            ],
            "nested": { "list": [[{ "api_key": { "deep": "hunter2" } }]] },
            "tls": { "key": "hunter2" },
            "automountServiceAccountToken": true,
            "replicas": 3
        }"#,
        );
        assert!(!dump.contains("hunter2"), "{dump}");
        for kept in [r#""value":"UTC""#, r#""replicas":3"#, r#""automountServiceAccountToken":true"#] {
            assert!(dump.contains(kept), "{dump}");
        }
        assert_eq!(dump.matches(r#"{"reason":"sensitive-key","redacted":true}"#).count(), 11, "{dump}");
    }

    #[test]
    fn names_are_read_beside_values() {
        let text = r#"{"env":[{"name":"DB_PASSWORD","value":"hunter2","other":1}]}"#;
        let mut projection = Projection::default();
        projection.key("env").each().key("value").take_all();
        add_redaction_fields(&mut projection);
        let mut value = Json::read(text, &projection).unwrap();
        Scrubber::default().scrub_value(&mut value);
        let mut out = String::new();
        value.write(&mut out);
        assert_eq!(
            out,
            r#"{"env":[{"name":"DB_PASSWORD","value":{"reason":"sensitive-key","redacted":true}}]}"#
        );
        assert!(reads_marker(&projection, &value));
        let mut names = Projection::default();
        names.key("env").each().key("name").take_all();
        assert!(!reads_marker(&names, &value));
    }
}
