//! Raw bytes to attributes, over objects of real shapes, against parsing the same bytes into a
//! `serde_json::Value`.
//!
//! Times are ratios of medians taken in turns in one process, so that a busy machine slows both sides. Allocations
//! and instructions (callgrind, if valgrind is installed) do not depend on the load of the machine.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

mod shapes;

use std::{
    alloc::System,
    env,
    hint::black_box,
    io::Write,
    process::Command,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use kollect_engine::extract::{CompiledProfile, ExtractPolicy, OptIns};
use serde_json::{
    Value, json,
    value::{RawValue, to_raw_value},
};
use shapes::{container, deployment, metadata, ten_attributes};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 100;

struct Case {
    name: &'static str,
    object: Box<RawValue>,
    profile: CompiledProfile,
    /// Iterations per round: large objects need few.
    iterations: usize,
}

fn case(
    name: &'static str,
    iterations: usize,
    group: &str,
    kind: &str,
    object: Value,
    attributes: Value,
) -> Case {
    let spec =
        json!({ "targetGVK": { "group": group, "version": "v1", "kind": kind }, "attributes": attributes });
    let spec = serde_json::from_value(spec).unwrap();
    let profile = CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default());
    let profile = profile.unwrap_or_else(|errors| unreachable!("{errors:?}"));
    Case { name, object: to_raw_value(&object).unwrap(), profile, iterations }
}

fn cases() -> Vec<Case> {
    let deployment = deployment();
    let pod = json!({
        "metadata": metadata(110),
        "spec": { "nodeName": "node-1", "containers": [container(0, 16), container(1, 16)], "tolerations": [{ "operator": "Exists" }] },
        "status": { "phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{ "name": "c0", "ready": true, "restartCount": 0 }] },
    });
    let data: serde_json::Map<_, _> =
        (0..20).map(|i| (format!("file{i}.txt"), json!("some text \"quoted\"\n".repeat(530)))).collect();
    let config_map = json!({ "metadata": metadata(10), "data": data });
    // Text that gzip cannot shrink much, as real manifests in base64 are.
    let mut seed = 88_172_645_463_325_252_u64;
    let random_text: String = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        char::from(b'0' + u8::try_from(seed >> 58).unwrap())
    })
    .filter(|c| *c != '\\')
    .take(110_000)
    .collect();
    let release = json!({ "name": "cart", "version": 3, "info": { "status": "deployed" }, "manifest": random_text,
        "chart": { "metadata": { "name": "cart", "version": "1.2.3", "appVersion": "4.5" }, "templates": [random_text] } });
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(release.to_string().as_bytes()).unwrap();
    let release = STANDARD.encode(STANDARD.encode(gzip.finish().unwrap()));
    let secret =
        json!({ "metadata": metadata(5), "type": "helm.sh/release.v1", "data": { "release": release } });
    let three = json!([
        { "name": "image", "path": "$.spec.template.spec.containers[0].image" },
        { "name": "replicas", "path": "$.spec.replicas" },
        { "name": "count", "path": "cel:size(object.spec.template.spec.containers)" },
    ]);
    let labels = json!([{ "name": "labels", "path": "$.metadata.labels" }]);
    let helm = |fields: &[&str]| {
        fields.iter().map(|f| json!({ "name": f, "path": format!("helm:release.{f}") })).collect::<Value>()
    };
    vec![
        case(
            "Deployment, 10 attributes",
            200,
            "apps",
            "Deployment",
            deployment.clone(),
            ten_attributes("spec.template.spec"),
        ),
        case("Pod, 10 attributes", 100, "", "Pod", pod, ten_attributes("spec")),
        case("Deployment, 2 paths, 1 CEL", 200, "apps", "Deployment", deployment, three),
        case("ConfigMap, labels only", 10, "", "ConfigMap", config_map, labels),
        case("Helm release, 1 field", 1, "", "Secret", secret.clone(), helm(&["chartVersion"])),
        case(
            "Helm release, 5 fields",
            1,
            "",
            "Secret",
            secret,
            helm(&["chartVersion", "chartName", "status", "revision", "appVersion"]),
        ),
    ]
}

fn parse(case: &Case) {
    black_box(serde_json::from_str::<Value>(black_box(case.object.get())).unwrap());
}

fn extract(case: &Case) {
    black_box(case.profile.extract(&case.profile.gvk, black_box(&case.object), None).unwrap());
}

fn time(case: &Case, work: fn(&Case)) -> Duration {
    let start = Instant::now();
    (0..case.iterations).for_each(|_| work(case));
    start.elapsed()
}

fn median(mut times: Vec<Duration>, iterations: usize) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6 / f64::from(u32::try_from(iterations).unwrap())
}

/// Instructions of one extraction: callgrind counts a run with some and a run with none.
fn instructions(index: usize) -> Option<u64> {
    const RUNS: u64 = 20;
    let count = |runs: u64| -> Option<u64> {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(env::current_exe().ok()?)
            .args(["instructions", &index.to_string(), &runs.to_string()])
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().find_map(|line| line.split_once("Collected : "))?.1.trim().parse().ok()
    };
    Some((count(RUNS)? - count(0)?) / RUNS)
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let cases = cases();
    if let [_, mode, index, runs] = &args[..]
        && mode == "instructions"
    {
        let case = &cases[index.parse::<usize>().unwrap()];
        (0..runs.parse::<usize>().unwrap()).for_each(|_| extract(case));
        return;
    }
    println!(
        "{:<28}{:>9}{:>11}{:>9}{:>7}{:>8}{:>8}{:>14}",
        "", "bytes", "Value µs", "row µs", "ratio", "GB/s", "allocs", "instructions"
    );
    for (index, case) in cases.iter().enumerate() {
        let (mut parsed, mut extracted) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            parsed.push(time(case, parse));
            extracted.push(time(case, extract));
        }
        let (parsed, extracted) = (median(parsed, case.iterations), median(extracted, case.iterations));
        let region = Region::new(ALLOCATOR);
        extract(case);
        let change = region.change();
        let bytes = case.object.get().len();
        let speed = f64::from(u32::try_from(bytes).unwrap()) / extracted / 1e3;
        let instructions = instructions(index).map_or("no valgrind".into(), |count| count.to_string());
        println!(
            "{:<28}{bytes:>9}{parsed:>11.1}{extracted:>9.1}{:>7.2}{speed:>8.2}{:>8}{instructions:>14}",
            case.name,
            extracted / parsed,
            change.allocations + change.reallocations,
        );
    }
    println!(
        "\nratio: row / serde_json::Value of the same bytes; 2 paths and 1 CEL took the Go implementation 27.7 µs and 452 allocations"
    );
}
