//! Documents in S3.

use kollect_model::{
    batch::{Batch, Delta, InventoryId},
    sink::{Sink, SinkError, SinkReason, SinkSpec},
};
use kollect_sinks::{Secrets, SinkPolicy, open, plan};
use kollect_testbed::S3;
use serde_json::{Value, json};

use crate::conformance::{
    TestDestination, added, claimant, conformance, holding, inventory, removed, row, write,
};

/// A bucket of its own for each test.
struct TestBucket {
    server: &'static S3,
    bucket: String,
}

impl TestBucket {
    fn new(name: &str) -> Self {
        let server = S3::shared();
        server.create_bucket(name).unwrap();
        Self { server, bucket: name.to_owned() }
    }

    fn spec(&self, more: &Value) -> Value {
        let mut spec = json!({
            "type": "s3", "endpoint": format!("{}/{}/x/y", self.server.url(), self.bucket), "secretRef": { "name": "keys" },
            "pathTemplate": "inventory/{cluster}/{namespace}/{name}{extension}",
        });
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        spec
    }

    async fn open(&self, more: &Value) -> Box<dyn Sink> {
        open_spec(&self.spec(more), S3::SECRET_KEY).await.unwrap()
    }

    /// The object below the prefix.
    fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.server.object(&self.bucket, &format!("x/y/{path}"))
    }

    fn document(&self, path: &str) -> Value {
        serde_json::from_slice(&self.object(path).unwrap()).unwrap()
    }

    /// Replaces an object as another client.
    fn put(&self, path: &str, content: &[u8]) {
        self.server.put(&self.bucket, &format!("x/y/{path}"), content).unwrap();
    }
}

async fn open_spec(spec: &Value, secret_key: &str) -> Result<Box<dyn Sink>, SinkError> {
    let spec = SinkSpec::Snapshot(serde_json::from_value(spec.clone()).unwrap());
    let mut secrets = Secrets::default();
    let keys = [("accessKeyID", S3::ACCESS_KEY), ("secretAccessKey", secret_key)];
    let keys = keys.map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec()));
    secrets.insert("spec.secretRef", keys.into());
    let plan = plan(&spec).unwrap().with_secrets(&secrets).unwrap();
    open(&plan, &SinkPolicy::default()).await
}

/// A bucket with documents of these settings.
struct Documents {
    bucket: TestBucket,
    settings: Value,
}

const ALL: &str = "inventory/default/team/all.json";

impl TestDestination for Documents {
    async fn open(&self) -> Box<dyn Sink> {
        self.bucket.open(&self.settings).await
    }

    /// Without its time: each claim replaces the document, so that a paused writer cannot.
    async fn read_all(&self) -> String {
        self.bucket.document(ALL)["items"].to_string()
    }

    async fn edit_as_other_client(&self) {
        let mut document = self.bucket.document(ALL);
        let items = document["items"].as_array_mut().unwrap();
        items.retain(|item| item["uid"] != "u1");
        items[0]["attributes"] = json!({ "n": "spoilt" });
        let mut foreign = items[0].clone();
        foreign["uid"] = json!("foreign");
        items.push(foreign);
        self.bucket.put(ALL, document.to_string().as_bytes());
    }

    async fn attributes(&self, uid: &str) -> String {
        let document = self.bucket.document("inventory/default/team/awkward.json");
        let item = document["items"].as_array().unwrap().iter().find(|item| item["uid"] == uid).unwrap();
        item["attributes"].to_string()
    }

    async fn read_torn(&self) -> String {
        String::from_utf8(self.bucket.object("inventory/default/team/torn.json").unwrap()).unwrap()
    }

    type Backup = Vec<(String, Vec<u8>)>;

    async fn back_up(&self) -> Self::Backup {
        let keys = self.bucket.server.keys(&self.bucket.bucket);
        let keys = keys.into_iter().filter(|key| key.contains("restored"));
        keys.map(|key| {
            let content = self.bucket.server.object(&self.bucket.bucket, &key).unwrap();
            (key.strip_prefix("x/y/").unwrap().to_owned(), content)
        })
        .collect()
    }

