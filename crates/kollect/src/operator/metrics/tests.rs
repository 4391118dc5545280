//! Numbers from a store, binding states and a view, as Prometheus reads them.

#[path = "../../../tests/it/exposition.rs"]
mod exposition;

use std::{sync::Arc, time::SystemTime};

use exposition::Exposition;
use kollect_engine::{
    deliver::DestinationKey,
    export::{Acknowledgement, BindingEvent, BindingProgress, Outcome},
    store::{
        NullAttribute, NullCause, RedactedAttribute, Revision, RowNotes, RowOrigin, StoreWriter, Visibility,
        store,
    },
    tasks::Tasks,
};
use kollect_model::{
    batch::{Delta, Receipt},
    binding::{BindingName, InventoryName},
    crd::{inventory::SinkExport, profile::ProfileMetric, shapes::Gvk},
    row::{Row, RowDigest, RowKey, TargetId},
    sink::{SinkError, SinkReason},
};
use serde_json::value::RawValue;

use super::{
    super::{binding_states::WantedVersion, destinations::export_destination},
    scrape::{BindingNumbers, collected},
    view::{InventoryView, TargetView},
    *,
};

fn gvk(kind: &str) -> Gvk {
    Gvk { group: "example.com".into(), version: "v1".into(), kind: kind.into() }
}

fn id(name: &str) -> TargetId {
    TargetId { namespace: Some("team".into()), name: name.into() }
}

fn target(name: &str, kinds: &[&str]) -> TargetView {
    let metric = ProfileMetric { name: "bytes".into(), path: "size".into(), labels: vec!["team".into()] };
    TargetView {
        id: id(name),
        profile: "team/p".into(),
        kinds: kinds.iter().map(|kind| gvk(kind)).collect(),
        metrics: vec![metric],
        attributes: vec!["size".into(), "team".into()],
    }
}

fn binding() -> BindingName {
    BindingName {
        inventory: InventoryName { namespace: Some("team".into()), name: "i".into() },
        sink: "database/d".into(),
    }
}

fn inventory(targets: &[&str]) -> InventoryView {
    InventoryView {
        name: "team/i".into(),
        targets: targets.iter().map(|name| id(name)).collect(),
        suspended: false,
        sinks: vec![binding()],
    }
}

