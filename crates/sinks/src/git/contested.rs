//! Decides who owns paths that the manifests of several inventories on a branch name.

use std::collections::BTreeMap;

use git2::{ObjectType, Oid};

use super::{
    draw::{Drawer, Edits},
    message::{self, About, Messages},
    mirror::Failure,
    tree::{Entry, Files},
};
use crate::layout::{
    manifest::{Hash, Manifest},
    path_owners::{Owners, PathOwners, Search, Settled},
    paths,
};

/// Which of these paths of an inventory other manifests name. Reads only manifests that have changed since the last
/// search: the id of the directory's tree is its version.
pub(super) fn find_owners<'p>(
    files: &Files<'_>,
    owners: &mut PathOwners,
    books: &str,
    paths: impl IntoIterator<Item = &'p str>,
) -> Result<Owners, git2::Error> {
    let Some(directory) = files.directory(paths::BOOKS)? else { return Ok(Owners::new()) };
    let trees = directory.iter().filter(|entry| entry.kind() == Some(ObjectType::Tree));
    let listed = trees.map(|entry| {
        let books = format!("{}/{}", paths::BOOKS, entry.name().unwrap_or_default());
        (books, Some(entry.id().to_string()))
    });
    let mut search = Search::new(paths);
    for (books, version) in search.ask(owners, books, listed.collect()) {
        let Some(directory) = files.directory(&books)? else { continue };
        let read = files.all_bytes(&directory)?;
        let (header, lines) = Manifest::split_files(read.iter().map(|(name, bytes)| (&**name, &**bytes)));
        let scanned = search.scan(&books, header, lines);
        search.take(owners, (books, version), scanned);
    }
    Ok(search.found())
}

impl Drawer<'_> {
    /// If a comparison has found that other manifests name paths of an inventory: decides who owns each path, and makes
    /// a commit that gives up those that belong to others; their files stay.
    pub(super) fn settle_contested(&self, made: &mut Vec<Oid>) -> Result<(Settled, Option<Oid>), Failure> {
        let books = paths::books(&self.work.inventory);
        if !self.work.task.is_write() || !self.owners().is_contested(&books) {
            return Ok((Settled::default(), None));
        }
        let Some(mut manifest) = self.held(&books)?.1 else { return Ok((Settled::default(), None)) };
        let found = find_owners(&self.files, &mut self.owners(), &books, manifest.paths())?;
        self.owners().set_contested(&books, !found.is_empty());
        let mut files = BTreeMap::new();
        for path in found.keys() {
            if let Entry::File(id) = self.files.entry(path)? {
                files.insert(path.clone(), Hash::prefix(id.as_bytes()));
            }
        }
        let settled = Settled::new(&manifest, &books, found, &files);
        if settled.lost.is_empty() {
            return Ok((settled, None));
        }
        manifest.give_up(&settled.lost);
        let mut edits = Edits::new();
        self.keep_books(&books, &manifest, &mut edits)?;
        let message = Messages::giving_up().text(&About {
            changes: &message::given_up(&settled.lost),
            ..About::without_rows(&self.work.inventory, &jiff::Timestamp::now().to_string())
        });
        let commit = self.commit(edits, &message, made)?;
        Ok((settled, commit))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use git2::{Repository, Signature};

    use super::*;

    /// A commit with the books of this many inventories, each with one file. Returns also the blobs of the books.
    fn commit(repository: &Repository, inventories: usize) -> (Oid, Vec<Oid>) {
        let mut edits = Edits::new();
        for i in 0..inventories {
            let header = format!(
                r#"{{"inventory":["","team","i{i}"],"settings":"","files":{{"file-{i}":"0"}},"shape":{{"document":true,
                    "index":false,"content":"item","format":"json","gzip":false}}}}"#
            );
            edits.insert(format!("{}/team.i{i}/manifest.json", paths::BOOKS), Some(header.into()));
        }
        let blobs = edits.values().flatten().map(|bytes| repository.blob(bytes).unwrap()).collect();
        let tree = Files::of(repository, None).unwrap().change(edits, &mut Vec::new()).unwrap();
        let signature = Signature::now("kollect", "kollect@kollect.dev").unwrap();
        let tree = repository.find_tree(tree).unwrap();
        (repository.commit(None, &signature, &signature, "", &tree, &[]).unwrap(), blobs)
    }

    /// With 200 inventories: the blobs of their books are removed after the first search, and later searches work.
    #[test]
    fn books_that_have_not_changed_are_read_once() {
        let directory = tempfile::tempdir().unwrap();
        let (commit, blobs) = commit(&Repository::init_bare(directory.path()).unwrap(), 200);
        let mut owners = PathOwners::default();
        let mut find = |path: &str| {
            let repository = Repository::open_bare(directory.path()).unwrap();
            let files = Files::of(&repository, Some(commit)).unwrap();
            find_owners(&files, &mut owners, "none", [path])
        };
        assert_eq!(find("new-1").unwrap(), Owners::new());
        let named = find("file-7").unwrap();
        assert_eq!(named["file-7"][0].described(), "inventory team/i7 of cluster \"\"");
        for blob in blobs {
            let name = blob.to_string();
            let (start, end) = name.split_at(2);
            fs::remove_file(directory.path().join("objects").join(Path::new(start).join(end))).unwrap();
        }
        assert_eq!(find("new-2").unwrap(), Owners::new());
        assert_eq!(find("file-7").unwrap(), named);
        assert!(find("file-8").is_err(), "they are gone");
    }
}