    async fn restore(&self, backup: &Self::Backup) {
        backup.iter().for_each(|(path, content)| self.bucket.put(path, content));
    }

    fn large_row_count(&self) -> usize {
        20_000
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_s3_conform() {
    let bucket = TestBucket::new("conformance");
    conformance(&Documents { bucket, settings: json!({}) }).await;
}

fn rows_of(baseline: &kollect_model::batch::Baseline) -> Vec<String> {
    baseline.keys().map(|key| key.uid.to_string()).collect()
}

/// Each format but Parquet is read back exactly, and rows that are not mentioned stay. A document in Parquet with such rows stays as it is.
#[tokio::test(flavor = "multi_thread")]
async fn every_format_and_compression_is_read_back() {
    let bucket = TestBucket::new("formats");
    let all = inventory("", "all");
    let odd = r#"{"a":"<b>&\u0000\\u003c","l":[1,{"x":null}],"n":18446744073709551615,"s":"a,\"b\"\r\nc"}"#;
    for (format, compressions, extension) in [
        ("json", &["none", "gzip", "zstd"][..], "json"),
        ("ndjson", &["none", "gzip", "zstd"], "ndjson"),
        ("csv", &["none", "gzip", "zstd"], "csv"),
        ("parquet", &["none", "snappy", "gzip", "zstd"], "parquet"),
    ] {
        for compression in compressions {
            let name = format!("{format}-{compression}");
            let suffix = match (format, *compression) {
                ("parquet", _) | (_, "none") => "",
                (_, "gzip") => ".gz",
                _ => ".zst",
            };
            let settings = json!({
                "pathTemplate": format!("{name}/{{namespace}}/{{name}}{{extension}}"),
                "serialization": { "format": format, "compression": compression },
            });
            let path = format!("{name}/team/all.{extension}{suffix}");
            let inventory = InventoryId { cluster: name.clone(), ..all.clone() };
            let (one, two) = (row("u1", odd), row("u2", "{}"));
            let sink = bucket.open(&settings).await;
            write(&*sink, &inventory, Some("c1"), &added(&[one.clone(), two.clone()])).await.unwrap();
            let first = bucket
                .object(&path)
                .unwrap_or_else(|| unreachable!("{path}: {:?}", bucket.server.keys("formats")));
            // Another process, and rows that its batch does not mention.
            let sink = bucket.open(&settings).await;
            assert_eq!(sink.baseline(&inventory).await.unwrap(), holding([&one, &two]), "{name}");
            let three = row("u3", r#"{"n":1.5}"#);
            let delta =
                Delta { added: vec![three.clone()], removed: vec![removed(&two)], ..Delta::default() };
            let written = write(&*sink, &inventory, Some("c1"), &delta).await;
            if format == "parquet" {
                let refused = written.unwrap_err();
                assert!(
                    refused.to_string().contains("stays as it is until all objects can be seen"),
                    "{refused}"
                );
                assert_eq!(bucket.object(&path).unwrap(), first);
                bucket.put(&path, b"another file");
                let held = sink.baseline(&inventory).await.unwrap();
                assert_eq!(rows_of(&held), ["u1", "u2"]);
                assert_ne!(held, holding([&one, &two]), "its rows are written again");
                continue;
            }
            written.unwrap();
            assert_ne!(bucket.object(&path).unwrap(), first);
            // The document alone, without its record, says the same.
            let content = bucket.object(&path).unwrap();
            bucket.put(&path, &content);
            bucket.put(&path, &first);
            assert_eq!(
                sink.baseline(&inventory).await.unwrap(),
                holding([&one, &two]),
                "{name}: read from the document"
            );
            bucket.put(&path, &content);
            assert_eq!(rows_of(&sink.baseline(&inventory).await.unwrap()), ["u1", "u3"], "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unchanged_inventory_is_not_written_and_an_emptied_one_is_an_empty_document() {
    let bucket = TestBucket::new("unchanged");
    let sink = bucket.open(&json!({})).await;
    let all = inventory("", "all");
    let one = row("u1", "{}");
    let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let write = async |delta: &Delta| sink.write(&Batch::new(&all, &claim, delta)).await.unwrap();
    let first = write(&added(std::slice::from_ref(&one))).await;
    let stored = bucket.object(ALL).unwrap();
    let again = write(&Delta::default()).await;
    assert_eq!((bucket.object(ALL).unwrap(), again.checksum), (stored, first.checksum));
    write(&Delta { removed: vec![removed(&one)], ..Delta::default() }).await;
    let document = bucket.document(ALL);
    assert_eq!((&document["items"], &document["itemCount"]), (&json!([]), &json!(0)));
    sink.forget(&all, &claim).await.unwrap();
    assert_eq!(bucket.server.keys("unchanged"), Vec::<String>::new(), "nothing is left");
}

/// A writer that was paused between its read and its put, while another one has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_writer_replaces_nothing() {
    for format in ["json", "parquet"] {
        let bucket = TestBucket::new(&format!("paused-{format}"));
        let settings = json!({ "serialization": { "format": format } });
        let (old, new) = (bucket.open(&settings).await, bucket.open(&settings).await);
        let all = inventory("", "all");
        let rows = [row("u1", "{}"), row("u2", "{}")];
        let old_claim = old.claim(&all, &claimant(Some("c1"))).await.unwrap();
        old.write(&Batch::new(&all, &old_claim, &added(&rows))).await.unwrap();
        let new_claim = new.claim(&all, &claimant(Some("c1"))).await.unwrap();
        assert_eq!(new.baseline(&all).await.unwrap(), holding(&rows));
        // All rows, as the operator knows them: Parquet is not read back.
        let known = rows.iter().map(|row| (row.key.clone(), row.clone())).collect();
        let empty = Delta::default();
        new.write(&Batch { rows: &known, ..Batch::new(&all, &new_claim, &empty) }).await.unwrap();
        let path = format!("inventory/default/team/all.{format}");
        let stored = bucket.object(&path).unwrap();
        let removal = Delta { removed: vec![removed(&rows[0])], ..Delta::default() };
        let known = [(rows[1].key.clone(), rows[1].clone())].into();
        let batch = Batch { rows: &known, ..Batch::new(&all, &old_claim, &removal) };
        let refused = old.write(&batch).await.unwrap_err();
        assert_eq!(refused.reason, SinkReason::Fenced, "{refused}");
        assert_eq!(bucket.object(&path).unwrap(), stored);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_the_go_implementation_is_adopted_and_foreign_objects_are_never_replaced() {
    let bucket = TestBucket::new("adopted");
    let item = json!({
        "targetNamespace": "team", "targetName": "pods", "namespace": "shop", "name": "cart", "group": "apps", "version": "v1",
        "kind": "Deployment", "uid": "u1", "attributes": { "n": 1 },
    });
    let envelope = |version: &str, cluster: &str| {
        json!({
            "schemaVersion": version, "checksum": "00", "generation": 3, "itemCount": 1, "exportedAt": "2026-01-01T00:00:00Z",
            "cluster": cluster, "items": [item],
        })
        .to_string()
    };
    let own = "kollect.dev/v1alpha1";
    let (all, one) = (inventory("", "all"), row("u1", r#"{"n":1}"#));
    bucket.put(ALL, envelope(own, "").as_bytes());
    let sink = bucket.open(&json!({})).await;
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]), "its rows are known");
    write(&*sink, &all, Some("c1"), &added(&[row("u2", "{}")])).await.unwrap();
    assert_eq!(bucket.document(ALL)["itemCount"], 2, "rows that are not mentioned stay");

    for (name, content) in [
        ("text", "hello".to_owned()),
        ("version", envelope("other/v2", "")),
        ("cluster", envelope(own, "west")),
        ("items", json!([item]).to_string()),
    ] {
        let foreign = inventory("", name);
        let path = format!("inventory/default/team/{name}.json");
        bucket.put(&path, content.as_bytes());
        let refused = write(&*sink, &foreign, Some("c1"), &added(&[row("u2", "{}")])).await.unwrap_err();
        assert_eq!(refused.reason, SinkReason::Incompatible, "{name}");
        assert!(refused.to_string().contains("which is never replaced"), "{refused}");
        assert_eq!(bucket.object(&path).unwrap(), content.as_bytes(), "{name}");
    }
    // Two clusters whose template has no {cluster}.
    let settings = json!({ "pathTemplate": "{namespace}/{name}{extension}" });
    let sink = bucket.open(&settings).await;
    write(&*sink, &inventory("east", "all"), Some("c1"), &added(&[row("u2", "{}")])).await.unwrap();
    let refused =
        write(&*sink, &inventory("west", "all"), Some("c2"), &added(&[row("u2", "{}")])).await.unwrap_err();
    assert!(refused.to_string().contains("of another inventory"), "{refused}");
}

/// W27: the Go implementation left one file for each generation, and readers counted all of them.
#[tokio::test(flavor = "multi_thread")]
async fn old_generations_of_parquet_are_removed_when_the_document_is_there() {
    let bucket = TestBucket::new("generations");
    let settings = json!({ "serialization": { "format": "parquet" }, "pathTemplate": "" });
    let directory = "inventory/cluster=default/ns=team/name=all";
    for name in ["generation=1.parquet", "generation=12.parquet", "generation=x.parquet", "other.parquet"] {
        bucket.put(&format!("{directory}/{name}"), b"old");
    }
    bucket.put("inventory/cluster=default/ns=team/name=all-not/generation=1.parquet", b"old");
    let sink = bucket.open(&settings).await;
    let (all, one) = (inventory("", "all"), row("u1", "{}"));
    let receipt = write(&*sink, &all, Some("c1"), &added(std::slice::from_ref(&one))).await.unwrap();
    assert_eq!(receipt.warnings.len(), 1, "{:?}", receipt.warnings);
    assert!(receipt.warnings[0].contains("removed 2 files"), "{:?}", receipt.warnings);
    let keys: Vec<String> = bucket.server.keys("generations");
    let left: Vec<&str> = keys.iter().filter_map(|key| key.strip_prefix("x/y/inventory/")).collect();
    assert_eq!(
        left,
        [
            "cluster=default/ns=team/inventory=all/inventory.parquet",
            "cluster=default/ns=team/name=all-not/generation=1.parquet",
            "cluster=default/ns=team/name=all/generation=x.parquet",
            "cluster=default/ns=team/name=all/other.parquet",
        ]
    );
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_moves_with_the_generation_in_its_path() {
    let bucket = TestBucket::new("moved");
    let all = inventory("", "all");
    let sink = bucket.open(&json!({ "pathTemplate": "{namespace}/{name}-{generation}{extension}" })).await;
    let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
    let one = row("u1", "{}");
    let write = async |generation, delta: &Delta| {
        sink.write(&Batch { generation, ..Batch::new(&all, &claim, delta) }).await.unwrap();
    };
    write(1, &added(std::slice::from_ref(&one))).await;
    assert_eq!(bucket.document("team/all-1.json")["itemCount"], 1);
    write(2, &Delta::default()).await;
    assert_eq!(bucket.object("team/all-1.json"), None);
    assert_eq!(bucket.document("team/all-2.json")["itemCount"], 1);
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]));
}

/// Two formats of one inventory below one prefix are two destinations.
#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_can_have_documents_of_several_formats() {
    let bucket = TestBucket::new("several");
    let all = inventory("", "all");
    let one = row("u1", "{}");
    for format in ["json", "csv"] {
        let sink = bucket.open(&json!({ "serialization": { "format": format } })).await;
        write(&*sink, &all, Some("c1"), &added(std::slice::from_ref(&one))).await.unwrap();
    }
    for format in ["json", "csv"] {
        let sink = bucket.open(&json!({ "serialization": { "format": format } })).await;
        assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]), "{format}");
        assert!(bucket.object(&format!("inventory/default/team/all.{format}")).is_some());
    }
}

