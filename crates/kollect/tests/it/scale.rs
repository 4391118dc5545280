//! What many rows cost in memory: the quick form of the benchmark. Times are for `make bench-scale`.

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
use process::{Memory, Watching};

/// Enough that their memory stands out from what the program needs for itself.
const ROWS: usize = 4000;
/// Bytes of a row, with room for what the allocator keeps: the benchmark is stricter.
const ROW: usize = 2000;

#[test]
fn rows_are_small_and_reading_them_needs_little_more() {
    // A control plane of its own: tests that look at the whole cluster should not see this many objects.
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
    assert!(row <= ROW, "{row} bytes per row");
    assert!(full.peak * 10 <= full.now * 13, "{} bytes, and {} for a time", full.now, full.peak);
}

/// Memory of the program when it watches so many rows.
fn memory(plane: &ControlPlane, namespaces: &[&str], rows: usize) -> Memory {
    let manifests = Manifests::deployments(namespaces).unwrap();
    let mut watching = Watching::start(manifests.path(), plane.kubeconfig()).unwrap();
    watching.synced(rows).unwrap();
    sleep(Duration::from_secs(1));
    watching.memory().unwrap()
}
