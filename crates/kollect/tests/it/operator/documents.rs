//! An inventory as one document in S3, from the cluster to a reader of the bucket.

use kollect_testbed::S3;

use super::*;

struct Lake {
    server: &'static S3,
    bucket: String,
}

impl Lake {
    fn new(test: &OperatorTest) -> Self {
        let lake = Self { server: S3::shared(), bucket: test.namespace.clone() };
        lake.server.create_bucket(&lake.bucket).unwrap();
        lake
    }

    fn sink(&self, format: &str) -> Value {
        json!({
            "type": "s3", "endpoint": format!("{}/{}/prod", self.server.url(), self.bucket), "minChangeInterval": "0s",
            "secretRef": { "name": "keys" }, "serialization": { "format": format },
        })
    }

    fn object(&self, path: &str) -> Option<Vec<u8>> {
        self.server.object(&self.bucket, &format!("prod/{path}"))
    }
}

fn apply_keys(test: &OperatorTest, secret: &str) {
    test.apply(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" },
        "stringData": { "accessKeyID": S3::ACCESS_KEY, "secretAccessKey": secret },
    }));
}

#[test]
fn a_document_follows_the_cluster_and_goes_with_its_inventory() {
    let mut test = OperatorTest::new("documents");
    let lake = Lake::new(&test);
    test.install();
    test.apply_config_map("a", "1");
    apply_keys(&test, "wrong-key");
    test.apply_kollect("KollectSnapshotSink", "lake", lake.sink("json"));
    test.apply_kollect("KollectSnapshotSink", "columns", lake.sink("parquet"));
    test.apply_kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["lake"] }));
    test.start(&[]);
    test.wait_for_condition("kollectsnapshotsink/lake", "ConnectionVerified", "False ConnectionTestFailed");
    let message = test.condition_message("kollectsnapshotsink/lake", "Ready");
    assert!(message.contains("correct secretAccessKey in the Secret"), "{message}");
    apply_keys(&test, S3::SECRET_KEY);
    test.wait_for_condition("kollectsnapshotsink/lake", "ConnectionVerified", "True ConnectionOK");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    let path = format!("inventory/{}/all.json", test.namespace);
    let wait_for = |expected: &[&str]| {
        eventually(&format!("{expected:?}"), || {
            let bytes = lake.object(&path).ok_or("no document")?;
            let document: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
            let items = document["items"].as_array().cloned().unwrap_or_default();
            let shown = |item: &Value| {
                format!(
                    "{}={}",
                    item["name"].as_str().unwrap_or_default(),
                    item["attributes"]["value"].as_str().unwrap_or_default()
                )
            };
            let found: Vec<String> = items.iter().map(shown).collect();
            (found == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    };
    wait_for(&["a=1"]);
    test.apply_config_map("b", "2");
    wait_for(&["a=1", "b=2"]);
    test.delete("configmap/a");
    wait_for(&["b=2"]);
    // A restart claims the document again, and keeps it.
    test.stop();
    test.apply_config_map("c", "3");
    test.start(&[]);
    wait_for(&["b=2", "c=3"]);

    // A second sink has typed columns.
    test.apply_kollect("KollectInventory", "all", json!({ "snapshotSinkRefs": ["lake", "columns"] }));
    let parquet = format!("inventory/cluster=default/ns={}/inventory=all/inventory.parquet", test.namespace);
    let file = lake.server.bucket(&lake.bucket).join("prod").join(&parquet).display().to_string();
    let query = format!("SELECT name, attr_value, inventory FROM read_parquet('{file}') ORDER BY name");
    eventually("the Parquet document", || {
        let found = kollect_testbed::duckdb::query(&query).map_err(|error| error.with_causes())?;
        (found == [r#"["b", "2", "all"]"#, r#"["c", "3", "all"]"#]).then_some(()).ok_or(format!("{found:?}"))
    });
    wait_for(&["b=2", "c=3"]);
    let mut unconditional = lake.sink("parquet");
    unconditional["objectStore"] = json!({ "unconditional": true });
    test.apply_kollect("KollectSnapshotSink", "columns", unconditional);
    test.wait_for_condition("kollectsnapshotsink/columns", "Unconditional", "True ConditionsIgnored");
    // Another format is another document: it is filled, then the old one goes.
    test.apply_kollect("KollectSnapshotSink", "lake", lake.sink("csv"));
    eventually("the CSV document alone", || {
        let csv = lake.object(&path.replace(".json", ".csv"));
        let lines = csv.map(|text| String::from_utf8_lossy(&text).lines().count());
        let found = (lines, lake.object(&path).is_some());
        (found == (Some(3), false)).then_some(()).ok_or(format!("{found:?}"))
    });
    test.delete("kollectinventory/all");
    eventually("an empty bucket", || {
        let keys = lake.server.keys(&lake.bucket);
        keys.is_empty().then_some(()).ok_or(format!("{keys:?}"))
    });
    assert!(!test.log().contains(S3::SECRET_KEY));
    for object in test.objects() {
        let is_secret = object["kind"] == "Secret";
        assert!(is_secret || !object.to_string().contains(S3::SECRET_KEY), "{object}");
    }
}
