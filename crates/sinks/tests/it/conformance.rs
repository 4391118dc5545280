//! Behavior that every readable sink must have. The tests of each sink run it against a real destination.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use kollect_model::{
    batch::{Baseline, Batch, ChangedRow, Delta, InventoryId, Receipt, RemovedRow},
    claim::{Claim, Claimant, TakeOver, WriterProgram},
    row::{Row, RowKey, TargetId},
    sink::{Atomicity, ErrorClass, Sink, SinkError, SinkReason},
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

/// A row of an Ingress, which is served in two groups.
pub(crate) fn ingress(group: &str, uid: &str, attributes: &str) -> Arc<Row> {
    let deployment = row(uid, attributes);
    let key = RowKey { group: group.into(), kind: "Ingress".into(), ..deployment.key.clone() };
    Arc::new(Row::new(key, "v1".into(), format!("cart-{uid}").into(), deployment.attributes.clone()))
}

/// Rows that are new.
pub(crate) fn added(rows: &[Arc<Row>]) -> Delta {
    Delta { added: rows.to_vec(), ..Delta::default() }
}

/// A row that was removed.
pub(crate) fn removed(row: &Row) -> RemovedRow {
    RemovedRow { key: row.key.clone(), before: None }
}

/// A row that was different.
pub(crate) fn changed(after: &Arc<Row>) -> ChangedRow {
    ChangedRow { before: None, after: after.clone() }
}

/// A claimant of the command line in a cluster.
pub(crate) fn claimant(owner: Option<&str>) -> Claimant {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    Claimant {
        owner: owner.map(ToOwned::to_owned),
        id: format!("{:032x}", NUMBER.fetch_add(1, Ordering::Relaxed)),
        at: "2026-11-17T05:00:00Z".into(),
        ..Claimant::default()
    }
}

/// Claims and writes.
pub(crate) async fn write(
    sink: &dyn Sink,
    inventory: &InventoryId,
    owner: Option<&str>,
    delta: &Delta,
) -> Result<Receipt, SinkError> {
    let claim = sink.claim(inventory, &claimant(owner)).await?;
    sink.write(&Batch::new(inventory, &claim, delta)).await
}

/// Compares and writes the difference, as a binding does at its start and at audits.
pub(crate) async fn compare(
    sink: &dyn Sink,
    inventory: &InventoryId,
    rows: &[Arc<Row>],
) -> Result<Receipt, SinkError> {
    let held = sink.baseline(inventory).await?;
    let mut delta = Delta::default();
    for row in rows {
        match held.get(&row.key) {
            None => delta.added.push(row.clone()),
            Some(digest) if *digest != row.digest => delta.changed.push(changed(row)),
            Some(_) => {}
        }
    }
    let removed = held.keys().filter(|key| !rows.iter().any(|row| row.key == **key));
    delta.removed = removed.map(|key| RemovedRow { key: key.clone(), before: None }).collect();
    write(sink, inventory, None, &delta).await
}

/// The baseline of a sink that holds these rows.
pub(crate) fn holding<'a>(rows: impl IntoIterator<Item = &'a Arc<Row>>) -> Baseline {
    rows.into_iter().map(|row| (row.key.clone(), row.digest)).collect()
}

/// Asserts that a sink holds these rows. Prints only a few differences.
pub(crate) async fn assert_holds<'a>(
    sink: &dyn Sink,
    inventory: &InventoryId,
    rows: impl IntoIterator<Item = &'a Arc<Row>>,
) {
    let (held, expected) = (sink.baseline(inventory).await.unwrap(), holding(rows));
    let wrong: Vec<_> =
        held.iter().filter(|(key, digest)| expected.get(*key) != Some(*digest)).take(3).collect();
    assert_eq!((held.len(), wrong), (expected.len(), Vec::new()));
}

/// The destination of a sink, as other clients see it. It is empty at first.
pub(crate) trait TestDestination {
    /// Opens it; may be called many times.
    async fn open(&self) -> Box<dyn Sink>;

    /// Everything that a reader can see of the inventory team/all, with all stored times.
    async fn read_all(&self) -> String;

    /// Another client removes row u1 of inventory team/all, damages row u2, and may add others.
    async fn edit_as_other_client(&self);

    /// The attributes of a row of inventory team/awkward, as JSON.
    async fn attributes(&self, uid: &str) -> String;

