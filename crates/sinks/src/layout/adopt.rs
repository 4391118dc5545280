//! Files of the Go implementation. It kept no manifest, so its files have no owner: those at our paths become ours.
//!
//! Only its own shapes are recognised: envelopes, indexes and lists of parts with its version, lists of items, and single
//! items, of targets of the inventory's namespace. The first write of an inventory replaces documents by documents. The
//! file of a row replaces the item of the same object at any time, because rows that are blind come later. All other files
//! are left to their owners, also if they say the same: a user may have written them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use kollect_model::batch::InventoryId;
use serde::{Deserialize, de::IgnoredAny};

use super::{
    chunks::from_yaml,
    manifest::{BlobHash, Manifest},
    paths::FilePath,
};

/// Larger files are not read: its documents have 1.5 MiB at most, unless its operator was started with another limit.
pub(crate) const MAX_BYTES: usize = 4 << 20;
const VERSION: &str = "kollect.dev/v1alpha1";

/// How many bytes of files one write parses; further files are not recognised. The owner of a repository can fill it with files
/// that look like ours.
const MAX_PARSED_BYTES: usize = 64 << 20;

/// A file of the Go implementation.
#[derive(Debug, PartialEq, Eq)]
enum GoFile {
    /// Many rows, of this cluster if it names one, and of targets of these namespaces.
    Document { cluster: Option<String>, target_namespaces: Vec<String> },
    /// One row.
    Item(ItemObject),
}

/// The object of an item, and the namespace of its target.
#[derive(Debug, PartialEq, Eq)]
struct ItemObject {
    target_namespace: String,
    namespace: String,
    name: String,
    kind: String,
    group: Option<String>,
}

/// What an inventory may adopt with one write.
pub(crate) struct Adoption<'a> {
    inventory: &'a InventoryId,
    pub(crate) is_first: bool,
    pub(crate) manifest: &'a Manifest,
    parsed: Mutex<ParsedFiles>,
}

/// The files that a write has parsed: many paths can have the same content.
#[derive(Default)]
struct ParsedFiles {
    files: HashMap<BlobHash, Option<Arc<GoFile>>>,
    bytes: usize,
}

impl<'a> Adoption<'a> {
    /// `is_first`: whether this is the first write of the inventory here. The manifest is that after the write.
    pub(crate) fn new(inventory: &'a InventoryId, is_first: bool, manifest: &'a Manifest) -> Self {
        Self { inventory, is_first, manifest, parsed: Mutex::default() }
    }

    /// Whether the file `found` at a path may be replaced by `wanted`.
    pub(crate) fn may_replace(&self, path: &str, found: &[u8], wanted: &[u8]) -> bool {
        let Some(found) = self.recognize(found).filter(|file| self.is_own(file)) else { return false };
        if self.manifest.header.files.contains_key(path) {
            self.is_first
        } else {
            matches!(&*found, GoFile::Item(_)) && recognize(wanted).as_ref() == Some(&*found)
        }
    }

    fn recognize(&self, bytes: &[u8]) -> Option<Arc<GoFile>> {
        let mut parsed = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        let hash = BlobHash::of(bytes);
        if let Some(known) = parsed.files.get(&hash) {
            return known.clone();
        }
        parsed.bytes = parsed.bytes.saturating_add(bytes.len());
        let file = if parsed.bytes <= MAX_PARSED_BYTES { recognize(bytes).map(Arc::new) } else { None };
        parsed.files.insert(hash, file.clone());
        file
    }

    /// Whether this is a document of the inventory that the write does not replace: it is in other parts now.
    pub(crate) fn is_outdated(&self, document: &FilePath, path: &str, found: &[u8]) -> bool {
        let is_written = self.manifest.header.files.contains_key(path);
        !is_written
            && is_path_of_document(document, path)
            && self.recognize(found).is_some_and(|file| self.is_own(&file))
    }

    /// The path at which the Go implementation listed the files of all parts of an export.
    pub(crate) fn list_of_parts(&self) -> String {
        format!("inventory/{}/{}.manifest.json", self.inventory.stored_namespace(), self.inventory.name)
    }

