//! `kollect watch`: the engine with manifests from files, printing every row that changes.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::ValueEnum;
use kollect_engine::{
    clock,
    collect::{Collector, Target, visibility_outside},
    coverage::{Coverage, KindCoverage, WatchKey, WatchState},
    names,
    store::{Changes, StoreChange, StoreReader, Visibility},
    tasks::{TaskKind, Tasks},
    watch::{BlindReason, Blindness},
};
use kollect_model::{
    crd::shapes::Gvk,
    difference::{AttributeDifference, differences, shortened},
    row::{Row, RowKey, TargetId},
};
use serde::Serialize;
use tokio::time;

use super::{
    common_args::{CommonArgs, Problems, finish, refuse, start},
    deliver::{self, BoundInventory, OutSink, unwritten},
    manifests::{LabelledProfile, RequestedRun},
    notes,
    print::printed,
    progress,
};
use crate::signals::{second_stop_signal, stop_signal};

/// Arguments of `kollect watch`.
#[derive(clap::Args)]
#[command(
    after_help = "+ is a new row, ~ a changed one, - a removed one. What cannot be seen is printed to standard error,\n\
        and changes nothing. Ctrl-C ends."
)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    input: CommonArgs,
    /// Print only, in this format, and write to no sink. Default: text, and the sinks of the manifests.
    #[arg(short = 'o', long, value_name = "FORMAT")]
    output: Option<WatchOutput>,
    #[command(flatten)]
    out: OutSink,
    /// Seconds that running writes get to finish after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_grace_period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WatchOutput {
    /// For people: what changed, from what to what. The rows that exist at first are counted.
    Text,
    /// For programs: one JSON object per change. The rows that exist at first are added, then synced.
    Ndjson,
}

/// `kollect watch`
pub(crate) fn run(args: &WatchArgs) -> ExitCode {
    let (RequestedRun { targets, inventories, profiles, .. }, mut problems) = args.input.load(false);
    match args.out.bind(inventories, args.output.is_some()) {
        Ok(inventories) if problems.is_empty() => finish(watch(args, targets, inventories, profiles)),
        Ok(_) => refuse(&problems),
        Err(found) => {
            problems.extend(found);
            refuse(&problems)
        }
    }
}

async fn watch(
    args: &WatchArgs,
    targets: Vec<Arc<Target>>,
    inventories: Vec<BoundInventory>,
    profiles: Vec<LabelledProfile>,
) -> anyhow::Result<ExitCode> {
    if let Some(note) = unwritten(&inventories).filter(|_| args.output.is_some()) {
        eprintln!("{note}");
    }
    let source = Arc::new(args.input.connect().await?);
    args.input.warn_about(&profiles, &source).await;
    let tasks = Tasks::default();
    let _kinds = tasks.core(TaskKind::Discovery.into(), source.clone().follow_kinds());
    let problems = Problems::of_objects();
    let began = time::Instant::now();
    let settings = args.input.settings(true);
    let (collector, rows) = start(source.clone(), settings.clone(), &targets, &problems);
    let claimant = args.out.claimant(Some(source.id.clone()));
    // Which namespaces an inventory rolls up is known when they have been listed.
    let mut namespaces = collector.namespaces();
    let known = async { namespaces.wait_for(Option::is_some).await.ok().and_then(|known| known.clone()) };
    let known = tokio::select! {
        known = known => known,
        () = stop_signal() => return Ok(ExitCode::SUCCESS),
    };
    let outside = visibility_outside(&*source, &settings);
    let deliveries = deliver::follow(inventories, &rows, &claimant, &outside, known.as_deref(), &tasks)?;
    let ids: Vec<TargetId> = targets.iter().map(|target| target.id.clone()).collect();
    let watch = WatchRun {
        output: args.output.unwrap_or(WatchOutput::Text),
        several_targets: ids.len() > 1,
        problems,
    };
    let ended = tokio::select! {
        result = watch.run(&collector, &rows, &ids, began) => result,
        ended = tasks.core_task_ended() => Err(ended.into()),
        () = stop_signal() => Ok(()),
    };
    // Collection has stopped; running writes may finish.
    drop(collector);
    let grace = Duration::from_secs(args.shutdown_grace_period);
    let aborted = async {
        second_stop_signal().await;
        tasks.running(&[TaskKind::Binding])
    };
    let stopped = tokio::select! {
        stopped = tasks.within(grace, &[TaskKind::Binding], deliveries.stop()) => stopped,
        stuck = aborted => Err(stuck),
    };
    if let Err(stuck) = stopped {
        anyhow::bail!("stopped before all writes were done: {stuck}");
    }
    ended.map(|()| ExitCode::SUCCESS)
}

