//! `kollect collect`: one run of the engine with manifests from files.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context;
use kollect_engine::{
    collect::{self, Problem},
    export::{Outcome, export},
    select::Namespaces,
    store::{Sight, Snapshot, StoreReader, store},
    watch::{BlindReason, Metadata, WatchSource},
};
use kollect_model::{batch::InventoryId, row::Row};

use super::{
    manifests::{self, Inventory, Work},
    print::{self, Output},
};
use crate::{cluster::ClusterSource, files::FileSource};

/// Manifests are wrong; nothing was collected.
const BAD_INPUT: u8 = 2;
/// Something that was asked for may not be seen; everything else was collected.
const BLIND: u8 = 3;

/// Exit codes: 0 done; 1 the cluster or a sink failed; 2 the manifests are wrong, nothing was
/// collected; 3 something may not be listed, everything else was collected.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 done; 1 the cluster or a sink failed; 2 the input is wrong and nothing was \
    collected; 3 something could not be seen and everything else was collected.")]
pub(crate) struct Args {
    /// Files or directories with Kollect manifests.
    #[arg(short = 'f', long = "filename", required = true, value_name = "DIR|FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Read objects from YAML or JSON files instead of a cluster; - is the standard input.
    #[arg(long, value_name = "FILE|DIR|-", num_args = 1.., conflicts_with_all = ["context", "kubeconfig"])]
    from: Vec<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Look at one namespace only; nothing else is touched in a sink.
    #[arg(long, short = 'n')]
    namespace: Option<String>,
    /// Print the rows and write to no sink.
    #[arg(short = 'o', long, value_name = "FORMAT", conflicts_with = "out")]
    output: Option<Output>,
    /// Write to this sink instead of those of the manifests, such as sqlite:inventory.db.
    #[arg(long, value_name = "sqlite:FILE")]
    out: Option<String>,
    /// Name of the cluster in --out, so that several clusters can share it.
    #[arg(long, default_value = "", requires = "out", value_name = "NAME")]
    cluster: String,
}

