//! Previews the files of an export for a status, without writing any.

use std::collections::BTreeMap;

use kollect_model::crd::sinks::{LayoutContent, LayoutMode, LayoutPreview, Preview};
use serde_json::json;

use super::{
    LayoutSettings,
    draft::{FileChanges, WriteDraft},
    foreign::ForeignPaths,
};
use crate::sample::{SampleRows, TIME};

/// The maximum number of sample paths in a status.
const MAX_PATHS: usize = 3;

/// Adds the files of a sample to a preview.
pub(crate) fn preview(settings: &LayoutSettings, cluster: &str, base: Preview) -> Preview {
    let sample = SampleRows::new(cluster, settings.content == Some(LayoutContent::Manifest));
    let batch = sample.batch();
    let change = |settings: &LayoutSettings| -> FileChanges {
        WriteDraft::new(settings, &batch, None, &ForeignPaths::default()).change(
            &BTreeMap::new(),
            BTreeMap::new(),
            TIME,
        )
    };
    let changes = change(settings);
    let shape = changes.manifest.header.shape;
    let mut paths: Vec<String> = changes.writes.into_iter().map(|(path, _)| path).collect();
    // The index is the last file; a document is the only file.
    let object_path = if shape.document || shape.index { paths.last().cloned() } else { None };
    paths.truncate(MAX_PATHS);
    let readable = change(&LayoutSettings { gzip: false, ..settings.clone() }).writes;
    let content = readable.first().map(|(_, bytes)| String::from_utf8_lossy(bytes).into_owned());
    let chosen = if shape.document { LayoutMode::Document } else { LayoutMode::PerResource };
    let mut warnings = base.warnings;
    if settings.mode.is_none() {
        warnings
            .push("layout.mode is not set: perResource if every row is a whole object, else document".into());
    }
    Preview {
        serialization_format: spelling(settings.format),
        object_path,
        layout: Some(LayoutPreview {
            mode: spelling(settings.mode.unwrap_or(chosen)),
            content: spelling(shape.content),
            prune: Some(true),
            sample_paths: paths,
            sample_content: content,
        }),
        warnings,
        ..base
    }
}

/// The spelling of a value in a spec.
fn spelling(value: impl serde::Serialize) -> Option<String> {
    json!(value).as_str().map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    use kollect_model::claim::Claimant;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Backend as _, FilePolicy, SinkPolicy, filesystem};

    /// Writes the sample to a directory, and returns the content of the first file of the preview.
    async fn written(preview: &Preview, config: filesystem::FilesystemConfig, whole_objects: bool) -> String {
        let dir = tempfile::tempdir().unwrap();
        let policy = SinkPolicy { files: FilePolicy::Below(dir.path().to_owned()), ..SinkPolicy::default() };
        let sink = config.open(&policy, &()).await.unwrap();
        let mut sample = SampleRows::new("east", whole_objects);
        sample.claim = sink.claim(&sample.inventory, &Claimant::default()).await.unwrap();
        sink.write(&sample.batch()).await.unwrap();
        let shown: BTreeSet<&String> = preview.layout.as_ref().unwrap().sample_paths.iter().collect();
        let root = dir.path().join("out");
        assert!(shown.iter().all(|path| root.join(path).is_file()), "{shown:?}");
        assert!(preview.object_path.as_ref().is_none_or(|path| root.join(path).is_file()));
        fs::read_to_string(root.join(shown.first().unwrap())).unwrap_or_default()
    }

    #[tokio::test]
    async fn previews_show_the_files_that_a_write_makes() {
        let layouts = [
            (json!({}), Some("inventory/team-a/api.yaml"), "document", 1, false),
            (json!({ "mode": "perResource", "content": "attributes" }), None, "perResource", 2, false),
            (json!({ "content": "manifest" }), None, "perResource", 2, true),
            (json!({ "mode": "split" }), Some("inventory/team-a/api.yaml"), "split", 3, false),
        ];
        for (layout, path, mode, count, whole_objects) in layouts {
            let spec = json!({
                "type": "filesystem", "filesystem": { "path": "out" }, "layout": layout, "cluster": "east",
                "serialization": { "format": "yaml" },
            });
            let config = filesystem::FilesystemConfig::plan(&serde_json::from_value(spec).unwrap()).unwrap();
            let preview = config.preview("east");
            assert_eq!(preview.object_path.as_deref(), path, "{layout}");
            let shown = preview.layout.clone().unwrap();
            assert_eq!((shown.mode.as_deref(), shown.sample_paths.len()), (Some(mode), count), "{layout}");
            assert_eq!(
                shown.sample_content.unwrap(),
                written(&preview, config, whole_objects).await,
                "{layout}"
            );
        }
    }

    #[test]
    fn previews_of_compressed_documents_can_be_read() {
        let spec = json!({
            "type": "filesystem", "filesystem": { "path": "out" }, "provisioning": { "mode": "existing" },
            "serialization": { "format": "json", "compression": "gzip" },
        });
        let preview =
            filesystem::FilesystemConfig::plan(&serde_json::from_value(spec).unwrap()).unwrap().preview("");
        assert_eq!(preview.object_path.as_deref(), Some("inventory/team-a/api.json.gz"));
        assert_eq!(preview.provisioning_mode.as_deref(), Some("existing"));
        assert_eq!(preview.warnings.len(), 2, "the mode is open, and nothing is created");
        let content = preview.layout.unwrap().sample_content.unwrap();
        let document: Value = serde_json::from_str(&content).unwrap();
        assert_eq!(document["itemCount"], 2);
    }
}
