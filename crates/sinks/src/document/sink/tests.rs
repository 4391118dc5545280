//! A bucket in memory, which fails at any request: what readers see, and what the next writer makes of it.

use std::{
    fmt,
    ops::Range,
    sync::{
        Mutex as StdMutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::stream::BoxStream;
use kollect_model::batch::{ChangedRow, Delta, RemovedRow};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult, memory::InMemory,
    path::Path,
};
use serde_json::{Value, value::RawValue};

use super::*;
use crate::document::DocumentFormat;

/// Fails one request, before or after it takes effect; all that follow fail, too: the process is gone.
#[derive(Debug)]
struct FailingStore {
    store: Arc<InMemory>,
    requests: AtomicUsize,
    fails_at: usize,
    takes_effect: bool,
    /// Every content of the document, in order.
    documents: Arc<StdMutex<Vec<bytes::Bytes>>>,
}

impl fmt::Display for FailingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store that fails")
    }
}

impl FailingStore {
    fn new(store: &Arc<InMemory>, fails_at: usize, takes_effect: bool) -> Self {
        let (store, requests) = (store.clone(), AtomicUsize::new(0));
        Self { store, requests, fails_at, takes_effect, documents: Arc::default() }
    }

    /// Whether this request takes effect, and whether its answer arrives.
    fn request(&self) -> (bool, bool) {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        (number < self.fails_at || number == self.fails_at && self.takes_effect, number < self.fails_at)
    }

    fn failure() -> object_store::Error {
        object_store::Error::Generic { store: "failing", source: "the process was killed".into() }
    }
}

#[async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        let (takes_effect, is_answered) = self.request();
        if !takes_effect {
            return Err(Self::failure());
        }
        let bytes = bytes::Bytes::from(payload.clone());
        let put = self.store.put_opts(at, payload, options).await?;
        if at.extension() == Some("json") {
            self.documents.lock().unwrap().push(bytes);
        }
        if is_answered { Ok(put) } else { Err(Self::failure()) }
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> StoreResult<GetResult> {
        if self.request().1 { self.store.get_opts(at, options).await } else { Err(Self::failure()) }
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<bytes::Bytes>> {
        self.store.get_ranges(at, ranges).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        let (takes_effect, is_answered) = self.request();
        if takes_effect && is_answered {
            return self.store.delete_stream(paths);
        }
        Box::pin(futures::stream::once(async { Err(Self::failure()) }))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.store.copy_opts(from, to, options).await
    }
}

fn row(uid: &str, attributes: &str) -> Arc<Row> {
    let key = RowKey {
        target: kollect_model::row::TargetId { namespace: Some("team".into()), name: "web".into() },
        group: "apps".into(),
        kind: "Deployment".into(),
        namespace: "shop".into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string(attributes.into()).unwrap();
    Arc::new(Row::new(key, "v1".into(), "cart".into(), attributes.into()))
}

fn rows(all: &[(&str, &str)]) -> BTreeMap<RowKey, Arc<Row>> {
    all.iter().map(|(uid, attributes)| row(uid, attributes)).map(|row| (row.key.clone(), row)).collect()
}

fn inventory() -> InventoryId {
    InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "all".into() }
}

fn sink(store: Arc<dyn ObjectStore>) -> DocumentSink {
    let bucket = Bucket::new(store, "", "memory".into());
    DocumentSink::new(
        bucket,
        DocumentSettings::of(DocumentFormat::Json),
        Arc::new(OnceCell::new_with(Some(()))),
    )
}

/// Claims, compares and writes, as a binding does when it starts. Rows of `blind` are neither written nor removed.
async fn bring_up_to_date(
    sink: &DocumentSink,
    wanted: &BTreeMap<RowKey, Arc<Row>>,
    blind: &[&str],
) -> Result<Receipt, SinkError> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let id = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    let claimant = Claimant { owner: Some("c1".into()), id, ..Claimant::default() };
    let claim = sink.claim(&inventory(), &claimant).await?;
    let held = sink.baseline(&inventory()).await?;
    let mut delta = Delta::default();
    for row in wanted.values() {
        match held.get(&row.key) {
            None => delta.added.push(row.clone()),
            Some(digest) if *digest != row.digest => {
                delta.changed.push(ChangedRow { before: None, after: row.clone() });
            }
            Some(_) => {}
        }
    }
    let gone = held.keys().filter(|key| !wanted.contains_key(*key) && !blind.contains(&&*key.uid));
    delta.removed = gone.map(|key| RemovedRow { key: key.clone(), before: None }).collect();
    sink.write(&Batch { rows: wanted, ..Batch::new(&inventory(), &claim, &delta) }).await
}