    /// Whether this is such a list, of this inventory.
    pub(crate) fn is_list_of_parts(&self, found: &[u8]) -> bool {
        serde_json::from_slice::<GoListOfParts>(found).is_ok_and(|list| {
            list.kind == "KollectExportSetManifest"
                && list.namespace == self.inventory.stored_namespace()
                && list.name == self.inventory.name
                && self.is_own_cluster(list.cluster.as_deref())
        })
    }

    fn is_own(&self, file: &GoFile) -> bool {
        // Rows of a cluster inventory had the namespaces of their objects there.
        let is_own_target = |namespace: &String| match &self.inventory.namespace {
            Some(own) => namespace == own,
            None => true,
        };
        match file {
            GoFile::Item(item) => is_own_target(&item.target_namespace),
            GoFile::Document { cluster, target_namespaces } => {
                self.is_own_cluster(cluster.as_deref()) && target_namespaces.iter().all(is_own_target)
            }
        }
    }

    /// Whether a file that names this cluster, or none, can be of this one.
    fn is_own_cluster(&self, named: Option<&str>) -> bool {
        let own = self.inventory.cluster.as_str();
        named.is_none_or(|named| named == own || (own.is_empty() && named == "default"))
    }
}

/// Whether this is the path of a document or of a part of it: `all.yaml`, `all.part-0001-of-0002.yaml`.
pub(crate) fn is_path_of_document(document: &FilePath, path: &str) -> bool {
    let FilePath { stem, extension } = document;
    let numbers = path
        .strip_prefix(stem.as_str())
        .and_then(|rest| rest.strip_suffix(extension.as_str())?.strip_prefix(".part-")?.split_once("-of-"));
    let is_number = |text: &str| text.len() >= 4 && text.chars().all(|digit| digit.is_ascii_digit());
    path == document.full_path() || numbers.is_some_and(|(index, total)| is_number(index) && is_number(total))
}

/// An item: these fields, and no others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GoItem {
    target_namespace: String,
    #[serde(rename = "targetName")]
    _target_name: IgnoredAny,
    namespace: String,
    name: String,
    group: Option<String>,
    #[serde(rename = "version")]
    _version: IgnoredAny,
    kind: String,
    #[serde(rename = "uid")]
    _uid: IgnoredAny,
    #[serde(rename = "attributes")]
    _attributes: IgnoredAny,
}

/// An envelope, an index, or a list of parts.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GoDocument {
    schema_version: String,
    cluster: Option<String>,
    items: Option<Vec<GoItem>>,
    paths: Option<Vec<IgnoredAny>>,
}

#[derive(Deserialize)]
struct GoListOfParts {
    kind: String,
    cluster: Option<String>,
    namespace: String,
    name: String,
}

impl GoFile {
    /// A list without items is not recognised: a file of a user may be one.
    fn of_list(items: Vec<GoItem>) -> Option<Self> {
        (!items.is_empty()).then(|| Self::of_items(None, items))
    }

    fn of_items(cluster: Option<String>, items: Vec<GoItem>) -> Self {
        let mut target_namespaces: Vec<String> =
            items.into_iter().map(|item| item.target_namespace).collect();
        target_namespaces.dedup();
        Self::Document { cluster, target_namespaces }
    }

    fn of_item(item: GoItem) -> Self {
        let GoItem { target_namespace, namespace, name, kind, group, .. } = item;
        Self::Item(ItemObject { target_namespace, namespace, name, kind, group })
    }

    fn of_document(document: GoDocument) -> Option<Self> {
        let is_known = document.schema_version == VERSION;
        let has_content = document.items.is_some() || document.paths.is_some();
        (is_known && has_content)
            .then(|| Self::of_items(document.cluster, document.items.unwrap_or_default()))
    }
}

