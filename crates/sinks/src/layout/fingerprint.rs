//! The fingerprint of settings, which manifests store: if it differs, all files are written again.
//!
//! It is the hash of a text that spells every setting that affects bytes and paths. Existing manifests depend on
//! this text: names of fields and variants may change, the text must not.

use kollect_model::crd::sinks::{GroupInPath, LayoutContent, LayoutMode};
use xxhash_rust::xxh3::xxh3_128;

use super::{LayoutSettings, ReadableFormat};

/// Version of all code that decides bytes and paths: files of another version are written again.
const LAYOUT_VERSION: u32 = 1;

impl LayoutSettings {
    /// Differs for settings that give different files.
    pub(super) fn fingerprint(&self) -> String {
        hash(&self.spelling())
    }

    /// Whether a stored fingerprint is that of these settings, in the current spelling or in the former one.
    pub(super) fn has_fingerprint(&self, stored: &str) -> bool {
        stored == self.fingerprint() || stored == hash(&self.former_spelling())
    }

    /// One line for each setting. Texts are quoted, so that no text can look like two settings.
    fn spelling(&self) -> String {
        let Self {
            mode,
            content,
            format,
            gzip,
            documents,
            rows,
            index,
            group_in_path,
            lowercase_kind,
            max_segment,
        } = self;
        let mode = mode.map_or("auto", |mode| match mode {
            LayoutMode::Document => "document",
            LayoutMode::PerResource => "perResource",
            LayoutMode::Split => "split",
        });
        let content = content.map_or("auto", |content| match content {
            LayoutContent::Item => "item",
            LayoutContent::Attributes => "attributes",
            LayoutContent::Manifest => "manifest",
        });
        let format = match format {
            ReadableFormat::Json => "json",
            ReadableFormat::Yaml => "yaml",
            ReadableFormat::Ndjson => "ndjson",
        };
        let group = match group_in_path {
            GroupInPath::Auto => "auto",
            GroupInPath::Always => "always",
            GroupInPath::Never => "never",
        };
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        let (documents, rows) = (quoted(documents.text()), quoted(rows.text()));
        let index = index.as_ref().map_or_else(|| "none".to_owned(), |index| quoted(index.text()));
        format!(
            "layout {LAYOUT_VERSION}\nmode {mode}\ncontent {content}\nformat {format}\ngzip {gzip}\n\
             documents {documents}\nrows {rows}\nindex {index}\ngroupInPath {group}\n\
             lowercaseKind {lowercase_kind}\nmaxSegmentLength {max_segment}\n"
        )
    }

    /// The text that was hashed before [`spelling`](Self::spelling): the output of `derive(Debug)` of that time.
    fn former_spelling(&self) -> String {
        let mode = self.mode.map_or("None", |mode| match mode {
            LayoutMode::Document => "Some(Document)",
            LayoutMode::PerResource => "Some(PerResource)",
            LayoutMode::Split => "Some(Split)",
        });
        let content = self.content.map_or("None", |content| match content {
            LayoutContent::Item => "Some(Item)",
            LayoutContent::Attributes => "Some(Attributes)",
            LayoutContent::Manifest => "Some(Manifest)",
        });
        let format = match self.format {
            ReadableFormat::Json => "Json",
            ReadableFormat::Yaml => "Yaml",
            ReadableFormat::Ndjson => "Ndjson",
        };
        let group = match self.group_in_path {
            GroupInPath::Auto => "Auto",
            GroupInPath::Always => "Always",
            GroupInPath::Never => "Never",
        };
        let template = |text: &str| format!("Template({text:?})");
        let index = self
            .index
            .as_ref()
            .map_or_else(|| "None".to_owned(), |index| format!("Some({})", template(index.text())));
        format!(
            "1 Settings {{ mode: {mode}, content: {content}, format: {format}, gzip: {}, documents: {}, \
             rows: {}, index: {index}, group_in_path: {group}, lowercase_kind: {}, max_segment: {} }}",
            self.gzip,
            template(self.documents.text()),
            template(self.rows.text()),
            self.lowercase_kind,
            self.max_segment
        )
    }
}

fn hash(spelling: &str) -> String {
    format!("{:032x}", xxh3_128(spelling.as_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Settings in which every setting differs from its default at least once.
    fn settings() -> [LayoutSettings; 4] {
        let planned = |spec: Value| LayoutSettings::plan(&serde_json::from_value(spec).unwrap()).unwrap();
        [
            LayoutSettings::document(ReadableFormat::Json),
            LayoutSettings::document(ReadableFormat::Yaml).per_resource(),
            planned(json!({
                "type": "filesystem",
                "pathTemplate": "x/\"{name}\".json",
                "serialization": { "format": "ndjson", "compression": "gzip" },
            })),
            planned(json!({
                "type": "git",
                "layout": {
                    "mode": "split",
                    "content": "attributes",
                    "pathTemplate": "{group}/{uid}",
                    "index": { "pathTemplate": "index.yaml" },
                    "filename": { "groupInPath": "always", "lowercaseKind": false, "maxSegmentLength": 40 },
                },
            })),
        ]
    }

    /// Existing manifests store these texts: a change of the code must not change them.
    #[test]
    fn fingerprints_do_not_change() {
        let spelled: Vec<String> = settings().iter().map(LayoutSettings::spelling).collect();
        assert_eq!(
            spelled[0],
            "layout 1\nmode document\ncontent auto\nformat json\ngzip false\n\
             documents \"inventory/{namespace}/{name}{extension}\"\n\
             rows \"{cluster}/{sourceNamespace}/{kind}/{sourceName}{extension}\"\nindex none\n\
             groupInPath auto\nlowercaseKind true\nmaxSegmentLength 63\n"
        );
        assert_eq!(
            spelled[3],
            "layout 1\nmode split\ncontent attributes\nformat yaml\ngzip false\n\
             documents \"inventory/{namespace}/{name}{extension}\"\nrows \"{group}/{uid}\"\n\
             index \"index.yaml\"\ngroupInPath always\nlowercaseKind false\nmaxSegmentLength 40\n"
        );
        let now = settings().map(|settings| settings.fingerprint());
        assert_eq!(now, NOW);
    }

    /// Fingerprints of manifests that were written before the spelling was explicit.
    #[test]
    fn former_fingerprints_are_recognised() {
        for (settings, former) in settings().iter().zip(FORMER) {
            assert!(settings.has_fingerprint(former), "{settings:?}");
            assert!(settings.has_fingerprint(&settings.fingerprint()));
        }
        let [document, tree, ..] = settings();
        assert!(!document.has_fingerprint(FORMER[1]));
        assert!(!document.has_fingerprint(&tree.fingerprint()));
    }

    const NOW: [&str; 4] = [
        "5c7d545cd0798d1cd8d176c0cf40c7f6",
        "5fde3c62a7af9dfb4bc7fa74f5ae408f",
        "90c29f63bae1c9155db212a4754a3207",
        "4ecdd3d10d12719786bb62d69ca92893",
    ];
    const FORMER: [&str; 4] = [
        "471286e8979595a0b058e1932d4aa8d3",
        "06e12ffb526a33619fce6aa2fe144396",
        "76af17c4f4be5393169c6da238050e50",
        "0a80008ccd3f1c8d5ded17ad0ff011d0",
    ];
}
