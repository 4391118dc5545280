//! Directories, as users and other programs see them.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use kollect_model::{
    batch::{Baseline, Batch, Delta, InventoryId},
    claim::Claimant,
    row::{Row, RowDigest, RowKey, TargetId},
    sink::{ErrorClass, Sink, SinkReason, SinkSpec},
};
use kollect_sinks::{SinkPolicy, open, plan, plan_out};
use serde_json::{Value, json, value::RawValue};

use crate::conformance::{
    TestDestination, added, changed, compare, conformance, holding, inventory, removed, write,
};

mod interrupted;
pub(crate) mod path_owners;
mod trees;

/// A spec of a directory with additional fields.
fn spec(path: &Path, fields: &Value) -> SinkSpec {
    let mut spec = json!({ "type": "filesystem", "filesystem": { "path": path } });
    for (name, value) in fields.as_object().unwrap() {
        spec[name] = value.clone();
    }
    SinkSpec::Snapshot(serde_json::from_value(spec).unwrap())
}

async fn open_dir(path: &Path, fields: &Value) -> Box<dyn Sink> {
    open(&plan(&spec(path, fields)).unwrap(), &SinkPolicy::default()).await.unwrap()
}

/// Every file below a directory with its bytes. Files that are removed in the meantime are left out.
fn bytes_below(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut unread = vec![root.to_owned()];
    while let Some(directory) = unread.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().map(Result::unwrap) {
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                unread.push(path);
            } else if let Ok(bytes) = fs::read(&path) {
                found.insert(name, bytes);
            }
        }
    }
    found
}

/// Every file below a directory with its text, except those below `.kollect` and files that are being written:
/// their names end with # and a number until they are complete.
pub(crate) fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = bytes_below(root);
    let is_shown = |name: &str| !name.starts_with(".kollect/") && !name.starts_with(".git/");
    found.retain(|name, _| is_shown(name) && !name.contains('#'));
    let text = |(name, bytes): (String, Vec<u8>)| (name, String::from_utf8_lossy(&bytes).into_owned());
    found.into_iter().map(text).collect()
}

/// The directories of all inventories below `.kollect`.
pub(crate) fn inventory_directories(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root.join(".kollect")) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// The inventories whose manifests name a path, in a directory or in a work tree of Git.
pub(crate) fn owners(root: &Path, path: &str) -> Vec<String> {
    let mut owners = Vec::new();
    for directory in inventory_directories(root) {
        let (mut name, mut is_named) = (String::new(), false);
        for file in fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()) {
            let file_name = file.file_name().unwrap().to_str().unwrap();
            if !file_name.starts_with("manifest") && !file_name.starts_with("rows-") {
                continue;
            }
            for line in fs::read_to_string(&file).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                if let Some(inventory) = line["inventory"][2].as_str() {
                    inventory.clone_into(&mut name);
                }
                let claimed = line["claimed"].as_array().is_some_and(|paths| paths.contains(&json!(path)));
                is_named |= line["path"] == path || line["files"].get(path).is_some() || claimed;
            }
        }
        if is_named {
            owners.push(name);
        }
    }
    owners.sort();
    owners
}

/// A row of any object.
pub(crate) fn object(
    uid: &str,
    group: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    attributes: &str,
) -> Arc<Row> {
    let key = RowKey {
        target: TargetId { namespace: Some("team".into()), name: "web".into() },
        group: group.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string(attributes.into()).unwrap();
    Arc::new(Row::new(key, "v1".into(), name.into(), attributes.into()))
}

/// A layout whose paths contain the inventory, so that inventories do not collide.
pub(crate) fn paths_with_inventory(layout: &str, format: &str) -> Value {
    json!({
        "serialization": { "format": format },
        "pathTemplate": "{cluster}/{namespace}/{name}{extension}",
        "layout": {
            "mode": layout,
            "pathTemplate": "{cluster}/{namespace}/{name}/{kind}/{sourceName}{extension}",
            "index": { "pathTemplate": "{cluster}/{namespace}/{name}{extension}" },
        },
    })
}

/// The files of an inventory of the namespace team, in the layout [`paths_with_inventory`].
pub(crate) fn files_of(root: &Path, name: &str) -> BTreeMap<String, String> {
    let below = [format!("default/team/{name}."), format!("default/team/{name}/")];
    let mut files = tree(root);
    files.retain(|path, _| below.iter().any(|prefix| path.starts_with(prefix)));
    files
}

/// A directory in one of the layouts.
struct Files {
    dir: tempfile::TempDir,
    fields: Value,
}

impl Files {
    fn new(layout: &str, format: &str) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), fields: paths_with_inventory(layout, format) }
    }

    /// The files of an inventory of the namespace team.
    fn files(&self, name: &str) -> BTreeMap<String, String> {
        files_of(self.dir.path(), name)
    }
}

