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
    collect::{Target, visibility_outside},
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
    common_args::{BLIND, CommonArgs, INTERRUPTED, Problems, finish, refuse, start},
    deliver::{BoundInventory, OutSink, RunDestination, unwritten},
    manifests::{LabelledProfile, RequestedRun, RunInventory},
    notes,
    print::{self, OutputFormat, printed},
    progress,
};
use crate::{error_chain::chain_text, files::FileSource, signals::stop_signal};

/// Arguments of `kollect collect`.
#[derive(clap::Args)]
#[command(
    after_help = "Without -o and --out the rows go to the sinks of the manifests, or to the terminal if there are none.\n\
        Exit codes: 0 done; 1 the cluster or a sink failed; 2 the input is wrong and nothing was collected;\n\
        3 something could not be seen, or has no row because an attribute failed, and everything else was collected;\n\
        130 stopped by Ctrl-C; 141 the output was closed, as by head."
)]
pub(crate) struct CollectArgs {
    #[command(flatten)]
    input: CommonArgs,
    /// Read objects from YAML or JSON files instead of a cluster; - is the standard input.
    #[arg(long, value_name = "FILE|DIR|-", num_args = 1.., conflicts_with_all = ["context", "kubeconfig"])]
    from: Vec<PathBuf>,
    /// Print the rows and write to no sink.
    #[arg(short = 'o', long, value_name = "FORMAT")]
    output: Option<OutputFormat>,
    #[command(flatten)]
    out: OutSink,
    /// Print the places of redacted values, never the values.
    #[arg(long)]
    show_redactions: bool,
    /// Seconds that a running write gets to finish after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_grace_period: u64,
}

/// `kollect collect`
pub(crate) fn run(args: CollectArgs) -> ExitCode {
    match CollectRun::prepare(args) {
        Ok(run) => finish(run.run()),
        Err(problems) => refuse(&problems),
    }
}

/// What a run has collected.
struct CollectedRows {
    rows: StoreReader,
    outside: Visibility,
    namespaces: Option<Arc<Namespaces>>,
}

struct CollectRun {
    args: CollectArgs,
    targets: Vec<Arc<Target>>,
    inventories: Vec<BoundInventory>,
    profiles: Vec<LabelledProfile>,
}

