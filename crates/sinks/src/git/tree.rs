//! The files of a commit, read and changed without a work tree.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use bytes::Bytes;
use git2::{FileMode, ObjectType, Oid, Repository, Tree};

use crate::layout::manifest::BlobHash;

/// The files of a commit, or none.
pub(super) struct CommitFiles<'r> {
    repository: &'r Repository,
    /// Directories that were read; `None` if the directory does not exist.
    directories: RefCell<HashMap<String, Option<Rc<Tree<'r>>>>>,
}

/// The entry at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TreeEntry {
    Nothing,
    File(Oid),
    /// A directory, a link, a submodule; or a file where the path needs a directory.
    Other,
}

impl<'r> CommitFiles<'r> {
    pub(super) fn of(repository: &'r Repository, commit: Option<Oid>) -> Result<Self, git2::Error> {
        let root = commit.map(|commit| repository.find_commit(commit)?.tree()).transpose()?;
        Ok(Self::of_tree(repository, root))
    }

    fn of_tree(repository: &'r Repository, root: Option<Tree<'r>>) -> Self {
        let directories = HashMap::from([(String::new(), root.map(Rc::new))]);
        Self { repository, directories: RefCell::new(directories) }
    }

    /// The files without some of them. The new tree objects are not recorded as new, so they are not pushed.
    pub(super) fn without<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a String>,
    ) -> Result<Self, git2::Error> {
        let changes = paths.into_iter().map(|path| (path.clone(), None)).collect();
        let tree = self.change(changes, &mut Vec::new())?;
        Ok(Self::of_tree(self.repository, Some(self.repository.find_tree(tree)?)))
    }

    /// Whether the file at a path has exactly these bytes.
    pub(super) fn holds(&self, path: &str, bytes: &[u8]) -> Result<bool, git2::Error> {
        Ok(match self.entry(path)? {
            TreeEntry::File(id) => BlobHash::of_blob_id(id.as_bytes()) == BlobHash::of(bytes),
            TreeEntry::Nothing | TreeEntry::Other => false,
        })
    }

    /// The directory at a path.
    pub(super) fn directory(&self, path: &str) -> Result<Option<Rc<Tree<'r>>>, git2::Error> {
        if let Some(known) = self.directories.borrow().get(path) {
            return Ok(known.clone());
        }
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.directory(parent)?;
        let found = match parent.as_ref().and_then(|parent| parent.get_name(name)) {
            Some(entry) if entry.kind() == Some(ObjectType::Tree) => {
                Some(Rc::new(self.repository.find_tree(entry.id())?))
            }
            _ => None,
        };
        self.directories.borrow_mut().insert(path.to_owned(), found.clone());
        Ok(found)
    }

    pub(super) fn entry(&self, path: &str) -> Result<TreeEntry, git2::Error> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(directory) = self.directory(parent)? else {
            return Ok(if parent.is_empty() { TreeEntry::Nothing } else { self.without_directory(parent)? });
        };
        Ok(match directory.get_name(name) {
            None => TreeEntry::Nothing,
            Some(entry) if matches!(entry.filemode(), 0o100_644 | 0o100_755 | 0o100_664) => {
                TreeEntry::File(entry.id())
            }
            Some(_) => TreeEntry::Other,
        })
    }

    /// [`TreeEntry::Other`] if something exists at a path where a directory is needed.
    fn without_directory(&self, directory: &str) -> Result<TreeEntry, git2::Error> {
        Ok(match self.entry(directory)? {
            TreeEntry::Nothing => TreeEntry::Nothing,
            TreeEntry::File(_) | TreeEntry::Other => TreeEntry::Other,
        })
    }

    /// The bytes of a file.
    pub(super) fn read(&self, path: &str) -> Result<Option<Bytes>, git2::Error> {
        match self.entry(path)? {
            TreeEntry::File(id) => self.bytes(id).map(Some),
            TreeEntry::Nothing | TreeEntry::Other => Ok(None),
        }
    }

    /// The bytes of a file, unless it is larger than this.
    pub(super) fn read_up_to(&self, path: &str, max_bytes: usize) -> Result<Option<Bytes>, git2::Error> {
        match self.entry(path)? {
            TreeEntry::File(id) if self.repository.odb()?.read_header(id)?.0 <= max_bytes => {
                self.bytes(id).map(Some)
            }
            _ => Ok(None),
        }
    }

    pub(super) fn bytes(&self, blob: Oid) -> Result<Bytes, git2::Error> {
        Ok(Bytes::copy_from_slice(self.repository.find_blob(blob)?.content()))
    }

    /// The files directly in a directory.
    pub(super) fn all_bytes(&self, directory: &Tree<'_>) -> Result<Vec<(String, Bytes)>, git2::Error> {
        let blobs = directory.iter().filter(|entry| entry.kind() == Some(ObjectType::Blob));
        blobs
            .map(|entry| Ok((entry.name().unwrap_or_default().to_owned(), self.bytes(entry.id())?)))
            .collect()
    }

    /// The tree after changes; `None` removes a file. Ids of objects that the tree did not have at the same path
    /// are added to `new_objects`.
    pub(super) fn change(
        &self,
        changes: BTreeMap<String, Option<Bytes>>,
        new_objects: &mut Vec<Oid>,
    ) -> Result<Oid, git2::Error> {
        let mut root = TreeChanges::default();
        for (path, change) in changes {
            root.set_change(&path, change);
        }
        let tree = root.apply(self, "", new_objects)?;
        tree.map_or_else(
            || self.repository.treebuilder(None)?.write().inspect(|id| new_objects.push(*id)),
            Ok,
        )
    }
}

/// Changes below a directory.
#[derive(Default)]
struct TreeChanges {
    files: BTreeMap<String, Option<Bytes>>,
    directories: BTreeMap<String, TreeChanges>,
}

impl TreeChanges {
    fn set_change(&mut self, path: &str, change: Option<Bytes>) {
        match path.split_once('/') {
            Some((directory, rest)) => {
                self.directories.entry(directory.to_owned()).or_default().set_change(rest, change);
            }
            None => drop(self.files.insert(path.to_owned(), change)),
        }
    }

    /// The tree of the directory; `None` if it is empty.
    fn apply(
        self,
        files: &CommitFiles<'_>,
        path: &str,
        new_objects: &mut Vec<Oid>,
    ) -> Result<Option<Oid>, git2::Error> {
        let before = files.directory(path)?;
        let mut builder = files.repository.treebuilder(before.as_deref())?;
        let id_before = |name: &str| before.as_ref().and_then(|tree| Some(tree.get_name(name)?.id()));
        // Removals first: a file may become a directory.
        for (name, _) in
            self.files.iter().filter(|(name, change)| change.is_none() && id_before(name).is_some())
        {
            builder.remove(name)?;
        }
        for (name, changes) in self.directories {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            match changes.apply(files, &below, new_objects)? {
                Some(tree) => drop(builder.insert(&name, tree, FileMode::Tree.into())?),
                None if builder.get(&name)?.is_some() => builder.remove(&name)?,
                None => {}
            }
        }
        for (name, bytes) in self.files.into_iter().filter_map(|(name, change)| Some((name, change?))) {
            let blob = files.repository.blob(&bytes)?;
            if id_before(&name) != Some(blob) {
                new_objects.push(blob);
            }
            builder.insert(&name, blob, FileMode::Blob.into())?;
        }
        if builder.is_empty() {
            return Ok(None);
        }
        let tree = builder.write()?;
        if before.is_none_or(|before| before.id() != tree) {
            new_objects.push(tree);
        }
        Ok(Some(tree))
    }
}
