//! What every sink of rows must do, told once. The tests of each sink run it against the real thing.

use std::sync::Arc;

use kollect_model::{
    batch::{Baseline, Batch, Delta, InventoryId},
    row::{Row, RowDigest, RowKey, TargetId},
    sink::{ErrorClass, Sink, SinkError, SinkReason},
};
use serde_json::value::RawValue;

/// An inventory named `name` of a cluster.
pub(crate) fn inventory(cluster: &str, name: &str) -> InventoryId {
    InventoryId { cluster: cluster.into(), namespace: Some("team".into()), name: name.into() }
}

/// A row of a Deployment.
pub(crate) fn row(uid: &str, attributes: &str) -> Arc<Row> {
    let key = RowKey {
        target: TargetId { namespace: Some("team".into()), name: "pods".into() },
        group: "apps".into(),
        kind: "Deployment".into(),
        namespace: "shop".into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string(attributes.into()).unwrap();
    Arc::new(Row::new(key, "v1".into(), "cart".into(), attributes.into()))
}

/// Rows that are new.
pub(crate) fn added(rows: &[Arc<Row>]) -> Delta {
    Delta { added: rows.to_vec(), ..Delta::default() }
}

/// Claims and writes.
pub(crate) async fn write(
    sink: &dyn Sink,
    inventory: &InventoryId,
    owner: Option<&str>,
    delta: &Delta,
) -> Result<(), SinkError> {
    let claim = sink.claim(inventory, owner).await?;
    sink.write(&Batch { inventory, claim: &claim, delta }).await
}

/// What a sink must hold if it holds these rows.
pub(crate) fn holding<'a>(rows: impl IntoIterator<Item = &'a Arc<Row>>) -> Baseline {
    rows.into_iter().map(|row| (row.key.clone(), row.digest)).collect()
}

/// Compares many rows, and prints few if they differ.
pub(crate) async fn assert_holds<'a>(
    sink: &dyn Sink,
    place: &InventoryId,
    rows: impl IntoIterator<Item = &'a Arc<Row>>,
) {
    let (held, expected) = (sink.baseline(place).await.unwrap(), holding(rows));
    let wrong: Vec<_> =
        held.iter().filter(|(key, digest)| expected.get(*key) != Some(*digest)).take(3).collect();
    assert_eq!((held.len(), wrong), (expected.len(), Vec::new()));
}

/// Runs all of it. `open` opens the same, at first empty, place again and again; `sql` runs a
/// statement there as somebody else would, on a table `inventory`.
pub(crate) async fn conformance(open: impl AsyncFn() -> Box<dyn Sink>, sql: impl AsyncFn(&str) -> String) {
    let sink = open().await;
    sink.check().await.unwrap();
    fill_change_and_remove(&*sink, &sql).await;
    reopened_nothing_has_changed(&open, &sql).await;
    others_are_noticed(&*sink, &sql).await;
    side_by_side(&*sink).await;
    a_moved_row_stays(&*sink).await;
    late_writers_are_fenced(&*sink, &*open().await).await;
    owners_are_respected(&*sink).await;
    awkward_values(&*sink, &sql).await;
    many_rows(&*sink).await;
}

const TIMES: &str = "SELECT first_seen_at, changed_at, exported_at FROM inventory \
                     WHERE inventory_name = 'all' AND source_uid = 'u1'";

async fn fill_change_and_remove(sink: &dyn Sink, sql: &impl AsyncFn(&str) -> String) {
    let all = inventory("", "all");
    assert_eq!(sink.baseline(&all).await.unwrap(), Baseline::new(), "empty at first");
    let (one, two, three) = (row("u1", r#"{"n":1}"#), row("u2", "{}"), row("u3", "{}"));
    let first = added(&[one.clone(), two.clone(), three.clone()]);
    write(sink, &all, Some("c1"), &first).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two, &three]));
    let times = sql(TIMES).await;

    // The same again, as after an answer that never arrived.
    write(sink, &all, Some("c1"), &first).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two, &three]));
    assert_eq!(sql(TIMES).await, times, "what has not changed is not touched");

    let changed = row("u2", r#"{"n":2}"#);
    let next = Delta { changed: vec![changed.clone()], removed: vec![three.key.clone()], ..Delta::default() };
    for _ in 0..2 {
        write(sink, &all, Some("c1"), &next).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &changed]));
    }
    assert_eq!(sql(TIMES).await, times, "other rows change, this one does not");

    let nothing = Delta::default();
    write(sink, &all, Some("c1"), &nothing).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &changed]));
}