/// `kollect collect`
pub(crate) fn run(args: Args) -> ExitCode {
    let work = match manifests::load(&args.manifests) {
        Ok(work) => work,
        Err(problems) => return refuse(&problems),
    };
    let out = match args.out.as_deref().map(destination).transpose() {
        Ok(out) => out,
        Err(problem) => return refuse(&[problem]),
    };
    work.notes.iter().for_each(|note| eprintln!("note: {note}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let result = runtime
        .context("start the runtime")
        .and_then(|runtime| runtime.block_on(Run { args, work, out, blind: false }.run()));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(problems: &[String]) -> ExitCode {
    problems.iter().for_each(|problem| eprintln!("error: {problem}"));
    let noun = if problems.len() == 1 { "problem" } else { "problems" };
    eprintln!("{} {noun}; nothing was collected", problems.len());
    ExitCode::from(BAD_INPUT)
}

/// What `--out` names.
fn destination(text: &str) -> Result<kollect_sinks::Plan, String> {
    match text.split_once(':') {
        #[cfg(feature = "sqlite")]
        Some(("sqlite", file)) if !file.is_empty() => {
            Ok(kollect_sinks::Plan::Sqlite(kollect_sinks::sqlite::Config::file(file)))
        }
        Some((scheme, rest)) if !rest.is_empty() && scheme != "sqlite" => {
            Err(format!("--out {text}: {scheme} is not available in this build; write sqlite:FILE"))
        }
        _ => Err(format!("--out {text}: is not a destination; write sqlite:FILE")),
    }
}

struct Run {
    args: Args,
    work: Work,
    out: Option<kollect_sinks::Plan>,
    blind: bool,
}

impl Run {
    async fn run(mut self) -> anyhow::Result<ExitCode> {
        let (source, owner): (Box<dyn WatchSource>, Option<String>) = if self.args.from.is_empty() {
            let source =
                ClusterSource::connect(self.args.kubeconfig.as_deref(), self.args.context.as_deref()).await?;
            let owner = source.id.clone();
            (Box::new(source), Some(owner))
        } else {
            match FileSource::read(&self.args.from) {
                Ok(source) => (Box::new(source), None),
                Err(error) => return Ok(refuse(&[format!("{error:#}")])),
            }
        };
        let rows = self.collect(&*source).await;
        let rest = match &self.args.namespace {
            _ if !source.is_complete() => Sight::Partial,
            Some(namespace) => Sight::Namespaces([namespace.clone()].into()),
            None => Sight::Everything,
        };
        let printing = self.out.is_none()
            && (self.args.output.is_some() || self.work.inventories.iter().all(|i| i.sinks.is_empty()));
        if printing {
            self.print(&rows, &rest)?;
        } else {
            self.write(&rows, &rest, owner.as_deref()).await?;
        }
        Ok(if self.blind { ExitCode::from(BLIND) } else { ExitCode::SUCCESS })
    }

    async fn collect(&mut self, source: &dyn WatchSource) -> StoreReader {
        let (mut writer, reader) = store();
        let namespaces = self.namespaces(source).await;
        let only = self.args.namespace.as_deref();
        let blind = &mut self.blind;
        let problem = |problem| *blind |= report(&problem);
        collect::collect(source, &self.work.targets, &namespaces, only, &mut writer, problem).await;
        reader
    }

    /// Without permission to list namespaces, those that are named are taken to exist.
    async fn namespaces(&self, source: &dyn WatchSource) -> Namespaces {
        match collect::namespaces(source).await {
            Ok(namespaces) => namespaces,
            Err(blindness) => {
                eprintln!("warning: {}; labels of namespaces are not known", blindness.message);
                let queries = self.work.targets.iter().flat_map(|t| t.selection.queries(self.args.namespace.as_deref()));
                let named = queries.filter_map(|query| match query.scope {
                    kollect_engine::watch::Scope::Namespaces(names) => Some(names),
                    kollect_engine::watch::Scope::All => None,
                });
                let names: BTreeSet<String> = named.flatten().collect();
                names.into_iter().map(|name| (name, Metadata::default())).collect()
            }
        }
    }

    fn snapshot(rows: &StoreReader, inventory: &Inventory, rest: &Sight) -> anyhow::Result<Snapshot> {
        rows.snapshot(&inventory.targets, rest.clone()).context("a kind was not listed to its end")
    }

    fn print(&self, rows: &StoreReader, rest: &Sight) -> anyhow::Result<()> {
        let mut all: Vec<Arc<Row>> = Vec::new();
        let mut seen = BTreeSet::new();
        for inventory in &self.work.inventories {
            let snapshot = Self::snapshot(rows, inventory, rest)?;
            all.extend(snapshot.rows.into_iter().filter(|(key, _)| seen.insert(key.clone())).map(|(_, row)| row));
        }
        all.sort_by(|a, b| order(a).cmp(&order(b)));
        let unwritten = self.work.inventories.iter().map(|i| i.sinks.len()).sum::<usize>();
        if unwritten > 0 {
            eprintln!("note: -o prints only; {unwritten} sink reference(s) of the manifests were not written");
        }
        let output = self.args.output.unwrap_or(Output::Table);
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        print::rows(&mut stdout, &all, output).and_then(|()| stdout.flush()).context("print the rows")?;
        if output == Output::Table && all.is_empty() {
            eprintln!("no rows: nothing matches the targets");
        }
        Ok(())
    }

    async fn write(&self, rows: &StoreReader, rest: &Sight, owner: Option<&str>) -> anyhow::Result<()> {
        let headers = ["INVENTORY", "SINK", "ROWS", "ADDED", "CHANGED", "REMOVED", "UNCHANGED", "LEFT ALONE"];
        let mut lines = vec![headers.map(ToOwned::to_owned).to_vec()];
        let mut failure = None;
        for inventory in &self.work.inventories {
            let snapshot = Self::snapshot(rows, inventory, rest)?;
            let own = inventory.sinks.iter().map(|sink| {
                let cluster = sink.spec.common().cluster.clone().unwrap_or_default();
                (sink.name.clone(), cluster, sink.plan.clone())
            });
            let out = self.out.iter().map(|plan| {
                (self.args.out.clone().unwrap_or_default(), self.args.cluster.clone(), plan.clone())
            });
            let sinks: Vec<_> = if self.out.is_some() { out.collect() } else { own.collect() };
            for (name, cluster, plan) in sinks {
                let id = InventoryId { cluster, namespace: inventory.namespace.clone(), name: inventory.name.clone() };
                match deliver(&plan, &id, owner, &snapshot).await {
                    Ok(outcome) => {
                        changes(&outcome, &snapshot);
                        lines.push(summary(&id, &name, &snapshot, &outcome));
                    }
                    Err(error) => {
                        eprintln!("error: sink {name}: {error:#}");
                        failure = Some(anyhow::anyhow!("inventory {id} was not written to {name}"));
                    }
                }
            }
        }
        let mut stdout = io::stdout().lock();
        print::aligned(&mut stdout, &lines).context("print the summary")?;
        failure.map_or(Ok(()), Err)
    }
}

async fn deliver(
    plan: &kollect_sinks::Plan,
    inventory: &InventoryId,
    owner: Option<&str>,
    snapshot: &Snapshot,
) -> anyhow::Result<Outcome> {
    let sink = kollect_sinks::open(plan).await?;
    Ok(export(&*sink, inventory, owner, snapshot).await?)
}

/// Says what could not be seen; whether it makes the run blind.
fn report(problem: &Problem) -> bool {
    match problem {
        Problem::Blind { blindness, .. } => {
            let word = if blindness.reason == BlindReason::Forbidden { "forbidden" } else { "not seen" };
            eprintln!("{word}: {}", blindness.message);
            true
        }
        Problem::TypeMismatch { target, object, attributes } => {
            eprintln!("warning: target {target}: {object}: not of the declared type: {}", attributes.join(", "));
            false
        }
        Problem::Unreadable { target, object, error } => {
            eprintln!("warning: target {target}: {object}: {error}");
            true
        }
    }
}

/// What people look for: by target, then by name.
fn order(row: &Row) -> (&kollect_model::row::TargetId, &str, &str, &str, &str) {
    (&row.key.target, &row.key.kind, &row.key.namespace, &row.name, &row.key.uid)
}

/// How many changed rows are named one by one.
const NAMED_CHANGES: usize = 20;

/// Names what changed, in the manner of a diff. A first fill is not a change.
fn changes(outcome: &Outcome, snapshot: &Snapshot) {
    let delta = &outcome.delta;
    if delta.added.len() == snapshot.rows.len() && delta.removed.is_empty() {
        return;
    }
    let place = |row: &Row| format!("{} {}/{}", row.key.kind, row.key.namespace, row.name);
    let added = delta.added.iter().map(|row| format!("+ {}", place(row)));
    let changed = delta.changed.iter().map(|row| format!("~ {}", place(row)));
    let removed = delta.removed.iter().map(|key| format!("- {} {}/{}", key.kind, key.namespace, key.uid));
    let lines: Vec<String> = added.chain(changed).chain(removed).collect();
    lines.iter().take(NAMED_CHANGES).for_each(|line| println!("{line}"));
    if lines.len() > NAMED_CHANGES {
        println!("… and {} more", lines.len() - NAMED_CHANGES);
    }
}

fn summary(id: &InventoryId, sink: &str, snapshot: &Snapshot, outcome: &Outcome) -> Vec<String> {
    let delta = &outcome.delta;
    let counts = [
        snapshot.rows.len(),
        delta.added.len(),
        delta.changed.len(),
        delta.removed.len(),
        outcome.unchanged,
        outcome.left_alone,
    ];
    let mut line = vec![id.to_string(), sink.to_owned()];
    line.extend(counts.iter().map(ToString::to_string));
    line
}