/// Parses deep and large YAML without limits.
fn from_yaml(text: &str) -> Value {
    let parse = || {
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: usize::MAX,
                max_nodes: usize::MAX,
                max_depth: 512,
                max_total_scalar_bytes: usize::MAX,
            },
        };
        serde_saphyr::from_str_with_options(text, options).unwrap()
    };
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(64 << 20).spawn_scoped(scope, parse).unwrap().join().unwrap()
    })
}

/// The format of a file, by its extension.
fn format(path: &str) -> &str {
    path.rsplit_once('.').unwrap().1
}

/// The items of a file, in any format.
fn items(path: &str, text: &str) -> Vec<Value> {
    let value: Value = match path {
        _ if format(path) == "yaml" => from_yaml(text),
        _ if format(path) == "ndjson" => {
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect()
        }
        _ => serde_json::from_str(text).unwrap(),
    };
    match value {
        Value::Array(items) => items,
        Value::Object(mut fields) => match fields.remove("items") {
            Some(Value::Array(items)) => items,
            _ => vec![Value::Object(fields)],
        },
        _ => Vec::new(),
    }
}

impl TestDestination for Files {
    async fn open(&self) -> Box<dyn Sink> {
        open_dir(self.dir.path(), &self.fields).await
    }

    async fn read_all(&self) -> String {
        let dated = |(path, text): (String, String)| {
            let modified = fs::metadata(self.dir.path().join(&path)).unwrap().modified().unwrap();
            format!("{path} {modified:?}\n{text}\n")
        };
        self.files("all").into_iter().map(dated).collect()
    }

    async fn edit_as_other_client(&self) {
        edit_files(self.dir.path(), self.files("all"));
    }

    async fn attributes(&self, uid: &str) -> String {
        attributes(&self.files("awkward"), uid)
    }

    async fn read_torn(&self) -> String {
        self.files("torn").into_values().collect()
    }

    type Backup = BTreeMap<String, Vec<u8>>;

    async fn back_up(&self) -> Self::Backup {
        bytes_below(self.dir.path())
    }

    async fn restore(&self, backup: &Self::Backup) {
        for path in bytes_below(self.dir.path()).into_keys().filter(|path| !backup.contains_key(path)) {
            fs::remove_file(self.dir.path().join(path)).unwrap();
        }
        for (path, bytes) in backup {
            fs::write(self.dir.path().join(path), bytes).unwrap();
        }
    }

    /// Nine operations per file: 50,000 files would take a minute in a debug build.
    fn large_row_count(&self) -> usize {
        if self.fields["layout"]["mode"] == "document" { 50_000 } else { 5_000 }
    }
}

/// Changes the files of an inventory as another program would, in any layout.
pub(crate) fn edit_files(root: &Path, files: BTreeMap<String, String>) {
    for (path, text) in files {
        let file = root.join(&path);
        let items = items(&path, &text);
        let has = |uid: &str| items.iter().any(|item| item["uid"] == uid);
        match (has("u1"), has("u2")) {
            // A document: remove one row and change the other.
            (true, true) if format(&path) == "json" => {
                let mut value: Value = serde_json::from_str(&text).unwrap();
                let items = value["items"].as_array_mut().unwrap();
                items.retain(|item| item["uid"] != "u1");
                items[0]["attributes"] = json!({ "n": "spoilt" });
                fs::write(file, value.to_string()).unwrap();
            }
            (true, true) => {
                let start = if format(&path) == "yaml" { "- " } else { "{" };
                let mut kept = String::new();
                let mut skip = false;
                for (index, line) in text.lines().enumerate() {
                    skip = if line.starts_with(start) { index == 0 } else { skip };
                    if !skip {
                        kept.push_str(&line.replace("cart", "spoilt"));
                        kept.push('\n');
                    }
                }
                fs::write(file, kept).unwrap();
            }
            (true, false) => fs::remove_file(file).unwrap(),
            (false, true) => fs::write(file, text + " ").unwrap(),
            _ => {}
        }
    }
}

