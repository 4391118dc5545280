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
    collect::{Collector, Target, rest},
    coverage::{Coverage, Place, ScopeCoverage, State},
    names,
    store::{Change, Changes, StoreReader, Visibility},
    tasks::{TaskKind, Tasks},
    watch::{BlindReason, Blindness},
};
use kollect_model::{
    crd::shapes::Gvk,
    difference::{Difference, differences, shortened},
    row::{Row, RowKey, TargetId},
};
use serde::Serialize;
use tokio::time;

use super::{
    deliver::{self, Bound, Out, unwritten},
    input::{Input, Problems, finish, refuse, start},
    manifests::Work,
    print::printed,
    progress,
};
use crate::signals::{asked_to_stop, asked_to_stop_again};

/// Arguments of `kollect watch`.
#[derive(clap::Args)]
#[command(
    after_help = "+ is a new row, ~ a changed one, - one that is gone. What cannot be seen is told on standard error,\n\
        and changes nothing. Ctrl-C ends."
)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Print only, in this format, and write to no sink. Default: text, and the sinks of the manifests.
    #[arg(short = 'o', long, value_name = "FORMAT")]
    output: Option<Output>,
    #[command(flatten)]
    out: Out,
    /// Seconds that running writes get to finish after Ctrl-C.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    shutdown_grace_period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people: what changed, from what to what. The rows that exist at first are counted.
    Text,
    /// For programs: one JSON object per change. The rows that exist at first are added, then synced.
    Ndjson,
}

/// `kollect watch`
pub(crate) fn run(args: &Args) -> ExitCode {
    let (Work { targets, inventories, .. }, mut problems) = args.input.load();
    match args.out.bind(inventories, args.output.is_some()) {
        Ok(inventories) if problems.is_empty() => finish(watch(args, targets, inventories)),
        Ok(_) => refuse(&problems),
        Err(found) => {
            problems.extend(found);
            refuse(&problems)
        }
    }
}

async fn watch(args: &Args, targets: Vec<Arc<Target>>, inventories: Vec<Bound>) -> anyhow::Result<ExitCode> {
    if let Some(note) = unwritten(&inventories).filter(|_| args.output.is_some()) {
        eprintln!("{note}");
    }
    let source = Arc::new(args.input.connect().await?);
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
        () = asked_to_stop() => return Ok(ExitCode::SUCCESS),
    };
    let rest = rest(&*source, &settings);
    let deliveries = deliver::follow(inventories, &rows, &claimant, &rest, known.as_deref(), &tasks)?;
    let ids: Vec<TargetId> = targets.iter().map(|target| target.id.clone()).collect();
    let watch = Watch { output: args.output.unwrap_or(Output::Text), several: ids.len() > 1, problems };
    let ended = tokio::select! {
        result = watch.run(&collector, &rows, &ids, began) => result,
        ended = tasks.core_task_ended() => Err(ended.into()),
        () = asked_to_stop() => Ok(()),
    };
    // Collection has stopped; running writes may finish.
    drop(collector);
    let grace = Duration::from_secs(args.shutdown_grace_period);
    let aborted = async {
        asked_to_stop_again().await;
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

struct Watch {
    output: Output,
    /// Whether rows of several targets are printed.
    several: bool,
    problems: Problems,
}

impl Watch {
    async fn run(
        &self,
        collector: &Collector,
        rows: &StoreReader,
        targets: &[TargetId],
        began: time::Instant,
    ) -> anyhow::Result<()> {
        let coverage = collector.coverage();
        let mut places = Places::default();
        progress::during(coverage, rows.settled()).await;
        places.tell(coverage);
        self.problems.tell();
        let mut changes = rows.changes(targets);
        let count: usize = targets.iter().map(|target| rows.count(target)).sum();
        let noun = if count == 1 { "row" } else { "rows" };
        eprintln!("watching {count} {noun}, listed in {:.1} s; Ctrl-C ends", began.elapsed().as_secs_f32());
        if self.output == Output::Ndjson {
            self.print_all(rows, targets, &mut changes)?;
        }
        let mut ticks = time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                changes = changes.next() => self.print(&changes)?,
                _ = ticks.tick() => {
                    places.tell(coverage);
                    self.problems.tell();
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
            self.print(&[Change { key, before: None, after: Some(row), removal: None }])?;
        }
        let mut out = io::stdout().lock();
        let line = writeln!(out, "{{\"op\":\"synced\",\"rows\":{count}}}");
        printed(line.and_then(|()| out.flush()), "print the number of rows")
    }

    fn print(&self, changes: &[Change]) -> anyhow::Result<()> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        for change in changes {
            let result = match self.output {
                Output::Text => writeln!(out, "{}", self.line(change)),
                Output::Ndjson => serde_json::to_writer(&mut out, &ChangeLine::of(change))
                    .map_err(io::Error::from)
                    .and_then(|()| writeln!(out)),
            };
            printed(result, "print a change")?;
        }
        printed(out.flush(), "print the changes")
    }

    fn line(&self, change: &Change) -> String {
        let Change { key, before, after, .. } = change;
        let sign = match (before, after) {
            (None, _) => '+',
            (Some(_), Some(_)) => '~',
            (Some(_), None) => '-',
        };
        let name = after.as_ref().or(before.as_ref()).map_or("", |row| &row.name);
        let place = match &*key.namespace {
            "" => name.to_owned(),
            namespace => format!("{namespace}/{name}"),
        };
        let target = if self.several { format!("{} ", key.target) } else { String::new() };
        let details: Vec<String> = told(before.as_deref(), after.as_deref()).iter().map(text).collect();
        format!("{sign} {target}{} {place}  {}", key.kind, details.join(", ")).trim_end().to_owned()
    }
}

