//! Paths that a write needs and that belong to others: files there are never changed.

use std::collections::{BTreeMap, HashSet};

use kollect_model::sink::{SinkError, SinkReason};

use super::path_owners::{self, OwnersByPath};

/// Paths that belong to others, and their owners, as found by one write.
#[derive(Default)]
pub(crate) struct ForeignPaths {
    paths: BTreeMap<String, ForeignOwner>,
    /// Paths that were looked up in the manifests of other inventories.
    looked_up: HashSet<String>,
}

/// The owner of a path that our manifest does not name.
enum ForeignOwner {
    /// No manifest names it, and it may be replaced: an interrupted write or the Go implementation has left it.
    LeftOver,
    /// No manifest names it.
    Unknown,
    /// Another inventory, whether the file exists or not.
    Inventory {
        /// Namespace, name and cluster, for messages.
        described: String,
        /// The API group of the row in the file; `None` if the file holds many rows.
        group: Option<String>,
    },
}

impl ForeignPaths {
    /// Paths that belong to other inventories.
    pub(crate) fn of(owners: &OwnersByPath) -> Self {
        let mut foreign = Self::default();
        for (path, owners) in owners {
            owners.iter().take(1).for_each(|owner| foreign.add_owned(path.clone(), owner));
        }
        foreign
    }

    /// Adds existing files that no manifest names, each with whether it may be replaced.
    pub(super) fn add_files(&mut self, found: Vec<(String, bool)>) {
        let owner = |replaceable| if replaceable { ForeignOwner::LeftOver } else { ForeignOwner::Unknown };
        self.paths.extend(found.into_iter().map(|(path, replaceable)| (path, owner(replaceable))));
    }

    /// Adds a path that the manifest of another inventory names.
    pub(super) fn add_owned(&mut self, path: String, owner: &path_owners::PathOwner) {
        let owner = ForeignOwner::Inventory { described: owner.described(), group: owner.group.clone() };
        self.paths.insert(path, owner);
    }

    /// The paths of `found` that were not known before.
    pub(crate) fn unknown_of(&self, found: Vec<(String, bool)>) -> Vec<(String, bool)> {
        found.into_iter().filter(|(path, _)| !self.paths.contains_key(path)).collect()
    }

    /// The paths of `paths` that were not looked up before; marks them as looked up.
    pub(crate) fn not_looked_up<'p>(&mut self, paths: &'p [String]) -> Vec<&'p str> {
        let new = paths.iter().filter(|path| self.looked_up.insert((*path).clone()));
        new.map(|path| &**path).collect()
    }

    /// Whether the file belongs to a row of another API group.
    pub(super) fn is_of_another_group(&self, path: &str, group: &str) -> bool {
        match self.paths.get(path) {
            Some(ForeignOwner::Inventory { group: Some(other), .. }) => other != group,
            _ => false,
        }
    }

    /// Why a row of an API group cannot have this file, and what the user can do about it.
    pub(super) fn refusal(&self, path: &str, group: &str) -> Option<String> {
        match self.paths.get(path)? {
            ForeignOwner::LeftOver => None,
            ForeignOwner::Unknown => Some(format!(
                "{path} is a file that Kollect has not written: move it away, or write another \
                 spec.layout.pathTemplate"
            )),
            ForeignOwner::Inventory { described, group: Some(other) } if other != group => Some(format!(
                "{path} is a file of {described}, for an object of API group {other:?}: put {{group}} into \
                 spec.layout.pathTemplate, and let spec.layout.filename.groupInPath be auto or always"
            )),
            ForeignOwner::Inventory { described, .. } => Some(format!(
                "{path} is a file of {described}: put {{cluster}}, {{namespace}} and {{name}} of the inventory \
                 into spec.layout.pathTemplate, or use another destination"
            )),
        }
    }
}

/// The error for a file that the whole inventory depends on and that the manifest of another inventory names.
pub(super) fn owned_by_other(destination: &str, path: &str, owner: &path_owners::PathOwner) -> SinkError {
    let attempt = format!(
        "write {path} in {destination}: it is a file of {}; put {{cluster}}, {{namespace}} and {{name}} into the path \
         template, or use another destination",
        owner.described()
    );
    SinkError::new(SinkReason::OwnedByOther, attempt)
}

/// Returns an error if the whole inventory depends on a file that no manifest names. The flag of a file tells
/// whether it may be replaced: such a file is no error.
pub(crate) fn refuse(destination: &str, found: &[(String, bool)]) -> Result<(), SinkError> {
    let Some((path, _)) = found.iter().find(|(_, replaceable)| !replaceable) else { return Ok(()) };
    let attempt = format!(
        "write {path} in {destination}: there is a file that Kollect has not written; move it away, or use another \
         path template"
    );
    Err(SinkError::new(SinkReason::Incompatible, attempt))
}