struct WatchRun {
    output: WatchOutput,
    /// Whether rows of several targets are printed.
    several_targets: bool,
    problems: Problems,
}

impl WatchRun {
    async fn run(
        &self,
        collector: &Collector,
        rows: &StoreReader,
        targets: &[TargetId],
        began: time::Instant,
    ) -> anyhow::Result<()> {
        let coverage = collector.coverage();
        let mut watched = WatchedKinds::default();
        progress::during(coverage, rows.wait_until_seen()).await;
        watched.print_changes(coverage);
        self.problems.print_new();
        notes::print(rows, targets);
        let mut changes = rows.changes(targets);
        let count: usize = targets.iter().map(|target| rows.count(target)).sum();
        let noun = if count == 1 { "row" } else { "rows" };
        eprintln!("watching {count} {noun}, listed in {:.1} s; Ctrl-C ends", began.elapsed().as_secs_f32());
        if self.output == WatchOutput::Ndjson {
            self.print_all(rows, targets, &mut changes)?;
        }
        let mut ticks = time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                changes = changes.next() => self.print(&changes)?,
                _ = ticks.tick() => {
                    watched.print_changes(coverage);
                    self.problems.print_new();
                }
            }
        }
    }

    /// Prints the rows that exist, for programs that start without any.
    fn print_all(
        &self,
        rows: &StoreReader,
        targets: &[TargetId],
        changes: &mut Changes,
    ) -> anyhow::Result<()> {
        let snapshot = rows.snapshot_of_seen(targets, Visibility::Everything);
        changes.rebase(&snapshot);
        let count = snapshot.rows.len();
        for (key, row) in snapshot.rows {
            self.print(&[StoreChange { key, before: None, after: Some(row), removal: None }])?;
        }
        let mut out = io::stdout().lock();
        let line = writeln!(out, "{{\"op\":\"synced\",\"rows\":{count}}}");
        printed(line.and_then(|()| out.flush()), "print the number of rows")
    }

    fn print(&self, changes: &[StoreChange]) -> anyhow::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        // A row that was never here may be gone from a sink: that is no change of what is watched.
        for change in changes.iter().filter(|change| change.before.is_some() || change.after.is_some()) {
            let result = match self.output {
                WatchOutput::Text => writeln!(out, "{}", self.line(change)),
                WatchOutput::Ndjson => serde_json::to_writer(&mut out, &ChangeLine::of(change))
                    .map_err(io::Error::from)
                    .and_then(|()| writeln!(out)),
            };
            printed(result, "print a change")?;
        }
        printed(out.flush(), "print the changes")
    }

    fn line(&self, change: &StoreChange) -> String {
        let StoreChange { key, before, after, .. } = change;
        let sign = match (before, after) {
            (None, _) => '+',
            (Some(_), Some(_)) => '~',
            (Some(_), None) => '-',
        };
        let name = after.as_ref().or(before.as_ref()).map_or("", |row| &row.name);
        let object_name = match &*key.namespace {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        };
        let target = if self.several_targets { format!("{} ", key.target) } else { String::new() };
        let details: Vec<String> =
            differences_of(before.as_deref(), after.as_deref()).iter().map(text).collect();
        format!("{sign} {target}{} {object_name}  {}", key.kind, details.join(", ")).trim_end().to_owned()
    }
}

/// The attributes that a new or changed row shows differently than before; none if the row was removed.
fn differences_of(before: Option<&Row>, after: Option<&Row>) -> Vec<AttributeDifference> {
    let before = before.map(|row| row.attributes.get());
    after.map(|after| differences(before, after.attributes.get())).unwrap_or_default()
}

