//! Destinations: how each backend spells them, and which former destinations a sink can still reach.

use kollect_model::{destination::Destination, sink::SinkSpec};
use kollect_sinks::{FilePolicy, Plan, Secrets, SinkPolicy, plan, plan_out};
use serde_json::{Value, json};

fn spec(family: &str, spec: Value) -> SinkSpec {
    match family {
        "snapshot" => SinkSpec::Snapshot(serde_json::from_value(spec).unwrap()),
        "database" => SinkSpec::Database(serde_json::from_value(spec).unwrap()),
        _ => SinkSpec::Event(serde_json::from_value(spec).unwrap()),
    }
}

/// A sink of the operator, with its Secret.
fn planned(family: &str, fields: Value) -> Plan {
    let mut secrets = Secrets::default();
    let dsn = "postgres://me:hunter2@DB.example.,a.example:5433/shop?sslmode=require".into();
    secrets.insert("spec.postgres.databaseRef", [("dsn".to_owned(), dsn)].into());
    let keys = [("accessKeyID", "k"), ("secretAccessKey", "s")];
    secrets.insert("spec.secretRef", keys.map(|(key, value)| (key.to_owned(), value.into())).into());
    plan(&spec(family, fields)).unwrap().with_secrets(&secrets).unwrap()
}

fn below(root: &str) -> SinkPolicy {
    SinkPolicy { files: FilePolicy::Below(root.into()), ..SinkPolicy::default() }
}

/// Statuses store these texts. The operator would treat a changed text as a moved destination and remove its rows:
/// never change a line of this list.
#[test]
fn stored_texts_of_destinations_never_change() {
    let policy = below("/data/team-a");
    for (text, family, sink) in [
        (
            "postgres://a.example:5433,db.example:5432/shop \"public\".\"inventory\"",
            "database",
            json!({ "type": "postgres", "postgres": { "table": "inventory", "databaseRef": { "name": "db" } } }),
        ),
        (
            "postgres://a.example:5433,db.example:5432/shop \"Own\".\"t-1$\"",
            "database",
            json!({
                "type": "postgres",
                "postgres": { "table": "t-1$", "schema": "Own", "databaseRef": { "name": "db" } },
            }),
        ),
        (
            "sqlite:/data/team-a/deep/my file.db",
            "database",
            json!({ "type": "sqlite", "sqlite": { "path": "./deep/my file.db" } }),
        ),
        (
            "dir:/data/team-a/inventory",
            "snapshot",
            json!({ "type": "filesystem", "filesystem": { "path": "inventory" } }),
        ),
        (
            "git:https://git.example/team/inventory main",
            "snapshot",
            json!({ "type": "git", "endpoint": "https://GIT.example:443/team/inventory.git/" }),
        ),
        (
            "git:ssh://git.example:2222/team/inventory live",
            "snapshot",
            json!({
                "type": "git", "endpoint": "ssh://me@git.example:2222/team/inventory.git",
                "git": { "branch": "live", "auth": { "type": "ssh", "secretRef": { "name": "key" } } },
            }),
        ),
        (
            "git:file:///data/team-a/inventory.git main",
            "snapshot",
            json!({ "type": "git", "endpoint": "file:inventory.git" }),
        ),
        (
            "s3://inventory prod/a inventory/{namespace}/{name}.json",
            "snapshot",
            json!({ "type": "s3", "endpoint": "inventory/prod/a/", "secretRef": { "name": "keys" } }),
        ),
        (
            "s3://minio.example:9000/inventory / a%20b/{namespace}/{name}.csv.gz",
            "snapshot",
            json!({
                "type": "s3", "endpoint": "http://Minio.example:9000/inventory", "secretRef": { "name": "keys" },
                "pathTemplate": "a b/{namespace}/{name}{extension}", "serialization": { "format": "csv", "compression": "gzip" },
            }),
        ),
        (
            "s3://inventory / inventory/cluster={cluster}/ns={namespace}/inventory={name}/inventory.parquet",
            "snapshot",
            json!({
                "type": "s3", "endpoint": "s3://inventory", "secretRef": { "name": "keys" },
                "serialization": { "format": "parquet" },
            }),
        ),
        (
            "nats://a.example:4222,b.example:4223 kollect_events kollect.rows",
            "event",
            json!({
                "type": "nats", "mode": "rows",
                "nats": { "url": "nats://B.example:4223,nats://a.example", "subject": "kollect.rows" },
            }),
        ),
    ] {
        let is_ssh = text.contains("ssh://");
        let plan = if is_ssh { plan(&spec(family, sink)).unwrap() } else { planned(family, sink) };
        let destination = plan.destination(&policy);
        assert_eq!(destination.to_string(), text);
        assert_eq!(Destination::from(text), destination, "it is read back");
        let same = plan.at(&destination, &policy).map(|plan| plan.destination(&policy));
        assert_eq!(same, Some(destination), "a sink leads to its own destination");
    }
}

