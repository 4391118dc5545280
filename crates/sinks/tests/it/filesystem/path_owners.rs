//! A path belongs to one inventory: the one whose manifest names it, whether the file exists or not.

use std::{
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use bytes::Bytes;
use kollect_model::sink::SinkError;
use kollect_sinks::{
    Backend as _,
    filesystem::{DirectoryBlobs, FilesystemConfig},
    layout::{
        LayoutSettings,
        blobs::{BlobVersion, Blobs},
        file_sink::FileSink,
        path_owners::PathOwners,
    },
};

use super::*;

const PATH: &str = "p.json";

/// One file per row; the path does not contain the inventory.
fn paths_without_inventory() -> Value {
    json!({ "layout": { "mode": "perResource", "pathTemplate": "{sourceName}.json" } })
}

/// The row of one object in an inventory. Rows with equal `content` have files with equal attributes.
fn pod(inventory: &str, content: &str) -> Arc<Row> {
    object(&format!("{inventory}-{content}"), "", "Pod", "shop", "p", &format!(r#"{{"n":"{content}"}}"#))
}

/// The same object in two inventories: their files would be equal.
fn same_pod() -> Arc<Row> {
    object("u", "", "Pod", "shop", "p", "{}")
}

/// Every file with its bytes and the time of its last change, except claims.
fn files_with_times(root: &Path) -> BTreeMap<String, (String, SystemTime)> {
    let mut files: Vec<PathBuf> = tree(root).into_keys().map(|path| root.join(path)).collect();
    files.extend(inventory_directories(root).iter().map(|directory| directory.join("manifest.ndjson")));
    let state = |file: PathBuf| {
        let modified = fs::metadata(&file).unwrap().modified().unwrap();
        (file.to_str().unwrap().to_owned(), (fs::read_to_string(&file).unwrap(), modified))
    };
    files.into_iter().map(state).collect()
}

#[tokio::test]
async fn a_path_whose_file_was_deleted_keeps_its_owner_in_a_directory() {
    for rows in [[pod("one", "1"), pod("two", "2")], [same_pod(), same_pod()]] {
        let dir = tempfile::tempdir().unwrap();
        let sink = open_dir(dir.path(), &paths_without_inventory()).await;
        // The inventory with the later name has the path: here the order of names has no effect.
        let (one, two) = (inventory("", "two"), inventory("", "one"));
        write(&*sink, &one, None, &added(&rows[..1])).await.unwrap();
        let before = tree(dir.path());
        fs::remove_file(dir.path().join(PATH)).unwrap();
        for _ in 0..2 {
            let receipt = compare(&*sink, &two, &rows[1..]).await.unwrap();
            assert_eq!(receipt.refused.len(), 1);
            let why = &receipt.refused[0].why;
            assert!(why.contains("Pod shop/p of target team/web"), "{why}");
            assert!(why.contains("p.json is a file of inventory team/two of cluster \"\": put"), "{why}");
            assert!(!dir.path().join(PATH).exists(), "it is not theirs to write");
        }
        compare(&*sink, &one, &rows[..1]).await.unwrap();
        compare(&*sink, &two, &rows[1..]).await.unwrap();
        assert_eq!(tree(dir.path()), before);
        assert_eq!(owners(dir.path(), PATH), ["two"]);
        assert_eq!(sink.baseline(&one).await.unwrap(), holding(&rows[..1]));
        assert_eq!(sink.baseline(&two).await.unwrap(), Baseline::new());
    }
}

/// Documents and indexes: the whole inventory is refused.
#[tokio::test]
async fn a_document_that_was_deleted_keeps_its_owner_in_a_directory() {
    let template = |mode: &str| {
        json!({ "pathTemplate": PATH, "layout": { "mode": mode, "index": { "pathTemplate": PATH },
            "pathTemplate": "{name}/{sourceName}.json" } })
    };
    for mode in ["document", "split"] {
        let dir = tempfile::tempdir().unwrap();
        let sink = open_dir(dir.path(), &template(mode)).await;
        let (one, two) = (inventory("", "one"), inventory("", "two"));
        write(&*sink, &one, None, &added(&[same_pod()])).await.unwrap();
        fs::remove_file(dir.path().join(PATH)).unwrap();
        let error = compare(&*sink, &two, &[same_pod()]).await.unwrap_err();
        assert_eq!((error.reason, error.class()), (SinkReason::OwnedByOther, ErrorClass::Terminal));
        assert!(error.to_string().contains("p.json"), "{error}");
        assert!(error.to_string().contains("a file of inventory team/one"), "{error}");
        compare(&*sink, &one, &[same_pod()]).await.unwrap();
        assert_eq!(owners(dir.path(), PATH), ["one"]);
        assert_eq!(sink.baseline(&one).await.unwrap(), holding(&[same_pod()]));
        // Once the inventory is forgotten, the other one gets the path.
        let claim = sink.claim(&one, &Claimant::default()).await.unwrap();
        sink.forget(&one, &claim).await.unwrap();
        compare(&*sink, &two, &[same_pod()]).await.unwrap();
        assert_eq!(owners(dir.path(), PATH), ["two"]);
    }
}

/// Three ways to give up a path: its row is removed, the inventory is forgotten, or its files move.
#[tokio::test]
async fn a_path_that_was_given_up_can_be_used_by_another_inventory_in_a_directory() {
    for reason in ["row", "inventory", "layout"] {
        let dir = tempfile::tempdir().unwrap();
        let sink = open_dir(dir.path(), &paths_without_inventory()).await;
        let (one, two) = (inventory("", "one"), inventory("", "two"));
        let rows = [pod("one", "1"), pod("two", "2")];
        write(&*sink, &one, None, &added(&rows[..1])).await.unwrap();
        fs::remove_file(dir.path().join(PATH)).unwrap();
        assert_eq!(compare(&*sink, &two, &rows[1..]).await.unwrap().refused.len(), 1);
        match reason {
            "row" => drop(compare(&*sink, &one, &[]).await.unwrap()),
            "inventory" => {
                let claim = sink.claim(&one, &Claimant::default()).await.unwrap();
                sink.forget(&one, &claim).await.unwrap();
            }
            _ => {
                let fields = json!({ "layout": { "mode": "perResource", "pathTemplate": "{uid}.json" } });
                compare(&*open_dir(dir.path(), &fields).await, &one, &rows[..1]).await.unwrap();
            }
        }
        assert!(compare(&*sink, &two, &rows[1..]).await.unwrap().refused.is_empty(), "{reason}");
        assert_eq!(owners(dir.path(), PATH), ["two"], "{reason}");
        assert!(tree(dir.path())[PATH].contains("two-2"), "{reason}");
    }
}

/// All rows of an inventory: one whose path the other inventory also needs, and one with a path of its own.
pub(crate) fn with_own_path(name: &str, row: &Arc<Row>) -> [Arc<Row>; 2] {
    [row.clone(), object(&format!("own-{name}"), "", "Pod", "shop", &format!("own-{name}"), "{}")]
}

/// A directory as an older release may have left it: the manifests of both inventories name one path. `file`:
/// whose file exists, or another text for its content; `None` for no file.
async fn contested_directory(fields: &Value, rows: &[Arc<Row>; 2], file: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    for (root, name, row) in [(dir.path(), "one", &rows[0]), (other.path(), "two", &rows[1])] {
        let sink = open_dir(root, fields).await;
        write(&*sink, &inventory("", name), None, &added(&with_own_path(name, row))).await.unwrap();
    }
    for (path, text) in tree(other.path()).iter().filter(|(path, _)| *path != PATH) {
        let file = dir.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let from = &inventory_directories(other.path())[0];
    let to = dir.path().join(".kollect").join(from.file_name().unwrap());
    fs::create_dir(&to).unwrap();
    fs::copy(from.join("manifest.ndjson"), to.join("manifest.ndjson")).unwrap();
    match file {
        Some("one") => {}
        Some("two") => drop(fs::copy(other.path().join(PATH), dir.path().join(PATH)).unwrap()),
        Some(text) => fs::write(dir.path().join(PATH), text).unwrap(),
        None => fs::remove_file(dir.path().join(PATH)).unwrap(),
    }
    assert_eq!(owners(dir.path(), PATH), ["one", "two"]);
    dir
}

#[tokio::test]
async fn a_path_that_two_manifests_name_goes_to_one_of_them_in_a_directory() {
    let different = [pod("one", "1"), pod("two", "2")];
    for (rows, file, winner) in [
        (&different, Some("one"), "one"),
        (&different, Some("two"), "two"),
        (&different, Some("edited"), "one"),
        (&different, None, "one"),
        (&[same_pod(), same_pod()], Some("one"), "one"),
    ] {
        // The order does not matter.
        for order in [["one", "two"], ["two", "one"]] {
            let shown = format!("{file:?} {order:?}");
            let dir = contested_directory(&paths_without_inventory(), rows, file).await;
            let sink = open_dir(dir.path(), &paths_without_inventory()).await;
            let all = |name: &str| with_own_path(name, &rows[usize::from(name == "two")]);
            let mut state = BTreeMap::new();
            for round in 0..4 {
                for name in order {
                    let receipt = compare(&*sink, &inventory("", name), &all(name)).await.unwrap();
                    assert_eq!(receipt.refused.len(), usize::from(name != winner), "{shown} {name}");
                    let plain = write(&*sink, &inventory("", name), None, &Delta::default()).await.unwrap();
                    assert!(plain.refused.is_empty());
                }
                match round {
                    0 => {}
                    1 => state = files_with_times(dir.path()),
                    _ => assert_eq!(files_with_times(dir.path()), state, "{shown}: nothing is written again"),
                }
            }
            assert_eq!(owners(dir.path(), PATH), [winner], "{shown}");
            for name in order {
                let held = sink.baseline(&inventory("", name)).await.unwrap();
                let rows = &all(name)[usize::from(name != winner)..];
                assert_eq!(held, holding(rows), "{shown} {name}");
            }
        }
    }
}

/// The inventory that loses a document has none and reports that; the file of the other one is not changed.
#[tokio::test]
async fn a_document_that_two_manifests_name_goes_to_one_of_them_in_a_directory() {
    for mode in ["document", "split"] {
        let fields = json!({ "pathTemplate": PATH, "layout": { "mode": mode, "index": { "pathTemplate": PATH },
            "pathTemplate": "{name}/{sourceName}.json" } });
        for order in [["one", "two"], ["two", "one"]] {
            let rows = [pod("one", "1"), pod("two", "2")];
            let dir = contested_directory(&fields, &rows, Some("two")).await;
            let before = fs::read_to_string(dir.path().join(PATH)).unwrap();
            let sink = open_dir(dir.path(), &fields).await;
            for _ in 0..2 {
                for name in order {
                    let all = with_own_path(name, &rows[usize::from(name == "two")]);
                    let outcome = compare(&*sink, &inventory("", name), &all).await;
                    let reason = outcome.err().map(|error| error.reason);
                    assert_eq!(reason, (name == "one").then_some(SinkReason::OwnedByOther), "{mode}");
                }
            }
            assert_eq!(owners(dir.path(), PATH), ["two"], "{mode} {order:?}");
            // Forgetting the losing inventory does not delete the file.
            let claim = sink.claim(&inventory("", "one"), &Claimant::default()).await.unwrap();
            sink.forget(&inventory("", "one"), &claim).await.unwrap();
            assert_eq!(fs::read_to_string(dir.path().join(PATH)).unwrap(), before, "{mode}");
        }
    }
}

/// An inventory gives up a contested path before the other one has settled it: the file stays for the other one.
#[tokio::test]
async fn a_contested_file_is_not_deleted_from_a_directory() {
    for (forget, file) in [(true, "one"), (true, "two"), (false, "one"), (false, "two")] {
        let rows = [pod("one", "1"), pod("two", "2")];
        let dir = contested_directory(&paths_without_inventory(), &rows, Some(file)).await;
        let sink = open_dir(dir.path(), &paths_without_inventory()).await;
        let one = inventory("", "one");
        if forget {
            let claim = sink.claim(&one, &Claimant::default()).await.unwrap();
            sink.forget(&one, &claim).await.unwrap();
        } else {
            compare(&*sink, &one, &[]).await.unwrap();
        }
        assert!(dir.path().join(PATH).exists(), "{forget} {file}");
        assert_eq!(owners(dir.path(), PATH), ["two"], "{forget} {file}");
        assert!(compare(&*sink, &inventory("", "two"), &rows[1..]).await.unwrap().refused.is_empty());
        assert!(tree(dir.path())[PATH].contains("two-2"), "{forget} {file}");
    }
}

/// The files of one inventory were deleted. It repairs them while another one needs their paths.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_concurrent_repair_and_write_leave_one_owner_of_a_path_in_a_directory() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        // In every second round the files would be equal.
        let rows = |name: &str| -> Vec<Arc<Row>> {
            let name = if round % 2 == 0 { "" } else { name };
            let pod = |i: usize| object(&format!("{name}{i}"), "", "Pod", "shop", &format!("p{i}"), "{}");
            (0..8).map(pod).collect()
        };
        let sink = open_dir(dir.path(), &paths_without_inventory()).await;
        write(&*sink, &inventory("", "two"), None, &added(&rows("two"))).await.unwrap();
        for path in tree(dir.path()).keys() {
            fs::remove_file(dir.path().join(path)).unwrap();
        }
        let writers = ["one", "two"].map(|name| {
            let (path, rows) = (dir.path().to_owned(), rows(name));
            tokio::spawn(async move {
                let sink = open_dir(&path, &paths_without_inventory()).await;
                compare(&*sink, &inventory("", name), &rows).await.unwrap().refused.len()
            })
        });
        let refused: Vec<usize> =
            futures::future::join_all(writers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(refused, [8, 0], "round {round}");
        for i in 0..8 {
            assert_eq!(owners(dir.path(), &format!("p{i}.json")), ["two"], "round {round}");
        }
        assert_eq!(sink.baseline(&inventory("", "two")).await.unwrap(), holding(&rows("two")));
    }
}

/// A directory that counts reads of manifests and listings.
struct Counting {
    directory: DirectoryBlobs,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    reads: Mutex<BTreeMap<String, usize>>,
    lists: Mutex<usize>,
}

impl Counts {
    /// The counts since the last call: reads of each manifest of others, and listings.
    fn take(&self, own: &str) -> (Vec<usize>, usize) {
        let reads = std::mem::take(&mut *self.reads.lock().unwrap_or_else(PoisonError::into_inner));
        let others = reads.into_iter().filter(|(path, _)| !path.contains(&format!("team.{own}-")));
        let lists = std::mem::take(&mut *self.lists.lock().unwrap_or_else(PoisonError::into_inner));
        (others.map(|(_, count)| count).collect(), lists)
    }
}

#[async_trait]
impl Blobs for Counting {
    async fn read(&self, path: &str) -> Result<Option<Bytes>, SinkError> {
        if path.ends_with("/manifest.ndjson") {
            let mut reads = self.counts.reads.lock().unwrap_or_else(PoisonError::into_inner);
            *reads.entry(path.to_owned()).or_default() += 1;
        }
        self.directory.read(path).await
    }

    async fn write(&self, path: &str, bytes: Bytes) -> Result<BlobVersion, SinkError> {
        self.directory.write(path, bytes).await
    }

    async fn create(&self, path: &str, bytes: Bytes) -> Result<bool, SinkError> {
        self.directory.create(path, bytes).await
    }

    async fn delete(&self, path: &str) -> Result<(), SinkError> {
        self.directory.delete(path).await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError> {
        self.directory.list(directory).await
    }

    async fn list_versions(&self, directory: &str) -> Result<Vec<(String, BlobVersion)>, SinkError> {
        *self.counts.lists.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.directory.list_versions(directory).await
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.directory.check().await
    }

    fn describe(&self) -> String {
        self.directory.describe()
    }
}

async fn opened(dir: &Path) -> (DirectoryBlobs, LayoutSettings) {
    let SinkSpec::Snapshot(spec) = spec(dir, &paths_without_inventory()) else { unreachable!() };
    let config = FilesystemConfig::plan(&spec).unwrap();
    kollect_sinks::filesystem::directory(config, &kollect_sinks::FilePolicy::Anywhere).await.unwrap()
}

/// With 200 other inventories, no unchanged manifest is read twice, and a write without new paths reads none.
#[tokio::test(flavor = "multi_thread")]
async fn manifests_of_other_inventories_are_read_once() {
    const OTHERS: usize = 200;
    let dir = tempfile::tempdir().unwrap();
    let row = |name: &str, n: usize| object(name, "", "Pod", "shop", name, &format!(r#"{{"n":{n}}}"#));
    let other_sink = open_dir(dir.path(), &paths_without_inventory()).await;
    for i in 0..OTHERS {
        let name = format!("i{i}");
        write(&*other_sink, &inventory("", &name), None, &added(&[row(&name, 0)])).await.unwrap();
    }
    // Like another process: it remembers no paths.
    let (counts, remembered) =
        (Arc::new(Counts::default()), Arc::<tokio::sync::Mutex<PathOwners>>::default());
    let (directory, settings) = opened(dir.path()).await;
    let counting = Counting { directory, counts: counts.clone() };
    let sink = FileSink::new(counting, settings, remembered.clone());
    let own = inventory("", "own");
    let claim = sink.claim(&own, &Claimant::default()).await.unwrap();
    let write_delta = async |delta: Delta| sink.write(&Batch::new(&own, &claim, &delta)).await.unwrap();
    counts.take("own");

    write_delta(added(&[row("a", 0)])).await;
    assert_eq!(counts.take("own"), (vec![1; OTHERS], 1), "the first look reads each once");
    write_delta(added(&[row("b", 0)])).await;
    assert_eq!(counts.take("own"), (vec![], 1), "a new path");
    write_delta(Delta { changed: vec![changed(&row("a", 1))], ..Delta::default() }).await;
    write_delta(Delta { removed: vec![removed(&row("b", 0))], ..Delta::default() }).await;
    assert_eq!(counts.take("own"), (vec![], 0), "no new path");
    sink.baseline(&own).await.unwrap();
    assert_eq!(counts.take("own"), (vec![], 1), "a comparison");

    // Manifests written by a sink of this process are known without reading them.
    let (directory, settings) = opened(dir.path()).await;
    let counting = Counting { directory, counts: counts.clone() };
    let sibling = FileSink::new(counting, settings, remembered);
    let other = inventory("", "i7");
    write(&sibling, &other, None, &added(&[row("c", 0)])).await.unwrap();
    counts.take("own");
    // To name the owner in a refusal, the manifest is read once.
    for reads in [vec![1], vec![]] {
        let receipt = write_delta(added(&[row("c", 1)])).await;
        assert!(receipt.refused[0].why.contains("a file of inventory team/i7"), "{receipt:?}");
        assert_eq!(counts.take("own"), (reads, 1));
    }
    write_delta(added(&[row("d", 0)])).await;
    assert_eq!(counts.take("own"), (vec![], 1));
    // Manifests written by others are read.
    write(&*other_sink, &inventory("", "i9"), None, &added(&[row("e", 0)])).await.unwrap();
    assert_eq!(write_delta(added(&[row("e", 1)])).await.refused.len(), 1);
    assert_eq!(counts.take("own"), (vec![1], 1));
}

/// A damaged manifest affects only its own inventory.
#[tokio::test]
async fn a_damaged_manifest_stops_no_other_inventory_in_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let sink = open_dir(dir.path(), &paths_without_inventory()).await;
    let (damaged, intact) = (inventory("", "bad"), inventory("", "good"));
    let rows = [same_pod(), object("v", "", "Pod", "shop", "q", "{}")];
    write(&*sink, &damaged, None, &added(&[pod("bad", "1")])).await.unwrap();
    let manifest = inventory_directories(dir.path())[0].join("manifest.ndjson");
    fs::write(&manifest, "nonsense\n").unwrap();
    let receipt = compare(&*sink, &intact, &rows).await.unwrap();
    assert!(receipt.refused[0].why.contains("p.json is a file that Kollect has not written"), "{receipt:?}");
    assert_eq!(sink.baseline(&intact).await.unwrap(), holding(&rows[1..]));
    assert_eq!(sink.baseline(&damaged).await.unwrap_err().reason, SinkReason::Incompatible);
}

/// An item as the Go implementation writes it: its YAML has sorted keys.
pub(crate) fn go_item(name: &str, image: &str) -> String {
    format!(
        "attributes:\n  image: {image}\ngroup: apps\nkind: Deployment\nname: {name}\nnamespace: shop\n\
         targetName: web\ntargetNamespace: team\nuid: uid-{name}\nversion: v1\n"
    )
}

/// A list of one item.
pub(crate) fn go_list(name: &str, image: &str) -> String {
    format!("- {}\n", go_item(name, image).trim_end().replace('\n', "\n  "))
}

#[tokio::test]
async fn documents_of_the_go_implementation_in_a_directory_are_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let (all, cart) = (
        inventory("prod", "all"),
        object("uid-cart", "apps", "Deployment", "shop", "cart", r#"{"image":"cart:2"}"#),
    );
    let yaml = json!({ "serialization": { "format": "yaml" } });
    let documents = dir.path().join("documents");
    fs::create_dir_all(documents.join("inventory/team")).unwrap();
    let file = |name: &str| documents.join("inventory/team").join(name);
    fs::write(file("all.yaml"), go_list("cart", "cart:1")).unwrap();
    fs::write(file("notes.yaml"), "# mine\n").unwrap();
    let sink = open_dir(&documents, &yaml).await;
    compare(&*sink, &all, std::slice::from_ref(&cart)).await.unwrap();
    let found: Vec<(String, String)> = tree(&documents).into_iter().collect();
    let names: Vec<&str> = found.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["inventory/team/all.yaml", "inventory/team/notes.yaml"]);
    assert!(found[0].1.contains("image: cart:2"), "{found:?}");
    assert_eq!(sink.baseline(&all).await.unwrap(), holding(std::slice::from_ref(&cart)));

    let rows = dir.path().join("rows");
    fs::create_dir_all(rows.join("default/shop/deployment")).unwrap();
    let file = |name: &str| rows.join("default/shop/deployment").join(name);
    fs::write(file("cart.yaml"), go_item("cart", "cart:1")).unwrap();
    // A file of another object, and one that is none of ours: they are left alone, and the rows say so.
    fs::write(file("search.yaml"), go_item("other", "x")).unwrap();
    fs::write(file("web.yaml"), "replicas: 2\n").unwrap();
    let sink = open_dir(
        &rows,
        &json!({ "serialization": { "format": "yaml" }, "layout": { "mode": "perResource" } }),
    )
    .await;
    let others = ["search", "web"]
        .map(|name| object(&format!("uid-{name}"), "apps", "Deployment", "shop", name, "{}"));
    let default = inventory("", "all");
    let receipt =
        compare(&*sink, &default, &[std::slice::from_ref(&cart), &others[..]].concat()).await.unwrap();
    assert_eq!(receipt.refused.len(), 2, "{receipt:?}");
    assert!(fs::read_to_string(file("cart.yaml")).unwrap().contains("image: cart:2"));
    assert_eq!(fs::read_to_string(file("web.yaml")).unwrap(), "replicas: 2\n");
}

/// The records of one sink are above or below the root of the other: neither takes a file for one without an owner.
#[tokio::test]
async fn files_of_a_sink_in_a_directory_around_or_inside_are_not_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let cart = object("uid-cart", "apps", "Deployment", "shop", "cart", "{}");
    let (outer, inner) = (dir.path().join("a"), dir.path().join("a/b"));
    let below = json!({ "pathTemplate": "b/inventory/{namespace}/{name}{extension}" });
    for order in [[(&outer, &below), (&inner, &json!({}))], [(&inner, &json!({})), (&outer, &below)]] {
        fs::remove_dir_all(&outer).ok();
        let [(first, first_fields), (second, second_fields)] = order;
        fs::create_dir_all(&inner).unwrap();
        let sink = open_dir(first, first_fields).await;
        write(&*sink, &inventory("", "all"), None, &added(std::slice::from_ref(&cart))).await.unwrap();
        let sink = open_dir(second, second_fields).await;
        let other = object("uid-x", "apps", "Deployment", "shop", "x", "{}");
        let refused = compare(&*sink, &inventory("", "all"), &[other]).await.unwrap_err();
        assert_eq!(refused.reason, SinkReason::Incompatible, "{refused}");
    }
}
