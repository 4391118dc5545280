//! Memory for many rows: the quick form of the benchmark. `make bench-scale` measures times.

#[path = "../../benches/scale/manifests.rs"]
#[expect(dead_code, reason = "the benchmark watches more")]
mod manifests;
#[path = "../../benches/scale/objects.rs"]
#[expect(dead_code, reason = "the benchmark changes objects")]
mod objects;
#[path = "../../benches/scale/process.rs"]
#[expect(dead_code, reason = "the benchmark measures more")]
mod process;

use std::{thread::sleep, time::Duration};

use kollect_testbed::ControlPlane;
use manifests::Manifests;
use process::{KollectProcess, Memory};

/// Enough that they need much more memory than the program itself.
const ROWS: usize = 4000;
/// Bytes of a row, with room for what the allocator keeps: the benchmark is stricter.
const MAX_BYTES_PER_ROW: usize = 2000;

#[test]
fn memory_per_row_and_the_peak_during_a_list_are_small() {
    // A control plane of its own: tests that watch the whole cluster should not see this many objects.
    let plane = ControlPlane::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = objects::client(plane.kubeconfig()).await.unwrap();
        objects::create_namespaces(&client).await.unwrap();
        objects::create(&client, ROWS, |_, _| {}).await.unwrap();
    });
    let idle = memory(&plane, &["nowhere"], 0);
    let full = memory(&plane, &[], ROWS);
    let row = full.now.saturating_sub(idle.now) / ROWS;
    println!("idle {}, full {}, peak {}: {row} bytes per row", idle.now, full.now, full.peak);
    assert!(row <= MAX_BYTES_PER_ROW, "{row} bytes per row");
    assert!(full.peak * 10 <= full.now * 13, "{} bytes, and {} for a time", full.now, full.peak);
}

/// Memory of the program when it watches so many rows.
fn memory(plane: &ControlPlane, namespaces: &[&str], rows: usize) -> Memory {
    let manifests = Manifests::deployments(namespaces).unwrap();
    let mut process = KollectProcess::start(manifests.path(), plane.kubeconfig()).unwrap();
    process.wait_until_synced(rows).unwrap();
    sleep(Duration::from_secs(1));
    process.memory().unwrap()
}
