//! Decides who owns paths that the manifests of several inventories on a branch name.

use std::collections::BTreeMap;

use git2::{ObjectType, Oid};

use super::{
    commit::{CommitBuilder, TreeEdits},
    message::{self, CommitMessages, MessageValues},
    mirror::GitError,
    tree::{CommitFiles, TreeEntry},
};
use crate::layout::{
    manifest::{BlobHash, Manifest},
    path_owners::{OwnerSearch, OwnersByPath, PathOwners, SettledPaths},
    paths,
};

/// Which of these paths of an inventory other manifests name. Reads only manifests that have changed since the last
/// search: the id of the directory's tree is its version.
pub(super) fn find_owners<'p>(
    files: &CommitFiles<'_>,
    owners: &mut PathOwners,
    inventory_directory: &str,
    paths: impl IntoIterator<Item = &'p str>,
) -> Result<OwnersByPath, git2::Error> {
    let kollect_directory = files.directory(paths::KOLLECT_DIRECTORY)?;
    let entries = kollect_directory.iter().flat_map(|directory| directory.iter());
    let trees = entries.filter(|entry| entry.kind() == Some(ObjectType::Tree));
    let listed = trees.map(|entry| {
        let directory = format!("{}/{}", paths::KOLLECT_DIRECTORY, entry.name().unwrap_or_default());
        (directory, Some(entry.id().to_string()))
    });
    let mut search = OwnerSearch::new(paths);
    for (directory, version) in search.use_remembered(owners, inventory_directory, listed.collect()) {
        let Some(tree) = files.directory(&directory)? else { continue };
        let contents = files.all_bytes(&tree)?;
        let (header, lines) = Manifest::split_files(contents.iter().map(|(name, bytes)| (&**name, &**bytes)));
        let scanned = search.scan(&directory, header, lines);
        search.add(owners, (directory, version), scanned);
    }
    Ok(search.found())
}

impl CommitBuilder<'_> {
    /// If a comparison has found that other manifests name paths of an inventory: decides who owns each path, and makes
    /// a commit that gives up those that belong to others; their files stay.
    pub(super) fn settle_contested_paths(
        &self,
        new_objects: &mut Vec<Oid>,
    ) -> Result<(SettledPaths, Option<Oid>), GitError> {
        let inventory_directory = paths::inventory_directory(&self.request.inventory);
        if !self.request.operation.is_write() || !self.owners().is_contested(&inventory_directory) {
            return Ok((SettledPaths::default(), None));
        }
        let Some(mut manifest) = self.read_manifest(&inventory_directory)?.1 else {
            return Ok((SettledPaths::default(), None));
        };
        let found = find_owners(&self.files, &mut self.owners(), &inventory_directory, manifest.paths())?;
        self.owners().set_contested(&inventory_directory, !found.is_empty());
        let mut files = BTreeMap::new();
        for path in found.keys() {
            if let TreeEntry::File(id) = self.files.entry(path)? {
                files.insert(path.clone(), BlobHash::of_blob_id(id.as_bytes()));
            }
        }
        let settled = SettledPaths::new(&manifest, &inventory_directory, found, &files);
        if settled.lost.is_empty() {
            return Ok((settled, None));
        }
        manifest.give_up(&settled.lost);
        let mut edits = TreeEdits::new();
        self.write_manifest(&inventory_directory, &manifest, &mut edits)?;
        let message = CommitMessages::for_giving_up().text(&MessageValues {
            changes: &message::given_up(&settled.lost),
            ..MessageValues::without_rows(&self.request.inventory, &jiff::Timestamp::now().to_string())
        });
        let commit = self.commit(edits, &message, new_objects)?;
        Ok((settled, commit))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use git2::{Repository, Signature};

    use super::*;

    /// A commit with the manifests of this many inventories, each with one file. Returns also the blobs of these
    /// manifests.
    fn commit(repository: &Repository, inventories: usize) -> (Oid, Vec<Oid>) {
        let mut edits = TreeEdits::new();
        for i in 0..inventories {
            let header = format!(
                r#"{{"inventory":["","team","i{i}"],"settings":"","files":{{"file-{i}":"0"}},"shape":{{"document":true,
                    "index":false,"content":"item","format":"json","gzip":false}}}}"#
            );
            edits
                .insert(format!("{}/team.i{i}/manifest.json", paths::KOLLECT_DIRECTORY), Some(header.into()));
        }
        let blobs = edits.values().flatten().map(|bytes| repository.blob(bytes).unwrap()).collect();
        let tree = CommitFiles::of(repository, None).unwrap().change(edits, &mut Vec::new()).unwrap();
        let signature = Signature::now("kollect", "kollect@kollect.dev").unwrap();
        let tree = repository.find_tree(tree).unwrap();
        (repository.commit(None, &signature, &signature, "", &tree, &[]).unwrap(), blobs)
    }

    /// With 200 inventories: the blobs of their manifests are removed after the first search, and later searches work.
    #[test]
    fn unchanged_manifests_are_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let (commit, blobs) = commit(&Repository::init_bare(directory.path()).unwrap(), 200);
        let mut owners = PathOwners::default();
        let mut find = |path: &str| {
            let repository = Repository::open_bare(directory.path()).unwrap();
            let files = CommitFiles::of(&repository, Some(commit)).unwrap();
            find_owners(&files, &mut owners, "none", [path])
        };
        assert_eq!(find("new-1").unwrap(), OwnersByPath::new());
        let owners_of_7 = find("file-7").unwrap();
        assert_eq!(owners_of_7["file-7"][0].described(), "inventory team/i7 of cluster \"\"");
        for blob in blobs {
            let name = blob.to_string();
            let (start, end) = name.split_at(2);
            fs::remove_file(directory.path().join("objects").join(Path::new(start).join(end))).unwrap();
        }
        assert_eq!(find("new-2").unwrap(), OwnersByPath::new());
        assert_eq!(find("file-7").unwrap(), owners_of_7);
        assert!(find("file-8").is_err(), "the blobs were removed");
    }
}