/// The attributes of each row of a document, by UID.
fn contents(document: &[u8]) -> BTreeMap<String, String> {
    let document: Value = serde_json::from_slice(document).unwrap();
    let items = document["items"].as_array().unwrap();
    items.iter().map(|item| (item["uid"].as_str().unwrap().into(), item["attributes"].to_string())).collect()
}

fn expected(all: &[(&str, &str)]) -> BTreeMap<String, String> {
    all.iter().map(|(uid, attributes)| ((*uid).to_owned(), (*attributes).to_owned())).collect()
}

#[tokio::test]
async fn a_crash_at_any_request_leaves_whole_snapshots_and_the_next_writer_completes_it() {
    let (before, after) = ([("blind", "{}"), ("u1", "{}")], [("u1", r#"{"n":1}"#), ("u2", "{}")]);
    let last = [("blind", "{}"), ("u1", r#"{"n":1}"#), ("u2", "{}")];
    let mut crashes = 0;
    for takes_effect in [false, true] {
        for fails_at in 0.. {
            let memory = Arc::new(InMemory::new());
            bring_up_to_date(&sink(memory.clone()), &rows(&before), &[]).await.unwrap();
            let failing = Arc::new(FailingStore::new(&memory, fails_at, takes_effect));
            let was_killed =
                bring_up_to_date(&sink(failing.clone()), &rows(&after), &["blind"]).await.is_err();
            let path = Path::from("inventory/team/all.json");
            let document =
                memory.get_opts(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap();
            let states = [expected(&before), expected(&last)];
            assert!(states.contains(&contents(&document)), "after request {fails_at}");
            for written in failing.documents.lock().unwrap().iter() {
                assert_eq!(contents(written), expected(&last));
            }
            // The next process sees the same rows, and still not the blind one.
            bring_up_to_date(&sink(memory.clone()), &rows(&after), &["blind"]).await.unwrap();
            let document =
                memory.get_opts(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap();
            assert_eq!(contents(&document), expected(&last), "after a crash at request {fails_at}");
            if !was_killed {
                break;
            }
            crashes += 1;
        }
    }
    assert!(crashes >= 10, "{crashes}");
}

#[tokio::test]
async fn columns_of_a_target_without_a_profile_stay() {
    use kollect_model::schema::{AttributeSchema, TargetSchema};
    let memory: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let bucket = Bucket::new(memory.clone(), "p", "memory".into());
    let settings = DocumentSettings::of(DocumentFormat::Csv);
    let sink = DocumentSink::new(bucket, settings, Arc::new(OnceCell::new_with(Some(()))));
    let all = rows(&[("u1", r#"{"image":"a"}"#)]);
    let target = all.keys().next().unwrap().target.clone();
    let image = AttributeSchema { name: "image".into(), type_: None, optional: false };
    let declared = TargetSchema { profile: "team/web".into(), attributes: [image].into() };
    let schema = Schema { targets: [(target, declared)].into() };
    let claim = sink.claim(&inventory(), &Claimant::default()).await.unwrap();
    let header = async |schema: &Schema, rows: &BTreeMap<RowKey, Arc<Row>>| {
        let removed = sink.baseline(&inventory()).await.unwrap();
        let removed = removed.into_keys().filter(|key| !rows.contains_key(key));
        let removed = removed.map(|key| RemovedRow { key, before: None }).collect();
        let delta = Delta { removed, ..Delta::default() };
        sink.write(&Batch { rows, schema, ..Batch::new(&inventory(), &claim, &delta) }).await.unwrap();
        let path = Path::from("p/inventory/team/all.csv");
        let text = memory.get_opts(&path, GetOptions::default()).await.unwrap().bytes().await.unwrap();
        String::from_utf8(text.to_vec()).unwrap().lines().next().unwrap().contains("attr_image")
    };
    assert!(header(&schema, &all).await);
    assert!(header(&Schema::default(), &all).await, "its rows stay, and so do their columns");
    assert!(!header(&Schema::default(), &BTreeMap::new()).await, "no row needs it any more");
    assert!(header(&schema, &BTreeMap::new()).await, "a changed schema alone is written");
}
