//! What a cluster inventory holds, namespace by namespace. All rows are looked at, so not too often.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_engine::{
    export::Choice,
    store::{Sight, StoreReader},
};
use kollect_model::{crd::inventory::NamespaceShard, row::TargetId};
use tokio::time::Instant;

use crate::world::InventoryName;

/// Shards of one inventory are made again at most so often.
const PACE: Duration = Duration::from_secs(10);

/// The shards that were made last.
#[derive(Default)]
pub(crate) struct Shards(BTreeMap<InventoryName, Made>);

struct Made {
    at: Instant,
    of: (u64, Vec<TargetId>, Choice),
    shards: Vec<NamespaceShard>,
}

impl Shards {
    /// What the inventory holds now, or did some seconds ago.
    pub(crate) fn of(
        &mut self,
        name: &InventoryName,
        rows: &StoreReader,
        targets: &[TargetId],
        choice: Choice,
    ) -> Vec<NamespaceShard> {
        let of = (rows.revision(targets), targets.to_vec(), choice);
        if let Some(made) = self.0.get(name).filter(|made| made.of == of || made.at.elapsed() < PACE) {
            return made.shards.clone();
        }
        let shards = shards(rows, targets, &of.2);
        self.0.insert(name.clone(), Made { at: Instant::now(), of, shards: shards.clone() });
        shards
    }

    /// Forgets inventories that are gone.
    pub(crate) fn retain(&mut self, keep: impl Fn(&InventoryName) -> bool) {
        self.0.retain(|name, _| keep(name));
    }
}

/// Rows, targets and the sum of digests.
type Contents = (i32, BTreeSet<Arc<str>>, u128);

fn shards(rows: &StoreReader, targets: &[TargetId], choice: &Choice) -> Vec<NamespaceShard> {
    let mut snapshot = rows.snapshot_of_seen(targets, Sight::Everything);
    choice.apply(&mut snapshot);
    let mut found: BTreeMap<Arc<str>, Contents> = BTreeMap::new();
    for (key, row) in &snapshot.rows {
        let (count, targets, digest) = found.entry(key.namespace.clone()).or_default();
        *count += 1;
        targets.insert(key.target.name.clone());
        *digest = digest.wrapping_add(row.digest.0);
    }
    let shard = |(namespace, (count, targets, digest)): (Arc<str>, Contents)| NamespaceShard {
        namespace: namespace.to_string(),
        item_count: Some(count),
        target_count: targets.len().try_into().ok(),
        checksum: Some(format!("{digest:032x}")),
    };
    found.into_iter().map(shard).collect()
}
