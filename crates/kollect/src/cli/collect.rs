//! `kollect collect`: one run of the engine with manifests from files.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context, anyhow};
use kollect_engine::{
    collect::{self, Problem},
    export::{Outcome, export},
    extract::Policy,
    select::{NamespaceDefaults, Namespaces, Selection, queries},
    store::{Sight, Snapshot, StoreReader, store},
    watch::{BlindReason, Metadata, Scope, WatchSource},
};
use kollect_model::{
    batch::InventoryId,
    crd::shapes::is_namespace_name,
    row::{Row, TargetId},
};
use kollect_sinks::{Plan, plan_destination};

use super::{
    manifests::{self, Inventory},
    print::{self, Output},
};
use crate::{cluster::ClusterSource, files::FileSource};

/// The input is wrong; nothing was collected.
const BAD_INPUT: u8 = 2;
/// Something that was asked for could not be seen; everything else was collected.
const BLIND: u8 = 3;

/// Arguments of `kollect collect`.
#[derive(clap::Args)]
#[command(
    after_help = "Without -o and --out the rows go to the sinks of the manifests, or to the terminal if there are none.\n\
        Exit codes: 0 done; 1 the cluster or a sink failed; 2 the input is wrong and nothing was collected;\n\
        3 something could not be seen and everything else was collected."
)]
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
    /// Look at one namespace and at cluster-scoped kinds; nothing else is touched in a sink.
    #[arg(long, short = 'n', value_parser = namespace_name)]
    namespace: Option<String>,
    /// Print the rows and write to no sink.
    #[arg(short = 'o', long, value_name = "FORMAT", conflicts_with = "out")]
    output: Option<Output>,
    /// Write to this sink instead of those of the manifests, such as sqlite:inventory.db.
    #[arg(long, value_name = "sqlite:FILE")]
    out: Option<String>,
    /// Name of the cluster in --out, so that several clusters can share it.
    #[arg(long, default_value = "", requires = "out", value_name = "NAME", hide_default_value = true)]
    cluster: String,
    /// More keys whose values are redacted, separated by commas.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    scrub_keys: Vec<String>,
    /// More kinds whose data and stringData are treated like those of Secrets, as GROUP/KIND or KIND.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    sensitive_kinds: Vec<String>,
    /// Namespaces of targets that include none by name.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = namespace_name)]
    default_included_namespaces: Vec<String>,
    /// Namespaces that every target excludes.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = namespace_name)]
    default_excluded_namespaces: Vec<String>,
}

fn namespace_name(text: &str) -> Result<String, String> {
    let known = is_namespace_name(text).then(|| text.to_owned());
    known.ok_or_else(|| "must be the name of a namespace: lower-case letters, digits and -".into())
}

/// `kollect collect`
pub(crate) fn run(args: Args) -> ExitCode {
    match Run::prepare(args) {
        Ok(run) => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            match runtime.context("start the runtime").and_then(|runtime| runtime.block_on(run.run())) {
                Ok(code) => code,
                Err(error) => {
                    eprintln!("error: {}", told_once(error.as_ref()));
                    ExitCode::FAILURE
                }
            }
        }
        Err(problems) => refuse(&problems),
    }
}

fn refuse(problems: &[String]) -> ExitCode {
    problems.iter().for_each(|problem| eprintln!("error: {problem}"));
    let noun = if problems.len() == 1 { "problem" } else { "problems" };
    eprintln!("{} {noun}; nothing was collected", problems.len());
    ExitCode::from(BAD_INPUT)
}

