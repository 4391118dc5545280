//! `kollect collect`: one run of the engine with manifests from files.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use kollect_engine::{
    collect::{Target, rest},
    export::{Binding, Outcome, RowFilter, export},
    select::Namespaces,
    store::{Snapshot, StoreReader, Visibility},
    watch::WatchSource,
};
use kollect_model::{
    batch::InventoryId,
    binding::SinkName,
    claim::Claimant,
    row::{Row, TargetId},
    sink::SinkError,
};
use kollect_sinks::Sinks;
use tokio::time;

use super::{
    deliver::{Bound, Destination, Out, unwritten},
    input::{BLIND, INTERRUPTED, Input, Problems, finish, refuse, start},
    manifests::{Inventory, Work},
    print::{self, Output, printed},
    progress,
};
use crate::{error_chain::told_once, files::FileSource, signals::asked_to_stop};

/// Arguments of `kollect collect`.
#[derive(clap::Args)]
#[command(
    after_help = "Without -o and --out the rows go to the sinks of the manifests, or to the terminal if there are none.\n\
        Exit codes: 0 done; 1 the cluster or a sink failed; 2 the input is wrong and nothing was collected;\n\
        3 something could not be seen and everything else was collected; 130 stopped by Ctrl-C;\n\
        141 the reader of the output has gone away, such as head."
)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Read objects from YAML or JSON files instead of a cluster; - is the standard input.
    #[arg(long, value_name = "FILE|DIR|-", num_args = 1.., conflicts_with_all = ["context", "kubeconfig"])]
    from: Vec<PathBuf>,
    /// Print the rows and write to no sink.
    #[arg(short = 'o', long, value_name = "FORMAT")]
    output: Option<Output>,
    #[command(flatten)]
    out: Out,
    /// Seconds that a running write gets to finish after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_grace_period: u64,
}

/// `kollect collect`
pub(crate) fn run(args: Args) -> ExitCode {
    match Run::prepare(args) {
        Ok(run) => finish(run.run()),
        Err(problems) => refuse(&problems),
    }
}

/// What a run has collected.
struct Seen {
    rows: StoreReader,
    rest: Visibility,
    namespaces: Option<Arc<Namespaces>>,
}

struct Run {
    args: Args,
    targets: Vec<Arc<Target>>,
    inventories: Vec<Bound>,
}

impl Run {
    /// Checks everything that can be checked before objects are read.
    fn prepare(args: Args) -> Result<Self, Vec<String>> {
        let (Work { targets, inventories, .. }, mut problems) = args.input.load();
        if !args.from.is_empty() {
            let selectors = targets.iter().flat_map(|target| target.selection.field_selectors());
            let refuse = |selector: &str| {
                format!(
                    "fieldSelector {selector}: only an API server can evaluate it: remove it, or read a cluster"
                )
            };
            problems.extend(selectors.map(refuse));
        }
        match args.out.bind(inventories, args.output.is_some()) {
            Ok(inventories) if problems.is_empty() => Ok(Self { args, targets, inventories }),
            Ok(_) => Err(problems),
            Err(found) => Err(problems.into_iter().chain(found).collect()),
        }
    }

