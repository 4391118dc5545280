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
            3 => (
                "args",
                json!(["--password", SECRET, format!("--token={SECRET}"), format!("redis://u:{SECRET}@h")]),
            ),
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
            &json!([{ "name": "one", "path": "$.env[0].value" }, { "name": "ref", "path": "$.args" }]),
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

/// Objects with a credential in every way that the tables know, in fields that random expressions read.
fn planted(random: &mut Random, secret: &str) -> Value {
    let words: Vec<&str> = crate::scrub::credential_words().collect();
    let name = |random: &mut Random| {
        let word = random.pick(&words);
        let prefix = random.pick(&["db_", "MY_", "app-", "x."]);
        format!(
            "{prefix}{word}{}",
            random.pick(&["", "_1", "s", "Value"]).trim_end_matches(if word.ends_with('s') {
                "s"
            } else {
                "~"
            })
        )
    };
    let env: Vec<Value> =
        (0..3).map(|_| json!({ "name": name(random), "value": secret, "image": "x" })).collect();
    let mut labels = serde_json::Map::new();
    labels.insert(name(random), json!(secret));
    labels.insert("app".into(), json!("web"));
    let texts = [
        format!("postgres://u:{secret}@h/db"),
        format!("--password={secret}"),
        format!("mysql -p{secret} shop"),
        format!("a: 1\npassword: {secret}\n"),
        format!("{{\"client_secret\":\"{secret}\"}}"),
        format!("-----BEGIN RSA PRIVATE KEY-----{secret}-----END RSA PRIVATE KEY-----"),
        format!("Authorization: Bearer {secret}"),
        format!("Server=x;Password={secret};"),
    ];
    json!({
        "metadata": { "name": "web", "labels": labels, "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": secret, "note": random.pick(&texts.each_ref().map(String::as_str)),
        } },
        "spec": {
            "containers": env, "replicas": 3, "tags": [random.pick(&texts.each_ref().map(String::as_str)), "a"],
            "credentials": { "user": "bob", "data": [secret, { "deep": secret }] }, "args": ["--token", secret],
        },
        "data": { name(random): secret, "app.properties": random.pick(&texts.each_ref().map(String::as_str)) },
    })
}

/// Whatever the expression: not in rows, errors, examples, places or notes.
#[test]
fn planted_credentials_never_leave() {
    const PATHS: &[&str] = &[
        "$",
        "$..*",
        "$.spec",
        "$.spec.containers[*].value",
        "$..value",
        "$.metadata.annotations",
        "$.data",
        "$.spec.tags[0]",
        "$.spec.containers[?(@.value == 'x')]",
        "$.spec.args[1]",
        "$.spec.credentials.data[1].deep",
        "$.metadata.labels",
    ];
    let secret = "Hunter2xQ9z";
    let mut random = Random(0x5bd1_e995_1234_0001);
    let (mut evaluated, mut hidden) = (0, 0);
    for round in 0..1_500 {
        let expression = format!("cel:{}", random.closed_expression());
        let type_ = random.pick(&["", "int", "bool", "map", "timestamp"]);
        let attributes = json!([
            { "name": "a", "path": expression, "optional": true, "type": type_ },
            { "name": "b", "path": random.pick(PATHS), "type": type_ },
            { "name": "required", "path": expression },
        ]);
        let required = round % 4 == 0;
        let attributes = if required { attributes } else { json!([attributes[0], attributes[1]]) };
        let export = (round % 3 == 0).then(|| json!({ "mode": "Resource", "include": "All" }));
        let mut spec =
            json!({ "targetGVK": { "version": "v1", "kind": "ConfigMap" }, "attributes": attributes });
        spec["export"] = export.unwrap_or_default();
        let policy = ExtractPolicy { records_places: true, ..ExtractPolicy::default() };
        let spec = serde_json::from_value(spec).unwrap();
        let Ok(profile) = CompiledProfile::compile(&spec, &OptIns::default(), &policy) else { continue };
        let object = planted(&mut random, secret);
        let raw = RawValue::from_string(object.to_string()).unwrap();
        let extracted = profile.extract(&profile.gvk, &raw, None);
        let shown = match &extracted {
            Ok(extracted) => format!("{} {extracted:?}", extracted.attributes),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(!shown.contains(secret), "{expression}\n{object}\n{shown}");
        evaluated += 1;
        hidden += usize::from(extracted.is_ok_and(|extracted| !extracted.notes.redactions.is_empty()));
    }
    assert!(evaluated > 800 && hidden > 400, "{evaluated} {hidden}");
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
