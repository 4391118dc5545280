//! Who owns a path: the paths that the manifests of all inventories in one directory or on one branch name.
//!
//! A path that a manifest names belongs to its inventory, whether the file exists or not. No I/O happens here:
//! an `OwnerSearch` returns which manifests must be read, and is given their content.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use xxhash_rust::xxh3::xxh3_64;

use super::manifest::{BlobHash, Manifest, NamedLine};

/// How many paths of all inventories are remembered: 8 bytes each, so at most 64 MB per directory or branch.
/// Remembered paths are not evicted; a manifest that does not fit is read again by every search.
const MAX_PATHS: usize = 8 << 20;
/// How many owners are remembered per inventory, about 300 bytes each. They avoid reading the manifest again for
/// rows that every write refuses or writes to another path.
const MAX_OWNERS: usize = 1000;

/// The remembered paths of all manifests in one directory or on one branch.
#[derive(Default)]
pub struct PathOwners {
    /// By the directory of an inventory below `.kollect/`.
    manifests: BTreeMap<String, RememberedManifest>,
    /// The total number of paths in `manifests`.
    count: usize,
    /// Inventories with paths that other manifests name as well, as found by the last comparison.
    contested: BTreeSet<String>,
    /// Inventories whose manifests are damaged, as found by the last search: which files are theirs is not known.
    damaged: BTreeSet<String>,
}

struct RememberedManifest {
    version: String,
    /// Hashes of the paths, ascending.
    paths: Vec<u64>,
    /// Owners of paths that a search asked for.
    owners: BTreeMap<String, PathOwner>,
}

/// An inventory whose manifest names a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathOwner {
    /// Cluster, namespace and name; `None` if that part of the manifest is damaged.
    pub(crate) inventory: Option<[String; 3]>,
    /// Directory of its manifest.
    pub(crate) inventory_directory: String,
    /// Hash of the file; `None` if its write has not finished.
    pub(crate) hash: Option<BlobHash>,
    /// The API group of the row in the file; `None` if the file holds many rows.
    pub(crate) group: Option<String>,
}

impl PathOwner {
    /// Namespace, name and cluster, for messages.
    pub(crate) fn described(&self) -> String {
        match &self.inventory {
            Some([cluster, namespace, name]) => {
                format!("inventory {namespace}/{name} of cluster {cluster:?}")
            }
            None => format!("an inventory whose manifest in {} is damaged", self.inventory_directory),
        }
    }

    /// The owner with the lowest rank has the path. `file` is the hash of the existing file.
    fn rank(&self, file: Option<&BlobHash>) -> impl Ord {
        let differs = file.is_none() || self.hash.as_ref() != file;
        (differs, self.inventory.is_none(), &self.inventory, &self.inventory_directory)
    }
}

/// Paths that other manifests name, with all inventories that name them.
pub(crate) type OwnersByPath = BTreeMap<String, Vec<PathOwner>>;

/// A manifest in a listing: its directory, and its version if the store has versions.
pub(crate) type ListedManifest = (String, Option<String>);

impl PathOwners {
    /// Remembers a manifest that was just written.
    pub(crate) fn remember(
        &mut self,
        inventory_directory: &str,
        version: Option<String>,
        manifest: &Manifest,
    ) {
        self.damaged.remove(inventory_directory);
        let paths = sorted(manifest.paths().into_iter().map(path_hash).collect());
        self.store(inventory_directory, version, paths, BTreeMap::new());
    }

    /// Forgets a manifest that is about to change.
    pub(crate) fn forget(&mut self, inventory_directory: &str) {
        if let Some(old) = self.manifests.remove(inventory_directory) {
            self.count -= old.paths.len();
        }
    }

    fn store(
        &mut self,
        inventory_directory: &str,
        version: Option<String>,
        paths: Vec<u64>,
        owners: BTreeMap<String, PathOwner>,
    ) {
        self.forget(inventory_directory);
        let Some(version) = version.filter(|_| self.count + paths.len() <= MAX_PATHS) else { return };
        self.count += paths.len();
        self.manifests.insert(inventory_directory.to_owned(), RememberedManifest { version, paths, owners });
    }

    /// Records whether an inventory has paths that other manifests name as well.
    pub(crate) fn set_contested(&mut self, inventory_directory: &str, contested: bool) {
        if contested {
            self.contested.insert(inventory_directory.to_owned());
        } else {
            self.contested.remove(inventory_directory);
        }
    }

    /// Whether the last search has found a damaged manifest of another inventory: a file that no manifest names may
    /// then be one of its files.
    pub(crate) fn has_damaged(&self, own_directory: &str) -> bool {
        self.damaged.iter().any(|directory| directory != own_directory)
    }

