//! Samples are right, refused objects are refused, and no rule is without a case.

use std::{collections::BTreeSet, fs, path::PathBuf};

use kollect_model::crd::{GROUP, VERSION};
use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct Case {
    base: String,
    #[serde(default)]
    patch: Value,
    expect: Option<String>,
    offline: Option<String>,
    server: Option<String>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sample(name: &str) -> Value {
    let file = |group: &str| root().join(format!("config/samples/{group}/kollect_v1alpha1_{name}.yaml"));
    let text = fs::read_to_string(file("more")).or_else(|_| fs::read_to_string(file("start")));
    serde_saphyr::from_str(&text.unwrap()).unwrap()
}

fn cases() -> Vec<Case> {
    let file = root().join("crates/kollect/testdata/refused.yaml");
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

fn kind(object: &Value) -> &'static KindSchema {
    &kinds()[object["kind"].as_str().unwrap()]
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

#[test]
fn every_kind_has_a_sample_and_every_sample_is_right() {
    let mut seen = BTreeSet::new();
    let directories =
        ["config/samples/start", "config/samples/more"].map(|dir| fs::read_dir(root().join(dir)));
    let files = directories.into_iter().flat_map(Result::unwrap).map(|entry| entry.unwrap().path());
    for file in files.filter(|path| path.is_file()) {
        let text = fs::read_to_string(file).unwrap();
        for document in text.split("\n---\n") {
            let mut object: Value = serde_saphyr::from_str(document).unwrap();
            let ours = object["apiVersion"] == format!("{GROUP}/{VERSION}");
            // A namespace for the samples, and lists of them.
            if !ours && ["Namespace", "Kustomization"].map(Value::from).contains(&object["kind"]) {
                continue;
            }
            assert_eq!(kind(&object).check(&mut object), [], "{document}");
            seen.insert(kind(&object).name.clone());
        }
    }
    assert_eq!(seen, kinds().keys().cloned().collect());
}

#[test]
fn refused_objects_are_refused_with_the_expected_message() {
    for case in cases() {
        let Some(expected) = case.expect.or(case.offline) else { continue };
        let mut object = sample(&case.base);
        merge(&mut object, &case.patch);
        let errors: Vec<String> = kind(&object).check(&mut object).iter().map(ToString::to_string).collect();
        assert!(
            errors.iter().any(|error| error.contains(&expected)),
            "{} {}: {errors:#?}",
            case.base,
            case.patch
        );
    }
}

#[test]
fn every_rule_has_a_case() {
    fn messages(schema: &Value, found: &mut BTreeSet<String>) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            found.insert(rule["message"].as_str().unwrap().to_owned());
        }
        match schema {
            Value::Object(fields) => fields.values().for_each(|value| messages(value, found)),
            Value::Array(items) => items.iter().for_each(|value| messages(value, found)),
            _ => {}
        }
    }
    let cases: Vec<(String, String)> = cases()
        .into_iter()
        .map(|case| {
            (sample(&case.base)["kind"].as_str().unwrap().to_owned(), case.expect.or(case.server).unwrap())
        })
        .collect();
    let mut uncovered = Vec::new();
    for kind in kinds().values() {
        let mut rules = BTreeSet::new();
        messages(&kind.schema, &mut rules);
        let covered = |rule: &String| {
            cases.iter().any(|(name, expected)| *name == kind.name && rule.contains(expected))
        };
        uncovered
            .extend(rules.into_iter().filter(|rule| !covered(rule)).map(|rule| (kind.name.as_str(), rule)));
    }
    assert_eq!(uncovered, [], "add a refused object for each rule");
}

#[test]
fn all_problems_are_found_at_once() {
    let mut object = sample("kollectprofile");
    let patch = serde_json::json!({ "spec": { "targetGVK": { "kind": 7 }, "nope": 1, "attributes": [{ "name": "a" }] } });
    merge(&mut object, &patch);
    let fields: Vec<String> = kind(&object).check(&mut object).into_iter().map(|error| error.field).collect();
    assert_eq!(fields, ["spec.attributes[0].path", "spec.nope", "spec.targetGVK.kind"]);
}

#[test]
fn defaults_are_filled_in() {
    let mut object = sample("kollectinventory");
    merge(&mut object, &serde_json::json!({ "spec": { "exportMinInterval": null } }));
    assert_eq!(kind(&object).check(&mut object), []);
    assert_eq!(object["spec"]["exportMinInterval"], "30s");
}

#[test]
fn rules_and_patterns_are_compiled_once() {
    let mut object = sample("kollectinventory");
    let kind = kind(&object);
    assert_eq!(kind.check(&mut object), []);
    let first: *const CompiledSchema = kind.compiled();
    assert_eq!(kind.check(&mut object), []);
    assert!(std::ptr::eq(first, kind.compiled()), "the second check uses what the first has compiled");
}
