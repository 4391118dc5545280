//! Where the rows of a run go: the sinks of the manifests, or one that the command line names.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use kollect_engine::{
    deliver::{Deliveries, WantedBinding},
    export::{Binding, BindingEvent, OpenSink, RowFilter},
    schedule::{Cadence, Intervals},
    select::Namespaces,
    store::{StoreReader, Visibility},
    tasks::Tasks,
};
use kollect_model::{
    batch::{Delta, InventoryId, PART_BYTES, Receipt},
    binding::{BindingName, SinkName},
    claim::{Claimant, TakeOver, WriterProgram},
    sink::{Sink, SinkError},
};
use kollect_sinks::{Plan, SinkPolicy, Sinks, destination_name, plan_out};

use super::manifests::{RunInventory, RunSink};
use crate::error_chain::chain_text;

/// A sink on the command line.
#[derive(clap::Args)]
pub(crate) struct OutSink {
    // What this build can write to is part of the help.
    #[arg(long = "out", id = "out", value_name = "DESTINATION", conflicts_with = "output", help = out_help())]
    destination: Option<String>,
    /// Name of the cluster in --out, so that several clusters can share it.
    #[arg(long, default_value = "", requires = "out", value_name = "NAME", hide_default_value = true)]
    cluster: String,
    /// Write inventories that an operator or another cluster keeps up to date. They stop writing.
    #[arg(long)]
    take_over: bool,
}

fn out_help() -> String {
    format!("Write to this sink instead of those of the manifests: {}", kollect_sinks::out_forms())
}

/// An inventory and where this run writes it.
pub(crate) struct BoundInventory {
    pub(crate) inventory: RunInventory,
    pub(crate) sinks: Vec<RunDestination>,
}

pub(crate) struct RunDestination {
    pub(crate) name: SinkName,
    /// The inventory, as the sink knows it.
    pub(crate) id: InventoryId,
    pub(crate) plan: Plan,
    cadence: Cadence,
    part_bytes: usize,
}

impl RunDestination {
    /// The inventory and this sink, for the engine.
    pub(crate) fn binding(
        &self,
        inventory: &RunInventory,
        row_filter: RowFilter,
        outside: &Visibility,
        claimant: &Claimant,
        opener: &Sinks,
    ) -> Binding {
        let sink = Arc::new(OpenPlanned { plan: self.plan.clone(), opener: opener.clone() });
        let destination = self.plan.destination(&SinkPolicy::default());
        Binding {
            targets: inventory.targets.clone(),
            schema: inventory.schema.clone(),
            cadence: self.cadence,
            outside: outside.clone(),
            watched: outside.clone(),
            row_filter,
            part_bytes: self.part_bytes,
            ..Binding::new(self.id.clone(), claimant.clone(), destination, sink)
        }
    }
}

impl OutSink {
    /// How this run claims inventories in sinks; rows from files belong to no cluster.
    pub(crate) fn claimant(&self, cluster: Option<String>) -> Claimant {
        let take_over = if self.take_over { TakeOver::Always } else { TakeOver::Never };
        Claimant { owner: cluster, writer: WriterProgram::Cli, take_over, ..Claimant::default() }
    }

    /// The sinks of each inventory: none if the run only prints. The error lists all problems.
    pub(crate) fn bind(
        &self,
        inventories: Vec<RunInventory>,
        only_print: bool,
    ) -> Result<Vec<BoundInventory>, Vec<String>> {
        let plan = |text: &String| match plan_out(text) {
            Ok(plan) => Ok((SinkName::Other(destination_name(text)), plan)),
            Err(problem) => Err(vec![format!("--out {}: {problem}", destination_name(text))]),
        };
        let out = self.destination.as_ref().map(plan).transpose()?;
        let mut problems = Vec::new();
        let mut bound = Vec::new();
        for inventory in inventories {
            let id = |cluster: &str| InventoryId {
                cluster: cluster.to_owned(),
                namespace: inventory.namespace.clone(),
                name: inventory.name.clone(),
            };
            let mut sinks = Vec::new();
            if let Some((name, plan)) = out.clone() {
                let cadence = Cadence::of([Intervals::default(); 3], None, Duration::ZERO);
                let (id, part_bytes) = (id(&self.cluster), PART_BYTES);
                sinks.push(RunDestination { name, id, plan, cadence, part_bytes });
            } else if !only_print {
                for sink in &inventory.sinks {
                    let id = id(&sink.cluster);
                    match sink.plan.clone() {
                        Ok(plan) => {
                            let RunSink { name, cadence, part_bytes, .. } = sink.clone();
                            sinks.push(RunDestination { name, id, plan, cadence, part_bytes });
                        }
                        Err(errors) => problems.extend(errors),
                    }
                }
            }
            problems.extend(same_destinations(&inventory, &sinks));
            bound.push(BoundInventory { inventory, sinks });
        }
        problems.dedup();
        if problems.is_empty() { Ok(bound) } else { Err(problems) }
    }
}