/// Statuses store these texts: a changed digest would look like another destination.
#[test]
fn servers_that_only_a_secret_names_are_shown_as_digests() {
    let cluster_id = "7f0b7bd2-7a4a-4b6f-9a05-0d3c6c1c9f0e";
    for (text, shown) in [
        (
            "postgres://db.example:5432/shop \"public\".\"inventory\"",
            "postgres://secret-2174d4f57fb45e12d9fede6dc13014bb \"public\".\"inventory\"",
        ),
        ("nats://a.example:4222 stream subject", "nats://a.example:4222 stream subject"),
        ("git:https://git.example/x main", "git:https://git.example/x main"),
        ("sqlite:/data/team-a/x.db", "sqlite:/data/team-a/x.db"),
        ("dir:/data/team-a", "dir:/data/team-a"),
    ] {
        let destination = kollect_sinks::shown_destination(&text.into(), cluster_id);
        assert_eq!(destination.to_string(), shown);
        assert_eq!(kollect_sinks::shown_destination(&destination, cluster_id), destination);
    }
}

#[test]
fn a_plan_leads_to_destinations_that_its_access_reaches_and_to_no_others() {
    let policy = SinkPolicy::default();
    let plan = |text: &str| plan_out(text).unwrap();
    for (now, before, reached) in [
        ("postgres://me@db/shop?table=new", "postgres://you@DB:5432/shop?table=old", true),
        ("postgres://me@db/shop?table=new", "postgres://me@db/shop?table=a&schema=b", true),
        ("postgres://me@db/shop?table=new", "postgres://me@db/shop2?table=old", false),
        ("postgres://me@db/shop?table=new", "postgres://me@db2/shop?table=old", false),
        ("postgres://me@db/shop?table=new", "sqlite:/nowhere/old.db", false),
        ("sqlite:/nowhere/new.db", "sqlite:/nowhere/old.db", true),
        ("dir:/nowhere/new", "dir:/nowhere/old", true),
        ("dir:/nowhere/new", "sqlite:/nowhere/old", false),
        ("git:https://host/x#branch=new", "git:https://host/x#branch=old", true),
        ("git:https://host/x#branch=new", "git:https://host/y#branch=old", false),
    ] {
        let destination = plan(before).destination(&policy);
        let found = plan(now).at(&destination, &policy).map(|plan| plan.destination(&policy));
        assert_eq!(found, reached.then_some(destination), "from {now} to {before}");
    }
    // Below a root, no destination leads out of it.
    let below = below("/data/team-a");
    let inside = plan("sqlite:old.db").destination(&below);
    let now = plan("sqlite:new.db");
    assert_eq!(now.at(&inside, &below).map(|plan| plan.destination(&below)), Some(inside));
    assert_eq!(now.at(&"sqlite:/etc/old.db".into(), &below), None);
}