fn recognize(bytes: &[u8]) -> Option<GoFile> {
    let text = str::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_BYTES)?;
    // Cheaper than parsing a file that has neither.
    if !text.contains("targetNamespace") && !text.contains("schemaVersion") {
        return None;
    }
    if text.starts_with('[') {
        return GoFile::of_list(serde_json::from_str(text).ok()?);
    }
    if text.starts_with("- ") {
        return GoFile::of_list(from_yaml(text)?);
    }
    if !text.starts_with('{') {
        let item = || from_yaml(text).map(GoFile::of_item);
        return from_yaml(text).and_then(GoFile::of_document).or_else(item);
    }
    let document = serde_json::from_str(text).ok().and_then(GoFile::of_document);
    let item = || serde_json::from_str(text).ok().map(GoFile::of_item);
    // Lines of JSON.
    let lines = || {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let items = lines.map(serde_json::from_str).collect::<serde_json::Result<Vec<_>>>();
        GoFile::of_list(items.ok()?)
    };
    document.or_else(item).or_else(lines)
}

#[cfg(test)]
mod tests {
    use kollect_model::crd::sinks::LayoutContent;

    use super::{
        super::{DecidedLayout, ReadableFormat, manifest::BlobHash},
        *,
    };

    const ITEM: &str = r#"{"targetNamespace":"a","targetName":"t","namespace":"shop","name":"cart","group":"apps","version":"v1","kind":"Deployment","uid":"u","attributes":{"x":1}}"#;
    const DOCUMENT: &str = "inventory/a/all.yaml";
    const ROW: &str = "default/shop/deployment/cart.yaml";
    const SHAPE: DecidedLayout = DecidedLayout {
        document: true,
        index: false,
        content: LayoutContent::Item,
        format: ReadableFormat::Yaml,
        gzip: false,
    };

    fn inventory(cluster: &str, namespace: Option<&str>) -> InventoryId {
        InventoryId { cluster: cluster.into(), namespace: namespace.map(Into::into), name: "all".into() }
    }

    /// Whether a file may be replaced by the file of an inventory of namespace a in cluster prod.
    fn may_replace(path: &str, found: &[u8], wanted: &[u8]) -> bool {
        replaces(&inventory("prod", Some("a")), true, path, found, wanted)
    }

    fn replaces(inventory: &InventoryId, is_first: bool, path: &str, found: &[u8], wanted: &[u8]) -> bool {
        let mut manifest = Manifest::new(inventory, String::new(), SHAPE);
        manifest.header.files.insert(DOCUMENT.into(), BlobHash::of(b""));
        Adoption::new(inventory, is_first, &manifest).may_replace(path, found, wanted)
    }

