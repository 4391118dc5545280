//! Counters: turns of the loop, attempts on sinks, probes.

use std::time::Duration;

use async_trait::async_trait;
use kollect_engine::collect::CollectProblem;
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    claim::{Claim, Claimant},
    row::RowKey,
    sink::{Atomicity, Delivery, ErrorClass, Sink, SinkError},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};
use tokio::time::Instant;

/// Histogram buckets of turns and writes: those of the Go implementation.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// The value of the label; the operator has one loop.
const CONTROLLER: &str = "operator";
/// Kinds whose error counters start at zero, so that the first error is an increase.
const KINDS: [&str; 4] =
    ["KollectTarget", "KollectClusterTarget", "KollectInventory", "KollectClusterInventory"];
const CLASSES: [ErrorClass; 3] = [ErrorClass::Transient, ErrorClass::Terminal, ErrorClass::Forbidden];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TurnLabel {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ControllerLabel {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailedLabel {
    kind: &'static str,
    error_class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SinkTypeLabel {
    sink_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TestedLabel {
    r#type: &'static str,
    result: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn class_label(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Transient => "transient",
        ErrorClass::Terminal => "terminal",
        ErrorClass::Forbidden => "forbidden",
    }
}

fn result_label(succeeded: bool) -> &'static str {
    if succeeded { "success" } else { "failure" }
}

/// All counters. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Meter {
    turns: Family<TurnLabel, Counter>,
    turn_seconds: Histograms<ControllerLabel>,
    errors: Family<FailedLabel, Counter>,
    write_seconds: Histograms<SinkTypeLabel>,
    bytes: Family<SinkTypeLabel, Counter>,
    sink_errors: Family<ReasonLabel, Counter>,
    tests: Family<TestedLabel, Counter>,
}

impl Default for Meter {
    fn default() -> Self {
        let meter = Self {
            turns: Family::default(),
            turn_seconds: Family::new_with_constructor(histogram),
            errors: Family::default(),
            write_seconds: Family::new_with_constructor(histogram),
            bytes: Family::default(),
            sink_errors: Family::default(),
            tests: Family::default(),
        };
        for succeeded in [true, false] {
            drop(
                meter
                    .turns
                    .get_or_create(&TurnLabel { controller: CONTROLLER, result: result_label(succeeded) }),
            );
        }
        for error_class in CLASSES.map(class_label) {
            drop(meter.sink_errors.get_or_create(&ReasonLabel { reason: error_class }));
            for kind in KINDS {
                drop(meter.errors.get_or_create(&FailedLabel { kind, error_class }));
            }
        }
        meter
    }
}

impl Meter {
    #[expect(clippy::disallowed_methods, reason = "all of these have labels, and are documented")]
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("kollect_reconcile", "Turns of the reconcile loop", self.turns.clone());
        registry.register(
            "kollect_reconcile_duration_seconds",
            "How long a turn of the loop took",
            self.turn_seconds.clone(),
        );
        registry.register(
            "kollect_reconcile_errors",
            "Failed attempts, by the kind of the object that they were made for",
            self.errors.clone(),
        );
        registry.register(
            "kollect_export_duration_seconds",
            "How long a write of rows took, whether it succeeded or not",
            self.write_seconds.clone(),
        );
        registry.register(
            "kollect_export_bytes",
            "Bytes of attributes in rows that sinks have taken",
            self.bytes.clone(),
        );
        registry.register(
            "kollect_sink_errors",
            "Attempts on sinks that failed, by whether and when to try again",
            self.sink_errors.clone(),
        );
        registry.register("kollect_sink_connection_test", "Probes of sinks", self.tests.clone());
    }

    /// Counts a turn of the loop.
    pub(crate) fn count_turn(&self, took: Duration, succeeded: bool) {
        self.turns
            .get_or_create(&TurnLabel { controller: CONTROLLER, result: result_label(succeeded) })
            .inc();
        self.turn_seconds
            .get_or_create(&ControllerLabel { controller: CONTROLLER })
            .observe(took.as_secs_f64());
    }

    /// Counts a failed attempt for an object of the kind.
    pub(crate) fn count_failure(&self, kind: &'static str, error: ErrorClass) {
        self.errors.get_or_create(&FailedLabel { kind, error_class: class_label(error) }).inc();
    }

    /// Counts an object without a row as an error of its target.
    pub(crate) fn count_problem(&self, problem: &CollectProblem) {
        if let CollectProblem::RowDropped { target, .. } = problem {
            let kind = if target.namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
            self.count_failure(kind, ErrorClass::Terminal);
        }
    }

    /// Counts a probe. Both results have a series from the first probe on.
    pub(crate) fn count_probe(&self, sink_type: &'static str, succeeded: bool) {
        for result in [true, false] {
            let count =
                self.tests.get_or_create(&TestedLabel { r#type: sink_type, result: result_label(result) });
            count.inc_by(u64::from(result == succeeded));
        }
    }

    /// Wraps a sink so that its attempts are counted for the kind of the inventory.
    pub(crate) fn measure(
        &self,
        opened: Result<Box<dyn Sink>, SinkError>,
        sink_type: &'static str,
        kind: &'static str,
    ) -> Result<Box<dyn Sink>, SinkError> {
        let label = SinkTypeLabel { sink_type };
        let attempts = Attempts {
            meter: self.clone(),
            write_seconds: self.write_seconds.get_or_create_owned(&label),
            bytes: self.bytes.get_or_create_owned(&label),
            kind,
        };
        let inner = attempts.count_error(opened)?;
        Ok(Box::new(MeasuredSink { inner, attempts }))
    }
}

struct Attempts {
    meter: Meter,
    write_seconds: Histogram,
    bytes: Counter,
    kind: &'static str,
}

impl Attempts {
    fn count_error<T>(&self, outcome: Result<T, SinkError>) -> Result<T, SinkError> {
        if let Err(error) = &outcome {
            let error = error.class();
            self.meter.sink_errors.get_or_create(&ReasonLabel { reason: class_label(error) }).inc();
            self.meter.count_failure(self.kind, error);
        }
        outcome
    }
}

/// Forwards every method; for a method that is missing here the default of the trait would run instead.
struct MeasuredSink {
    inner: Box<dyn Sink>,
    attempts: Attempts,
}

#[async_trait]
impl Sink for MeasuredSink {
    fn delivery(&self) -> Delivery {
        self.inner.delivery()
    }

    fn atomicity(&self) -> Atomicity {
        self.inner.atomicity()
    }

    fn claim_check_interval(&self) -> Duration {
        self.inner.claim_check_interval()
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.attempts.count_error(self.inner.check().await)
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.attempts.count_error(self.inner.baseline(inventory).await)
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.attempts.count_error(self.inner.claim(inventory, claimant).await)
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.attempts.count_error(self.inner.claims(inventories).await)
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let began = Instant::now();
        let outcome = self.inner.write(batch).await;
        // A batch without rows only updates information about the inventory.
        if !batch.delta.is_empty() {
            self.attempts.write_seconds.observe(began.elapsed().as_secs_f64());
            if let Ok(receipt) = &outcome {
                self.attempts.bytes.inc_by(bytes(batch, receipt));
            }
        }
        self.attempts.count_error(outcome)
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.attempts.count_error(self.inner.forget(inventory, claim).await)
    }
}

/// Bytes of the attributes of all rows that were not refused.
fn bytes(batch: &Batch<'_>, receipt: &Receipt) -> u64 {
    let refused: std::collections::BTreeSet<&RowKey> =
        receipt.refused.iter().map(|refusal| &refusal.key).collect();
    let taken = batch.delta.rows().filter(|row| !refused.contains(&row.key));
    taken.map(|row| row.attributes.get().len() as u64).sum()
}

#[cfg(test)]
mod tests;
