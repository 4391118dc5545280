//! A sink that is claimed: what it holds is compared with the rows, and what differs is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kollect_model::{
    batch::{Baseline, Batch, Delta, Receipt},
    claim::Claim,
    row::{Row, RowKey, TargetId},
    sink::{Delivery, Sink, SinkError},
};
use tokio::time::Instant;

use super::{
    Binding,
    claims::{ClaimCheckMember, GrantedClaim},
    coverage::is_complete,
    progress::HeldRows,
};
use crate::{
    delta::difference,
    store::{Snapshot, Visibilities, Visibility},
};

/// What an export did.
#[derive(Debug)]
pub struct Outcome {
    /// What differed, and was written but for the rows that were refused.
    pub delta: Delta,
    /// The receipt of the sink; empty if nothing was written.
    pub receipt: Receipt,
    /// Rows that the sink had already.
    pub unchanged: usize,
    /// Rows of the sink that were left alone because their objects cannot be seen.
    pub left_alone: usize,
    /// Rows that were correct in the sink, until another writer changed them.
    pub drifted: usize,
    /// Whether the sink holds all rows: every kind was seen, and no target is frozen.
    pub is_complete: bool,
    /// Rows that the sink keeps although their objects are not collected, by target.
    pub kept: BTreeMap<TargetId, KeptRows>,
}

/// Rows of a target that stay in a sink as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptRows {
    /// Number of rows beyond the reach of the target.
    pub beyond: usize,
    /// Their namespaces; none for cluster-scoped objects.
    pub namespaces: BTreeSet<Arc<str>>,
    /// Number of rows of kinds that the target has left: they wait until the kinds that it selects now can be listed.
    pub waiting: usize,
    /// The kinds that it has left.
    pub left_kinds: BTreeSet<Arc<str>>,
}

impl KeptRows {
    /// Finds the kept rows among the rows of a sink.
    pub(super) fn among(
        baseline: &Baseline,
        snapshot: &Snapshot,
        seen: &Visibilities,
    ) -> BTreeMap<TargetId, Self> {
        let mut found: BTreeMap<TargetId, Self> = BTreeMap::new();
        if seen.values().all(|visibility| *visibility == Visibility::Everything) {
            return found;
        }
        let targets: BTreeSet<&TargetId> = seen.keys().map(|(target, _, _)| target).collect();
        for key in baseline.keys().filter(|key| targets.contains(&key.target)) {
            let target_kind = (key.target.clone(), key.group.clone(), key.kind.clone());
            match seen.get(&target_kind).map(Visibility::beyond) {
                Some(Some(beyond)) if beyond.contains(&key.namespace) => {
                    let kept = found.entry(target_kind.0).or_default();
                    kept.beyond += 1;
                    kept.namespaces.extend(Some(&key.namespace).filter(|name| !name.is_empty()).cloned());
                }
                Some(_) => {}
                None if snapshot.knows_gone(key) => {}
                None => {
                    let kept = found.entry(target_kind.0).or_default();
                    kept.waiting += 1;
                    kept.left_kinds.insert(key.kind.clone());
                }
            }
        }
        found
    }
}

/// An open sink whose inventory is claimed.
pub(super) struct ClaimedSink {
    sink: Box<dyn Sink>,
    granted: GrantedClaim,
    check_member: ClaimCheckMember,
    /// When the claim was last checked.
    last_check: Instant,
    /// Spreads the checks of a sink's bindings over time.
    jitter: f64,
}

/// What differs between a sink and a snapshot.
pub(super) struct SinkDifference {
    pub(super) delta: Delta,
    /// What the sink holds.
    pub(super) held: HeldRows,
    /// Digests of the rows in the sink that differ.
    pub(super) before: Baseline,
    unchanged: usize,
    /// Rows of the sink whose objects cannot be seen.
    left_alone: BTreeSet<RowKey>,
    is_complete: bool,
    kept: BTreeMap<TargetId, KeptRows>,
}

impl ClaimedSink {
    pub(super) fn new(sink: Box<dyn Sink>, granted: GrantedClaim, binding: &Binding) -> Self {
        let check_member = binding.claim_checks.join(&binding.inventory);
        Self { sink, granted, check_member, last_check: Instant::now(), jitter: 0.8 + 0.4 * fastrand::f64() }
    }

    pub(super) fn delivery(&self) -> Delivery {
        self.sink.delivery()
    }

