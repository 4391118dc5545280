//! Secrets stay secret: what is removed from an object before anything reads it, and what is redacted
//! in the finished attributes.

use kollect_model::crd::shapes::Gvk;
use serde_json::{Map, Value, json};

/// Keys whose values are redacted: equal to one of these, or ending in one, without case.
const SENSITIVE: [&str; 12] = [
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
];

/// A switch that only sounds sensitive.
const HARMLESS: &str = "automountserviceaccounttoken";

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Removes what no expression may see: the data of Secrets, and kubectl's copy of the whole object,
/// which repeats everything that is removed or redacted elsewhere.
pub fn strip(gvk: &Gvk, object: &mut Map<String, Value>) {
    if gvk.group.is_empty() && gvk.kind == "Secret" {
        object.remove("data");
        object.remove("stringData");
    }
    let annotations = object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
        annotations.remove(LAST_APPLIED);
    }
}

/// Redacts attributes by their own name and by the keys inside them.
pub struct Scrubber {
    extra: Vec<String>,
}

impl Scrubber {
    /// A scrubber that knows further keys.
    pub fn new(extra: &[String]) -> Self {
        let extra = extra.iter().map(|key| key.trim().to_lowercase()).filter(|key| !key.is_empty());
        Self { extra: extra.collect() }
    }

    /// Redacts everything sensitive below.
    pub fn scrub(&self, attributes: &mut Map<String, Value>) {
        for (key, value) in attributes.iter_mut() {
            if !value.is_null() && self.is_sensitive(key) || is_carrier(key, value) {
                *value = marker();
            } else {
                self.scrub_value(value);
            }
        }
        // An environment variable says in `name` what `value` is.
        let named = attributes.get("name").and_then(Value::as_str).is_some_and(|n| self.is_sensitive(n));
        if let Some(value) = attributes.get_mut("value").filter(|_| named) {
            *value = marker();
        }
    }

    fn scrub_value(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => self.scrub(fields),
            Value::Array(items) => items.iter_mut().for_each(|item| self.scrub_value(item)),
            _ => {}
        }
    }

    fn is_sensitive(&self, key: &str) -> bool {
        let key = key.trim().to_lowercase();
        let known = SENSITIVE.iter().copied().chain(self.extra.iter().map(String::as_str));
        key != HARMLESS && known.into_iter().any(|word| key == word || word.len() > 2 && key.ends_with(word))
    }
}

fn is_carrier(key: &str, value: &Value) -> bool {
    let Value::Object(fields) = value else { return false };
    match key {
        "valueFrom" => fields.contains_key("secretKeyRef"),
        "secretKeyRef" | "secretRef" => true,
        "tls" => fields.contains_key("key"),
        _ => false,
    }
}

fn marker() -> Value {
    json!({ "redacted": true, "reason": "sensitive-key" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scrubbed(value: Value) -> Value {
        let Value::Object(mut fields) = value else { unreachable!("tests pass objects") };
        Scrubber::new(&["Pin".into()]).scrub(&mut fields);
        Value::Object(fields)
    }

    #[test]
    fn w37_attribute_names_keys_and_environment_pairs() {
        let dump = scrubbed(json!({
            "dbPassword": "hunter2",
            "pin": "hunter2",
            "env": [
                { "name": "DB_PASSWORD", "value": "hunter2" },
                { "name": "TZ", "value": "UTC" },
                { "name": "KEY", "valueFrom": { "secretKeyRef": { "name": "hunter2" } } },
            ],
            "nested": { "list": [{ "api_key": "hunter2" }] },
            "tls": { "key": "hunter2" },
            "automountServiceAccountToken": true,
            "replicas": 3,
        }))
        .to_string();
        assert!(!dump.contains("hunter2"), "{dump}");
        for kept in [r#""value":"UTC""#, r#""replicas":3"#, r#""automountServiceAccountToken":true"#] {
            assert!(dump.contains(kept), "{dump}");
        }
    }

    #[test]
    fn q11_secret_data_is_gone_before_anything_reads_it() {
        let gvk = Gvk { version: "v1".into(), kind: "Secret".into(), ..Gvk::default() };
        let mut secret = json!({
            "type": "Opaque",
            "metadata": { "name": "s", "annotations": { LAST_APPLIED: "hunter2", "team": "a" } },
            "data": { "x": "hunter2" }, "stringData": { "x": "hunter2" },
        });
        strip(&gvk, secret.as_object_mut().unwrap());
        assert!(!secret.to_string().contains("hunter2"), "{secret}");
        assert_eq!(secret["metadata"]["annotations"]["team"], "a");
        assert_eq!(secret["type"], "Opaque");
    }
}
