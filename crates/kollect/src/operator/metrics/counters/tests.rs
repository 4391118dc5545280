//! A sink with scripted results, measured.

use std::sync::{Arc, Mutex};

use kollect_model::{
    batch::{ChangedRow, Delta, RefusedRow, RemovedRow},
    row::{Row, TargetId},
    sink::SinkReason,
};
use prometheus_client::encoding::text::encode;
use serde_json::value::RawValue;

use super::*;

/// What the next calls return.
#[derive(Clone, Default)]
struct Scripted {
    fail: Arc<Mutex<Option<SinkReason>>>,
    refuse: Arc<Mutex<Vec<RowKey>>>,
}

impl Scripted {
    fn outcome<T: Default>(&self) -> Result<T, SinkError> {
        match *self.fail.lock().unwrap() {
            Some(reason) => Err(SinkError::new(reason, "told to")),
            None => Ok(T::default()),
        }
    }
}

#[async_trait]
impl Sink for Scripted {
    fn delivery(&self) -> Delivery {
        Delivery::Snapshots
    }

    fn atomicity(&self) -> Atomicity {
        Atomicity::WholeDelta
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.outcome()
    }

    async fn claims(&self, _: &[InventoryId]) -> Result<Vec<Option<Claim>>, SinkError> {
        self.outcome()
    }

    async fn baseline(&self, _: &InventoryId) -> Result<Baseline, SinkError> {
        self.outcome()
    }

    async fn claim(&self, _: &InventoryId, _: &Claimant) -> Result<Claim, SinkError> {
        self.outcome::<()>().map(|()| claim())
    }

    async fn write(&self, _: &Batch<'_>) -> Result<Receipt, SinkError> {
        let refused = self.refuse.lock().unwrap().clone();
        let refused = refused.into_iter().map(|key| RefusedRow { key, why: "told to".into() }).collect();
        self.outcome::<()>().map(|()| Receipt { refused, ..Receipt::default() })
    }

    async fn forget(&self, _: &InventoryId, _: &Claim) -> Result<(), SinkError> {
        self.outcome()
    }
}

fn claim() -> Claim {
    Claim { epoch: 1, ..Claim::default() }
}

fn row(uid: &str, attributes: &str) -> Arc<Row> {
    let key = RowKey {
        target: TargetId { namespace: None, name: "t".into() },
        group: "".into(),
        kind: "Pod".into(),
        namespace: "n".into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string(attributes.into()).unwrap();
    Arc::new(Row::new(key, "v1".into(), uid.into(), attributes.into()))
}

fn value(meter: &Meter, series: &str) -> String {
    let mut registry = Registry::default();
    meter.register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{series} ")));
    line.map_or_else(|| "missing".into(), |line| line.rsplit(' ').next().unwrap().to_owned())
}

#[tokio::test]
async fn writes_are_timed_and_the_bytes_that_a_sink_has_taken_are_counted() {
    let (meter, scripted) = (Meter::default(), Scripted::default());
    let sink = meter.measure(Ok(Box::new(scripted.clone())), "postgres", "KollectInventory").unwrap();
    assert_eq!(sink.delivery(), Delivery::Snapshots, "what the sink wants is passed on");
    let inventory = InventoryId { cluster: String::new(), namespace: None, name: "i".into() };
    let claim = claim();
    let bytes = || value(&meter, r#"kollect_export_bytes_total{sink_type="postgres"}"#);
    let count = || value(&meter, r#"kollect_export_duration_seconds_count{sink_type="postgres"}"#);
    assert_eq!((bytes(), count()), ("0".into(), "0".into()), "there from the first connection on");

    sink.write(&Batch::new(&inventory, &claim, &Delta::default())).await.unwrap();
    assert_eq!(count(), "0", "nothing was exported");
    let delta = Delta {
        added: vec![row("1", r#"{"a":1}"#), row("2", r#"{"refused":"x"}"#)],
        changed: vec![ChangedRow { before: Some(row("3", "{}")), after: row("3", r#"{"b":22}"#) }],
        removed: vec![RemovedRow { key: row("4", "{}").key.clone(), before: None }],
    };
    scripted.refuse.lock().unwrap().push(row("2", "{}").key.clone());
    sink.write(&Batch::new(&inventory, &claim, &delta)).await.unwrap();
    assert_eq!((bytes(), count()), ("15".into(), "1".into()));

    *scripted.fail.lock().unwrap() = Some(SinkReason::WriteFailed);
    sink.write(&Batch::new(&inventory, &claim, &delta)).await.unwrap_err();
    assert_eq!((bytes(), count()), ("15".into(), "2".into()), "a failed write takes time and brings nothing");
}

#[tokio::test]
async fn each_failed_attempt_counts_once_by_its_class_and_kind() {
    let (meter, scripted) = (Meter::default(), Scripted::default());
    let errors = |reason: &str| value(&meter, &format!("kollect_sink_errors_total{{reason=\"{reason}\"}}"));
    let errors_of = |kind: &str, class: &str| {
        let labels = format!("kind=\"{kind}\",error_class=\"{class}\"");
        value(&meter, &format!("kollect_reconcile_errors_total{{{labels}}}"))
    };
    assert_eq!((errors("transient"), errors_of("KollectInventory", "terminal")), ("0".into(), "0".into()));
    let unreachable = Err(SinkError::new(SinkReason::Unreachable, "told to"));
    assert!(meter.measure(unreachable, "nats", "KollectInventory").is_err());
    assert_eq!((errors("transient"), errors_of("KollectInventory", "transient")), ("1".into(), "1".into()));

    let sink = meter.measure(Ok(Box::new(scripted.clone())), "nats", "KollectClusterInventory").unwrap();
    let inventory = InventoryId { cluster: String::new(), namespace: None, name: "i".into() };
    *scripted.fail.lock().unwrap() = Some(SinkReason::Forbidden);
    sink.baseline(&inventory).await.unwrap_err();
    *scripted.fail.lock().unwrap() = Some(SinkReason::Fenced);
    sink.forget(&inventory, &claim()).await.unwrap_err();
    assert_eq!((errors("forbidden"), errors("terminal")), ("1".into(), "1".into()));
    assert_eq!(errors_of("KollectClusterInventory", "forbidden"), "1");
    assert_eq!(errors_of("KollectInventory", "forbidden"), "0");
}

#[test]
fn turns_and_probes_count_with_their_result() {
    let meter = Meter::default();
    meter.count_turn(Duration::from_millis(7), true);
    meter.count_turn(Duration::from_millis(7), false);
    meter.count_probe("sqlite", true);
    let turns = |result: &str| {
        value(&meter, &format!("kollect_reconcile_total{{controller=\"operator\",result=\"{result}\"}}"))
    };
    assert_eq!((turns("success"), turns("failure")), ("1".into(), "1".into()));
    let bucket = r#"kollect_reconcile_duration_seconds_bucket{le="0.01",controller="operator"}"#;
    assert_eq!(value(&meter, bucket), "2");
    let tests = |result: &str| {
        value(&meter, &format!("kollect_sink_connection_test_total{{type=\"sqlite\",result=\"{result}\"}}"))
    };
    assert_eq!((tests("success"), tests("failure")), ("1".into(), "0".into()), "the other one is zero");
}
