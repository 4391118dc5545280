//! PostgreSQL: how sinks share sessions.

use std::time::{Duration, Instant};

use futures::future::join_all;
use kollect_model::{
    batch::Batch,
    sink::{Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{AddressGuard, Network, Plan, SinkPolicy, SinkSettings, Sinks};
use kollect_testbed::Postgres;

use crate::{
    conformance::{added, assert_holds, claimant, inventory, row, write},
    postgres::{locking_session, planned, schema, secrets},
};

/// A plan whose sessions have the name of the test.
fn plan_named(server: &Postgres, name: &str) -> Plan {
    let dsn = format!("{}?application_name={name}", server.dsn());
    planned(&dsn, name, "ensure")
}

async fn open(sinks: &Sinks, plan: &Plan) -> Box<dyn Sink> {
    sinks.open(plan, &SinkPolicy::default()).await.unwrap()
}

/// How many sessions of a test the server has.
fn sessions(server: &Postgres, name: &str) -> usize {
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}' AND pid <> pg_backend_pid()"
    );
    server.psql(&count).unwrap().trim().parse().unwrap()
}

async fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_true() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_inventories_need_four_sessions() {
    let server = schema("crowd");
    let sinks = Sinks::default();
    let plan = plan_named(server, "crowd");
    let (done, mut watching) = tokio::sync::watch::channel(false);
    let max_sessions = tokio::spawn(async move {
        let mut max_sessions = 0;
        while !*watching.borrow_and_update() {
            max_sessions = max_sessions.max(tokio::task::block_in_place(|| sessions(server, "crowd")));
        }
        max_sessions
    });
    let bindings = join_all((0..50).map(|number| {
        let (sinks, plan) = (sinks.clone(), plan.clone());
        tokio::spawn(async move {
            let sink = open(&sinks, &plan).await;
            let own = inventory("", &format!("i{number}"));
            for version in 0..5 {
                let rows = [row("u1", &format!(r#"{{"v":{version}}}"#))];
                write(&*sink, &own, None, &added(&rows)).await.unwrap();
                assert_holds(&*sink, &own, &rows).await;
            }
            sink
        })
    }))
    .await;
    done.send(true).unwrap();
    let max_sessions = max_sessions.await.unwrap();
    assert!((2..=4).contains(&max_sessions), "{max_sessions} sessions at once");
    assert!(sessions(server, "crowd") <= 4);
    // Dropping the last sink closes the sessions.
    drop(bindings);
    wait_until("all sessions are closed", || sessions(server, "crowd") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sinks_of_two_tables_share_sessions() {
    let server = schema("twotables");
    let sinks = Sinks::default();
    let all = inventory("", "all");
    let url =
        |table: &str| format!("{}?application_name=twotables&schema=twotables&table={table}", server.dsn());
    let mut opened = Vec::new();
    for table in ["a", "b", "c"] {
        let sink = open(&sinks, &kollect_sinks::plan_out(&url(table)).unwrap()).await;
        let rows = [row(table, "{}")];
        write(&*sink, &all, None, &added(&rows)).await.unwrap();
        opened.push((sink, rows));
    }
    for (sink, rows) in &opened {
        assert_holds(&**sink, &all, rows).await;
    }
    assert_eq!(sessions(server, "twotables"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_waits_for_a_lock_does_not_block_other_writes() {
    let server = schema("stalled");
    let sinks = Sinks::default();
    let plan = plan_named(server, "stalled");
    let (blocked, free) = (open(&sinks, &plan).await, open(&sinks, &plan).await);
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let claim = blocked.claim(&one, &claimant(None)).await.unwrap();
    let lock = locking_session(
        server,
        "SELECT FROM stalled.kollect_bindings WHERE inventory_name = 'one' FOR UPDATE",
    )
    .await;
    let delta = added(&[row("u1", "{}")]);
    let batch = Batch::new(&one, &claim, &delta);
    let others = async {
        for _ in 0..5 {
            write(&*free, &two, None, &delta).await.unwrap();
        }
        lock.batch_execute("ROLLBACK").await.unwrap();
    };
    let (outcome, ()) = tokio::join!(blocked.write(&batch), others);
    outcome.unwrap();
    assert_eq!(sessions(server, "stalled"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_waits_while_all_sessions_are_in_use() {
    let server = schema("queue");
    let sinks = Sinks::default();
    let plan = plan_named(server, "queue");
    let delta = added(&[row("u1", "{}")]);
    let mut blocked = Vec::new();
    for number in 0..4 {
        let sink = open(&sinks, &plan).await;
        let own = inventory("", &format!("i{number}"));
        let claim = sink.claim(&own, &claimant(None)).await.unwrap();
        blocked.push((sink, own, claim));
    }
    let fifth = open(&sinks, &plan).await;
    let lock = locking_session(server, "SELECT FROM queue.kollect_bindings FOR UPDATE").await;
    let writes = join_all(blocked.iter().map(async |(sink, inventory, claim)| {
        sink.write(&Batch::new(inventory, claim, &delta)).await.unwrap();
    }));
    let last = async {
        wait_until("four sessions wait for the lock", || {
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'queue' AND wait_event_type = 'Lock'";
            server.psql(waiting).unwrap() == "4\n"
        })
        .await;
        let last_inventory = inventory("", "fifth");
        let mut write = std::pin::pin!(write(&*fifth, &last_inventory, None, &delta));
        tokio::time::timeout(Duration::from_millis(300), &mut write).await.unwrap_err();
        assert_eq!(sessions(server, "queue"), 4);
        lock.batch_execute("ROLLBACK").await.unwrap();
        write.await.unwrap();
    };
    tokio::join!(writes, last);
    assert_eq!(sessions(server, "queue"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_opens_new_sessions() {
    let server = schema("rotated");
    server
        .psql("CREATE ROLE rotating LOGIN PASSWORD 'one'; CREATE ROLE with_password; GRANT with_password TO rotating; GRANT ALL ON SCHEMA rotated TO rotating")
        .or_else(|_| {
            // Another test of this process has created the group.
            server.psql("CREATE ROLE rotating LOGIN PASSWORD 'one' IN ROLE with_password; GRANT ALL ON SCHEMA rotated TO rotating")
        })
        .unwrap();
    let plan = |password: &str| {
        let dsn = format!(
            "postgres://rotating:{password}@127.0.0.1:{}/postgres?application_name=rotated",
            server.port()
        );
        planned(&dsn, "rotated", "ensure")
    };
    let sinks = Sinks::default();
    let before = open(&sinks, &plan("one")).await;
    let Err(error) = sinks.open(&plan("two"), &SinkPolicy::default()).await else {
        unreachable!("an open session must not open for a wrong password");
    };
    assert_eq!(error.reason, SinkReason::Forbidden);
    wait_until("the refused session is gone", || sessions(server, "rotated") == 1).await;
    server.psql("ALTER ROLE rotating PASSWORD 'two'").unwrap();
    let after = open(&sinks, &plan("two")).await;
    assert_eq!(sessions(server, "rotated"), 2);
    drop(before);
    wait_until("the sessions of the old password are closed", || sessions(server, "rotated") == 1).await;
    after.check().await.unwrap();
}

/// Namespaces share sessions if they may reach the same servers. An open session does not bypass the policy.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_session_does_not_bypass_the_address_policy() {
    let server = schema("reach");
    let policy_of = |namespace: &str, allowed: &[&str]| {
        let allowed = allowed.iter().map(|range| range.parse().unwrap()).collect();
        let guard = AddressGuard { namespace: namespace.into(), allowed, ..AddressGuard::default() };
        SinkPolicy { network: Network::Guarded(guard), ..SinkPolicy::default() }
    };
    let (sinks, plan) = (Sinks::default(), plan_named(server, "reach"));
    let loopback = ["127.0.0.0/8", "::1/128"];
    let first = sinks.open(&plan, &policy_of("team-a", &loopback)).await.unwrap();
    let second = sinks.open(&plan, &policy_of("team-b", &loopback)).await.unwrap();
    assert_eq!(sessions(server, "reach"), 1);
    let Err(error) = sinks.open(&plan, &policy_of("team-c", &[])).await else {
        unreachable!("an open session must not open for a namespace that may not connect");
    };
    assert_eq!(error.reason, SinkReason::Forbidden);
    assert!(error.to_string().contains("--allow-sink-cidrs team-c=CIDR"), "{error}");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_sessions_are_closed() {
    let server = schema("idle");
    let sinks =
        Sinks::new(&SinkSettings { idle_limit: Some(Duration::from_millis(300)), ..SinkSettings::default() });
    let sink = open(&sinks, &plan_named(server, "idle")).await;
    assert_eq!(sessions(server, "idle"), 1);
    wait_until("the session is closed", || sessions(server, "idle") == 0).await;
    let all = inventory("", "all");
    let rows = [row("u1", "{}")];
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_holds(&*sink, &all, &rows).await;
    wait_until("the next session is closed too", || sessions(server, "idle") == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_were_killed_are_replaced() {
    let server = schema("killed");
    let sinks = Sinks::default();
    let sink = open(&sinks, &plan_named(server, "killed")).await;
    let all = inventory("", "all");
    for version in 0..3 {
        let rows = [row("u1", &format!(r#"{{"v":{version}}}"#))];
        server
            .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'killed'")
            .unwrap();
        // The client may not have noticed the lost session yet: then one call fails with a reason that is retried.
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Err(error) = write(&*sink, &all, None, &added(&rows)).await {
            assert_eq!(error.reason, SinkReason::Unreachable, "{error}");
            assert!(Instant::now() < deadline, "{error}");
        }
        assert_holds(&*sink, &all, &rows).await;
        wait_until("the killed session is gone", || sessions(server, "killed") == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_write_frees_its_locks_and_its_session() {
    let server = schema("abandoned");
    let sinks = Sinks::default();
    let sink = open(&sinks, &plan_named(server, "abandoned")).await;
    let all = inventory("", "all");
    let rows = [row("u1", "{}")];
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let lock = locking_session(server, "SELECT FROM abandoned.inventory FOR UPDATE").await;
    let delta = added(&[row("u1", r#"{"v":2}"#)]);
    for _ in 0..8 {
        let batch = Batch::new(&all, &claim, &delta);
        let write = sink.write(&batch);
        tokio::time::timeout(Duration::from_millis(100), write).await.unwrap_err();
        wait_until("no more than four sessions are open", || sessions(server, "abandoned") <= 4).await;
    }
    // Much earlier than lock_timeout would end it.
    let began = Instant::now();
    wait_until("no session waits for the lock", || {
        let waiting =
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'abandoned' AND state <> 'idle'";
        server.psql(waiting).unwrap() == "0\n"
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    lock.batch_execute("ROLLBACK").await.unwrap();
    assert_holds(&*sink, &all, &rows).await;
    sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_were_created_again_are_used_by_all_sinks_that_share_sessions() {
    let server = schema("dropped");
    let sinks = Sinks::default();
    let plan = plan_named(server, "dropped");
    let (one, two) = (open(&sinks, &plan).await, open(&sinks, &plan).await);
    let all = inventory("", "all");
    let rows = [row("u1", "{}")];
    write(&*one, &all, None, &added(&rows)).await.unwrap();
    server.psql("DROP TABLE dropped.inventory, dropped.kollect_bindings").unwrap();
    let error = two.claim(&all, &claimant(None)).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::WriteFailed, "{error}");
    // Opening again creates the tables, for all sinks that share the sessions.
    let three = open(&sinks, &plan).await;
    for sink in [&three, &two, &one] {
        write(&**sink, &all, None, &added(&rows)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn options_limit_statements_and_locks() {
    let server = schema("limits");
    let mut spec = serde_json::json!({
        "type": "postgres", "postgres": { "databaseRef": { "name": "db" }, "table": "inventory", "schema": "limits" },
        "options": { "lock_timeout": "200ms", "statement_timeout": "30s", "region": "x" },
    });
    let plan_of = |spec: &serde_json::Value| {
        let spec = SinkSpec::Database(serde_json::from_value(spec.clone()).unwrap());
        (kollect_sinks::plan(&spec), kollect_sinks::advice(&spec))
    };
    let (plan, advice) = plan_of(&spec);
    assert_eq!(
        advice,
        [
            "spec.options.region: has no effect; sinks of type postgres know statement_timeout and lock_timeout"
        ]
    );
    let plan = plan.unwrap().with_secrets(&secrets(&server.dsn())).unwrap();
    let sink = open(&Sinks::default(), &plan).await;
    let locks = locking_session(server, "LOCK TABLE limits.inventory").await;
    let began = Instant::now();
    let error = sink.baseline(&inventory("", "limits")).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Busy, "{error}");
    assert!(began.elapsed() < Duration::from_secs(8), "sooner than the default of 10 s");
    drop(locks);

    spec["options"] = serde_json::json!({ "lock_timeout": "soon" });
    let errors = plan_of(&spec).0.unwrap_err();
    assert!(
        errors[0].to_string().starts_with("spec.options.lock_timeout = \"soon\": must be a time"),
        "{errors:?}"
    );
}

/// The migration of a large table of the Go implementation takes long, and its samples have a short limit.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_of_statements_is_not_one_of_migrations() {
    let server = schema("migrated");
    for statement in [
        "CREATE TABLE migrated.inventory (inventory_namespace TEXT NOT NULL, inventory_name TEXT NOT NULL, target_name TEXT \
         NOT NULL, source_uid TEXT NOT NULL, cluster TEXT NOT NULL DEFAULT '', resource_namespace TEXT NOT NULL DEFAULT '', \
         payload JSONB NOT NULL, exported_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (inventory_namespace, inventory_name, \
         target_name, source_uid))",
        "INSERT INTO migrated.inventory VALUES ('a', 'all', 'web', 'u', '', 'a', '{}', now())",
        "CREATE FUNCTION migrated.slow() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_sleep(4); RETURN NEW; END'",
        "CREATE TRIGGER slow BEFORE UPDATE ON migrated.inventory FOR EACH ROW EXECUTE FUNCTION migrated.slow()",
    ] {
        server.psql(statement).unwrap();
    }
    let spec = serde_json::json!({
        "type": "postgres", "postgres": { "databaseRef": { "name": "db" }, "table": "inventory", "schema": "migrated" },
        "options": { "statement_timeout": "3s" },
    });
    let spec = SinkSpec::Database(serde_json::from_value(spec).unwrap());
    let plan = kollect_sinks::plan(&spec).unwrap().with_secrets(&secrets(&server.dsn())).unwrap();
    let began = Instant::now();
    open(&Sinks::default(), &plan).await;
    assert!(began.elapsed() > Duration::from_secs(4), "the migration updates the rows");
}