fn text(AttributeDifference { name, before, after }: &AttributeDifference) -> String {
    let show = |value: &Option<String>| value.as_deref().map_or("-".into(), shortened);
    match before {
        None => format!("{name}: {}", show(after)),
        before => format!("{name}: {} → {}", show(before), show(after)),
    }
}

/// A change for programs.
#[derive(Serialize)]
struct ChangeLine<'a> {
    op: &'static str,
    key: ChangeKey<'a>,
    before: Option<&'a Row>,
    after: Option<&'a Row>,
    changed: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangeKey<'a> {
    target_namespace: Option<&'a str>,
    target_name: &'a str,
    group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

impl<'a> ChangeLine<'a> {
    fn of(StoreChange { key, before, after, .. }: &'a StoreChange) -> Self {
        let op = match (before, after) {
            (None, _) => "added",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "removed",
        };
        let (before, after) = (before.as_deref(), after.as_deref());
        let both = before.is_some() && after.is_some();
        let changed = if both { differences_of(before, after) } else { Vec::new() };
        let RowKey { target, group, kind, namespace, uid } = key;
        let key = ChangeKey {
            target_namespace: target.namespace.as_deref(),
            target_name: &target.name,
            group,
            kind,
            namespace,
            uid,
        };
        Self {
            op,
            key,
            before,
            after,
            changed: changed.into_iter().map(|difference| difference.name).collect(),
        }
    }
}

/// Why a kind cannot be seen in these namespaces, all for the same reason.
fn blind_line(blind: &[(&WatchKey, &KindCoverage)]) -> Option<String> {
    let (first, known) = blind.first()?;
    let WatchState::Blind { blindness, .. } = &known.state else { return None };
    let Blindness { reason, message } = blindness;
    let text = match (blind.len(), reason) {
        (1, _) => message.clone(),
        (all, BlindReason::Forbidden) => {
            let resource = known.resource.as_deref().map_or_else(|| first.gvk.to_string(), str::to_owned);
            let names = blind.iter().filter_map(|(watched, _)| watched.namespace.as_deref());
            let names = names::namespaces(names, all);
            format!("list {resource} in {names}: forbidden; grant the verbs list and watch on it")
        }
        (all, _) => format!("{message}; and in {} more namespaces", all - 1),
    };
    Some(format!("blind: {reason}: {text}; its rows stay as they are"))
}

/// The last known state of everything that is watched. Prints what has changed since.
#[derive(Default)]
struct WatchedKinds(BTreeMap<WatchKey, KindCoverage>);

impl WatchedKinds {
    fn print_changes(&mut self, coverage: &Coverage) {
        let now = coverage.read();
        let mut blind: BTreeMap<(&Gvk, BlindReason), Vec<(&WatchKey, &KindCoverage)>> = BTreeMap::new();
        for (watched, known) in &now {
            let before = self.0.get(watched).map(|known| &known.state);
            match (&known.state, before) {
                (WatchState::Blind { .. }, Some(WatchState::Blind { .. })) => {}
                (WatchState::Blind { blindness, .. }, _) => {
                    blind.entry((&watched.gvk, blindness.reason)).or_default().push((watched, known));
                }
                (WatchState::Absent, Some(WatchState::Blind { .. })) => {
                    eprintln!("removed: {} is not served any more and has no rows", watched.gvk);
                }
                (WatchState::Synced { .. }, Some(WatchState::Blind { since, .. })) => {
                    let gap = clock::now().duration_since(*since).unwrap_or_default().as_secs();
                    let name = match &watched.namespace {
                        Some(namespace) => format!("{} in namespace {namespace}", watched.gvk),
                        None => watched.gvk.to_string(),
                    };
                    eprintln!("seen again: {name}, after {gap} s");
                }
                _ => {}
            }
        }
        blind.values().filter_map(|same_reason| blind_line(same_reason)).for_each(|line| eprintln!("{line}"));
        for (watched, known) in &self.0 {
            // The kind is now watched with other queries, such as one for each namespace instead of one for all.
            let is_synced_elsewhere = |(other, known): (&WatchKey, &KindCoverage)| {
                other.gvk == watched.gvk && matches!(known.state, WatchState::Synced { .. })
            };
            if let WatchState::Blind { since, .. } = known.state
                && !now.contains_key(watched)
                && now.iter().any(is_synced_elsewhere)
            {
                let gap = clock::now().duration_since(since).unwrap_or_default().as_secs();
                eprintln!("seen again: {}, after {gap} s", watched.gvk);
            }
        }
        self.0 = now;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, value::to_raw_value};