    #[test]
    fn documents_of_the_go_implementation_may_be_replaced() {
        let envelope = |cluster: &str| {
            format!(
                r#"{{"schemaVersion":"{VERSION}","checksum":"x",{cluster}"itemCount":1,"items":[{ITEM}]}}"#
            )
        };
        let own = envelope(r#""cluster":"prod","#);
        let index = format!("schemaVersion: {VERSION}\nitemCount: 1\npaths:\n- a.yaml\n");
        let list = "- attributes:\n    x: 1\n  kind: Deployment\n  name: cart\n  namespace: shop\n  targetName: t\n  \
                    targetNamespace: a\n  uid: u\n  version: v1\n";
        let lines = format!("{ITEM}\n{ITEM}\n");
        for document in
            [&envelope(""), &own, &index, &format!("[{ITEM}]"), &lines, list, &format!("{ITEM}\n")]
        {
            assert!(may_replace(DOCUMENT, document.as_bytes(), b"- a"), "{document}");
            assert!(!may_replace(ROW, document.as_bytes(), b"- a"), "by the file of a row: {document}");
        }
        let other = envelope(r#""cluster":"other","#);
        assert!(!may_replace(DOCUMENT, other.as_bytes(), b"- a"), "a document of another cluster");
        let of_b = format!("[{ITEM},{}]", ITEM.replace("\"a\"", "\"b\""));
        assert!(!may_replace(DOCUMENT, of_b.as_bytes(), b"- a"), "rows of another namespace");
        let (own, rollup) = (inventory("prod", Some("a")), inventory("prod", None));
        assert!(
            replaces(&rollup, true, DOCUMENT, of_b.as_bytes(), b"- a"),
            "a cluster inventory has rows of all"
        );
        assert!(!replaces(&own, false, DOCUMENT, envelope("").as_bytes(), b"- a"), "only the first write");
        // Without a cluster its indexes say `default`.
        let default = format!("cluster: default\n{index}");
        assert!(replaces(&inventory("", Some("a")), true, DOCUMENT, default.as_bytes(), b"- a"));
        assert!(!may_replace(DOCUMENT, default.as_bytes(), b"- a"), "an index of another cluster");
    }

    #[test]
    fn a_list_of_parts_is_recognised_by_the_inventory_that_it_names() {
        let (own, other) = (inventory("", Some("a")), inventory("", Some("b")));
        let prod = inventory("prod", Some("a"));
        let manifest = Manifest::new(&own, String::new(), SHAPE);
        let adoption = |inventory| Adoption::new(inventory, true, &manifest);
        let list = format!(
            r#"{{"kind":"KollectExportSetManifest","schemaVersion":"{VERSION}","namespace":"a","name":"all","paths":[]}}"#
        );
        assert_eq!(adoption(&own).list_of_parts(), "inventory/a/all.manifest.json");
        assert!(adoption(&own).is_list_of_parts(list.as_bytes()));
        assert!(!adoption(&other).is_list_of_parts(list.as_bytes()));
        let of_prod = list.replace("\"name\"", "\"cluster\":\"prod\",\"name\"");
        assert!(!adoption(&own).is_list_of_parts(of_prod.as_bytes()), "a list of another cluster");
        assert!(adoption(&prod).is_list_of_parts(of_prod.as_bytes()));
        assert!(!adoption(&own).is_list_of_parts(br#"{"kind":"List","namespace":"a","name":"all"}"#));
    }

    #[test]
    fn a_write_parses_equal_files_once_and_not_more_than_its_limit() {
        let own = inventory("prod", Some("a"));
        let manifest = Manifest::new(&own, String::new(), SHAPE);
        let adoption = Adoption::new(&own, true, &manifest);
        let replaces = |found: &str| adoption.may_replace(ROW, found.as_bytes(), ITEM.as_bytes());
        (0..3).for_each(|_| assert!(replaces(ITEM)));
        assert_eq!(adoption.parsed.lock().unwrap().bytes, ITEM.len());
        adoption.parsed.lock().unwrap().bytes = MAX_PARSED_BYTES;
        assert!(replaces(ITEM), "it is known");
        assert!(!replaces(&ITEM.replace("\"x\":1", "\"x\":2")), "over the limit");
    }

    #[test]
    fn the_file_of_a_row_replaces_the_item_of_the_same_object() {
        let replaces = |found: &str| may_replace(ROW, found.as_bytes(), ITEM.as_bytes());
        assert!(replaces(&ITEM.replace("\"x\":1", "\"x\":2").replace("\"uid\":\"u\"", "\"uid\":\"v\"")));
        assert!(!replaces(&ITEM.replace("cart", "other")), "another object");
        assert!(!replaces(&ITEM.replace("\"kind\"", "\"note\":1,\"kind\"")), "another field");
        assert!(!replaces(&ITEM.replace("\"a\"", "\"b\"")), "of a target of another namespace");
    }

    #[test]
    fn files_of_users_are_left_to_them() {
        let large = format!("[{}{ITEM}]", format!("{ITEM},").repeat(MAX_BYTES / ITEM.len()));
        for foreign in
            ["# notes", "kind: Deployment\nspec: {a: 1}\n", "- a\n- b\n", "[]", "", "{", "[1,1]", &large]
        {
            for path in [DOCUMENT, ROW] {
                assert!(!may_replace(path, foreign.as_bytes(), foreign.as_bytes()), "{foreign:.40}");
            }
        }
        assert!(!may_replace(DOCUMENT, b"\xff\xfe", ITEM.as_bytes()));
    }

    #[test]
    fn parts_are_recognised_by_their_names() {
        let document = FilePath { stem: "inventory/a/all".into(), extension: ".yaml".into() };
        for path in [DOCUMENT, "inventory/a/all.part-0001-of-0002.yaml"] {
            assert!(is_path_of_document(&document, path), "{path}");
        }
        for path in [
            "inventory/a/all.part-0001-of-0002.json",
            "inventory/a/other.part-0001-of-0002.yaml",
            "inventory/a/all.part-1-of-2.yaml",
        ] {
            assert!(!is_path_of_document(&document, path), "{path}");
        }
    }
}