    /// Whether the last comparison of an inventory has found paths that other manifests name as well.
    pub(crate) fn is_contested(&self, inventory_directory: &str) -> bool {
        self.contested.contains(inventory_directory)
    }
}

/// Searches the manifests of all other inventories for paths of one inventory.
pub(crate) struct OwnerSearch<'a> {
    /// Ascending.
    wanted: Vec<(u64, &'a str)>,
    found: OwnersByPath,
}

/// The paths of a manifest that was read.
pub(crate) struct ScannedManifest {
    paths: Vec<u64>,
    /// Owners of the wanted paths.
    owners: BTreeMap<String, PathOwner>,
    is_damaged: bool,
}

impl<'a> OwnerSearch<'a> {
    pub(crate) fn new(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut wanted: Vec<(u64, &str)> = paths.into_iter().map(|path| (path_hash(path), path)).collect();
        wanted.sort_unstable();
        Self { wanted, found: OwnersByPath::new() }
    }

    /// Uses the remembered paths. `listed` are all manifests; `own_directory` is that of the inventory that the search
    /// is for. Returns the manifests that must be read.
    pub(crate) fn use_remembered(
        &mut self,
        known: &mut PathOwners,
        own_directory: &str,
        listed: Vec<ListedManifest>,
    ) -> Vec<ListedManifest> {
        let listed_directories: BTreeSet<&str> = listed.iter().map(|(directory, _)| &**directory).collect();
        known.manifests.retain(|directory, _| listed_directories.contains(&**directory));
        known.count = known.manifests.values().map(|manifest| manifest.paths.len()).sum();
        known.contested.retain(|directory| listed_directories.contains(&**directory));
        known.damaged.retain(|directory| listed_directories.contains(&**directory));
        let mut unread = listed;
        unread.retain(|(directory, version)| {
            directory != own_directory
                && known
                    .manifests
                    .get(directory)
                    .filter(|manifest| version.as_ref() == Some(&manifest.version))
                    .is_none_or(|manifest| !self.add_remembered(manifest))
        });
        unread
    }

    /// Adds the remembered owners of a manifest. Returns whether the manifest need not be read.
    fn add_remembered(&mut self, manifest: &RememberedManifest) -> bool {
        let named = common(&manifest.paths, &self.wanted);
        let owners: Option<Vec<(&str, &PathOwner)>> =
            named.into_iter().map(|path| Some((path, manifest.owners.get(path)?))).collect();
        for (path, owner) in owners.iter().flatten() {
            self.found.entry((*path).to_owned()).or_default().push((*owner).clone());
        }
        owners.is_some()
    }

    /// Parses a manifest: its header and the lines of its rows. Damaged parts name no path, so a damaged manifest
    /// stops no other inventory.
    pub(crate) fn scan<'b>(
        &self,
        inventory_directory: &str,
        header: &[u8],
        lines: impl IntoIterator<Item = &'b [u8]>,
    ) -> ScannedManifest {
        let header = Manifest::read_header(header).ok();
        let is_damaged = header.is_none();
        let mut scanned = ScannedManifest { paths: Vec::new(), owners: BTreeMap::new(), is_damaged };
        let inventory = header.as_ref().map(|header| &header.inventory);
        let owner = |hash, group| PathOwner {
            inventory: inventory.cloned(),
            inventory_directory: inventory_directory.to_owned(),
            hash,
            group,
        };
        for bytes in lines {
            for line in NamedLine::read(bytes) {
                let Ok(NamedLine { group, path, hash }) = line else {
                    scanned.is_damaged = true;
                    continue;
                };
                // Rows in documents have no file of their own.
                if path.is_empty() {
                    continue;
                }
                scanned.paths.push(path_hash(&path));
                if self.is_wanted(&path) {
                    let of_row = owner(Some(hash), Some(group.into_owned()));
                    scanned.owners.insert(path.into_owned(), of_row);
                }
            }
        }
        let claimed = header.iter().flat_map(|header| &header.claimed).map(|path| (path, None));
        let files = header.iter().flat_map(|header| &header.files).map(|(path, hash)| (path, Some(*hash)));
        for (path, hash) in claimed.chain(files) {
            scanned.paths.push(path_hash(path));
            // A path that is only claimed has no hash: keep the owner from the line of a row, which has one.
            if self.is_wanted(path) && (hash.is_some() || !scanned.owners.contains_key(path)) {
                scanned.owners.insert(path.clone(), owner(hash, None));
            }
        }
        scanned.paths = sorted(scanned.paths);
        scanned
    }

    fn is_wanted(&self, path: &str) -> bool {
        self.wanted.binary_search(&(path_hash(path), path)).is_ok()
    }

    /// Adds a manifest that was read.
    pub(crate) fn add(
        &mut self,
        known: &mut PathOwners,
        (inventory_directory, version): ListedManifest,
        scanned: ScannedManifest,
    ) {
        if scanned.is_damaged {
            known.damaged.insert(inventory_directory.clone());
        } else {
            known.damaged.remove(&inventory_directory);
        }
        for (path, owner) in &scanned.owners {
            self.found.entry(path.clone()).or_default().push(owner.clone());
        }
        let before = known
            .manifests
            .get_mut(&inventory_directory)
            .filter(|before| version.as_ref() == Some(&before.version));
        let mut owners = before.map(|before| std::mem::take(&mut before.owners)).unwrap_or_default();
        if owners.len() + scanned.owners.len() > MAX_OWNERS {
            owners.clear();
        }
        owners.extend(scanned.owners.into_iter().take(MAX_OWNERS));
        known.store(&inventory_directory, version, scanned.paths, owners);
    }

    /// The wanted paths that other manifests name. Several owners of a path are ordered by their names.
    pub(crate) fn found(mut self) -> OwnersByPath {
        for owners in self.found.values_mut() {
            owners.sort_by(|a, b| a.rank(None).cmp(&b.rank(None)));
        }
        self.found
    }
}

