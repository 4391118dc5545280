//! Files that are where ours shall be and are not ours: they are never touched.

use kollect_model::sink::{SinkError, SinkReason};

use super::manifest::Manifest;

/// What is wrong with files that are not ours, if anything. `others` are the manifests of other inventories;
/// each file comes with whether it holds just what we would write.
pub(crate) fn refuse(
    place: &str,
    foreign: &[(String, bool)],
    others: impl IntoIterator<Item = Manifest>,
) -> Result<(), SinkError> {
    for manifest in others {
        let theirs = manifest.paths();
        if let Some((path, _)) = foreign.iter().find(|(path, _)| theirs.contains(&**path)) {
            let [cluster, namespace, name] = &manifest.header.inventory;
            let attempt = format!(
                "write {path} in {place}: it is a file of inventory {namespace}/{name} of cluster {cluster:?}; \
                 put {{cluster}}, {{namespace}} and {{name}} into the path template, or use another destination"
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
