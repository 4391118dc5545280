//! Counters: turns of the loop, attempts on sinks, probes.

use std::time::Duration;

use async_trait::async_trait;
use kollect_engine::collect::Problem;
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
struct Turn {
    controller: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Controller {
    controller: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    kind: &'static str,
    error_class: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SinkType {
    sink_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tested {
    r#type: &'static str,
    result: &'static str,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

fn class(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Transient => "transient",
        ErrorClass::Terminal => "terminal",
        ErrorClass::Forbidden => "forbidden",
    }
}

fn result(good: bool) -> &'static str {
    if good { "success" } else { "failure" }
}

/// All counters. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Meter {
    turns: Family<Turn, Counter>,
    turn_seconds: Histograms<Controller>,
    errors: Family<Failed, Counter>,
    write_seconds: Histograms<SinkType>,
    bytes: Family<SinkType, Counter>,
    sink_errors: Family<Reason, Counter>,
    tests: Family<Tested, Counter>,
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
        for good in [true, false] {
            drop(meter.turns.get_or_create(&Turn { controller: CONTROLLER, result: result(good) }));
        }
        for error_class in CLASSES.map(class) {
            drop(meter.sink_errors.get_or_create(&Reason { reason: error_class }));
            for kind in KINDS {
                drop(meter.errors.get_or_create(&Failed { kind, error_class }));
            }
        }
        meter
    }
}

impl Meter {
    #[expect(clippy::disallowed_methods, reason = "all of these have labels, and are documented")]
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "kollect_reconcile",
            "Turns of the loop that looks at all objects",
            self.turns.clone(),
        );
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
    pub(crate) fn turned(&self, took: Duration, good: bool) {
        self.turns.get_or_create(&Turn { controller: CONTROLLER, result: result(good) }).inc();
        self.turn_seconds.get_or_create(&Controller { controller: CONTROLLER }).observe(took.as_secs_f64());
    }

    /// Counts a failed attempt for an object of the kind.
    pub(crate) fn failed(&self, kind: &'static str, error: ErrorClass) {
        self.errors.get_or_create(&Failed { kind, error_class: class(error) }).inc();
    }

    /// Counts an object that cannot be read as an error of its target.
    pub(crate) fn hear(&self, problem: &Problem) {
        if let Problem::Unreadable { target, .. } = problem {
            let kind = if target.namespace.is_some() { "KollectTarget" } else { "KollectClusterTarget" };
            self.failed(kind, ErrorClass::Terminal);
        }
    }

    /// Counts a probe. Both results have a series from the first probe on.
    pub(crate) fn tested(&self, sink_type: &'static str, good: bool) {
        for known in [true, false] {
            let count = self.tests.get_or_create(&Tested { r#type: sink_type, result: result(known) });
            count.inc_by(u64::from(known == good));
        }
    }

    /// Wraps a sink so that its attempts are counted for the kind of the inventory.
    pub(crate) fn measure(
        &self,
        opened: Result<Box<dyn Sink>, SinkError>,
        sink_type: &'static str,
        kind: &'static str,
    ) -> Result<Box<dyn Sink>, SinkError> {
        let label = SinkType { sink_type };
        let attempts = Attempts {
            meter: self.clone(),
            write_seconds: self.write_seconds.get_or_create_owned(&label),
            bytes: self.bytes.get_or_create_owned(&label),
            kind,
        };
        let inner = attempts.noted(opened)?;
        Ok(Box::new(Measured { inner, attempts }))
    }
}

struct Attempts {
    meter: Meter,
    write_seconds: Histogram,
    bytes: Counter,
    kind: &'static str,
}

impl Attempts {
    fn noted<T>(&self, outcome: Result<T, SinkError>) -> Result<T, SinkError> {
        if let Err(error) = &outcome {
            let error = error.class();
            self.meter.sink_errors.get_or_create(&Reason { reason: class(error) }).inc();
            self.meter.failed(self.kind, error);
        }
        outcome
    }
}

/// Forwards every method; for a method that is missing here the default of the trait would run instead.
struct Measured {
    inner: Box<dyn Sink>,
    attempts: Attempts,
}

#[async_trait]
impl Sink for Measured {
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
        self.attempts.noted(self.inner.check().await)
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.attempts.noted(self.inner.baseline(inventory).await)
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.attempts.noted(self.inner.claim(inventory, claimant).await)
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.attempts.noted(self.inner.claims(inventories).await)
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
        self.attempts.noted(outcome)
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.attempts.noted(self.inner.forget(inventory, claim).await)
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