    async fn run(self) -> anyhow::Result<ExitCode> {
        let (source, owner): (Arc<dyn WatchSource>, Option<String>) = if self.args.from.is_empty() {
            let source = self.args.input.connect().await?;
            let owner = source.id.clone();
            (Arc::new(source), Some(owner))
        } else {
            match FileSource::read(&self.args.from) {
                Ok(source) => {
                    for (gvk, count) in &source.without_namespace {
                        eprintln!(
                            "note: {count} {gvk} without metadata.namespace: taken to be cluster-scoped"
                        );
                    }
                    (Arc::new(source), None)
                }
                Err(problems) => return Ok(refuse(&problems)),
            }
        };
        let settings = self.args.input.settings(false);
        let rest = rest(&*source, &settings);
        let problems = Problems::of(&self.targets);
        let (collector, rows) = start(source, settings, &self.targets, &problems);
        tokio::select! {
            () = progress::during(collector.coverage(), rows.settled()) => {}
            () = asked_to_stop() => {
                eprintln!("stopped; nothing was written");
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
        let seen = Seen { namespaces: collector.namespaces().borrow().clone(), rows, rest };
        drop(collector);
        let blind = problems.tell();
        let done = if blind { ExitCode::from(BLIND) } else { ExitCode::SUCCESS };
        if self.inventories.iter().all(|bound| bound.sinks.is_empty()) {
            self.print(&seen)?;
            return Ok(done);
        }
        let claimant = self.args.out.claimant(owner);
        let write = self.write(&seen, &claimant);
        self.stoppable(write).await?;
        Ok(done)
    }

    /// Lets a running write finish within the grace period when the run is asked to stop.
    async fn stoppable(&self, write: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let mut write = std::pin::pin!(write);
        tokio::select! {
            done = &mut write => return done,
            () = asked_to_stop() => {}
        }
        let seconds = self.args.shutdown_grace_period;
        eprintln!("stopping: the running write has {seconds} s to finish");
        match time::timeout(Duration::from_secs(seconds), write).await {
            Ok(done) => done,
            Err(_) => bail!("stopped before the write was done"),
        }
    }

    /// The rows of an inventory, and how they were chosen among the rows of its targets.
    fn snapshot(seen: &Seen, inventory: &Inventory) -> anyhow::Result<(Snapshot, RowFilter)> {
        let snapshot = seen.rows.snapshot(&inventory.targets, seen.rest.clone());
        let mut snapshot = snapshot.context("a kind was not listed to its end")?;
        let row_filter = inventory.rows.among(seen.namespaces.as_deref()).with_context(|| {
            format!("inventory {}: spec.namespaceSelector needs namespaces to be listed", inventory.name)
        })?;
        row_filter.apply(&mut snapshot);
        Ok((snapshot, row_filter))
    }

    fn print(&self, seen: &Seen) -> anyhow::Result<()> {
        let mut all: Vec<Arc<Row>> = Vec::new();
        let mut keys = BTreeSet::new();
        for Bound { inventory, .. } in &self.inventories {
            let (snapshot, _) = Self::snapshot(seen, inventory)?;
            all.extend(
                snapshot.rows.into_iter().filter(|(key, _)| keys.insert(key.clone())).map(|(_, row)| row),
            );
        }
        all.sort_by(|a, b| order(a).cmp(&order(b)));
        if let Some(note) = unwritten(&self.inventories) {
            eprintln!("{note}");
        }
        let output = self.args.output.unwrap_or(Output::Table);
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        let result = print::rows(&mut stdout, &all, output).and_then(|()| stdout.flush());
        printed(result, "print the rows")?;
        if output == Output::Table && all.is_empty() {
            eprintln!("no rows: nothing matches the targets");
        }
        Ok(())
    }

    /// Writes to all sinks at the same time; one that fails or is slow does not affect the others.
    async fn write(&self, seen: &Seen, claimant: &Claimant) -> anyhow::Result<()> {
        let opener = Sinks::default();
        let mut writes = Vec::new();
        for Bound { inventory, sinks } in &self.inventories {
            if sinks.is_empty() {
                eprintln!("note: inventory {} has no sink and was not written", inventory.name);
            }
            let (snapshot, row_filter) = Self::snapshot(seen, inventory)?;
            let snapshot = Arc::new(snapshot);
            writes.extend(sinks.iter().map(|sink| {
                let binding = sink.binding(inventory, row_filter.clone(), &seen.rest, claimant, &opener);
                deliver(sink, binding, snapshot.clone())
            }));
        }
        let headers =
            ["INVENTORY", "SINK", "ROWS", "ADDED", "CHANGED", "REMOVED", "UNCHANGED", "LEFT ALONE", "TIME"];
        let mut lines = vec![headers.map(ToOwned::to_owned).to_vec()];
        let mut changed = Vec::new();
        let mut failed = 0;
        for written in futures::future::join_all(writes).await {
            let Written { to: Destination { id, name, .. }, snapshot, outcome, took } = written;
            match outcome {
                Ok(outcome) => {
                    for warning in &outcome.receipt.warnings {
                        eprintln!("warning: sink {name}: {warning}");
                    }
                    for refusal in &outcome.receipt.refused {
                        eprintln!("error: sink {name} refused a row: {}", refusal.why);
                    }
                    failed += usize::from(!outcome.receipt.refused.is_empty());
                    changed.extend(changes(&outcome, &snapshot));
                    let time = format!("{:.1} s", took.as_secs_f32());
                    lines.push(summary(id, name, &snapshot, &outcome, time));
                }
                Err(error) => {
                    eprintln!("error: inventory {id}, sink {name}: {}", told_once(&error));
                    failed += 1;
                }
            }
        }
        // Printed last: a closed standard output must not stop a write.
        let told = tell(&changed, &lines);
        let total: usize = self.inventories.iter().map(|bound| bound.sinks.len()).sum();
        if failed > 0 { Err(anyhow!("{failed} of {total} writes failed")) } else { told }
    }
}

/// Prints what changed and a line for each sink, below the line of headers.
fn tell(changed: &[String], lines: &[Vec<String>]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let result = changed.iter().try_for_each(|line| writeln!(stdout, "{line}"));
    printed(result, "print the changes")?;
    if lines.len() > 1 {
        printed(print::aligned(&mut stdout, lines), "print the summary")?;
    }
    printed(stdout.flush(), "print the summary")
}

struct Written<'a> {
    to: &'a Destination,
    snapshot: Arc<Snapshot>,
    outcome: Result<Outcome, SinkError>,
    took: Duration,
}

/// Brings one sink up to date, and prints a line from time to time if that takes long.
async fn deliver(to: &Destination, binding: Binding, snapshot: Arc<Snapshot>) -> Written<'_> {
    let began = time::Instant::now();
    let write = export(&binding, &snapshot);
    let name = format!("{} → {}", to.id, to.name);
    let outcome = progress::waiting(&name, &format!("writing {} rows", snapshot.rows.len()), write).await;
    Written { to, outcome, took: began.elapsed(), snapshot }
}

