//! Expressions mean what they mean in Kubernetes: compared with its own CEL environment and with the conformance cases of CEL.

use std::{collections::BTreeMap, fs};

use kollect_engine::extract::{CompiledProfile, ExtractPolicy, OptIns};
use kollect_testbed::kube_cel;
use serde_json::{Value, json, value::to_raw_value};

use crate::program::root;

/// What an expression gives: `{"value", "type"}`, `{"error"}` or `{"invalid"}`, as `kube_cel` has it.
fn outcome(expression: &str, object: &Value) -> Value {
    let spec = json!({
        "targetGVK": { "version": "v1", "kind": "Test" },
        "attributes": [
            { "name": "v", "path": format!("cel:{expression}") },
            { "name": "t", "path": format!("cel:type({expression})") },
        ],
    });
    let spec = serde_json::from_value(spec).unwrap();
    let profile = match CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default()) {
        Ok(profile) => profile,
        Err(errors) => return json!({ "invalid": errors[0].problem }),
    };
    match profile.extract(&spec.target_gvk, &to_raw_value(object).unwrap(), None) {
        Ok(extracted) => {
            let attributes: Value = serde_json::from_str(extracted.attributes.get()).unwrap();
            json!({ "value": attributes["v"], "type": attributes["t"] })
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

/// Whether two outcomes are the same: equal values of the same type, or both none. Numbers are compared as doubles.
fn agree(ours: &Value, theirs: &Value) -> bool {
    let fails = |outcome: &Value| outcome.get("value").is_none();
    match (fails(ours), fails(theirs)) {
        (true, true) => true,
        (false, false) => same(&ours["value"], &theirs["value"]) && ours["type"] == theirs["type"],
        _ => false,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

/// The beginnings of names of conformance cases that give something else, each with the reason. One that names no such case any
/// more must leave the list.
fn accepted_differences() -> Vec<String> {
    let list = fs::read_to_string(root().join("crates/kollect/testdata/cel/conformance.txt")).unwrap();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split_once(": ").unwrap().0.to_owned()).collect()
}

#[test]
fn conformance_cases_of_cel_give_what_they_expect() {
    let (mut passed, mut refused, mut excluded) = (0, 0, BTreeMap::<String, usize>::new());
    let (mut wrong, mut accepted) = (Vec::new(), BTreeMap::<String, usize>::new());
    let accepted_names = accepted_differences();
    for case in kube_cel::conformance_cases().unwrap() {
        let text = |field: &str| case[field].as_str().unwrap_or_default();
        if !text("excluded").is_empty() {
            *excluded.entry(text("excluded").to_owned()).or_default() += 1;
            continue;
        }
        let bindings = case["bindings"].as_object().into_iter().flatten();
        let mut expression = bindings.fold(text("expr").to_owned(), |expression, (name, value)| {
            format!("cel.bind({name}, {}, {expression})", value.as_str().unwrap())
        });
        let mut expected = case["expected"].clone();
        // JSON has no NaN.
        if let Some(double) = expected["value"]["double"].as_str() {
            expression = format!("string({expression})");
            expected = json!({ "value": double, "type": "string" });
        }
        let found = outcome(&expression, &json!({}));
        let name = format!("{}/{}", text("file"), text("name"));
        let unavailable = found["invalid"].as_str().is_some_and(|problem| {
            problem.contains("there is no message") || problem.contains("there is no variable")
        });
        if agree(&found, &expected) {
            passed += 1;
        } else if let Some(known) = accepted_names.iter().find(|known| name.starts_with(*known)) {
            *accepted.entry(known.clone()).or_default() += 1;
        } else if unavailable {
            refused += 1;
        } else {
            wrong.push(format!("{name}: {expression}\n    expected {expected}\n    found    {found}"));
        }
    }
    let different: usize = accepted.values().sum();
    println!(
        "passed {passed}, refused by name {refused}, different {different}, not about this build {excluded:?}"
    );
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
    for name in accepted_names {
        assert!(accepted.contains_key(&name), "{name}: no case that begins like this differs");
    }
    assert!(passed >= 1600, "{passed}");
}

/// The object of the expressions below.
fn object() -> Value {
    json!({
        "a": null, "n": 1, "s": "x", "l": [1, 2], "m": { "k": "v" }, "z": [],
        "big": 12_345_678_901_234_567_890_u64, "f": 1.5,
    })
}

#[test]
fn expressions_give_what_kubernetes_gives() {
    let list = fs::read_to_string(root().join("crates/kollect/testdata/cel/expressions.txt")).unwrap();
    let lines = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expressions: Vec<(&str, Option<&str>)> = lines
        .map(|line| line.split_once(" ## ").map_or((line, None), |(text, why)| (text.trim_end(), Some(why))))
        .collect();
    let input = |text: &str| json!({ "expr": text, "object": object(), "namespaceObject": null });
    let inputs: Vec<Value> = expressions.iter().map(|(text, _)| input(text)).collect();
    let mut wrong = Vec::new();
    for ((text, why), theirs) in expressions.iter().zip(kube_cel::evaluate(&inputs).unwrap()) {
        let mut ours = outcome(text, &object());
        // JSON has no NaN.
        if theirs["value"]["double"].is_string() {
            ours = json!({ "value": { "double": outcome(&format!("string({text})"), &object())["value"] }, "type": "double" });
        }
        if agree(&ours, &theirs) == why.is_some() {
            wrong.push(format!("{text}\n    Kubernetes {theirs}\n    here       {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ\n{}", wrong.len(), expressions.len(), wrong.join("\n"));
}