/// Each failure has a reason that says what to do, and no credential.
#[tokio::test(flavor = "multi_thread")]
async fn failures_say_what_to_do() {
    let bucket = TestBucket::new("failures");
    let url = bucket.server.url();
    let check = async |more: Value, secret: &str| {
        let sink = open_spec(&bucket.spec(&more), secret).await.unwrap();
        let error = sink.check().await.unwrap_err();
        let claimed = sink.claim(&inventory("", "all"), &claimant(Some("c1"))).await.unwrap_err();
        assert_eq!(claimed.reason, error.reason);
        let text = with_causes(&error);
        assert!(!text.contains(S3::SECRET_KEY) && !text.contains("Authorization"), "{text}");
        (error.reason, text)
    };
    let (reason, text) = check(json!({ "endpoint": format!("{url}/nowhere") }), S3::SECRET_KEY).await;
    assert_eq!(reason, SinkReason::Missing, "{text}");
    assert!(text.contains("there is no such bucket") && text.contains("(NoSuchBucket)"), "{text}");
    let (reason, text) = check(json!({}), "wrong").await;
    assert_eq!(reason, SinkReason::Forbidden, "{text}");
    assert!(text.contains("correct secretAccessKey in the Secret"), "{text}");
    let free = kollect_testbed::free_port().unwrap();
    let (reason, text) =
        check(json!({ "endpoint": format!("http://127.0.0.1:{free}/x") }), S3::SECRET_KEY).await;
    assert_eq!(reason, SinkReason::Unreachable, "{text}");
    assert!(text.contains(&format!("127.0.0.1 port {free}")), "{text}");
}

