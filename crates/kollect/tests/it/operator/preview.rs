//! Previews: made without a connection, written once, removed with their annotation.

use std::net::TcpListener;

use super::*;

/// Longer than the operator waits between two writes of one status.
const OBSERVED_TIME: Duration = Duration::from_secs(13);

fn annotate_preview(test: &OperatorTest, sink: &str, value: &str) {
    let annotation = format!("kollect.dev/preview{value}");
    test.plane.kubectl(&["annotate", "-n", &test.namespace, sink, &annotation, "--overwrite"]).unwrap();
}

fn preview(test: &OperatorTest, sink: &str) -> Value {
    test.get(sink)["status"]["preview"].clone()
}

#[test]
fn a_preview_is_written_once_and_changes_only_with_its_sink() {
    let mut test = OperatorTest::new("previewed");
    // No server answers there, and the operator must not connect. The Secret of the database does not exist.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let nats =
        json!({ "url": format!("nats://{}", server.local_addr().unwrap()), "subject": "kollect.rows" });
    let sinks = [
        (
            "kollectsnapshotsink/files",
            "KollectSnapshotSink",
            json!({ "type": "filesystem", "filesystem": { "path": "x" } }),
        ),
        (
            "kollectsnapshotsink/history",
            "KollectSnapshotSink",
            json!({ "type": "git", "endpoint": "https://git.example.com/x.git" }),
        ),
        ("kollectdatabasesink/portal", "KollectDatabaseSink", test.sink()),
        (
            "kollectdatabasesink/file",
            "KollectDatabaseSink",
            json!({ "type": "sqlite", "sqlite": { "path": "x.db" } }),
        ),
        (
            "kollecteventsink/events",
            "KollectEventSink",
            json!({ "type": "nats", "nats": nats, "mode": "rows" }),
        ),
    ];
    for (sink, kind, spec) in &sinks {
        let mut spec = spec.clone();
        spec["connectionTest"] = json!(false);
        test.apply_kollect(kind, sink.split_once('/').unwrap().1, spec);
        annotate_preview(&test, sink, "= True ");
    }
    let files = test.dir.path().join("files");
    test.start(&["--file-sink-root", files.to_str().unwrap()]);
    let shown = [
        ("kollectsnapshotsink/files", "/layout/samplePaths/0"),
        ("kollectsnapshotsink/history", "/git/sampleCommitBody"),
        ("kollectdatabasesink/portal", "/postgres/expectedDDL"),
        ("kollectdatabasesink/file", "/sqlite/expectedDDL"),
        ("kollecteventsink/events", "/nats/sampleMessage"),
    ];
    for (sink, field) in shown {
        eventually(sink, || {
            let preview = preview(&test, sink);
            let is_made = preview.pointer(field).is_some() && preview["inputSampleSource"] == "synthetic";
            is_made.then_some(()).ok_or(preview.to_string())
        });
    }

    // The operator does not react to its own status write: no further write, and the same time.
    let versions = || shown.map(|(sink, _)| test.get(sink)["metadata"]["resourceVersion"].clone());
    let (before, began) = (versions(), std::time::Instant::now());
    while began.elapsed() < OBSERVED_TIME {
        assert_eq!(versions(), before);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(server.accept().is_err(), "the operator has not connected");
    assert!(!files.exists(), "and nothing has been created");

    // The content changes with the spec, and the time with the content.
    let sink = "kollectsnapshotsink/files";
    let old = preview(&test, sink);
    assert_eq!(old["objectPath"], "inventory/team-a/api.json", "{old}");
    let spec = json!({
        "type": "filesystem", "filesystem": { "path": "x" }, "connectionTest": false,
        "serialization": { "format": "yaml" },
    });
    test.apply_kollect("KollectSnapshotSink", "files", spec);
    eventually("another format", || {
        let new = preview(&test, sink);
        let is_changed =
            new["objectPath"] == "inventory/team-a/api.yaml" && new["renderedAt"] != old["renderedAt"];
        is_changed.then_some(()).ok_or(new.to_string())
    });
    annotate_preview(&test, sink, "-");
    eventually("it goes with its annotation", || {
        let preview = preview(&test, sink);
        preview.is_null().then_some(()).ok_or(preview.to_string())
    });
}
