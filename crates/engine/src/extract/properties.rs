//! Invariants that hold for every object: tests with random objects from a fixed seed.

use std::fmt::Write;

use serde_json::{Value, json};

use super::*;
use crate::random::Random;

const SECRET: &str = "hunter2";

/// A map that has `SECRET` only in fields that must be redacted.
fn object_with_secrets(random: &mut Random, depth: usize) -> Value {
    let mut map = serde_json::Map::new();
    for _ in 0..random.below(5) {
        let (key, value) = match random.below(8) {
            0 => (
                random.pick(&["password", "DB_PASSWORD", "apiKey", "x-auth-token", "clientSecret"]),
                json!(SECRET),
            ),
            1 => (random.pick(&["Token", "my_credentials"]), json!({ "deep": [SECRET, { "er": SECRET }] })),
            2 => ("env", json!([{ "name": random.pick(&["API_KEY", "SESSION_SECRET"]), "value": SECRET }])),
            3 => ("valueFrom", json!({ "secretKeyRef": { "name": SECRET, "key": SECRET } })),
            4 => ("tls", json!({ "key": SECRET, "cert": "x" })),
            5 if depth > 0 => (random.pick(&["spec", "items", "a"]), object_with_secrets(random, depth - 1)),
            6 if depth > 0 => (
                random.pick(&["list", "b"]),
                json!([object_with_secrets(random, depth - 1), [object_with_secrets(random, depth - 1)]]),
            ),
            _ => (random.pick(&["image", "name", "replicas"]), json!(random.below(100))),
        };
        map.insert(key.to_owned(), value);
    }
    Value::Object(map)
}

fn profile(attributes: &Value, export: Option<Value>) -> CompiledProfile {
    let mut spec =
        json!({ "targetGVK": { "group": "x", "version": "v1", "kind": "Thing" }, "attributes": attributes });
    spec["export"] = export.unwrap_or_default();
    let spec = serde_json::from_value(spec).unwrap();
    CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default())
        .unwrap_or_else(|e| unreachable!("{e:?}"))
}

fn extract(profile: &CompiledProfile, text: String) -> String {
    let raw = RawValue::from_string(text).unwrap();
    match profile.extract(&profile.gvk, &raw, None) {
        Ok(extracted) => extracted.attributes.get().to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn no_secret_of_an_object_is_ever_in_a_row() {
    let profiles = [
        profile(&json!([{ "name": "all", "path": "{.}" }]), None),
        profile(
            &json!([{ "name": "deep", "path": "{..*}" }, { "name": "values", "path": "{..value}" }]),
            None,
        ),
        profile(
            &json!([{ "name": "env", "path": "{..env[*].value}" }, { "name": "spec", "path": "$.spec.spec" }]),
            None,
        ),
        profile(
            &json!([{ "name": "one", "path": "$.env[0].value" }, { "name": "ref", "path": "$.valueFrom.secretKeyRef.name" }]),
            None,
        ),
        profile(
            &json!([{ "name": "token", "path": "$.Token.deep[0]" }, { "name": "tls", "path": "$.tls" }]),
            None,
        ),
        profile(&json!([{ "name": "cel", "path": "cel:object", "optional": true }]), None),
        profile(
            &json!([{ "name": "cel", "path": "cel:object.env.map(e, e.value)", "optional": true }]),
            None,
        ),
        profile(&json!([]), Some(json!({ "mode": "Resource", "include": "All" }))),
    ];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut redacted = 0;
    for _ in 0..2_000 {
        let object = object_with_secrets(&mut random, 4).to_string();
        for profile in &profiles {
            let row = extract(profile, object.clone());
            assert!(!row.contains(SECRET), "{object}\n{row}");
            redacted += usize::from(row.contains("sensitive-key"));
        }
    }
    assert!(redacted > 2_000, "secrets were planted: {redacted}");
}

/// Writes a value with its keys in a random order.
fn shuffled(value: &Value, random: &mut Random, out: &mut String) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            for last in (1..entries.len()).rev() {
                entries.swap(last, random.below(last + 1));
            }
            out.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                write!(out, "{} {}: ", if index > 0 { "," } else { "" }, json!(key)).unwrap();
                shuffled(value, random, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                shuffled(item, random, out);
            }
            out.push(']');
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

#[test]
fn rows_never_depend_on_the_order_of_keys() {
    let attributes = json!([
        { "name": "all", "path": "{.}" }, { "name": "spec", "path": "$.spec" },
        { "name": "images", "path": "{..image}" }, { "name": "cel", "path": "cel:object", "optional": true },
    ]);
    let profile = profile(&attributes, None);
    let mut random = Random(42);
    for _ in 0..500 {
        let object = object_with_secrets(&mut random, 4);
        let mut text = String::new();
        shuffled(&object, &mut random, &mut text);
        assert_eq!(extract(&profile, object.to_string()), extract(&profile, text));
    }
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let pieces = [
        "{", "}", "[", "]", ":", ",", "\"", "\\", "a", "é", "1", "-", "true", "null", "\"k\":", "\\u12", " ",
        "{\"a\":",
    ];
    let mut random = Random(7);
    let mut projection = Projection::default();
    projection.key("a").each().key("k").take_all();
    for _ in 0..50_000 {
        let text: String = (0..random.below(12)).map(|_| random.pick(&pieces)).collect();
        for projection in [&Projection::everything(), &projection, &Projection::default()] {
            drop(Json::read(&text, projection));
        }
    }
}
