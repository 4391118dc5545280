//! A binding as a process runs it, and what it writes to its sink.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use async_trait::async_trait;
use kollect_engine::{
    deliver::{Deliveries, WantedBinding},
    export::{Binding, BindingEvent, OpenSink},
    tasks::Tasks,
};
use kollect_model::{
    batch::{Baseline, Batch, InventoryId, Receipt},
    binding::BindingName,
    claim::{Claim, Claimant, WriterProgram},
    sink::{Atomicity, Delivery, Sink, SinkError},
};
use kollect_sinks::{Plan, SinkPolicy, Sinks};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::timeout,
};

use super::rows::{Rows, target};

/// Much longer than any step takes.
const LIMIT: Duration = Duration::from_mins(2);

/// The inventory of all rows.
pub(crate) fn inventory() -> InventoryId {
    InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "all".into() }
}

/// What a binding reports, as far as it is measured.
enum BindingReport {
    Compared(usize),
    Written(usize),
    Failed(String),
}

/// A running binding.
pub(crate) struct Running {
    deliveries: Deliveries,
    reports: UnboundedReceiver<BindingReport>,
    counts: Arc<Counts>,
}

impl Running {
    /// Starts a binding with the pace of a database. Rows may still be pending.
    pub(crate) fn start(rows: &Rows, plan: Plan) -> Self {
        let counts = Arc::new(Counts::default());
        let destination = CountedDestination { plan, sinks: Sinks::default(), counts: counts.clone() };
        let claimant = Claimant {
            owner: Some("cluster".into()),
            writer: WriterProgram::Operator,
            ..Claimant::default()
        };
        let binding = Binding {
            generation: 1,
            targets: vec![target()],
            schema: Arc::new(super::rows::schema()),
            ..Binding::new(inventory(), claimant, "here".into(), Arc::new(destination))
        };
        let (sender, reports) = unbounded_channel();
        let mut deliveries =
            Deliveries::new(rows.reader.clone(), Tasks::default(), Arc::new(|| true), move |_, _, event| {
                let report = match event {
                    BindingEvent::Compared(outcome) => BindingReport::Compared(outcome.delta.len()),
                    BindingEvent::Written(delta, _) => BindingReport::Written(delta.len()),
                    BindingEvent::Failed { error, .. }
                    | BindingEvent::NotCleaned { error, .. }
                    | BindingEvent::ClaimLost(error) => BindingReport::Failed(chain(error)),
                    BindingEvent::Claimed(_)
                    | BindingEvent::RemovalsHeld(_)
                    | BindingEvent::Paused { .. }
                    | BindingEvent::Passed
                    | BindingEvent::Waits
                    | BindingEvent::Late
                    | BindingEvent::HeldBack { .. }
                    | BindingEvent::Cleaned { .. } => return,
                };
                // The receiver may be closed already.
                sender.send(report).ok();
            });
        let wanted = WantedBinding { binding: Arc::new(binding), suspended: false };
        let name = BindingName { inventory: (&inventory()).into(), sink: "database/all".into() };
        deliveries.set([(name, wanted)].into(), Vec::new());
        Self { deliveries, reports, counts }
    }

    /// Waits until the sink has been compared. Returns how many rows differed.
    pub(crate) async fn compared(&mut self) -> Result<usize> {
        loop {
            match self.next().await? {
                BindingReport::Compared(rows) => return Ok(rows),
                BindingReport::Written(_) => {}
                BindingReport::Failed(error) => anyhow::bail!("the binding failed: {error}"),
            }
        }
    }

    /// Like [`Self::compared`], ignoring failures before it.
    pub(crate) async fn recovered(&mut self) -> Result<usize> {
        loop {
            if let BindingReport::Compared(rows) = self.next().await? {
                return Ok(rows);
            }
        }
    }

    /// Waits until the binding has noticed that the sink is down.
    pub(crate) async fn failed(&mut self) -> Result<()> {
        while !matches!(self.next().await?, BindingReport::Failed(_)) {}
        Ok(())
    }

    /// Waits for a write of changes. Returns how many rows it had.
    pub(crate) async fn written(&mut self) -> Result<usize> {
        match self.next().await? {
            BindingReport::Written(rows) => Ok(rows),
            BindingReport::Compared(_) => anyhow::bail!("the binding compared without need"),
            BindingReport::Failed(error) => anyhow::bail!("the binding failed: {error}"),
        }
    }

    /// How many deltas the sink has written.
    pub(crate) fn deltas(&self) -> usize {
        self.counts.deltas.load(Ordering::Relaxed)
    }

    /// Stops gracefully, as a process that is asked to terminate.
    pub(crate) async fn stop(self) {
        self.deliveries.stop().await;
    }

    async fn next(&mut self) -> Result<BindingReport> {
        timeout(LIMIT, self.reports.recv())
            .await
            .context("the binding is silent")?
            .context("the binding is gone")
    }
}

fn chain(error: &SinkError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[derive(Default)]
struct Counts {
    deltas: AtomicUsize,
}

/// Opens sinks whose writes are counted.
struct CountedDestination {
    plan: Plan,
    sinks: Sinks,
    counts: Arc<Counts>,
}

#[async_trait]
impl OpenSink for CountedDestination {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        let sink = self.sinks.open(&self.plan, &SinkPolicy::default()).await?;
        Ok(Box::new(Counted { sink, counts: self.counts.clone() }))
    }
}

/// A sink whose writes are counted.
struct Counted {
    sink: Box<dyn Sink>,
    counts: Arc<Counts>,
}

#[async_trait]
impl Sink for Counted {
    fn delivery(&self) -> Delivery {
        self.sink.delivery()
    }

    fn atomicity(&self) -> Atomicity {
        self.sink.atomicity()
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.sink.check().await
    }

    async fn claims(&self, inventories: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.sink.claims(inventories).await
    }

    async fn baseline(&self, inventory: &InventoryId) -> Result<Baseline, SinkError> {
        self.sink.baseline(inventory).await
    }

    async fn claim(&self, inventory: &InventoryId, claimant: &Claimant) -> Result<Claim, SinkError> {
        self.sink.claim(inventory, claimant).await
    }

    async fn write(&self, batch: &Batch<'_>) -> Result<Receipt, SinkError> {
        let receipt = self.sink.write(batch).await?;
        if !batch.delta.is_empty() {
            self.counts.deltas.fetch_add(1, Ordering::Relaxed);
        }
        Ok(receipt)
    }

    async fn forget(&self, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        self.sink.forget(inventory, claim).await
    }
}