/// The attributes that a new or changed row shows differently than before; none if the row was removed.
fn told(before: Option<&Row>, after: Option<&Row>) -> Vec<Difference> {
    let before = before.map(|row| row.attributes.get());
    after.map(|after| differences(before, after.attributes.get())).unwrap_or_default()
}

fn text(Difference { name, before, after }: &Difference) -> String {
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
    key: Key<'a>,
    before: Option<&'a Row>,
    after: Option<&'a Row>,
    changed: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Key<'a> {
    target_namespace: Option<&'a str>,
    target_name: &'a str,
    group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

impl<'a> ChangeLine<'a> {
    fn of(Change { key, before, after, .. }: &'a Change) -> Self {
        let op = match (before, after) {
            (None, _) => "added",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "removed",
        };
        let (before, after) = (before.as_deref(), after.as_deref());
        let both = before.is_some() && after.is_some();
        let changed = if both { told(before, after) } else { Vec::new() };
        let RowKey { target, group, kind, namespace, uid } = key;
        let key = Key {
            target_namespace: target.namespace.as_deref(),
            target_name: &target.name,
            group,
            kind,
            namespace,
            uid,
        };
        Self { op, key, before, after, changed: changed.into_iter().map(|d| d.name).collect() }
    }
}

/// Why a kind cannot be seen in these places, which have one reason.
fn blind_line(places: &[(&Place, &ScopeCoverage)]) -> Option<String> {
    let (first, known) = places.first()?;
    let State::Blind { blindness, .. } = &known.state else { return None };
    let Blindness { reason, message } = blindness;
    let what = match (places.len(), reason) {
        (1, _) => message.clone(),
        (all, BlindReason::Forbidden) => {
            let resource = known.resource.as_deref().map_or_else(|| first.gvk.to_string(), str::to_owned);
            let names = places.iter().filter_map(|(place, _)| place.namespace.as_deref());
            let names = names::namespaces(names, all);
            format!("list {resource} in {names}: forbidden; grant the verbs list and watch on it")
        }
        (all, _) => format!("{message}; and in {} more places", all - 1),
    };
    Some(format!("blind: {reason}: {what}; its rows stay as they are"))
}

/// The last known state of the places that are watched. Prints what has changed since.
#[derive(Default)]
struct Places(BTreeMap<Place, ScopeCoverage>);

impl Places {
    fn tell(&mut self, coverage: &Coverage) {
        let now = coverage.read();
        let mut blind: BTreeMap<(&Gvk, BlindReason), Vec<(&Place, &ScopeCoverage)>> = BTreeMap::new();
        for (place, known) in &now {
            let before = self.0.get(place).map(|known| &known.state);
            match (&known.state, before) {
                (State::Blind { .. }, Some(State::Blind { .. })) => {}
                (State::Blind { blindness, .. }, _) => {
                    let places = blind.entry((&place.gvk, blindness.reason)).or_default();
                    places.push((place, known));
                }
                (State::Absent, Some(State::Blind { .. })) => {
                    eprintln!("gone: {} is not served any more and has no rows", place.gvk);
                }
                (State::Synced { .. }, Some(State::Blind { since, .. })) => {
                    let gap = clock::now().duration_since(*since).unwrap_or_default().as_secs();
                    let place = match &place.namespace {
                        Some(namespace) => format!("{} in namespace {namespace}", place.gvk),
                        None => place.gvk.to_string(),
                    };
                    eprintln!("seen again: {place}, after {gap} s");
                }
                _ => {}
            }
        }
        blind.values().filter_map(|places| blind_line(places)).for_each(|line| eprintln!("{line}"));
        for (place, known) in &self.0 {
            // The kind is now watched in other places, such as namespaces instead of the whole cluster.
            let moved = |(other, known): (&Place, &ScopeCoverage)| {
                other.gvk == place.gvk && matches!(known.state, State::Synced { .. })
            };
            if let State::Blind { since, .. } = known.state
                && !now.contains_key(place)
                && now.iter().any(moved)
            {
                let gap = clock::now().duration_since(since).unwrap_or_default().as_secs();
                eprintln!("seen again: {}, after {gap} s", place.gvk);
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

    fn change(before: Option<Value>, after: Option<Value>) -> Change {
        let [before, after] = [before, after].map(|row_of| row_of.as_ref().map(row));
        let key = before.as_ref().or(after.as_ref()).unwrap().key.clone();
        Change { key, before, after, removal: None }
    }

    #[test]
    fn lines_show_what_was_and_what_is() {
        let watch = Watch { output: Output::Text, several: false, problems: Problems::of_objects() };
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
    fn programs_get_both_sides_and_the_names_of_what_changed() {
        let told =
            change(Some(serde_json::json!({ "a": 1, "b": 2 })), Some(serde_json::json!({ "a": 1, "b": 3 })));
        let told = serde_json::to_value(ChangeLine::of(&told)).unwrap();
        assert_eq!(told["op"], "changed");
        assert_eq!(told["changed"], serde_json::json!(["b"]));
        assert_eq!(told["before"]["attributes"]["b"], 2);
        assert_eq!(told["after"]["attributes"]["b"], 3);
        assert_eq!(told["key"]["uid"], "u1");
    }

    #[test]
    fn namespaces_of_one_reason_are_one_line() {
        let places = |reason: BlindReason, count: usize| -> BTreeMap<Place, ScopeCoverage> {
            let place = |number: usize| {
                let gvk = Gvk { version: "v1".into(), kind: "Secret".into(), ..Gvk::default() };
                let namespace = Some(format!("team-{number:02}").into());
                let blindness = Blindness { reason, message: format!("no {number}") };
                let state = State::Blind { since: std::time::SystemTime::UNIX_EPOCH, blindness };
                let known =
                    ScopeCoverage { state, resource: Some("secrets".into()), gaps: [].into(), repaired: 0 };
                (Place { gvk, namespace, field_selector: None }, known)
            };
            (0..count).map(place).collect()
        };
        let line = |reason, count| blind_line(&places(reason, count).iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(line(BlindReason::Forbidden, 1), "blind: Forbidden: no 0; its rows stay as they are");
        assert_eq!(
            line(BlindReason::Forbidden, 37),
            "blind: Forbidden: list secrets in 37 namespaces (team-00, team-01 and 35 more): forbidden; grant the verbs \
             list and watch on it; its rows stay as they are"
        );
        assert_eq!(
            line(BlindReason::Failed, 3),
            "blind: Failed: no 0; and in 2 more places; its rows stay as they are"
        );
    }
}