/// The attributes of a row, from files in any layout.
pub(crate) fn attributes(files: &BTreeMap<String, String>, uid: &str) -> String {
    let mut items = files.iter().flat_map(|(path, text)| items(path, text));
    items.find(|item| item["uid"] == uid).unwrap()["attributes"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_json_conform() {
    conformance(&Files::new("document", "json")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_yaml_conform() {
    conformance(&Files::new("document", "yaml")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_ndjson_conform() {
    conformance(&Files::new("document", "ndjson")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_per_row_of_yaml_conform() {
    conformance(&Files::new("perResource", "yaml")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn split_files_of_json_conform() {
    conformance(&Files::new("split", "json")).await;
}

#[tokio::test]
async fn a_path_that_cannot_be_used_as_a_directory_is_an_error_that_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    let existing = json!({ "provisioning": { "mode": "existing" } });
    for (path, fields, reason) in [
        (file.clone(), json!({}), SinkReason::Incompatible),
        (file.join("below"), json!({}), SinkReason::Incompatible),
        (file.clone(), existing.clone(), SinkReason::Incompatible),
        (dir.path().join("absent"), existing.clone(), SinkReason::Missing),
    ] {
        let Err(error) = open(&plan(&spec(&path, &fields)).unwrap(), &SinkPolicy::default()).await else {
            unreachable!("{} must not open", path.display())
        };
        assert_eq!((error.reason, error.class()), (reason, ErrorClass::Terminal), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert!(!dir.path().join("absent").exists(), "existing never creates");
    let sink = open_dir(dir.path(), &existing).await;
    sink.check().await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "a probe leaves nothing behind");
}

#[tokio::test]
async fn formats_and_options_without_effect_are_refused() {
    let dir = Path::new("/nowhere");
    for (fields, text) in [
        (
            json!({ "serialization": { "format": "parquet" } }),
            "spec.serialization.format = \"parquet\": is not available",
        ),
        (
            json!({ "serialization": { "format": "csv" } }),
            "spec.serialization.format = \"csv\": is not available",
        ),
        (
            json!({ "serialization": { "compression": "gzip" }, "layout": { "mode": "split" } }),
            "spec.serialization.compression = \"gzip\": is for documents",
        ),
        (
            json!({ "layout": { "mode": "document", "content": "manifest" } }),
            "spec.layout.content = \"manifest\": has no effect in mode document",
        ),
        (
            json!({ "pathTemplate": "../{namespace}/{name}" }),
            "spec.pathTemplate = \"../{namespace}/{name}\": must be a relative",
        ),
        (
            json!({ "layout": { "pathTemplate": ".kollect/{uid}" } }),
            "spec.layout.pathTemplate = \".kollect/{uid}\": must not begin",
        ),
        (
            json!({ "layout": { "pathTemplate": "/{uid}" } }),
            "spec.layout.pathTemplate = \"/{uid}\": must be a relative",
        ),
        (
            json!({ "layout": { "pathTemplate": "{uid}#1" } }),
            "spec.layout.pathTemplate = \"{uid}#1\": must hold no",
        ),
        (json!({ "filesystem": { "path": "" } }), "spec.filesystem.path: is required"),
    ] {
        let errors = plan(&spec(dir, &fields)).unwrap_err();
        assert!(errors[0].to_string().starts_with(text), "{}", errors[0]);
    }
    for (text, problem) in
        [("dir:", "is not a directory"), ("dir:x?layout=heap", "an option that is not known, layout=heap")]
    {
        assert!(plan_out(text).unwrap_err().contains(problem));
    }
}

#[tokio::test]
async fn a_directory_without_write_permission_is_forbidden() {
    let dir = tempfile::tempdir().unwrap();
    let sink = open_dir(dir.path(), &json!({})).await;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
    // Root may write everywhere: then there is nothing to test.
    if fs::write(dir.path().join("probe"), "").is_err() {
        let error = sink.check().await.unwrap_err();
        assert_eq!((error.reason, error.class()), (SinkReason::Forbidden, ErrorClass::Forbidden), "{error}");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Concurrent claims never get the same epoch.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_get_different_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let all = inventory("", "all");
    let claims = (0..16).map(|_| {
        let (path, all) = (dir.path().to_owned(), all.clone());
        tokio::spawn(async move {
            open_dir(&path, &json!({})).await.claim(&all, &Claimant::default()).await.unwrap().epoch
        })
    });
    let mut epochs: Vec<i64> =
        futures::future::join_all(claims).await.into_iter().map(Result::unwrap).collect();
    epochs.sort_unstable();
    epochs.dedup();
    assert_eq!(epochs.len(), 16);
    let sink = open_dir(dir.path(), &json!({})).await;
    let next = sink.claim(&all, &Claimant::default()).await.unwrap();
    assert!(next.epoch > 16 - 1);
    sink.forget(&all, &next).await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left, no directory either");
}

/// Two inventories write the same paths at the same time: each file belongs to one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inventories_that_are_written_at_once_share_no_file() {
    let fields = json!({ "layout": { "mode": "perResource", "pathTemplate": "{sourceName}.json" } });
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let writes = ["one", "two"].map(|name| {
            let (path, fields) = (dir.path().to_owned(), fields.clone());
            tokio::spawn(async move {
                let sink = open_dir(&path, &fields).await;
                let attributes = format!(r#"{{"inventory":"{name}"}}"#);
                let rows: Vec<_> = (0..8)
                    .map(|i| object(&format!("{name}{i}"), "", "Pod", "shop", &format!("p{i}"), &attributes))
                    .collect();
                // The write may be refused: only the files matter here.
                drop(write(&*sink, &inventory("", name), None, &added(&rows)).await);
            })
        });
        for done in futures::future::join_all(writes).await {
            done.unwrap();
        }
        let sink = open_dir(dir.path(), &fields).await;
        let mut held = 0;
        for name in ["one", "two"] {
            let baseline = sink.baseline(&inventory("", name)).await.unwrap();
            let intact = baseline.values().all(|digest| *digest != RowDigest(0));
            assert!(intact, "round {round}: {name} holds a file that the other has written");
            held += baseline.len();
        }
        assert_eq!(held, 8, "round {round}");
    }
}