impl CollectRun {
    /// Checks everything that can be checked before objects are read.
    fn prepare(args: CollectArgs) -> Result<Self, Vec<String>> {
        let (RequestedRun { targets, inventories, profiles, .. }, mut problems) =
            args.input.load(args.show_redactions);
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
            Ok(inventories) if problems.is_empty() => Ok(Self { args, targets, inventories, profiles }),
            Ok(_) => Err(problems),
            Err(found) => Err(problems.into_iter().chain(found).collect()),
        }
    }

    async fn run(self) -> anyhow::Result<ExitCode> {
        let (source, owner): (Arc<dyn WatchSource>, Option<String>) = if self.args.from.is_empty() {
            let source = self.args.input.connect().await?;
            self.args.input.warn_about(&self.profiles, &source).await;
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
        let outside = visibility_outside(&*source, &settings);
        let problems = Problems::of(&self.targets);
        let (collector, rows) = start(source, settings, &self.targets, &problems);
        tokio::select! {
            () = progress::during(collector.coverage(), rows.wait_until_seen()) => {}
            () = stop_signal() => {
                eprintln!("stopped; nothing was written");
                return Ok(ExitCode::from(INTERRUPTED));
            }
        }
        let collected = CollectedRows { namespaces: collector.namespaces().borrow().clone(), rows, outside };
        drop(collector);
        let blind = problems.print_new();
        let targets: Vec<TargetId> = self.targets.iter().map(|target| target.id.clone()).collect();
        notes::print(&collected.rows, &targets);
        let exit_code = if blind { ExitCode::from(BLIND) } else { ExitCode::SUCCESS };
        if self.inventories.iter().all(|bound| bound.sinks.is_empty()) {
            self.print(&collected)?;
            return Ok(exit_code);
        }
        let claimant = self.args.out.claimant(owner);
        let write = self.write(&collected, &claimant);
        self.stoppable(write).await?;
        Ok(exit_code)
    }

    /// Lets a running write finish within the grace period after a stop signal.
    async fn stoppable(&self, write: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
        let mut write = std::pin::pin!(write);
        tokio::select! {
            result = &mut write => return result,
            () = stop_signal() => {}
        }
        let seconds = self.args.shutdown_grace_period;
        eprintln!("stopping: the running write has {seconds} s to finish");
        match time::timeout(Duration::from_secs(seconds), write).await {
            Ok(result) => result,
            Err(_) => bail!("stopped before the write was done"),
        }
    }

    /// The rows of an inventory, and how they were chosen among the rows of its targets.
    fn snapshot(
        collected: &CollectedRows,
        inventory: &RunInventory,
    ) -> anyhow::Result<(Snapshot, RowFilter)> {
        let snapshot = collected.rows.snapshot(&inventory.targets, collected.outside.clone());
        let mut snapshot = snapshot.context("a kind was not listed to its end")?;
        let row_filter = inventory.rows.among(collected.namespaces.as_deref()).with_context(|| {
            format!("inventory {}: spec.namespaceSelector needs namespaces to be listed", inventory.name)
        })?;
        row_filter.apply(&mut snapshot);
        Ok((snapshot, row_filter))
    }

    fn print(&self, collected: &CollectedRows) -> anyhow::Result<()> {
        let mut all: Vec<Arc<Row>> = Vec::new();
        let mut keys = BTreeSet::new();
        for BoundInventory { inventory, .. } in &self.inventories {
            let (snapshot, _) = Self::snapshot(collected, inventory)?;
            all.extend(
                snapshot.rows.into_iter().filter(|(key, _)| keys.insert(key.clone())).map(|(_, row)| row),
            );
        }
        all.sort_by(|a, b| order(a).cmp(&order(b)));
        if let Some(note) = unwritten(&self.inventories) {
            eprintln!("{note}");
        }
        let output = self.args.output.unwrap_or(OutputFormat::Table);
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        let result = print::rows(&mut stdout, &all, output).and_then(|()| stdout.flush());
        printed(result, "print the rows")?;
        if output == OutputFormat::Table && all.is_empty() {
            eprintln!("no rows: nothing that could be read matches the targets");
        }
        Ok(())
    }

    /// Writes to all sinks at the same time; one that fails or is slow does not affect the others.
    async fn write(&self, collected: &CollectedRows, claimant: &Claimant) -> anyhow::Result<()> {
        let opener = Sinks::default();
        let mut writes = Vec::new();
        for BoundInventory { inventory, sinks } in &self.inventories {
            if sinks.is_empty() {
                eprintln!("note: inventory {} has no sink and was not written", inventory.name);
            }
            let (snapshot, row_filter) = Self::snapshot(collected, inventory)?;
            let snapshot = Arc::new(snapshot);
            writes.extend(sinks.iter().map(|sink| {
                let binding =
                    sink.binding(inventory, row_filter.clone(), &collected.outside, claimant, &opener);
                deliver(sink, binding, snapshot.clone())
            }));
        }
        let headers =
            ["INVENTORY", "SINK", "ROWS", "ADDED", "CHANGED", "REMOVED", "UNCHANGED", "LEFT ALONE", "TIME"];
        let mut lines = vec![headers.map(ToOwned::to_owned).to_vec()];
        let mut changed = Vec::new();
        let mut failed = 0;
        for written in futures::future::join_all(writes).await {
            let WrittenInventory { destination: RunDestination { id, name, .. }, snapshot, outcome, took } =
                written;
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
                    eprintln!("error: inventory {id}, sink {name}: {}", chain_text(&error));
                    failed += 1;
                }
            }
        }
        // Printed last: a closed standard output must not stop a write.
        let printed_results = print_results(&changed, &lines);
        let total: usize = self.inventories.iter().map(|bound| bound.sinks.len()).sum();
        if failed > 0 { Err(anyhow!("{failed} of {total} writes failed")) } else { printed_results }
    }
}

/// Prints what changed and a line for each sink, below the line of headers.
fn print_results(changed: &[String], lines: &[Vec<String>]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let result = changed.iter().try_for_each(|line| writeln!(stdout, "{line}"));
    printed(result, "print the changes")?;
    if lines.len() > 1 {
        printed(print::aligned(&mut stdout, lines), "print the summary")?;
    }
    printed(stdout.flush(), "print the summary")
}

struct WrittenInventory<'a> {
    destination: &'a RunDestination,
    snapshot: Arc<Snapshot>,
    outcome: Result<Outcome, SinkError>,
    took: Duration,
}

/// Brings one sink up to date, and prints a line from time to time if that takes long.
async fn deliver(
    destination: &RunDestination,
    binding: Binding,
    snapshot: Arc<Snapshot>,
) -> WrittenInventory<'_> {
    let began = time::Instant::now();
    let write = export(&binding, &snapshot);
    let name = format!("{} → {}", destination.id, destination.name);
    let outcome = progress::waiting(&name, &format!("writing {} rows", snapshot.rows.len()), write).await;
    WrittenInventory { destination, outcome, took: began.elapsed(), snapshot }
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
    let row_name = |row: &Row| format!("{} {}/{}", row.key.kind, row.key.namespace, row.name);
    let added = delta.added.iter().map(|row| format!("+ {}", row_name(row)));
    let changed = delta.changed.iter().map(|row| format!("~ {}", row_name(&row.after)));
    let removed = delta.removed.iter().map(|row| {
        let key = &row.key;
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
