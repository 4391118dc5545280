//! Files that are where ours shall be and are not ours: they are never touched.

use std::collections::BTreeMap;

use kollect_model::sink::{SinkError, SinkReason};

use super::manifest::Manifest;

/// Files that are in the way of ours, and whose they are, as far as a write has found out.
#[derive(Default)]
pub(crate) struct Foreign(BTreeMap<String, Owner>);

/// Whose a file is that our manifest does not name.
enum Owner {
    /// No manifest names it, and it holds just what we would write: a write that was cut off has left it.
    Left,
    /// No manifest names it.
    Unknown,
    /// Another inventory's.
    Inventory {
        /// Namespace, name and cluster, for messages.
        described: String,
        /// The API group of the row that it holds; `None` if it holds many.
        group: Option<String>,
    },
}

impl Foreign {
    /// Adds files that were found, each with whether it holds just what we would write. `others` are the
    /// manifests of other inventories.
    pub(crate) fn add(&mut self, found: &[(String, bool)], others: &[Manifest]) {
        for (path, same) in found {
            self.0.insert(path.clone(), if *same { Owner::Left } else { Owner::Unknown });
        }
        for manifest in others {
            let theirs = manifest.paths();
            let named: Vec<&String> =
                found.iter().map(|(path, _)| path).filter(|path| theirs.contains(&***path)).collect();
            if named.is_empty() {
                continue;
            }
            let rows: BTreeMap<&str, &str> =
                manifest.rows.iter().map(|(key, line)| (&*line.path, &*key.group)).collect();
            for path in named {
                let of_a_row = !manifest.header.files.contains_key(path);
                let group = rows.get(&**path).filter(|_| of_a_row).map(|group| (*group).to_owned());
                self.0.insert(path.clone(), Owner::Inventory { described: described(manifest), group });
            }
        }
    }

    /// Those of `found` that were not known before.
    pub(crate) fn unknown_of(&self, found: Vec<(String, bool)>) -> Vec<(String, bool)> {
        found.into_iter().filter(|(path, _)| !self.0.contains_key(path)).collect()
    }

    /// Whether the file is that of a row of another API group.
    pub(super) fn is_of_another_group(&self, path: &str, group: &str) -> bool {
        match self.0.get(path) {
            Some(Owner::Inventory { group: Some(other), .. }) => other != group,
            _ => false,
        }
    }

    /// Why a row of an API group cannot have a file, and what to do about it.
    pub(super) fn refusal(&self, path: &str, group: &str) -> Option<String> {
        match self.0.get(path)? {
            Owner::Left => None,
            Owner::Unknown => Some(format!(
                "{path} is a file that Kollect has not written: move it away, or write another \
                 spec.layout.pathTemplate"
            )),
            Owner::Inventory { described, group: Some(other) } if other != group => Some(format!(
                "{path} is a file of {described}, for an object of API group {other:?}: put {{group}} into \
                 spec.layout.pathTemplate, and let spec.layout.filename.groupInPath be auto or always"
            )),
            Owner::Inventory { described, .. } => Some(format!(
                "{path} is a file of {described}: put {{cluster}}, {{namespace}} and {{name}} of the inventory \
                 into spec.layout.pathTemplate, or use another destination"
            )),
        }
    }
}

fn described(manifest: &Manifest) -> String {
    let [cluster, namespace, name] = &manifest.header.inventory;
    format!("inventory {namespace}/{name} of cluster {cluster:?}")
}

/// What is wrong with files that are not ours, if anything, where the whole inventory depends on them. `others`
/// are the manifests of other inventories; each file comes with whether it holds just what we would write.
pub(crate) fn refuse(place: &str, foreign: &[(String, bool)], others: &[Manifest]) -> Result<(), SinkError> {
    for manifest in others {
        let theirs = manifest.paths();
        if let Some((path, _)) = foreign.iter().find(|(path, _)| theirs.contains(&**path)) {
            let attempt = format!(
                "write {path} in {place}: it is a file of {}; put {{cluster}}, {{namespace}} and {{name}} into \
                 the path template, or use another destination",
                described(manifest)
            );
            return Err(SinkError::new(SinkReason::OwnedByOther, attempt));
        }
    }
    let Some((path, _)) = foreign.iter().find(|(_, same)| !same) else { return Ok(()) };
    let attempt = format!(
        "write {path} in {place}: there is a file that Kollect has not written; move it away, or use another \
         path template"
    );
    Err(SinkError::new(SinkReason::Incompatible, attempt))
}