/// The order in which people look for rows: by target, then by name.
fn order(row: &Row) -> (&TargetId, &str, &str, &str, &str) {
    (&row.key.target, &row.key.kind, &row.key.namespace, &row.name, &row.key.uid)
}

/// How many changed rows are named one by one.
const NAMED_CHANGES: usize = 20;

/// Names what changed, in the manner of a diff. A first fill is not a change.
fn changes(outcome: &Outcome, snapshot: &Snapshot) -> Vec<String> {
    let delta = &outcome.delta;
    if delta.added.len() == snapshot.rows.len() && delta.removed.is_empty() {
        return Vec::new();
    }
    let place = |row: &Row| format!("{} {}/{}", row.key.kind, row.key.namespace, row.name);
    let added = delta.added.iter().map(|row| format!("+ {}", place(row)));
    let changed = delta.changed.iter().map(|row| format!("~ {}", place(&row.after)));
    let removed = delta.removed.iter().map(|gone| {
        let key = &gone.key;
        format!("- {} {}/{}", key.kind, key.namespace, key.uid)
    });
    let total = delta.len();
    let more = (total > NAMED_CHANGES).then(|| format!("… and {} more", total - NAMED_CHANGES));
    added.chain(changed).chain(removed).take(NAMED_CHANGES).chain(more).collect()
}

fn summary(
    id: &InventoryId,
    sink: &SinkName,
    snapshot: &Snapshot,
    outcome: &Outcome,
    time: String,
) -> Vec<String> {
    let delta = &outcome.delta;
    let counts = [
        snapshot.rows.len(),
        delta.added.len(),
        delta.changed.len(),
        delta.removed.len(),
        outcome.unchanged,
        outcome.left_alone,
    ];
    let mut line = vec![id.to_string(), sink.to_string()];
    line.extend(counts.iter().map(ToString::to_string));
    line.push(time);
    line
}