async fn reopened_nothing_has_changed(
    open: &impl AsyncFn() -> Box<dyn Sink>,
    sql: &impl AsyncFn(&str) -> String,
) {
    let all = inventory("", "all");
    let before = sql("SELECT * FROM inventory ORDER BY source_uid").await;
    let sink = open().await;
    assert_eq!(
        sink.baseline(&all).await.unwrap(),
        holding([&row("u1", r#"{"n":1}"#), &row("u2", r#"{"n":2}"#)])
    );
    sink.claim(&all, Some("c1")).await.unwrap();
    assert_eq!(sql("SELECT * FROM inventory ORDER BY source_uid").await, before);
}

async fn others_are_noticed(sink: &dyn Sink, sql: &impl AsyncFn(&str) -> String) {
    let all = inventory("", "all");
    sql("DELETE FROM inventory WHERE source_uid = 'u1'").await;
    sql("UPDATE inventory SET row_digest = 'spoilt' WHERE source_uid = 'u2'").await;
    sql(
        "INSERT INTO inventory SELECT cluster, inventory_namespace, inventory_name, target_name, 'foreign', \
         target_namespace, api_group, api_version, kind, namespace, name, resource_namespace, payload, '1f', \
         first_seen_at, changed_at, exported_at FROM inventory WHERE source_uid = 'u2'",
    )
    .await;
    let (two, foreign) = (row("u2", r#"{"n":2}"#), row("foreign", "{}"));
    let held = sink.baseline(&all).await.unwrap();
    let expected = [(two.key.clone(), RowDigest(0)), (foreign.key.clone(), RowDigest(0x1f))];
    assert_eq!(held, expected.into());

    let one = row("u1", r#"{"n":1}"#);
    let repair =
        Delta { added: vec![one.clone()], changed: vec![two.clone()], removed: vec![foreign.key.clone()] };
    write(sink, &all, Some("c1"), &repair).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two]));
}

async fn side_by_side(sink: &dyn Sink) {
    let rows = [row("u1", r#"{"at":1}"#), row("u1", r#"{"at":2}"#), row("u1", r#"{"at":3}"#)];
    let places = [inventory("", "side"), inventory("", "by-side"), inventory("other", "side")];
    let cluster_wide = InventoryId { namespace: None, ..inventory("", "side") };
    for (place, row) in places.iter().zip(&rows) {
        write(sink, place, Some(&format!("owner of {}", place.cluster)), &added(std::slice::from_ref(row)))
            .await
            .unwrap();
    }
    for (place, row) in places.iter().zip(&rows) {
        assert_eq!(sink.baseline(place).await.unwrap(), holding([row]), "{place:?}");
    }
    assert_eq!(sink.baseline(&cluster_wide).await.unwrap(), Baseline::new());
    let gone = Delta { removed: vec![rows[0].key.clone()], ..Delta::default() };
    write(sink, &places[0], Some("owner of "), &gone).await.unwrap();
    assert_eq!(sink.baseline(&places[0]).await.unwrap(), Baseline::new());
    assert_eq!(sink.baseline(&places[1]).await.unwrap(), holding([&rows[1]]));
    assert_eq!(sink.baseline(&places[2]).await.unwrap(), holding([&rows[2]]));
}

async fn a_moved_row_stays(sink: &dyn Sink) {
    let place = inventory("", "moved");
    let old = row("u1", "{}");
    write(sink, &place, None, &added(std::slice::from_ref(&old))).await.unwrap();
    let key = RowKey { group: "extensions".into(), ..old.key.clone() };
    let new = Arc::new(Row::new(key, "v1".into(), "cart".into(), old.attributes.clone()));
    let delta = Delta { added: vec![new.clone()], removed: vec![old.key.clone()], ..Delta::default() };
    write(sink, &place, None, &delta).await.unwrap();
    assert_eq!(sink.baseline(&place).await.unwrap(), holding([&new]));
}

async fn late_writers_are_fenced(early: &dyn Sink, late: &dyn Sink) {
    let place = inventory("", "fenced");
    let old = early.claim(&place, Some("c1")).await.unwrap();
    let new = late.claim(&place, Some("c1")).await.unwrap();
    assert!(new.epoch > old.epoch);
    let (one, two) = (row("u1", "{}"), row("u2", "{}"));
    let first = added(std::slice::from_ref(&one));
    let refused = early.write(&Batch { inventory: &place, claim: &old, delta: &first }).await.unwrap_err();
    assert_eq!((refused.reason, refused.class()), (SinkReason::Fenced, ErrorClass::Terminal));
    assert_eq!(early.baseline(&place).await.unwrap(), Baseline::new());
    late.write(&Batch { inventory: &place, claim: &new, delta: &first }).await.unwrap();
    let removal = Delta { added: vec![two], removed: vec![one.key.clone()], ..Delta::default() };
    early.write(&Batch { inventory: &place, claim: &old, delta: &removal }).await.unwrap_err();
    assert_eq!(late.baseline(&place).await.unwrap(), holding([&one]));
}

async fn owners_are_respected(sink: &dyn Sink) {
    let place = inventory("", "owned");
    let one = row("u1", "{}");
    // Whoever has no cluster owns nothing, so the first cluster may take it.
    write(sink, &place, None, &Delta::default()).await.unwrap();
    write(sink, &place, Some("c1"), &added(std::slice::from_ref(&one))).await.unwrap();
    let held = sink.claim(&place, Some("c1")).await.unwrap();
    for other in [Some("c2"), None] {
        let refused = sink.claim(&place, other).await.unwrap_err();
        assert_eq!((refused.reason, refused.class()), (SinkReason::OwnedByOther, ErrorClass::Terminal));
        assert!(refused.to_string().contains("c1"), "{refused}");
    }
    assert_eq!(sink.baseline(&place).await.unwrap(), holding([&one]));
    // A refused claim has not fenced the owner either.
    sink.write(&Batch { inventory: &place, claim: &held, delta: &Delta::default() }).await.unwrap();
}

async fn awkward_values(sink: &dyn Sink, sql: &impl AsyncFn(&str) -> String) {
    let place = inventory("", "it's \"awkward\" 🦀");
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
    let deep = format!(r#"{{"deep":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let rows = [
        row("quotes", r#"{"s":"it's \"quoted\" \\ \\u0000 $1 \t\n\r; --","🦀":"ü€\u007f"}"#),
        row("integer", r#"{"max":9223372036854775807,"min":-9223372036854775808,"u":18446744073709551615}"#),
        row("numbers", r#"{"e":1.0e-7,"f":0.1,"z":0}"#),
        row("nothing", r#"{"a":null,"b":"","c":[],"d":{},"e":false}"#),
        row("uid with ' and \" and \\ and 🦀", "{}"),
        row("deep", &deep),
        row("large", &large),
    ];
    write(sink, &place, None, &added(&rows)).await.unwrap();
    assert_eq!(sink.baseline(&place).await.unwrap(), holding(&rows));
    let max =
        sql("SELECT payload -> 'attributes' ->> 'max' FROM inventory WHERE source_uid = 'integer'").await;
    assert_eq!(max.trim(), i64::MAX.to_string());
    let length =
        sql("SELECT length(payload -> 'attributes' ->> 'text') FROM inventory WHERE source_uid = 'large'")
            .await;
    assert_eq!(length.trim(), (1 << 20).to_string());

    // A NUL character is kept, or the row is named and nothing at all is written.
    let nul = row("nul", r#"{"s":"a\u0000b"}"#);
    let delta = Delta {
        added: vec![row("beside", "{}"), nul.clone()],
        removed: vec![rows[0].key.clone()],
        ..Delta::default()
    };
    match write(sink, &place, None, &delta).await {
        Ok(()) => assert!(sink.baseline(&place).await.unwrap().contains_key(&nul.key)),
        Err(refused) => {
            assert_eq!((refused.reason, refused.class()), (SinkReason::Refused, ErrorClass::Terminal));
            let text = refused.to_string();
            assert!(text.contains("Deployment shop/cart") && text.contains("uid nul"), "{text}");
            assert_eq!(sink.baseline(&place).await.unwrap(), holding(&rows));
        }
    }
}

async fn many_rows(sink: &dyn Sink) {
    let place = inventory("", "many");
    let rows = |version: &str| {
        let attributes = format!(r#"{{"text":"{version} {}"}}"#, "x".repeat(200));
        (0..50_000).map(|i| row(&format!("u{i}"), &attributes)).collect::<Vec<_>>()
    };
    let (first, second) = (rows("first"), rows("second"));
    write(sink, &place, None, &added(&first)).await.unwrap();
    assert_holds(sink, &place, &first).await;

    // All of them again, most of them changed, some gone, some new.
    let (gone, kept) = second.split_at(1000);
    let new = row("new", "{}");
    let delta = Delta {
        added: vec![new.clone()],
        changed: kept.to_vec(),
        removed: gone.iter().map(|row| row.key.clone()).collect(),
    };
    for _ in 0..2 {
        write(sink, &place, None, &delta).await.unwrap();
        assert_holds(sink, &place, kept.iter().chain([&new])).await;
    }
    let all = kept.iter().chain([&new]).map(|row| row.key.clone()).collect();
    write(sink, &place, None, &Delta { removed: all, ..Delta::default() }).await.unwrap();
    assert_eq!(sink.baseline(&place).await.unwrap(), Baseline::new());
}
