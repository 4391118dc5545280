//! What a sink must change to hold a snapshot.

use kollect_model::batch::{Baseline, Delta};

use crate::store::Snapshot;

/// The difference between what a sink holds and a snapshot. Rows whose kind is blind stay as they are.
pub fn difference(baseline: &Baseline, snapshot: &Snapshot) -> Delta {
    let mut delta = Delta::default();
    for (key, row) in &snapshot.rows {
        match baseline.get(key) {
            None => delta.added.push(row.clone()),
            Some(digest) if *digest != row.digest => delta.changed.push(row.clone()),
            Some(_) => {}
        }
    }
    delta.removed = baseline.keys().filter(|key| snapshot.knows_gone(key)).cloned().collect();
    delta
}