/// The error and its causes.
fn with_causes(error: &SinkError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// A change is one document and one record, and a claim check is one HEAD: no bucket is ever listed.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_two_puts_and_nothing_is_listed() {
    let server = S3::start().unwrap();
    server.create_bucket("requests").unwrap();
    let spec = json!({
        "type": "s3", "endpoint": format!("{}/requests", server.url()), "secretRef": { "name": "keys" },
    });
    let sink = open_spec(&spec, S3::SECRET_KEY).await.unwrap();
    let all = inventory("", "all");
    let mut rows: std::collections::BTreeMap<_, _> =
        (0..50).map(|number| row(&format!("u{number}"), "{}")).map(|row| (row.key.clone(), row)).collect();
    let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
    sink.baseline(&all).await.unwrap();
    let fill = added(&rows.values().cloned().collect::<Vec<_>>());
    sink.write(&Batch { rows: &rows, ..Batch::new(&all, &claim, &fill) }).await.unwrap();
    let new = row("u1", r#"{"n":1}"#);
    rows.insert(new.key.clone(), new.clone());
    let write = async |delta: &Delta| {
        sink.write(&Batch { rows: &rows, ..Batch::new(&all, &claim, delta) }).await.unwrap();
    };
    let delta = Delta { changed: vec![crate::conformance::changed(&new)], ..Delta::default() };
    let document = "/requests/inventory/team/all.json";
    assert_eq!(
        requests(&server, write(&delta)).await,
        [format!("PUT {document}"), "PUT /requests/…".into()],
        "a changed row"
    );
    assert_eq!(requests(&server, write(&Delta::default())).await, Vec::<String>::new(), "nothing changed");
    let check = async { drop(sink.claims(std::slice::from_ref(&all)).await.unwrap()) };
    assert_eq!(requests(&server, check).await, ["HEAD /requests/…"], "a check of the claim");
    let audit = async { drop(sink.baseline(&all).await.unwrap()) };
    assert_eq!(
        requests(&server, audit).await,
        ["HEAD /requests/…".to_owned(), format!("HEAD {document}")],
        "an audit"
    );
}

/// Method and path of the requests that some work makes. Paths of records are cut.
async fn requests(server: &S3, work: impl Future<Output = ()>) -> Vec<String> {
    let before = server.requests().len();
    work.await;
    // The log is written behind the answer.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let new = server.requests().split_off(before);
    new.iter()
        .map(|line| line.split_once(".kollect").map_or(line.clone(), |(before, _)| format!("{before}…")))
        .collect()
}

/// Two writers claim and write in turn, as fast as they can: whatever a reader gets is one whole snapshot, and the last one is that
/// of the last claim.
#[tokio::test(flavor = "multi_thread")]
async fn two_writers_race_for_one_document_and_readers_get_whole_snapshots() {
    const ROUNDS: usize = 200;
    let bucket = TestBucket::new("race");
    let all = inventory("", "all");
    let snapshot = |writer: usize, round: usize| -> std::collections::BTreeMap<_, _> {
        let attributes = format!(r#"{{"round":{round},"writer":{writer}}}"#);
        (0..20)
            .map(|number| row(&format!("u{number}"), &attributes))
            .map(|row| (row.key.clone(), row))
            .collect()
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let write = async |writer: usize| {
        let sink = bucket.open(&json!({})).await;
        let (mut written, mut refused) = (0, 0);
        while written + refused < ROUNDS / 2 {
            let rows = snapshot(writer, written);
            let attempt = async {
                let claim = sink.claim(&all, &claimant(Some("c1"))).await?;
                let held = sink.baseline(&all).await?;
                let mut delta = Delta::default();
                for row in rows.values() {
                    if held.contains_key(&row.key) {
                        delta.changed.push(crate::conformance::changed(row));
                    } else {
                        delta.added.push(row.clone());
                    }
                }
                sink.write(&Batch { rows: &rows, ..Batch::new(&all, &claim, &delta) }).await
            };
            match attempt.await {
                Ok(_) => written += 1,
                Err(error) => {
                    let expected = [SinkReason::Fenced, SinkReason::ClaimLost, SinkReason::Busy];
                    assert!(expected.contains(&error.reason), "{error}");
                    refused += 1;
                }
            }
        }
        written
    };
    let read = async {
        let mut reads = 0;
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            let Some(bytes) = bucket.object(ALL) else { continue };
            let document: Value = serde_json::from_slice(&bytes).unwrap();
            let items = document["items"].as_array().unwrap();
            assert_eq!(items.len(), 20, "never a part of a snapshot");
            assert!(
                items.iter().all(|item| item["attributes"] == items[0]["attributes"]),
                "never two of them"
            );
            reads += 1;
        }
        reads
    };
    let writers = async {
        let written = tokio::join!(write(1), write(2));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        written
    };
    let (written, reads) = tokio::join!(writers, read);
    assert!(written.0 + written.1 > 0 && reads > 0, "{written:?} writes, {reads} reads");
}

/// DuckDB reads each format without help, and finds the same rows, types and sums.
#[tokio::test(flavor = "multi_thread")]
async fn duckdb_reads_every_format_with_its_types() {
    use kollect_model::schema::{AttributeSchema, AttributeType as T, Schema, TargetSchema};
    let declared = [
        ("image", Some(T::String)),
        ("memory", Some(T::Quantity)),
        ("ports", Some(T::List)),
        ("ready", Some(T::Bool)),
        ("replicas", Some(T::Int)),
        ("since", Some(T::Timestamp)),
        ("weight", Some(T::Number)),
    ];
    let attributes =
        declared.map(|(name, type_)| AttributeSchema { name: name.into(), type_, optional: true });
    let target = row("u1", "{}").key.target.clone();
    let target_schema = TargetSchema { profile: "team/pods".into(), attributes: attributes.into() };
    let schema = Schema { targets: [(target, target_schema)].into() };
    let rows: std::collections::BTreeMap<_, _> = (0..1000)
        .map(|number| {
            let attributes = format!(
                r#"{{"image":"a, \"b\" {number}","memory":"{number}Mi","ports":[80,{number}],"ready":{},"replicas":{number},"since":"2026-01-01T00:00:{:02}Z","weight":{number}.5}}"#,
                number % 2 == 0,
                number % 60,
            );
            row(&format!("00000000-0000-4000-8000-{number:012x}"), &attributes)
        })
        .map(|row| (row.key.clone(), row))
        .collect();
    let bucket = TestBucket::new("duckdb");
    let all = inventory("", "all");
    for (format, compression, read) in [
        ("parquet", "zstd", "read_parquet"),
        ("parquet", "snappy", "read_parquet"),
        ("csv", "none", "read_csv"),
        ("csv", "gzip", "read_csv"),
        ("csv", "zstd", "read_csv"),
        ("ndjson", "none", "read_json"),
        ("ndjson", "gzip", "read_json"),
    ] {
        let settings = json!({
            "pathTemplate": format!("{compression}/{{namespace}}/{{name}}{{extension}}"),
            "serialization": { "format": format, "compression": compression },
        });
        let sink = bucket.open(&settings).await;
        let claim = sink.claim(&all, &claimant(Some("c1"))).await.unwrap();
        sink.baseline(&all).await.unwrap();
        let delta = Delta::default();
        let batch = Batch { rows: &rows, schema: &schema, ..Batch::new(&all, &claim, &delta) };
        sink.write(&batch).await.unwrap();
        let suffix = match (format, compression) {
            ("parquet", _) | (_, "none") => "",
            (_, "gzip") => ".gz",
            _ => ".zst",
        };
        let file =
            bucket.server.bucket("duckdb").join(format!("x/y/{compression}/team/all.{format}{suffix}"));
        let file = file.display();
        let found = if format == "ndjson" {
            kollect_testbed::duckdb::query(&format!(
                "SELECT count(*), sum(attributes.replicas)::BIGINT, sum(attributes.weight), count(DISTINCT uid) FROM {read}('{file}')"
            ))
        } else {
            kollect_testbed::duckdb::query(&format!(
                "SELECT count(*), sum(attr_replicas)::BIGINT, sum(attr_weight), count(DISTINCT uid), sum(attr_memory_num), \
                 count(*) FILTER (attr_ready), typeof(any_value(attr_replicas)), typeof(any_value(attr_weight)), \
                 typeof(any_value(attr_ready)), max(attr_since)::VARCHAR, any_value(api_version), max(attr_image), \
                 sum((attr_ports::JSON->1)::BIGINT)::BIGINT FROM {read}('{file}')"
            ))
        };
        let expected = if format == "ndjson" {
            json!([1000, 499_500, 500_000.0, 1000])
        } else {
            json!([
                1000,
                499_500,
                500_000.0,
                1000,
                499_500.0 * 1_048_576.0,
                500,
                "BIGINT",
                "DOUBLE",
                "BOOLEAN",
                "2026-01-01 00:00:59+00",
                "apps/v1",
                "a, \"b\" 999",
                499_500,
            ])
        };
        let found: Value = serde_json::from_str(&found.unwrap()[0]).unwrap();
        let same = |(a, b): (&Value, &Value)| {
            a == b || a.as_f64().zip(b.as_f64()).is_some_and(|(a, b)| a.to_bits() == b.to_bits())
        };
        let (found, expected) = (found.as_array().unwrap(), expected.as_array().unwrap());
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(same),
            "{format} {compression}: {found:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_private_authority_is_trusted_by_its_certificate_only() {
    let server = S3::start_with_tls("127.0.0.1").unwrap();
    server.create_bucket("inventory").unwrap();
    let spec = |tls: Value| json!({ "type": "s3", "endpoint": format!("{}/inventory", server.url()), "secretRef": { "name": "keys" }, "tls": tls });
    let ca = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(&server.certificates().unwrap().ca)
    };
    let trusted = open_spec(&spec(json!({ "caBundle": ca })), S3::SECRET_KEY).await.unwrap();
    trusted.check().await.unwrap();
    let other = open_spec(&spec(json!({})), S3::SECRET_KEY).await.unwrap();
    let error = other.check().await.unwrap_err();
    assert!(with_causes(&error).contains("certificate"), "{}", with_causes(&error));
}