    fn claim_check_interval(&self, binding: &Binding) -> Option<Duration> {
        let interval = binding.claim_check_interval.unwrap_or_else(|| self.sink.claim_check_interval());
        // A write checks the claim as well, and sinks for snapshots have none.
        (!interval.is_zero() && self.delivery() != Delivery::Snapshots).then_some(interval)
    }

    /// When to check the claim if nothing is written before; `None`: never.
    pub(super) fn next_claim_check(&self, binding: &Binding, last_write: Option<Instant>) -> Option<Instant> {
        let interval = self.claim_check_interval(binding)?;
        Some(
            last_write.map_or(self.last_check, |write| write.max(self.last_check))
                + interval.mul_f64(self.jitter),
        )
    }

    /// Checks that the claim is still held.
    pub(super) async fn check_claim(
        &mut self,
        binding: &Binding,
        last_write: Option<Instant>,
    ) -> Result<(), SinkError> {
        let Some(interval) = self.claim_check_interval(binding) else { return Ok(()) };
        let since = last_write.map_or(self.last_check, |write| write.max(self.last_check));
        let (held, at) = self.check_member.held(&*self.sink, since, interval).await?;
        Claim::admits(held.as_ref(), &binding.inventory, &self.granted.claim)?;
        self.last_check = at;
        Ok(())
    }

    /// Reads the rows of the sink and compares them with the snapshot.
    pub(super) async fn compare(
        &self,
        binding: &Binding,
        snapshot: &Snapshot,
        seen: &Visibilities,
    ) -> Result<SinkDifference, SinkError> {
        let baseline = self.sink.baseline(&binding.inventory).await?;
        let delta = difference(&baseline, snapshot);
        let unchanged = snapshot.rows.len() - delta.added.len() - delta.changed.len();
        let is_unseen = |key: &&RowKey| !snapshot.rows.contains_key(*key) && !snapshot.knows_gone(key);
        let count = baseline.len() - unchanged - delta.changed.len() - delta.removed.len();
        let left_alone = match count {
            0 => BTreeSet::new(),
            _ => baseline.keys().filter(is_unseen).cloned().collect(),
        };
        let is_complete = !snapshot.has_frozen()
            && snapshot.undecided() == 0
            && seen.values().all(|visibility| is_complete(visibility, &binding.watched));
        let kept = KeptRows::among(&baseline, snapshot, seen);
        let mut held = HeldRows::new(binding.counts_namespaces);
        baseline.iter().for_each(|(key, digest)| held.change(key, None, Some(*digest)));
        let differing = delta.changed.iter().map(|changed| &changed.after.key);
        let differing = differing.chain(delta.removed.iter().map(|removed| &removed.key));
        let before = differing.filter_map(|key| Some((key.clone(), *baseline.get(key)?))).collect();
        Ok(SinkDifference { delta, held, before, unchanged, left_alone, is_complete, kept })
    }

    /// Writes a delta; `rows` are all rows after it. An empty delta is written too: the sink records the time and the coverage.
    pub(super) async fn write(
        &mut self,
        binding: &Binding,
        delta: &Delta,
        rows: &BTreeMap<RowKey, Arc<Row>>,
        revision: u64,
        coverage: &str,
    ) -> Result<Receipt, SinkError> {
        let Binding { inventory, generation, part_bytes, schema, .. } = binding;
        let last_checksum = binding.last_checksum.get();
        let batch = Batch {
            generation: *generation,
            revision,
            coverage,
            part_bytes: *part_bytes,
            rows,
            schema,
            last_checksum: last_checksum.as_deref(),
            ..Batch::new(inventory, &self.granted.claim, delta)
        };
        let receipt = self.sink.write(&batch).await?;
        self.granted.claim.count_write();
        Ok(receipt)
    }
}

impl SinkDifference {
    /// How many rows the sink holds.
    pub(super) fn held_rows(&self) -> usize {
        self.unchanged + self.left_alone.len() + self.delta.changed.len() + self.delta.removed.len()
    }

    /// The outcome, and the rows that were left alone.
    pub(super) fn into_outcome(self, receipt: Receipt, drifted: usize) -> (Outcome, BTreeSet<RowKey>) {
        let Self { delta, unchanged, left_alone: keys, is_complete, kept, .. } = self;
        let left_alone = keys.len();
        (Outcome { delta, receipt, unchanged, left_alone, drifted, is_complete, kept }, keys)
    }
}