/// The decision about paths of an inventory that other manifests name as well.
#[derive(Default)]
pub(crate) struct SettledPaths {
    /// Paths that belong to other inventories; the first owner in the list has the path.
    pub(crate) lost: OwnersByPath,
    /// Paths that belong to this inventory although other manifests name them.
    pub(crate) shared: OwnersByPath,
}

impl SettledPaths {
    /// Decides who owns each path: the inventory whose manifest has the hash of the existing file. If several have it
    /// or none has, the one with the smallest cluster, namespace and name.
    ///
    /// All inventories reach the same decision, in any order. Only the owner repairs the file; then the hash is that
    /// of its manifest, and the decision stays the same.
    pub(crate) fn new(
        manifest: &Manifest,
        inventory_directory: &str,
        contested: OwnersByPath,
        files: &BTreeMap<String, BlobHash>,
    ) -> Self {
        let rows = manifest.rows.values().map(|line| (&*line.path, line.hash));
        let hashes: HashMap<&str, BlobHash> =
            rows.chain(manifest.header.files.iter().map(|(path, hash)| (&**path, *hash))).collect();
        let mut settled = Self::default();
        for (path, mut owners) in contested {
            let file = files.get(&path);
            let this = PathOwner {
                inventory: Some(manifest.header.inventory.clone()),
                inventory_directory: inventory_directory.to_owned(),
                hash: hashes.get(&*path).copied(),
                group: None,
            };
            owners.sort_by(|a, b| a.rank(file).cmp(&b.rank(file)));
            let is_lost = owners.first().is_some_and(|other| other.rank(file) < this.rank(file));
            let paths = if is_lost { &mut settled.lost } else { &mut settled.shared };
            paths.insert(path, owners);
        }
        settled
    }
}

fn path_hash(path: &str) -> u64 {
    xxh3_64(path.as_bytes())
}

fn sorted(mut hashes: Vec<u64>) -> Vec<u64> {
    hashes.sort_unstable();
    hashes.dedup();
    hashes.shrink_to_fit();
    hashes
}

/// The wanted paths whose hash is in a list. Both lists are ascending. The search skips ahead, so a short list is
/// found in a long one without visiting every item.
fn common<'a>(hashes: &[u64], wanted: &[(u64, &'a str)]) -> Vec<&'a str> {
    let (mut hash_index, mut wanted_index) = (0, 0);
    let mut found = Vec::new();
    while let (Some(hash), Some((wanted_hash, path))) = (hashes.get(hash_index), wanted.get(wanted_index)) {
        match hash.cmp(wanted_hash) {
            Ordering::Equal => {
                found.push(*path);
                wanted_index += 1;
            }
            Ordering::Less => {
                hash_index +=
                    skip_to(hashes.get(hash_index..).unwrap_or_default(), |hash| hash >= wanted_hash);
            }
            Ordering::Greater => {
                wanted_index +=
                    skip_to(wanted.get(wanted_index..).unwrap_or_default(), |(wanted_hash, _)| {
                        wanted_hash >= hash
                    });
            }
        }
    }
    found
}

/// The index of the first of ascending items for which `holds` is true. Searches in steps that double.
fn skip_to<T>(items: &[T], holds: impl Fn(&T) -> bool) -> usize {
    let mut end = 1;
    while items.get(end).is_some_and(|item| !holds(item)) {
        end *= 2;
    }
    let start = end / 2;
    let span = items.get(start..items.len().min(end)).unwrap_or_default();
    start + span.partition_point(|item| !holds(item))
}

#[cfg(test)]
mod tests;
