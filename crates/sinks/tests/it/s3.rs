//! Documents in S3.

use kollect_model::{
    batch::{Batch, Delta},
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

/// Each format is read back exactly, rows that are not mentioned stay, and an unchanged inventory is not written.
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
            let inventory = kollect_model::batch::InventoryId { cluster: name.clone(), ..all.clone() };
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
            let delta = kollect_model::batch::Delta {
                added: vec![three.clone()],
                removed: vec![removed(&two)],
                ..Delta::default()
            };
            write(&*sink, &inventory, Some("c1"), &delta).await.unwrap();
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
        new.write(&Batch::new(&all, &new_claim, &Delta::default())).await.unwrap();
        let path = format!("inventory/default/team/all.{format}");
        let stored = bucket.object(&path).unwrap();
        let removal = Delta { removed: vec![removed(&rows[0])], ..Delta::default() };
        let refused = old.write(&Batch::new(&all, &old_claim, &removal)).await.unwrap_err();
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
            "cluster=default/ns=team/name=all-not/generation=1.parquet",
            "cluster=default/ns=team/name=all/generation=x.parquet",
            "cluster=default/ns=team/name=all/inventory.parquet",
            "cluster=default/ns=team/name=all/other.parquet",
        ]
    );
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&one]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_moves_with_its_template() {
    let bucket = TestBucket::new("moved");
    let all = inventory("", "all");
    let one = row("u1", "{}");
    let sink = bucket.open(&json!({})).await;
    write(&*sink, &all, Some("c1"), &added(std::slice::from_ref(&one))).await.unwrap();
    let moved = bucket.open(&json!({ "pathTemplate": "new/{namespace}/{name}{extension}" })).await;
    assert_eq!(moved.baseline(&all).await.unwrap(), holding([&one]));
    write(&*moved, &all, Some("c1"), &Delta::default()).await.unwrap();
    assert_eq!(bucket.object(ALL), None);
    assert_eq!(bucket.document("new/team/all.json")["itemCount"], 1);
    assert_eq!(moved.baseline(&all).await.unwrap(), holding([&one]));
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
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
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