    /// What one read of the inventory team/torn returns.
    async fn read_torn(&self) -> String;

    /// A copy of everything that the destination holds, including claims.
    type Backup;
    async fn back_up(&self) -> Self::Backup;

    /// Brings the destination back to an earlier state.
    async fn restore(&self, backup: &Self::Backup);

    /// The number of rows for the test of many rows. Smaller for destinations with one file per row, which are slow.
    fn large_row_count(&self) -> usize {
        50_000
    }
}

/// A database: `open` opens it, `sql` runs a statement there as another client, on a table `inventory`.
pub(crate) struct Sql<O, S> {
    pub(crate) open: O,
    pub(crate) sql: S,
}

impl<O: AsyncFn() -> Box<dyn Sink>, S: AsyncFn(&str) -> String> TestDestination for Sql<O, S> {
    async fn open(&self) -> Box<dyn Sink> {
        (self.open)().await
    }

    async fn read_all(&self) -> String {
        (self.sql)("SELECT * FROM inventory WHERE inventory_name = 'all' ORDER BY source_uid").await
    }

    async fn edit_as_other_client(&self) {
        (self.sql)("DELETE FROM inventory WHERE source_uid = 'u1'").await;
        (self.sql)("UPDATE inventory SET row_digest = 'spoilt' WHERE source_uid = 'u2'").await;
        (self.sql)(
            "INSERT INTO inventory SELECT cluster, inventory_namespace, inventory_name, target_name, \
             'foreign', target_namespace, api_group, api_version, kind, namespace, name, \
             resource_namespace, payload, '1f', first_seen_at, changed_at, exported_at \
             FROM inventory WHERE source_uid = 'u2'",
        )
        .await;
    }

    async fn attributes(&self, uid: &str) -> String {
        let condition = format!("inventory_name = 'awkward' AND source_uid = '{uid}'");
        (self.sql)(&format!("SELECT payload -> 'attributes' FROM inventory WHERE {condition}")).await
    }

    async fn read_torn(&self) -> String {
        (self.sql)("SELECT source_uid FROM inventory WHERE inventory_name = 'torn'").await
    }

    type Backup = String;

    async fn back_up(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let name = format!("backup_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        for table in ["inventory", "kollect_bindings"] {
            (self.sql)(&format!("CREATE TABLE {name}_{table} AS SELECT * FROM {table}")).await;
        }
        name
    }

    async fn restore(&self, backup: &String) {
        for table in ["inventory", "kollect_bindings"] {
            (self.sql)(&format!("DELETE FROM {table}")).await;
            (self.sql)(&format!("INSERT INTO {table} SELECT * FROM {backup}_{table}")).await;
        }
    }
}

/// Runs all tests.
pub(crate) async fn conformance(destination: &impl TestDestination) {
    let sink = destination.open().await;
    sink.check().await.unwrap();
    only_changed_rows_are_written(&*sink, destination).await;
    opening_again_changes_nothing(destination).await;
    changes_of_other_clients_are_noticed_and_repaired(&*sink, destination).await;
    inventories_are_kept_apart(&*sink).await;
    a_row_that_moves_to_another_group_stays(&*sink).await;
    one_uid_in_two_groups_is_two_rows(&*sink).await;
    writers_with_old_claims_are_fenced(&*sink, &*destination.open().await).await;
    owners_are_respected(&*sink).await;
    claims_can_be_read(destination).await;
    a_restored_destination_is_noticed(destination).await;
    readers_see_no_partial_write(destination).await;
    nothing_is_left_of_a_forgotten_inventory(&*sink).await;
    unusual_values_are_stored_unchanged(&*sink, destination).await;
    many_rows_are_written_changed_and_removed(&*sink, destination.large_row_count()).await;
}

async fn only_changed_rows_are_written(sink: &dyn Sink, destination: &impl TestDestination) {
    let all = inventory("", "all");
    assert_eq!(sink.baseline(&all).await.unwrap(), Baseline::new(), "empty at first");
    let (one, two, three) = (row("u1", r#"{"n":1}"#), row("u2", "{}"), row("u3", "{}"));
    let first = added(&[one.clone(), two.clone(), three.clone()]);
    write(sink, &all, Some("c1"), &first).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two, &three]));
    let before = destination.read_all().await;

    // The same write again, as after a lost answer.
    write(sink, &all, Some("c1"), &first).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two, &three]));
    assert_eq!(destination.read_all().await, before, "what has not changed is not touched");

    let second = row("u2", r#"{"n":2}"#);
    let next = Delta { changed: vec![changed(&second)], removed: vec![removed(&three)], ..Delta::default() };
    for _ in 0..2 {
        write(sink, &all, Some("c1"), &next).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &second]));
    }
    assert_ne!(destination.read_all().await, before);

    write(sink, &all, Some("c1"), &Delta::default()).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &second]));
}