fn fill(writer: &StoreWriter, target: &str, kind: &str, uids: std::ops::Range<u32>) {
    let rows = writer.rows(&id(target), &gvk(kind));
    for uid in uids {
        let key = row_key(target, kind, uid);
        let attributes = format!(r#"{{"size":2,"team":"{}"}}"#, uid % 300);
        let attributes = RawValue::from_string(attributes).unwrap();
        let nulls = vec![NullAttribute { name: "owner".into(), cause: NullCause::Missing, types: None }];
        let redactions = vec![RedactedAttribute { name: "env".into(), values: 3 }];
        let notes = Arc::new(RowNotes { nulls, redactions });
        let row = Row::new(key, "v1".into(), "x".into(), attributes.into());
        rows.upsert(row, RowOrigin::default(), (uid == 0).then_some((notes, &Vec::new())));
    }
    rows.set_visibility(Visibility::Everything);
}

fn metrics(rows: StoreReader, binding_states: BindingStates, leads: bool) -> Metrics {
    let leadership = if leads {
        Leadership::Leading { term: 1, until: None, problem: None }
    } else {
        Leadership::Standby { holder: None, problem: None }
    };
    let sources = GaugeSources {
        rows,
        coverage: Coverage::default(),
        binding_states,
        leadership: watch::channel(leadership).1,
        tasks: Tasks::default(),
        discovery: Box::new(|| Some(true)),
    };
    Metrics::new(sources, Meter::default())
}

fn written(binding_states: &BindingStates, drifted: usize) {
    let (delta, receipt) = (Delta::default(), Receipt::default());
    let progress = begin(binding_states);
    if progress.read().acknowledged.is_none() {
        let keys: Vec<RowKey> = (0..5).map(|uid| row_key("a", "Volume", uid)).collect();
        progress.change(keys.iter().map(|key| (key, None, Some(RowDigest(1)))));
    }
    let reached = Revision::at(1);
    let checksum = None;
    progress.acknowledge(Acknowledgement {
        version: 1,
        generation: 1,
        reached,
        checksum,
        refused: 0,
        wrote: true,
    });
    let outcome =
        Outcome { delta, receipt, unchanged: 5, left_alone: 0, drifted, is_complete: true, kept: [].into() };
    report_event(binding_states, &BindingEvent::Compared(&outcome));
}

fn fail(binding_states: &BindingStates) {
    let error = SinkError::new(SinkReason::Unreachable, "told to");
    report_event(binding_states, &BindingEvent::Failed { error: &error, pause: None });
}

/// Passes an event of the binding to the binding states.
fn report_event(binding_states: &BindingStates, event: &BindingEvent<'_>) {
    begin(binding_states);
    binding_states.handle_event(&binding(), &test_destination(), event);
}

/// Begins the binding, unless it has begun. Returns its progress.
fn begin(binding_states: &BindingStates) -> BindingProgress {
    let known = binding_states.read(&binding(), |state| state.wanted().map(|_| state.progress().clone()));
    known.flatten().unwrap_or_else(|| {
        let progress = BindingProgress::default();
        let (since, cadence) = (tokio::time::Instant::now(), Duration::ZERO);
        let wanted = WantedVersion { number: 1, since, cadence, requested: None };
        binding_states.begin(&binding(), &export_destination(&test_destination()), &progress, wanted);
        progress
    })
}

fn row_key(target: &str, kind: &str, uid: u32) -> RowKey {
    RowKey {
        target: id(target),
        group: "example.com".into(),
        kind: kind.into(),
        namespace: "n".into(),
        uid: uid.to_string().into(),
    }
}

fn test_destination() -> DestinationKey {
    DestinationKey { destination: "sqlite:/data".into(), inventory: binding().inventory.in_cluster("") }
}

#[test]
fn rows_are_added_up_over_the_targets_of_a_profile() {
    let (writer, rows) = store();
    fill(&writer, "a", "Volume", 0..3);
    fill(&writer, "b", "Volume", 0..2);
    fill(&writer, "b", "Snapshot", 0..1);
    fill(&writer, "suspended", "Volume", 0..4);
    let suspended = TargetView { profile: "team/q".into(), ..target("suspended", &[]) };
    let targets = vec![target("a", &["Volume", "Empty"]), target("b", &["Volume", "Snapshot"]), suspended];
    let found = collected(&MetricsView { targets, inventories: Vec::new() }, &rows);
    let expected = [
        (("team/p", "example.com/v1 Empty"), 0),
        (("team/p", "example.com/v1 Snapshot"), 1),
        (("team/p", "example.com/v1 Volume"), 5),
        (("team/q", "example.com/v1 Volume"), 4),
    ];
    assert_eq!(
        found,
        expected.map(|((profile, gvk), rows)| ((profile.to_owned(), gvk.to_owned()), rows)).into()
    );
}

#[test]
fn lag_grows_while_a_sink_fails_and_only_the_leader_reports_it() {
    let binding_states = BindingStates::default();
    let mut view = MetricsView { targets: Vec::new(), inventories: vec![inventory(&[])] };
    let numbers = |view: &MetricsView, leads: bool, seconds: u64| {
        let now = SystemTime::now() + Duration::from_secs(seconds);
        BindingNumbers::of(view, &binding_states, leads, now).pop()
    };
    assert_eq!(numbers(&view, true, 0), None, "nothing is known");
    written(&binding_states, 0);
    let synced = numbers(&view, true, 100).unwrap();
    assert_eq!((synced.lag, synced.rows, synced.drifted), (Some(0.0), Some([5, 0, 0]), 0));
    fail(&binding_states);
    let lag = numbers(&view, true, 100).unwrap().lag.unwrap();
    assert!((100.0..110.0).contains(&lag), "{lag}");
    let standby = numbers(&view, false, 100).unwrap();
    assert_eq!((standby.lag, standby.rows), (None, None), "only the leader knows");
    view.inventories[0].suspended = true;
    assert_eq!(numbers(&view, true, 100).unwrap().lag, None, "a suspended inventory is not late");
    view.inventories[0].suspended = false;
    written(&binding_states, 3);
    let repaired = numbers(&view, true, 0).unwrap();
    assert_eq!((repaired.lag, repaired.drifted), (Some(0.0), 3));
}

#[test]
fn a_sink_that_was_never_reached_has_a_lag_and_no_rows() {
    let binding_states = BindingStates::default();
    binding_states.remember(
        &binding(),
        &SinkExport {
            rows: Some(7),
            place: Some(export_destination(&test_destination())),
            ..SinkExport::default()
        },
    );
    let view = MetricsView { targets: Vec::new(), inventories: vec![inventory(&[])] };
    let numbers = || BindingNumbers::of(&view, &binding_states, true, SystemTime::now()).pop().unwrap();
    assert_eq!((numbers().lag, numbers().rows), (None, None), "the status alone does not count");
    fail(&binding_states);
    assert!(numbers().lag.is_some());
    assert_eq!(numbers().rows, None);
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let (writer, rows) = store();
    fill(&writer, "a", "Volume", 0..301);
    let binding_states = BindingStates::default();
    written(&binding_states, 1);
    let metrics = metrics(rows.clone(), binding_states, true);
    let odd = Gvk { kind: "say \"hi\"\\\n".into(), ..gvk("") };
    let mut seen = target("a", &["Volume"]);
    seen.kinds.push(odd.clone());
    metrics.set_view(MetricsView { targets: vec![seen], inventories: vec![inventory(&["a"])] });
    metrics.shared.samples.refresh(&metrics.shared.view(), &rows, Duration::ZERO);
    metrics.meter.count_turn(Duration::from_secs(1), true);
    metrics.meter.count_probe("nats", false);
    let refused = Err(SinkError::new(SinkReason::Unreachable, "told to"));
    assert!(metrics.meter.measure(refused, "nats", "KollectInventory").is_err());
    let exposed = Exposition::parse(&metrics.text().unwrap());
    let page = include_str!("../../../../../docs/reference/metrics.md");
    assert_eq!(exposed.undocumented(page), "");
    assert!(exposed.missing(page).is_empty(), "{:?}", exposed.missing(page));
    let odd = exposed.samples.iter().filter(|sample| sample.labels.get("gvk") == Some(&odd.to_string()));
    assert!(odd.count() > 0, "what needs quotes comes back as it was");

    let number = |series: &str| exposed.get(series).map_or("missing".into(), |number| number.to_string());
    assert_eq!(number("kollect_leader"), "1");
    assert_eq!(number("kollect_discovery_healthy"), "1");
    for task in ["watch", "binding", "cleaning", "probe", "secret", "plan"] {
        assert_eq!(number(&format!(r#"kollect_task_restarts_total{{task="{task}"}}"#)), "0");
    }
    assert_eq!(number(r#"kollect_build_info{version="0.1.0"}"#), "1");
    assert_eq!(number("kollect_collect_items_total"), "301");
    assert_eq!(number("kollect_inventory_items_total"), "301");
    let volume = r#"profile="team/p",gvk="example.com/v1 Volume""#;
    assert_eq!(number(&format!("kollect_collected_objects{{{volume}}}")), "301");
    let series = |name: &str| format!(r#"kollect_custom_resource_{name}{{{volume},series="bytes"}}"#);
    assert_eq!(number(&series("series")), "602");
    assert_eq!(number(&series("labeled_series_capped_total")), "100");
    let count = format!(r#"kollect_custom_resource_series{{{volume},series="object_count"}}"#);
    assert_eq!(number(&count), "301");
    // 0 is there twice: as 0 and as 300.
    let labeled = format!(r#"kollect_custom_resource_labeled_series{{{volume},series="bytes",team="0"}}"#);
    assert_eq!(number(&labeled), "4");
    assert_eq!(number(r#"kollect_drift_repaired_total{inventory="team/i",sink="database/d"}"#), "1");
    assert_eq!(number(r#"kollect_binding_rows{inventory="team/i",sink="database/d",state="held"}"#), "5");
}

#[test]
fn series_are_sampled_when_rows_have_changed_and_the_interval_is_over() {
    let (writer, rows) = store();
    fill(&writer, "a", "Volume", 0..1);
    let metrics = metrics(rows.clone(), BindingStates::default(), false);
    let view = |names: &[&str]| MetricsView {
        targets: names.iter().map(|name| target(name, &["Volume"])).collect(),
        inventories: Vec::new(),
    };
    let sample = |names: &[&str], interval: u64| {
        metrics.shared.samples.refresh(&view(names), &rows, Duration::from_secs(interval));
        metrics.shared.samples.read()
    };
    let count = |names: &[&str], interval: u64| {
        sample(names, interval).first().map(|(_, kinds)| kinds[&gvk("Volume")].objects)
    };
    assert_eq!(count(&["a"], 3600), Some(1), "the first sample waits for nothing");
    fill(&writer, "a", "Volume", 0..2);
    assert_eq!(count(&["a"], 3600), Some(1));
    assert_eq!(count(&["a"], 0), Some(2));
    let before = sample(&["a"], 0).pop().unwrap().1;
    assert!(Arc::ptr_eq(&before, &sample(&["a"], 0).pop().unwrap().1), "nothing has changed");
    // The first list of another target is running: a partial sum would be wrong.
    drop(writer.rows(&id("b"), &gvk("Volume")));
    assert_eq!(count(&["a", "b"], 0), Some(2));
    fill(&writer, "b", "Volume", 1..5);
    assert_eq!(count(&["a", "b"], 0), Some(5));
    let capped = "kollect_custom_resource_labeled_series_capped_total";
    assert!(metrics.text().unwrap().contains(capped));
    assert_eq!(count(&[], 0), None, "a profile without targets has no series");
    assert!(!metrics.text().unwrap().contains(capped));
}

#[test]
fn a_scrape_takes_20_ms_with_100_000_rows_at_most() {
    let (writer, rows) = store();
    let names: Vec<String> = (0..100).map(|number| format!("t{number}")).collect();
    for name in &names {
        fill(&writer, name, "Volume", 0..1000);
    }
    let metrics = metrics(rows, BindingStates::default(), true);
    let targets = names.iter().map(|name| target(name, &["Volume"])).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    metrics.set_view(MetricsView { targets, inventories: vec![inventory(&names)] });
    // The machine may be busy: the fastest attempt shows the cost of a scrape.
    let took = (0..20).map(|_| {
        let began = std::time::Instant::now();
        assert!(metrics.text().unwrap().contains("kollect_collect_items_total 100000\n"));
        began.elapsed()
    });
    let took = took.min().unwrap();
    assert!(took < Duration::from_millis(20), "{took:?}");
}