/// References of one inventory with the same destination: they would overwrite each other.
fn same_destinations(inventory: &RunInventory, sinks: &[RunDestination]) -> Vec<String> {
    let mut destinations = BTreeMap::new();
    let mut problems = Vec::new();
    for sink in sinks {
        if let Some(first) =
            destinations.insert((sink.plan.destination(&SinkPolicy::default()), &sink.id.cluster), &sink.name)
        {
            let name = &inventory.name;
            problems.push(format!(
                "inventory {name}: sinks {first} and {} have the same destination: remove one of them",
                sink.name
            ));
        }
    }
    problems
}

/// How many sink references of the manifests a run that only prints leaves out.
pub(crate) fn unwritten(inventories: &[BoundInventory]) -> Option<String> {
    let count: usize = inventories.iter().map(|bound| bound.inventory.sinks.len()).sum();
    (count > 0)
        .then(|| format!("note: -o prints only; {count} sink reference(s) of the manifests were not written"))
}

/// Keeps all sinks up to date, each independently of the others, and prints a line for each write.
pub(crate) fn follow(
    inventories: Vec<BoundInventory>,
    rows: &StoreReader,
    claimant: &Claimant,
    outside: &Visibility,
    namespaces: Option<&Namespaces>,
    tasks: &Tasks,
) -> anyhow::Result<Deliveries> {
    let mut deliveries = Deliveries::new(rows.clone(), tasks.clone(), Arc::new(|| true), |name, _, event| {
        if let Some(line) = line(&event) {
            eprintln!("{} → {}: {line}", name.inventory, name.sink);
        }
    });
    let opener = Sinks::default();
    let mut wanted = BTreeMap::new();
    for BoundInventory { inventory, sinks } in inventories {
        let row_filter = inventory.rows.among(namespaces).with_context(|| {
            format!("inventory {}: spec.namespaceSelector needs namespaces to be listed", inventory.name)
        })?;
        for sink in sinks {
            let binding = sink.binding(&inventory, row_filter.clone(), outside, claimant, &opener);
            let name = BindingName { inventory: (&sink.id).into(), sink: sink.name.clone() };
            wanted.insert(name, WantedBinding { binding: Arc::new(binding), suspended: false });
        }
    }
    drop(deliveries.set(wanted, Vec::new()));
    Ok(deliveries)
}

/// A sink that is opened according to its plan.
struct OpenPlanned {
    plan: Plan,
    opener: Sinks,
}

#[async_trait]
impl OpenSink for OpenPlanned {
    async fn open(&self) -> Result<Box<dyn Sink>, SinkError> {
        self.opener.open(&self.plan, &SinkPolicy::default()).await
    }
}

fn line(event: &BindingEvent<'_>) -> Option<String> {
    match event {
        BindingEvent::Claimed(_) | BindingEvent::Passed | BindingEvent::Waits => None,
        BindingEvent::Late => Some("the sink takes longer than 10 s".to_owned()),
        BindingEvent::ClaimLost(error) => Some(format!("{}; all is compared", chain_text(*error))),
        BindingEvent::Compared(outcome) if outcome.delta.is_empty() => None,
        BindingEvent::Compared(outcome) => {
            let drift = match outcome.drifted {
                0 => String::new(),
                rows => format!(", {rows} of them changed by others"),
            };
            let counts = counts(&outcome.delta);
            Some(format!(
                "{counts}{drift}, {} as they were{}",
                outcome.unchanged,
                attention(&outcome.receipt)
            ))
        }
        BindingEvent::Written(delta, receipt) => Some(format!("{}{}", counts(delta), attention(receipt))),
        BindingEvent::Failed { error, pause: None } => {
            Some(format!("{}; not tried again", chain_text(*error)))
        }
        BindingEvent::Failed { error, pause: Some(pause) } => {
            Some(format!("{}; tried again in {} s", chain_text(*error), pause.as_secs().max(1)))
        }
        BindingEvent::Paused { pause } => {
            Some(format!("the sink keeps failing; tried again in {} s", pause.as_secs().max(1)))
        }
        BindingEvent::HeldBack { coverage } => {
            Some(format!("nothing is sent while rows may be missing: {coverage}"))
        }
        BindingEvent::RemovalsHeld(held) => {
            Some(format!("{} of {} rows would be removed; held", held.rows, held.held))
        }
        BindingEvent::Cleaned { .. } => Some("cleaned".to_owned()),
        BindingEvent::NotCleaned { error, .. } => Some(format!("not cleaned: {}", chain_text(*error))),
    }
}

fn counts(delta: &Delta) -> String {
    let parts =
        [(delta.added.len(), "added"), (delta.changed.len(), "changed"), (delta.removed.len(), "removed")];
    let parts: Vec<String> =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    if parts.is_empty() { "no rows".to_owned() } else { parts.join(", ") }
}

/// Rows that the sink refused, and its warnings.
fn attention(receipt: &Receipt) -> String {
    let listed = |word: &str, texts: Vec<&str>| {
        if texts.is_empty() { String::new() } else { format!("; {word}: {}", texts.join("; ")) }
    };
    let refused = receipt.refused.iter().map(|refusal| &*refusal.why).collect();
    listed("refused", refused)
        + &listed("warning", receipt.warnings.iter().map(|warning| &**warning).collect())
}