async fn opening_again_changes_nothing(destination: &impl TestDestination) {
    let all = inventory("", "all");
    let before = destination.read_all().await;
    let sink = destination.open().await;
    assert_eq!(
        sink.baseline(&all).await.unwrap(),
        holding([&row("u1", r#"{"n":1}"#), &row("u2", r#"{"n":2}"#)])
    );
    write(&*sink, &all, Some("c1"), &Delta::default()).await.unwrap();
    assert_eq!(destination.read_all().await, before);
}

async fn changes_of_other_clients_are_noticed_and_repaired(
    sink: &dyn Sink,
    destination: &impl TestDestination,
) {
    let all = inventory("", "all");
    let (one, two) = (row("u1", r#"{"n":1}"#), row("u2", r#"{"n":2}"#));
    destination.edit_as_other_client().await;
    let held = sink.baseline(&all).await.unwrap();
    assert_ne!(held.get(&one.key), Some(&one.digest), "removed by another client");
    assert_ne!(held.get(&two.key), Some(&two.digest), "damaged by another client");

    let mut repair = Delta::default();
    let foreign = held.keys().filter(|key| **key != one.key && **key != two.key);
    repair.removed = foreign.map(|key| RemovedRow { key: key.clone(), before: None }).collect();
    for row in [&one, &two] {
        if held.contains_key(&row.key) {
            repair.changed.push(changed(row));
        } else {
            repair.added.push(row.clone());
        }
    }
    write(sink, &all, Some("c1"), &repair).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one, &two]));
}

async fn inventories_are_kept_apart(sink: &dyn Sink) {
    let rows = [row("u1", r#"{"at":1}"#), row("u1", r#"{"at":2}"#), row("u1", r#"{"at":3}"#)];
    let inventories = [inventory("", "side"), inventory("", "by-side"), inventory("other", "side")];
    let cluster_wide = InventoryId { namespace: None, ..inventory("", "side") };
    for (inventory, row) in inventories.iter().zip(&rows) {
        write(
            sink,
            inventory,
            Some(&format!("owner of {}", inventory.cluster)),
            &added(std::slice::from_ref(row)),
        )
        .await
        .unwrap();
    }
    for (inventory, row) in inventories.iter().zip(&rows) {
        assert_eq!(sink.baseline(inventory).await.unwrap(), holding([row]), "{inventory:?}");
    }
    assert_eq!(sink.baseline(&cluster_wide).await.unwrap(), Baseline::new());
    let removal = Delta { removed: vec![removed(&rows[0])], ..Delta::default() };
    write(sink, &inventories[0], Some("owner of "), &removal).await.unwrap();
    assert_eq!(sink.baseline(&inventories[0]).await.unwrap(), Baseline::new());
    assert_eq!(sink.baseline(&inventories[1]).await.unwrap(), holding([&rows[1]]));
    assert_eq!(sink.baseline(&inventories[2]).await.unwrap(), holding([&rows[2]]));
}

async fn a_row_that_moves_to_another_group_stays(sink: &dyn Sink) {
    let moved = inventory("", "moved");
    let old = row("u1", "{}");
    write(sink, &moved, None, &added(std::slice::from_ref(&old))).await.unwrap();
    let key = RowKey { group: "extensions".into(), ..old.key.clone() };
    let new = Arc::new(Row::new(key, "v1".into(), "cart".into(), old.attributes.clone()));
    let delta = Delta { added: vec![new.clone()], removed: vec![removed(&old)], ..Delta::default() };
    write(sink, &moved, None, &delta).await.unwrap();
    assert_eq!(sink.baseline(&moved).await.unwrap(), holding([&new]));
}

/// The API server serves some objects in two groups, with one UID: Ingresses and Events, for instance.
async fn one_uid_in_two_groups_is_two_rows(sink: &dyn Sink) {
    let groups = inventory("", "groups");
    let (first, second) = (ingress("extensions", "u1", "{}"), ingress("networking.k8s.io", "u1", "{}"));
    write(sink, &groups, None, &added(&[first.clone(), second.clone()])).await.unwrap();
    assert_eq!(sink.baseline(&groups).await.unwrap(), holding([&first, &second]));

    let later = ingress("extensions", "u1", r#"{"n":1}"#);
    let change = Delta { changed: vec![changed(&later)], ..Delta::default() };
    write(sink, &groups, None, &change).await.unwrap();
    assert_eq!(sink.baseline(&groups).await.unwrap(), holding([&later, &second]));

    let removal = Delta { removed: vec![removed(&later)], ..Delta::default() };
    write(sink, &groups, None, &removal).await.unwrap();
    assert_eq!(sink.baseline(&groups).await.unwrap(), holding([&second]));
    write(sink, &groups, None, &added(std::slice::from_ref(&first))).await.unwrap();
    assert_eq!(sink.baseline(&groups).await.unwrap(), holding([&first, &second]));

    // Enough rows that sinks use their bulk path, for new, changed and removed rows.
    let many = |group: &str, attributes: &str| -> Vec<_> {
        (0..600).map(|i| ingress(group, &format!("u{i}"), attributes)).collect()
    };
    let many_groups = inventory("", "many-groups");
    for attributes in ["{}", r#"{"n":1}"#] {
        let all = [many("extensions", attributes), many("networking.k8s.io", attributes)].concat();
        write(sink, &many_groups, None, &added(&all)).await.unwrap();
        assert_holds(sink, &many_groups, &all).await;
    }
    let removed = many("extensions", "{}").iter().map(|row| removed(row)).collect();
    write(sink, &many_groups, None, &Delta { removed, ..Delta::default() }).await.unwrap();
    assert_holds(sink, &many_groups, &many("networking.k8s.io", r#"{"n":1}"#)).await;
}

async fn writers_with_old_claims_are_fenced(first_writer: &dyn Sink, second_writer: &dyn Sink) {
    let fenced = inventory("", "fenced");
    let old = first_writer.claim(&fenced, &claimant(Some("c1"))).await.unwrap();
    let new = second_writer.claim(&fenced, &claimant(Some("c1"))).await.unwrap();
    assert!(new.epoch > old.epoch);
    let (one, two) = (row("u1", "{}"), row("u2", "{}"));
    let delta = added(std::slice::from_ref(&one));
    let refused = first_writer.write(&Batch::new(&fenced, &old, &delta)).await.unwrap_err();
    assert_eq!((refused.reason, refused.class()), (SinkReason::Fenced, ErrorClass::Terminal));
    assert_eq!(first_writer.baseline(&fenced).await.unwrap(), Baseline::new());
    second_writer.write(&Batch::new(&fenced, &new, &delta)).await.unwrap();
    let removal = Delta { added: vec![two], removed: vec![removed(&one)], ..Delta::default() };
    first_writer.write(&Batch::new(&fenced, &old, &removal)).await.unwrap_err();
    assert_eq!(second_writer.baseline(&fenced).await.unwrap(), holding([&one]));
}

async fn owners_are_respected(sink: &dyn Sink) {
    let owned = inventory("", "owned");
    let one = row("u1", "{}");
    // A writer without a cluster owns nothing, so the first cluster may take it.
    write(sink, &owned, None, &Delta::default()).await.unwrap();
    write(sink, &owned, Some("c1"), &added(std::slice::from_ref(&one))).await.unwrap();
    let held = sink.claim(&owned, &claimant(Some("c1"))).await.unwrap();
    for other in [Some("c2"), None] {
        let refused = sink.claim(&owned, &claimant(other)).await.unwrap_err();
        assert_eq!((refused.reason, refused.class()), (SinkReason::OwnedByOther, ErrorClass::Terminal));
        assert!(refused.to_string().contains("c1"), "{refused}");
    }
    assert_eq!(sink.baseline(&owned).await.unwrap(), holding([&one]));
    // The refused claim must not fence the owner.
    sink.write(&Batch::new(&owned, &held, &Delta::default())).await.unwrap();

    let operator = Claimant { writer: WriterProgram::Operator, ..claimant(Some("c1")) };
    sink.claim(&owned, &operator).await.unwrap();
    let refused = sink.claim(&owned, &claimant(Some("c1"))).await.unwrap_err();
    assert!(refused.to_string().contains("--take-over"), "{refused}");
    let take_once = |done: &[String]| TakeOver::Once { from: "c1".into(), done: done.to_vec() };
    let rebuilt = |take_over| Claimant { take_over, ..claimant(Some("c2")) };
    let adopted = sink.claim(&owned, &rebuilt(take_once(&[]))).await.unwrap();
    assert_eq!(adopted.taken_from.as_deref(), Some("c1"));
    sink.write(&Batch::new(&owned, &adopted, &Delta::default())).await.unwrap();
    let refused = sink.claim(&owned, &operator).await.unwrap_err();
    assert!(refused.to_string().contains("c2"), "{refused}");
    // The other cluster takes it back: then the same take-over is not repeated.
    let back = Claimant { take_over: TakeOver::Always, ..claimant(Some("c1")) };
    sink.claim(&owned, &back).await.unwrap();
    let done: Vec<String> = adopted.destination_id.into_iter().collect();
    let refused = sink.claim(&owned, &rebuilt(take_once(&done))).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::OwnedByOther);
    assert!(refused.to_string().contains("status.takeOvers"), "{refused}");
}

async fn claims_can_be_read(destination: &impl TestDestination) {
    let (first_sink, second_sink) = (destination.open().await, destination.open().await);
    let [one, two, none] = ["claim-1", "claim-2", "claim-3"].map(|name| inventory("", name));
    let read = async |sink: &dyn Sink| sink.claims(&[two.clone(), none.clone(), one.clone()]).await.unwrap();
    assert_eq!(read(&*first_sink).await, [None, None, None]);
    let first = first_sink.claim(&one, &claimant(Some("c1"))).await.unwrap();
    let second = first_sink.claim(&two, &claimant(Some("c1"))).await.unwrap();
    assert_eq!(read(&*second_sink).await, [Some(second.clone()), None, Some(first.clone())]);
    assert_eq!(first.claimed_at.as_deref(), Some("2026-11-17T05:00:00Z"));
    assert!(first.writer_id.is_some() && first.destination_id.is_some(), "{first:?}");
    // Another writer, the same destination.
    let again = second_sink.claim(&one, &claimant(Some("c1"))).await.unwrap();
    assert!(again.epoch > first.epoch && again.writer_id != first.writer_id);
    assert_eq!(again.destination_id, first.destination_id);
    assert_eq!(read(&*first_sink).await, [Some(second), None, Some(again.clone())]);
    let copy = Claimant { copy_of: again.destination_id.into_iter().collect(), ..claimant(Some("c1")) };
    let renewed = second_sink.claim(&one, &copy).await.unwrap();
    assert_ne!(renewed.destination_id, first.destination_id);
}

async fn a_restored_destination_is_noticed(destination: &impl TestDestination) {
    let sink = destination.open().await;
    let restored = inventory("", "restored");
    let [one, two, three] = ["u1", "u2", "u3"].map(|uid| row(uid, "{}"));
    let write_row = async |claim: &mut Claim, row: &Arc<Row>| {
        let delta = added(std::slice::from_ref(row));
        let written = sink.write(&Batch::new(&restored, claim, &delta)).await;
        claim.count_write();
        written.map(drop).map_err(|error| error.reason)
    };
    // Restore a state before the claim, and a state under the same claim.
    let mut older = sink.claim(&restored, &claimant(Some("c1"))).await.unwrap();
    write_row(&mut older, &one).await.unwrap();
    let before_claim = destination.back_up().await;
    let mut claim = sink.claim(&restored, &claimant(Some("c1"))).await.unwrap();
    assert_eq!(sink.baseline(&restored).await.unwrap(), holding([&one]));
    write_row(&mut claim, &two).await.unwrap();
    let under_claim = destination.back_up().await;
    for backup in [&under_claim, &before_claim] {
        write_row(&mut claim, &three).await.unwrap();
        destination.restore(backup).await;
        let (four, held) = (row("u4", "{}"), holding([&one, &two, &three]));
        assert_eq!(write_row(&mut claim, &four).await, Err(SinkReason::ClaimLost));
        let after = sink.baseline(&restored).await.unwrap();
        let is_old = |(key, digest): (&RowKey, _)| held.get(key) == Some(digest);
        match sink.atomicity() {
            Atomicity::WholeDelta => assert!(after.iter().all(is_old), "nothing was written"),
            Atomicity::SingleRows => assert!(after.contains_key(&one.key), "no row is missing"),
        }
        assert!(!after.contains_key(&three.key), "{after:?}");
        // It is claimed again with a higher epoch than before, and compared.
        let last_epoch = claim.epoch;
        let again = Claimant { last_epoch, ..claimant(Some("c1")) };
        claim = sink.claim(&restored, &again).await.unwrap();
        assert!(claim.epoch > last_epoch);
        let after = sink.baseline(&restored).await.unwrap();
        let missing = [&two, &four].into_iter().filter(|row| !after.contains_key(&row.key)).cloned();
        let delta = added(&missing.collect::<Vec<_>>());
        sink.write(&Batch::new(&restored, &claim, &delta)).await.unwrap();
        claim.count_write();
        let delta = Delta { removed: vec![removed(&four)], ..Delta::default() };
        sink.write(&Batch::new(&restored, &claim, &delta)).await.unwrap();
        claim.count_write();
        assert_eq!(sink.baseline(&restored).await.unwrap(), holding([&one, &two]));
    }
}

/// Two sets of rows replace each other; some rows are in both sets.
async fn readers_see_no_partial_write(destination: &impl TestDestination) {
    let torn = inventory("", "torn");
    let set = |name: &str, count: usize| -> Vec<Arc<Row>> {
        (0..count).map(|number| row(&format!("torn-{name}-{number:03}-"), "{}")).collect()
    };
    let (even, odd, both) = (set("even", 60), set("odd", 60), set("both", 5));
    let sink = destination.open().await;
    write(&*sink, &torn, None, &added(&[even.clone(), both.clone()].concat())).await.unwrap();
    let names = |rows: &[Arc<Row>]| -> BTreeSet<String> {
        rows.iter().chain(&both).map(|row| row.key.uid.to_string()).collect()
    };
    let states = [names(&even), names(&odd)];
    let done = AtomicBool::new(false);
    let reader = async {
        let mut seen = [0, 0];
        while !done.load(Ordering::Relaxed) {
            let text = destination.read_torn().await;
            let shown: BTreeSet<String> =
                states.iter().flatten().filter(|uid| text.contains(*uid)).cloned().collect();
            match sink.atomicity() {
                Atomicity::WholeDelta => {
                    let state = states.iter().position(|state| *state == shown);
                    seen[state.unwrap_or_else(|| unreachable!("half of a delta: {shown:?}"))] += 1;
                }
                Atomicity::SingleRows => {
                    let missing: Vec<_> = both.iter().filter(|row| !shown.contains(&*row.key.uid)).collect();
                    assert!(missing.is_empty(), "rows that exist are missing: {missing:?}");
                    seen[usize::from(states[1].is_subset(&shown))] += 1;
                }
            }
            tokio::task::yield_now().await;
        }
        seen
    };
    let writer = async {
        for round in 0..8 {
            let (old, new) = if round % 2 == 0 { (&even, &odd) } else { (&odd, &even) };
            let attributes = format!(r#"{{"turn":{round}}}"#);
            let changed = both.iter().map(|row| changed(&self::row(&row.key.uid, &attributes))).collect();
            let removed = old.iter().map(|row| removed(row)).collect();
            let delta = Delta { added: new.clone(), changed, removed };
            write(&*sink, &torn, None, &delta).await.unwrap();
            // Give the reader time to see each state.
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
        done.store(true, Ordering::Relaxed);
    };
    let (seen, ()) = tokio::join!(reader, writer);
    assert!(seen.iter().all(|count| *count > 0), "the reader has seen both states: {seen:?}");
}

async fn nothing_is_left_of_a_forgotten_inventory(sink: &dyn Sink) {
    let (forgotten, sibling) = (inventory("", "forgotten"), inventory("", "forgotten-not"));
    let one = row("u1", "{}");
    let delta = added(std::slice::from_ref(&one));
    write(sink, &sibling, Some("c1"), &delta).await.unwrap();
    write(sink, &forgotten, Some("c1"), &delta).await.unwrap();
    let old_claim = sink.claim(&forgotten, &claimant(Some("c1"))).await.unwrap();
    let claim = sink.claim(&forgotten, &claimant(Some("c1"))).await.unwrap();
    assert_eq!(sink.forget(&forgotten, &old_claim).await.unwrap_err().reason, SinkReason::Fenced);
    assert_eq!(sink.baseline(&forgotten).await.unwrap(), holding([&one]));
    sink.forget(&forgotten, &claim).await.unwrap();
    assert_eq!(sink.baseline(&forgotten).await.unwrap(), Baseline::new());
    assert_eq!(sink.baseline(&sibling).await.unwrap(), holding([&one]));
    let refused = sink.write(&Batch::new(&forgotten, &claim, &delta)).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::ClaimLost);
    // Another cluster finds no owner.
    write(sink, &forgotten, Some("c2"), &delta).await.unwrap();
}

async fn unusual_values_are_stored_unchanged(sink: &dyn Sink, destination: &impl TestDestination) {
    let unusual = inventory("", "awkward");
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(1 << 20));
    let deep = format!(r#"{{"deep":{}1{}}}"#, "[".repeat(100), "]".repeat(100));
    let quotes = r#"{"<&>":"yes: - #","s":"it's \"quoted\" \\ \\u0000 $1 \t\n\r; --","🦀":"ü€\u007f"}"#;
    let integers = r#"{"max":9223372036854775807,"min":-9223372036854775808,"u":18446744073709551615}"#;
    let rows = [
        row("quotes", quotes),
        row("integers", integers),
        row("numbers", r#"{"e":1.0e-7,"f":0.1,"z":0}"#),
        row("words", r#"{"no":"no","null":"null","nul":null,"one":"1","t":"true","time":"2026-01-01"}"#),
        row("nothing", r#"{"a":null,"b":"","c":[],"d":{},"e":false}"#),
        row("uid with ' and \" and \\ and 🦀", "{}"),
        row("deep", &deep),
        row("large", &large),
    ];
    write(sink, &unusual, None, &added(&rows)).await.unwrap();
    assert_eq!(sink.baseline(&unusual).await.unwrap(), holding(&rows));
    for (uid, expected) in [("quotes", quotes), ("integers", integers), ("large", &large)] {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(parse(&destination.attributes(uid).await), parse(expected), "{uid}");
    }

    // A NUL character is stored, or its row is refused by name and all others are written.
    let nul = row("nul", r#"{"s":"a\u0000b"}"#);
    let beside = row("beside", "{}");
    let delta = Delta {
        added: vec![beside.clone(), nul.clone()],
        removed: vec![removed(&rows[0])],
        ..Delta::default()
    };
    let receipt = write(sink, &unusual, None, &delta).await.unwrap();
    let written = rows[1..].iter().chain([&beside]).chain(receipt.refused.is_empty().then_some(&nul));
    assert_eq!(sink.baseline(&unusual).await.unwrap(), holding(written));
    for refused in &receipt.refused {
        assert_eq!(refused.key, nul.key);
        assert!(refused.why.contains("Deployment shop/cart") && refused.why.contains("uid nul"));
    }
    // Longer than the limit of a path segment or subject token.
    let unusual_name = InventoryId { namespace: None, ..inventory("it's \"odd\"/.. 🦀", &"n".repeat(253)) };
    write(sink, &unusual_name, None, &added(&rows[..1])).await.unwrap();
    assert_eq!(sink.baseline(&unusual_name).await.unwrap().len(), 1);
}

async fn many_rows_are_written_changed_and_removed(sink: &dyn Sink, count: usize) {
    let many = inventory("", "many");
    let rows = |version: &str| {
        let attributes = format!(r#"{{"text":"{version} {}"}}"#, "x".repeat(200));
        (0..count).map(|i| row(&format!("u{i}"), &attributes)).collect::<Vec<_>>()
    };
    let (first, second) = (rows("first"), rows("second"));
    write(sink, &many, None, &added(&first)).await.unwrap();
    assert_holds(sink, &many, &first).await;

    // All of them again, most of them changed, some removed, some new.
    let (dropped, kept) = second.split_at(1000);
    let new = row("new", "{}");
    let delta = Delta {
        added: vec![new.clone()],
        changed: kept.iter().map(changed).collect(),
        removed: dropped.iter().map(|row| removed(row)).collect(),
    };
    for _ in 0..2 {
        write(sink, &many, None, &delta).await.unwrap();
        assert_holds(sink, &many, kept.iter().chain([&new])).await;
    }
    let all = kept.iter().chain([&new]).map(|row| removed(row)).collect();
    write(sink, &many, None, &Delta { removed: all, ..Delta::default() }).await.unwrap();
    assert_eq!(sink.baseline(&many).await.unwrap(), Baseline::new());
}