    use super::*;

    fn row(attributes: &Value) -> Arc<Row> {
        let key = RowKey {
            target: TargetId { namespace: Some("default".into()), name: "web".into() },
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            uid: "u1".into(),
        };
        Arc::new(Row::new(key, "v1".into(), "cart".into(), to_raw_value(attributes).unwrap().into()))
    }

    fn change(before: Option<Value>, after: Option<Value>) -> StoreChange {
        let [before, after] = [before, after].map(|attributes| attributes.as_ref().map(row));
        let key = before.as_ref().or(after.as_ref()).unwrap().key.clone();
        StoreChange { key, before, after, removal: None }
    }

    #[test]
    fn a_line_shows_the_values_before_and_after() {
        let watch =
            WatchRun { output: WatchOutput::Text, several_targets: false, problems: Problems::of_objects() };
        let old = serde_json::json!({ "image": "cart:1", "replicas": 2, "team": null });
        let new = serde_json::json!({ "image": "cart:2", "replicas": 2 });
        let line = |before: Option<&Value>, after: Option<&Value>| {
            watch.line(&change(before.cloned(), after.cloned()))
        };
        assert_eq!(line(None, Some(&new)), r#"+ Deployment shop/cart  image: "cart:2", replicas: 2"#);
        assert_eq!(
            line(Some(&old), Some(&new)),
            r#"~ Deployment shop/cart  image: "cart:1" → "cart:2", team: null → -"#
        );
        assert_eq!(line(Some(&old), None), "- Deployment shop/cart");
    }

    #[test]
    fn ndjson_shows_both_rows_and_the_names_of_the_changed_attributes() {
        let change =
            change(Some(serde_json::json!({ "a": 1, "b": 2 })), Some(serde_json::json!({ "a": 1, "b": 3 })));
        let line = serde_json::to_value(ChangeLine::of(&change)).unwrap();
        assert_eq!(line["op"], "changed");
        assert_eq!(line["changed"], serde_json::json!(["b"]));
        assert_eq!(line["before"]["attributes"]["b"], 2);
        assert_eq!(line["after"]["attributes"]["b"], 3);
        assert_eq!(line["key"]["uid"], "u1");
    }

    #[test]
    fn namespaces_that_are_blind_for_the_same_reason_share_one_line() {
        let blind_namespaces = |reason: BlindReason, count: usize| -> BTreeMap<WatchKey, KindCoverage> {
            let blind_namespace = |number: usize| {
                let gvk = Gvk { version: "v1".into(), kind: "Secret".into(), ..Gvk::default() };
                let namespace = Some(format!("team-{number:02}").into());
                let blindness = Blindness { reason, message: format!("no {number}") };
                let state = WatchState::Blind { since: std::time::SystemTime::UNIX_EPOCH, blindness };
                let known =
                    KindCoverage { state, resource: Some("secrets".into()), gaps: [].into(), repaired: 0 };
                (WatchKey { gvk, namespace, field_selector: None }, known)
            };
            (0..count).map(blind_namespace).collect()
        };
        let line =
            |reason, count| blind_line(&blind_namespaces(reason, count).iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(line(BlindReason::Forbidden, 1), "blind: Forbidden: no 0; its rows stay as they are");
        assert_eq!(
            line(BlindReason::Forbidden, 37),
            "blind: Forbidden: list secrets in 37 namespaces (team-00, team-01 and 35 more): forbidden; grant the verbs \
             list and watch on it; its rows stay as they are"
        );
        assert_eq!(
            line(BlindReason::Failed, 3),
            "blind: Failed: no 0; and in 2 more namespaces; its rows stay as they are"
        );
    }
}