/// The chain of causes. Some libraries repeat a cause in the text of its effect; it is told once.
fn told_once(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// An inventory and where this run writes it.
struct Bound {
    inventory: Inventory,
    sinks: Vec<Destination>,
}

struct Destination {
    name: String,
    cluster: String,
    plan: Plan,
}

struct Run {
    args: Args,
    targets: Vec<collect::Target>,
    inventories: Vec<Bound>,
    blind: bool,
}

impl Run {
    /// Everything that can be checked before anything is read.
    fn prepare(args: Args) -> Result<Self, Vec<String>> {
        let group_kind = |text: &String| match text.split_once('/') {
            Some((group, kind)) => (group.to_owned(), kind.to_owned()),
            None => (String::new(), text.clone()),
        };
        let sensitive_kinds = args.sensitive_kinds.iter().map(group_kind).collect();
        let policy = Policy { scrub_keys: args.scrub_keys.clone(), sensitive_kinds };
        let out =
            args.out.as_deref().map(|text| plan_destination(text).map_err(|e| format!("--out {text}: {e}")));
        let (out, mut problems) = match out.transpose() {
            Ok(out) => (out, Vec::new()),
            Err(problem) => (None, vec![problem]),
        };
        let defaults = NamespaceDefaults {
            included: args.default_included_namespaces.clone(),
            excluded: args.default_excluded_namespaces.clone(),
        };
        let work = match manifests::load(&args.manifests, &policy, &defaults) {
            Ok(work) => work,
            Err(found) => return Err(problems.into_iter().chain(found).collect()),
        };
        work.notes.iter().for_each(|note| eprintln!("note: {note}"));
        if !args.from.is_empty() {
            let selectors = work.targets.iter().flat_map(|target| target.selection.field_selectors());
            let refuse = |selector: &str| {
                format!(
                    "fieldSelector {selector}: only an API server can evaluate it: remove it, or read a cluster"
                )
            };
            problems.extend(selectors.map(refuse));
        }
        let mut inventories = Vec::new();
        for inventory in work.inventories {
            let mut sinks = Vec::new();
            if let Some(plan) = &out {
                let name = args.out.clone().unwrap_or_default();
                sinks.push(Destination { name, cluster: args.cluster.clone(), plan: plan.clone() });
            } else if args.output.is_none() {
                for sink in &inventory.sinks {
                    let cluster = sink.spec.common().cluster.clone().unwrap_or_default();
                    match sink.plan() {
                        Ok(plan) => sinks.push(Destination { name: sink.name.clone(), cluster, plan }),
                        Err(errors) => problems.extend(errors),
                    }
                }
            }
            inventories.push(Bound { inventory, sinks });
        }
        problems.dedup();
        let run = Self { args, targets: work.targets, inventories, blind: false };
        if problems.is_empty() { Ok(run) } else { Err(problems) }
    }

    async fn run(mut self) -> anyhow::Result<ExitCode> {
        let (source, owner): (Box<dyn WatchSource>, Option<String>) = if self.args.from.is_empty() {
            let source =
                ClusterSource::connect(self.args.kubeconfig.as_deref(), self.args.context.as_deref()).await?;
            let owner = source.id.clone();
            (Box::new(source), Some(owner))
        } else {
            match FileSource::read(&self.args.from) {
                Ok(source) => {
                    for (gvk, count) in &source.without_namespace {
                        eprintln!(
                            "note: {count} {gvk} without metadata.namespace: taken to be cluster-scoped"
                        );
                    }
                    (Box::new(source), None)
                }
                Err(problems) => return Ok(refuse(&problems)),
            }
        };
        let rows = self.collect(&*source).await;
        let rest = collect::rest(&*source, self.args.namespace.as_deref());
        if self.inventories.iter().all(|bound| bound.sinks.is_empty()) {
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
        let mut problems = Problems::default();
        let hear = |problem| problems.hear(problem);
        collect::collect(source, &self.targets, &namespaces, only, &mut writer, hear).await;
        self.blind = problems.blind;
        problems.summarise();
        reader
    }

    /// Without permission to list namespaces, those that are named are taken to exist.
    async fn namespaces(&self, source: &dyn WatchSource) -> Namespaces {
        let only = self.args.namespace.as_deref();
        collect::namespaces(source).await.unwrap_or_else(|blindness| {
            eprintln!("warning: {}; their labels are not known", blindness.message);
            let selections: Vec<&Selection> = self.targets.iter().map(|target| &target.selection).collect();
            let scopes = queries(&selections, only).into_keys().map(|query| query.scope);
            let named = scopes.filter_map(|scope| match scope {
                Scope::Namespaces(names) => Some(names),
                Scope::All => None,
            });
            let known = named.flatten().map(|name| (name, Metadata::default())).collect();
            Namespaces { known, complete: false }
        })
    }

    fn snapshot(rows: &StoreReader, inventory: &Inventory, rest: &Sight) -> anyhow::Result<Snapshot> {
        rows.snapshot(&inventory.targets, rest.clone()).context("a kind was not listed to its end")
    }

    fn print(&self, rows: &StoreReader, rest: &Sight) -> anyhow::Result<()> {
        let mut all: Vec<Arc<Row>> = Vec::new();
        let mut seen = BTreeSet::new();
        for Bound { inventory, .. } in &self.inventories {
            let snapshot = Self::snapshot(rows, inventory, rest)?;
            all.extend(
                snapshot.rows.into_iter().filter(|(key, _)| seen.insert(key.clone())).map(|(_, row)| row),
            );
        }
        all.sort_by(|a, b| order(a).cmp(&order(b)));
        let unwritten = self.inventories.iter().map(|bound| bound.inventory.sinks.len()).sum::<usize>();
        if unwritten > 0 {
            eprintln!(
                "note: -o prints only; {unwritten} sink reference(s) of the manifests were not written"
            );
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
        let mut changed = Vec::new();
        let mut failed = 0;
        for Bound { inventory, sinks } in &self.inventories {
            if sinks.is_empty() {
                eprintln!("note: inventory {} has no sink and was not written", inventory.name);
            }
            let snapshot = Self::snapshot(rows, inventory, rest)?;
            for Destination { name, cluster, plan } in sinks {
                let id = InventoryId {
                    cluster: cluster.clone(),
                    namespace: inventory.namespace.clone(),
                    name: inventory.name.clone(),
                };
                match deliver(plan, &id, owner, &snapshot).await {
                    Ok(outcome) => {
                        changed.extend(changes(&outcome, &snapshot));
                        lines.push(summary(&id, name, &snapshot, &outcome));
                    }
                    Err(error) => {
                        eprintln!("error: inventory {id}, sink {name}: {}", told_once(error.as_ref()));
                        failed += 1;
                    }
                }
            }
        }
        // Printed last: whoever reads may go away, and must not stop a write.
        let mut stdout = io::stdout().lock();
        changed.iter().try_for_each(|line| writeln!(stdout, "{line}")).context("print the changes")?;
        if lines.len() > 1 {
            print::aligned(&mut stdout, &lines).context("print the summary")?;
        }
        if failed > 0 {
            Err(anyhow!("{failed} of {} writes failed", lines.len() - 1 + failed))
        } else {
            Ok(())
        }
    }
}

async fn deliver(
    plan: &Plan,
    inventory: &InventoryId,
    owner: Option<&str>,
    snapshot: &Snapshot,
) -> anyhow::Result<Outcome> {
    let sink = kollect_sinks::open(plan).await?;
    Ok(export(&*sink, inventory, owner, snapshot).await?)
}

/// What a run could not see or read. Blindness is told at once, what concerns single objects is counted.
#[derive(Default)]
struct Problems {
    blind: bool,
    mismatches: BTreeMap<(TargetId, String), (usize, String)>,
}

impl Problems {
    fn hear(&mut self, problem: Problem) {
        match problem {
            Problem::Blind { blindness, .. } => {
                self.blind = true;
                let word = if blindness.reason == BlindReason::Forbidden { "forbidden" } else { "not seen" };
                eprintln!("{word}: {}", blindness.message);
            }
            Problem::Undecided { target, gvk } => {
                self.blind = true;
                eprintln!(
                    "not seen: target {target}: which {gvk} it selects depends on namespaces that cannot be listed"
                );
            }
            Problem::TypeMismatch { target, object, attributes } => {
                for attribute in attributes {
                    let entry = self.mismatches.entry((target.clone(), attribute));
                    entry.or_insert_with(|| (0, object.clone())).0 += 1;
                }
            }
            Problem::Unreadable { target, object, error } => {
                self.blind = true;
                eprintln!("not seen: target {target}: {object}: {}", told_once(&error));
            }
        }
    }

    fn summarise(&self) {
        for ((target, attribute), (count, example)) in &self.mismatches {
            let objects =
                if *count == 1 { example.clone() } else { format!("{count} objects, such as {example}") };
            eprintln!("warning: target {target}: {attribute} is null: not of the declared type in {objects}");
        }
    }
}

/// What people look for: by target, then by name.
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
    let changed = delta.changed.iter().map(|row| format!("~ {}", place(row)));
    let removed = delta.removed.iter().map(|key| format!("- {} {}/{}", key.kind, key.namespace, key.uid));
    let total = delta.added.len() + delta.changed.len() + delta.removed.len();
    let more = (total > NAMED_CHANGES).then(|| format!("… and {} more", total - NAMED_CHANGES));
    added.chain(changed).chain(removed).take(NAMED_CHANGES).chain(more).collect()
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
