//! Raw bytes to attributes, against parsing the same bytes into a `serde_json::Value`.
//!
//! Prints a ratio: both sides run in turns in the same process, so that a busy machine slows both.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

use std::{hint::black_box, time::Instant};

use kollect_engine::extract::{CompiledProfile, OptIns, Policy};
use serde_json::{Value, json, value::to_raw_value};

const ROUNDS: usize = 200;
const PER_ROUND: usize = 100;

fn deployment() -> Value {
    let container = |index: usize| {
        json!({
            "name": format!("c{index}"), "image": format!("registry.example.com/shop/c{index}:1.2.3"),
            "ports": [{ "containerPort": 8080, "protocol": "TCP" }],
            "env": (0..12).map(|i| json!({ "name": format!("SETTING_{i}"), "value": "x".repeat(40) })).collect::<Vec<_>>(),
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" } },
        })
    };
    let managed: Vec<_> = (0..20).map(|i| (format!("f:field{i}"), json!({ "f:nested": {} }))).collect();
    json!({
        "metadata": {
            "name": "cart", "namespace": "shop", "uid": "6f0e", "labels": { "team": "shop", "tier": "web" },
            "annotations": { "owner": "shop@example.com" },
            "managedFields": [{ "manager": "kubectl", "fieldsV1": managed.into_iter().collect::<serde_json::Map<_, _>>() }],
        },
        "spec": { "replicas": 3, "strategy": { "type": "RollingUpdate" }, "template": { "spec": { "containers": [container(0), container(1)] } } },
        "status": { "replicas": 3, "readyReplicas": 3 },
    })
}

fn main() {
    let spec = serde_json::from_value(json!({
        "targetGVK": { "group": "apps", "version": "v1", "kind": "Deployment" },
        "attributes": [
            { "name": "image", "path": "$.spec.template.spec.containers[0].image", "type": "string" },
            { "name": "replicas", "path": "$.spec.replicas", "type": "int" },
            { "name": "team", "path": "$.metadata.labels.team", "type": "string" },
            { "name": "labels", "path": "$.metadata.labels", "type": "map" },
            { "name": "strategy", "path": "$.spec.strategy.type", "type": "string" },
        ],
    }))
    .unwrap();
    let profile = CompiledProfile::compile(&spec, OptIns::default(), &Policy::default())
        .unwrap_or_else(|errors| unreachable!("{errors:?}"));
    let raw = to_raw_value(&deployment()).unwrap();
    let (mut parse, mut extract) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..PER_ROUND {
            black_box(serde_json::from_str::<Value>(black_box(raw.get())).unwrap());
        }
        parse.push(start.elapsed());
        let start = Instant::now();
        for _ in 0..PER_ROUND {
            black_box(profile.extract(&profile.gvk, black_box(&raw), None).unwrap());
        }
        extract.push(start.elapsed());
    }
    parse.sort();
    extract.sort();
    let (parse, extract) = (parse[ROUNDS / 2], extract[ROUNDS / 2]);
    let per =
        |total: std::time::Duration| total.as_secs_f64() * 1e6 / f64::from(u32::try_from(PER_ROUND).unwrap());
    println!("Deployment of {} bytes, median of {ROUNDS} rounds", raw.get().len());
    println!("{:<28}{:>10}{:>8}", "", "µs", "ratio");
    println!("{:<28}{:>10.2}{:>8.2}", "serde_json::Value", per(parse), 1.0);
    println!("{:<28}{:>10.2}{:>8.2}", "attributes, 5 paths", per(extract), per(extract) / per(parse));
}
