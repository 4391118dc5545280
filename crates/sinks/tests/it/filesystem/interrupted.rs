//! Writes that are interrupted between any two file operations.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::SinkError;
use kollect_sinks::{
    Backend as _,
    filesystem::{DirectoryBlobs, FilesystemConfig},
    layout::{
        blobs::{BlobVersion, Blobs},
        file_sink::FileSink,
    },
};

use super::*;

/// A directory in which every write and deletion fails after a number of them.
struct Failing {
    directory: DirectoryBlobs,
    remaining: Arc<AtomicUsize>,
}

impl Failing {
    fn step(&self) -> Result<(), SinkError> {
        let taken = self
            .remaining
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| remaining.checked_sub(1));
        taken.map(drop).map_err(|_| SinkError::new(SinkReason::WriteFailed, "the power is gone"))
    }
}

#[async_trait]
impl Blobs for Failing {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError> {
        self.directory.read(path).await
    }

    async fn write(&self, path: &str, bytes: Bytes) -> Result<BlobVersion, SinkError> {
        self.step()?;
        self.directory.write(path, bytes).await
    }

    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError> {
        self.directory.create(path, bytes).await
    }

    async fn delete(&self, path: &str) -> Result<(), SinkError> {
        self.step()?;
        self.directory.delete(path).await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError> {
        self.directory.list(directory).await
    }

    async fn list_versions(&self, directory: &str) -> Result<Vec<(String, BlobVersion)>, SinkError> {
        self.directory.list_versions(directory).await
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.directory.check().await
    }

    fn describe(&self) -> String {
        self.directory.describe()
    }
}

fn config(dir: &Path, fields: &Value) -> FilesystemConfig {
    let SinkSpec::Snapshot(spec) = spec(dir, fields) else { unreachable!() };
    FilesystemConfig::plan(&spec).unwrap()
}

fn pod(uid: usize, name: &str, length: usize) -> Arc<Row> {
    object(&format!("u{uid}"), "", "Pod", "shop", name, &format!(r#"{{"s":"{}"}}"#, "x".repeat(length)))
}

/// A write may stop at any point: the next write repairs everything, and rows that are not visible to the collector
/// at the moment are still there.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_interrupted_anywhere_is_repaired_by_the_next_one() {
    let all = inventory("", "all");
    let layout = |mode: &str, format: &str| json!({ "layout": { "mode": mode }, "serialization": { "format": format } });
    // From one layout to another, or within one.
    let cases = [
        (layout("document", "json"), layout("document", "json")),
        (layout("document", "yaml"), layout("document", "yaml")),
        (layout("document", "ndjson"), layout("document", "ndjson")),
        (layout("perResource", "yaml"), layout("perResource", "yaml")),
        (layout("split", "json"), layout("split", "json")),
        (layout("document", "json"), layout("perResource", "json")),
        (layout("perResource", "json"), layout("document", "ndjson")),
    ];
    let blind = [pod(90, "a", 300), pod(91, "b", 300), pod(92, "twin", 300), pod(93, "m", 300)];
    let before = [pod(1, "c", 10), pod(2, "n", 400), pod(3, "twin", 0), pod(4, "z", 700)];
    let after = [pod(1, "c", 900), pod(2, "n", 0), pod(5, "0", 500), pod(6, "y", 10)];
    for (from, to) in &cases {
        let mut allowed_steps = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let first = open_dir(dir.path(), from).await;
            let claim = first.claim(&all, &Claimant::default()).await.unwrap();
            let start = added(&[&before[..], &blind].concat());
            first.write(&Batch { part_bytes: 1200, ..Batch::new(&all, &claim, &start) }).await.unwrap();

            let difference = |held: &Baseline, wanted: &[Arc<Row>]| {
                let mut delta = Delta::default();
                for row in wanted {
                    match held.get(&row.key) {
                        None => delta.added.push(row.clone()),
                        Some(digest) if *digest != row.digest => delta.changed.push(changed(row)),
                        Some(_) => {}
                    }
                }
                let known = |key: &RowKey| wanted.iter().chain(&blind).any(|row| row.key == *key);
                let removed = held.keys().filter(|key| !known(key));
                delta.removed = removed
                    .map(|key| kollect_model::batch::RemovedRow { key: key.clone(), before: None })
                    .collect();
                delta
            };
            let remaining = Arc::new(AtomicUsize::new(allowed_steps));
            let opened = kollect_sinks::filesystem::directory(
                config(dir.path(), to),
                &kollect_sinks::FilePolicy::Anywhere,
            )
            .await
            .unwrap();
            let blobs = Failing { directory: opened.0, remaining: remaining.clone() };
            let failing = FileSink::new(blobs, opened.1, Arc::default());
            let delta = difference(&failing.baseline(&all).await.unwrap(), &after);
            let batch = Batch { part_bytes: 1200, ..Batch::new(&all, &claim, &delta) };
            let completed = failing.write(&batch).await.is_ok();
            // The repair is interrupted, too.
            remaining.store(allowed_steps / 2, Ordering::SeqCst);
            let delta = difference(&failing.baseline(&all).await.unwrap(), &after);
            let batch = Batch { part_bytes: 1200, ..Batch::new(&all, &claim, &delta) };
            failing.write(&batch).await.ok();

            let sink = open_dir(dir.path(), to).await;
            let delta = difference(&sink.baseline(&all).await.unwrap(), &after);
            sink.write(&Batch { part_bytes: 1200, ..Batch::new(&all, &claim, &delta) }).await.unwrap();
            let mut held = sink.baseline(&all).await.unwrap();
            for row in &blind {
                let digest = held.remove(&row.key);
                assert!(
                    digest == Some(row.digest) || (from != to && digest.is_some()),
                    "{from} {to} {allowed_steps}: {row:?}"
                );
            }
            assert_eq!(held, holding(&after), "{from} {to} {allowed_steps}");

            // Exactly the files of one uninterrupted write, with exactly these rows.
            let direct = tempfile::tempdir().unwrap();
            let uninterrupted = open_dir(direct.path(), to).await;
            let claim = uninterrupted.claim(&all, &Claimant::default()).await.unwrap();
            let rows = added(&[&after[..], &blind].concat());
            uninterrupted
                .write(&Batch { part_bytes: 1200, ..Batch::new(&all, &claim, &rows) })
                .await
                .unwrap();
            let (files, expected) = (tree(dir.path()), tree(direct.path()));
            assert_eq!(
                files.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{from} {to} {allowed_steps}"
            );
            let rows = |files: &BTreeMap<String, String>| -> Vec<(String, Vec<Value>)> {
                let rows = files
                    .iter()
                    .filter(|(path, _)| !path.starts_with("inventory") || to["layout"]["mode"] != "split");
                rows.map(|(path, text)| (path.clone(), items(path, text))).collect()
            };
            assert_eq!(rows(&files), rows(&expected), "{from} {to} {allowed_steps}");
            let kollect_files: Vec<_> = files_below(&dir.path().join(".kollect"));
            assert!(!kollect_files.iter().any(|name| name.contains("journal")), "{kollect_files:?}");
            if completed {
                break;
            }
            allowed_steps += 1;
        }
        assert!(allowed_steps > 1, "{from} {to}: something was cut off");
    }
}

/// After an interrupted first write and an interrupted removal, a complete removal leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_is_interrupted_anywhere_is_completed_by_the_next_one() {
    let all = inventory("", "all");
    let rows = added(&[pod(1, "a", 10), pod(2, "b", 500), pod(3, "b", 900)]);
    for mode in ["document", "perResource", "split"] {
        for allowed_steps in 0..20 {
            let dir = tempfile::tempdir().unwrap();
            let fields = json!({ "layout": { "mode": mode } });
            let remaining = Arc::new(AtomicUsize::new(allowed_steps));
            let opened = kollect_sinks::filesystem::directory(
                config(dir.path(), &fields),
                &kollect_sinks::FilePolicy::Anywhere,
            )
            .await
            .unwrap();
            let blobs = Failing { directory: opened.0, remaining: remaining.clone() };
            let failing = FileSink::new(blobs, opened.1, Arc::default());
            let claim = failing.claim(&all, &Claimant::default()).await.unwrap();
            let batch = Batch { part_bytes: 1000, ..Batch::new(&all, &claim, &rows) };
            let written = failing.write(&batch).await.is_ok();
            // The intent, the files and the manifest: five operations, and one for an index.
            assert_eq!(
                written,
                allowed_steps >= if mode == "split" { 6 } else { 5 },
                "{mode} {allowed_steps}"
            );
            remaining.store(allowed_steps / 2, Ordering::SeqCst);
            failing.forget(&all, &claim).await.ok();
            let sink = open_dir(dir.path(), &fields).await;
            let claim = sink.claim(&all, &Claimant::default()).await.unwrap();
            sink.forget(&all, &claim).await.unwrap();
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{mode} {allowed_steps}");
        }
    }
}

fn files_below(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files_below(&entry));
        } else {
            found.push(entry.to_str().unwrap().to_owned());
        }
    }
    found
}
