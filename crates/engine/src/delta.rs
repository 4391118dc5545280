//! The changes that make a sink hold the rows of a snapshot.

use kollect_model::batch::{Baseline, ChangedRow, Delta, RemovedRow};

use crate::store::Snapshot;

/// The difference between the rows of a sink and a snapshot. Rows of blind kinds are not removed.
pub fn difference(baseline: &Baseline, snapshot: &Snapshot) -> Delta {
    let mut delta = Delta::default();
    for (key, row) in &snapshot.rows {
        match baseline.get(key) {
            None => delta.added.push(row.clone()),
            Some(digest) if *digest != row.digest => {
                delta.changed.push(ChangedRow { before: None, after: row.clone() });
            }
            Some(_) => {}
        }
    }
    let removed = baseline.keys().filter(|key| snapshot.knows_gone(key));
    delta.removed = removed.map(|key| RemovedRow { key: key.clone(), before: None }).collect();
    delta
}
