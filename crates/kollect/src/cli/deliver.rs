//! Where the rows of a run go: the sinks of the manifests, or one that the command line names.

use kollect_engine::{
    collect::rest,
    export::{Binding, Told},
    schedule::{Cadence, Intervals},
    store::StoreReader,
};
use kollect_model::{batch::InventoryId, claim::Claimant};
use kollect_sinks::{Plan, destination_name, plan_destination};
use tokio::{sync::watch, task::JoinSet};

use super::{input::told_once, manifests::Inventory};

/// A sink on the command line.
#[derive(clap::Args)]
pub(crate) struct Out {
    /// Write to this sink instead of those of the manifests: sqlite:FILE, dir:DIRECTORY or
    /// postgres://USER@HOST/DATABASE.
    #[arg(long, value_name = "DESTINATION", conflicts_with = "output")]
    out: Option<String>,
    /// Name of the cluster in --out, so that several clusters can share it.
    #[arg(long, default_value = "", requires = "out", value_name = "NAME", hide_default_value = true)]
    cluster: String,
}

/// An inventory and where this run writes it.
pub(crate) struct Bound {
    pub(crate) inventory: Inventory,
    pub(crate) sinks: Vec<Destination>,
}

pub(crate) struct Destination {
    pub(crate) name: String,
    /// The inventory, as the sink knows it.
    pub(crate) id: InventoryId,
    pub(crate) plan: Plan,
    cadence: Cadence,
}

impl Out {
    /// Where the inventories go; nowhere, if the run only prints. Or everything that is wrong.
    pub(crate) fn bind(
        &self,
        inventories: Vec<Inventory>,
        only_print: bool,
    ) -> Result<Vec<Bound>, Vec<String>> {
        let plan = |text: &String| match plan_destination(text) {
            Ok(plan) => Ok((destination_name(text), plan)),
            Err(problem) => Err(vec![format!("--out {}: {problem}", destination_name(text))]),
        };
        let out = self.out.as_ref().map(plan).transpose()?;
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
                let cadence = Cadence::of([Intervals::default(); 3], None, std::time::Duration::ZERO);
                sinks.push(Destination { name, id: id(&self.cluster), plan, cadence });
            } else if !only_print {
                for sink in &inventory.sinks {
                    let id = id(sink.spec.common().cluster.as_deref().unwrap_or_default());
                    match sink.plan() {
                        Ok(plan) => {
                            let (name, cadence) = (sink.name.clone(), sink.cadence);
                            sinks.push(Destination { name, id, plan, cadence });
                        }
                        Err(errors) => problems.extend(errors),
                    }
                }
            }
            bound.push(Bound { inventory, sinks });
        }
        problems.dedup();
        if problems.is_empty() { Ok(bound) } else { Err(problems) }
    }
}

/// How many sink references of the manifests a run that only prints leaves out.
pub(crate) fn unwritten(inventories: &[Bound]) -> Option<String> {
    let count: usize = inventories.iter().map(|bound| bound.inventory.sinks.len()).sum();
    (count > 0)
        .then(|| format!("note: -o prints only; {count} sink reference(s) of the manifests were not written"))
}

/// Keeps all sinks up to date, each on its own, and tells about each write.
pub(crate) fn follow(
    inventories: Vec<Bound>,
    rows: &StoreReader,
    owner: &str,
    settings: &kollect_engine::collect::Settings,
    source: &dyn kollect_engine::watch::WatchSource,
    stop: &watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for Bound { inventory, sinks } in inventories {
        for Destination { name, id, plan, cadence } in sinks {
            let binding = Binding {
                inventory: id,
                claimant: Claimant { owner: Some(owner.to_owned()), ..Claimant::default() },
                targets: inventory.targets.clone(),
                cadence,
                rest: rest(source, settings),
            };
            let (rows, stop) = (rows.clone(), stop.clone());
            tasks.spawn(async move {
                let tell = |told: Told<'_>| {
                    if let Some(line) = line(&told) {
                        eprintln!("{} → {name}: {line}", binding.inventory);
                    }
                };
                binding.follow(&rows, || kollect_sinks::open(&plan), stop, tell).await;
            });
        }
    }
    tasks
}

fn line(told: &Told<'_>) -> Option<String> {
    let counts = |added: usize, changed: usize, removed: usize| {
        let parts = [(added, "added"), (changed, "changed"), (removed, "removed")];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        parts.join(", ")
    };
    match told {
        Told::Compared(outcome) if outcome.delta.is_empty() => None,
        Told::Compared(outcome) => {
            let delta = &outcome.delta;
            let counts = counts(delta.added.len(), delta.changed.len(), delta.removed.len());
            Some(format!("{counts}, {} as they were", outcome.unchanged))
        }
        Told::Written(delta) => Some(counts(delta.added.len(), delta.changed.len(), delta.removed.len())),
        Told::Failed { error, pause } => {
            Some(format!("{}; tried again in {} s", told_once(*error), pause.as_secs().max(1)))
        }
    }
}
