//! Paths of files, from templates. For any names of objects a path stays below the root and outside of the
//! directory `.kollect`.

use kollect_model::{batch::InventoryId, row::RowKey};
use xxhash_rust::xxh3::xxh3_128;

use super::LayoutSettings;

/// Directory of manifests, claims and journals, below the root.
pub(crate) const KOLLECT_DIRECTORY: &str = ".kollect";

/// A path with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathTemplate(String);

/// A path split before its extension, so that a suffix can be inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilePath {
    pub(super) stem: String,
    pub(super) extension: String,
}

impl FilePath {
    pub(crate) fn full_path(&self) -> String {
        format!("{}{}", self.stem, self.extension)
    }

    /// The path of one part of a document, or of the whole document.
    pub(crate) fn part(&self, part: Option<(usize, usize)>) -> String {
        match part {
            None => self.full_path(),
            Some((index, total)) => {
                format!("{}.part-{index:04}-of-{total:04}{}", self.stem, self.extension)
            }
        }
    }
}

/// The limit for a whole path in bytes: programs that read trees fail at a few thousand.
const MAX_PATH_BYTES: usize = 800;

/// Whether some file system reads a name as `.git`: in any case, with characters that HFS+ ignores, as the short
/// name or the stream of NTFS, and with characters that Windows drops at the end.
fn is_git(segment: &str) -> bool {
    let is_visible = |c: &char| !matches!(c, '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}');
    let plain: String = segment.chars().filter(is_visible).collect::<String>().to_ascii_lowercase();
    let name = plain.split(':').next().unwrap_or_default().trim_end_matches(['.', ' ']);
    name == ".git"
        || name.strip_prefix("git~").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// What is wrong with the text of a template.
pub(crate) fn template_problem(text: &str) -> Option<&'static str> {
    let segments = || text.split('/');
    if text.starts_with('/') || segments().any(|segment| segment == "." || segment.contains("..")) {
        return Some("must be a relative path without .. and . segments");
    }
    if text.chars().any(|c| c.is_control() || matches!(c, '\\' | '#')) {
        return Some("must hold no control characters, backslashes and #");
    }
    if segments().next().is_some_and(|first| first.eq_ignore_ascii_case(KOLLECT_DIRECTORY)) {
        return Some("must not begin with .kollect, where Kollect keeps its manifests and claims");
    }
    if segments().any(is_git) {
        return Some("must not hold .git, where Git keeps its own files");
    }
    (text.ends_with('/') || text.is_empty()).then_some("must name a file, not a directory")
}

impl PathTemplate {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text as written in the spec.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// The path with its placeholders filled. Empty segments are dropped.
    pub(super) fn fill(&self, extension: &str, max_bytes: usize, value: impl Fn(&str) -> String) -> FilePath {
        let mut text = self.0.as_str();
        let mut ending = String::new();
        if let Some(rest) = text.strip_suffix("{extension}") {
            (text, ending) = (rest, extension.to_owned());
        } else if let Some((rest, literal)) = text.rsplit_once('.')
            && !literal.contains(['{', '}', '/'])
        {
            (text, ending) = (rest, format!(".{literal}"));
        }
        let mut segments = Vec::new();
        for segment in text.split('/') {
            let mut filled = String::new();
            let mut rest = segment;
            while let Some((literal, after)) = rest.split_once('{') {
                filled.push_str(literal);
                let (name, after) = after.split_once('}').unwrap_or((after, ""));
                filled.push_str(&if name == "extension" { extension.to_owned() } else { value(name) });
                rest = after;
            }
            filled.push_str(rest);
            let cut = cut(&filled, max_bytes);
            let first = segments.is_empty();
            let is_reserved = matches!(cut, "." | "..")
                || is_git(cut)
                || (first && cut.eq_ignore_ascii_case(KOLLECT_DIRECTORY));
            if is_reserved {
                segments.push(format!("_{cut}"));
            } else if !cut.is_empty() {
                segments.push(cut.to_owned());
            }
        }
        // If all placeholders are empty there is no file name.
        if text.ends_with('/') || segments.is_empty() {
            segments.push("unnamed".into());
        }
        let mut stem = segments.join("/");
        if stem.len() > MAX_PATH_BYTES {
            let hash = xxh3_128(stem.as_bytes()) >> 64;
            stem = format!("{}-{hash:016x}", cut(&stem, MAX_PATH_BYTES).trim_end_matches('/'));
        }
        FilePath { stem, extension: ending }
    }
}

/// The path of documents or of an index. Different inventories have different paths, for any names.
pub(crate) fn document(
    template: &PathTemplate,
    settings: &LayoutSettings,
    inventory: &InventoryId,
    generation: i64,
) -> FilePath {
    let compressed = settings.gzip.then_some("gz");
    document_at(template, settings.format.extension(), compressed, inventory, generation)
}

/// The same with an extension, and with one for a compression behind it.
pub(crate) fn document_at(
    template: &PathTemplate,
    extension: &str,
    compressed: Option<&str>,
    inventory: &InventoryId,
    generation: i64,
) -> FilePath {
    let suffix = compressed.map(|name| format!(".{name}")).unwrap_or_default();
    let extension = format!("{extension}{suffix}");
    let mut path =
        template.fill(&extension, MAX_NAME_BYTES, |name| inventory_value(name, inventory, generation));
    if compressed.is_some() && path.extension.rsplit('.').next() != compressed {
        path.extension.push_str(&suffix);
    }
    path
}

pub(super) fn inventory_value(placeholder: &str, inventory: &InventoryId, generation: i64) -> String {
    match placeholder {
        "cluster" if inventory.cluster.is_empty() => "default".into(),
        "cluster" => distinct(&inventory.cluster),
        "namespace" => distinct(inventory.stored_namespace()),
        "name" => distinct(&inventory.name),
        "generation" => generation.to_string(),
        _ => String::new(),
    }
}

/// File systems allow 255 bytes per name; extension, part numbers and suffixes are added to this length.
const MAX_NAME_BYTES: usize = 180;

/// The value as part of a segment: no separators, no run of dots, no dot at the beginning.
pub(super) fn clean(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        let is_replaced = |c: char| matches!(c, '/' | '\\' | ':' | '#') || c.is_control();
        if is_replaced(c) {
            while chars.next_if(|c| is_replaced(*c)).is_some() {}
            out.push('-');
        } else if c == '.' && chars.next_if_eq(&'.').is_some() {
            while chars.next_if_eq(&'.').is_some() {}
            out.push('-');
        } else {
            out.push(c);
        }
    }
    let trimmed = out.trim_matches(['.', '-', ' ']);
    if trimmed.is_empty() && !value.is_empty() {
        return format!("{:016x}", xxh3_128(value.as_bytes()) >> 64);
    }
    trimmed.to_owned()
}

/// Like [`clean`], but different values stay different.
fn distinct(value: &str) -> String {
    let cleaned = clean(value);
    let short = cut(&cleaned, MAX_NAME_BYTES - 20);
    if short == value { cleaned } else { format!("{short}-{:016x}", xxh3_128(value.as_bytes()) >> 64) }
}

fn cut(text: &str, max_bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(max_bytes)).unwrap_or(text)
}

/// A hash of the key. It includes the lengths of the parts, so that different keys never give the same bytes.
pub(crate) fn key_hash(key: &RowKey) -> u128 {
    let target = key.target.namespace.as_deref();
    let parts =
        [target.unwrap_or_default(), &key.target.name, &key.group, &key.kind, &key.namespace, &key.uid];
    let mut bytes = vec![u8::from(target.is_some())];
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend(part.as_bytes());
    }
    xxh3_128(&bytes)
}

/// The directory of an inventory's manifest, claims and journal.
pub(crate) fn inventory_directory(inventory: &InventoryId) -> String {
    let InventoryId { cluster, namespace, name } = inventory;
    let identity =
        format!("{}\0{cluster}\0{}\0{name}", namespace.is_some(), namespace.as_deref().unwrap_or_default());
    let readable = clean(&format!("{}.{name}", inventory.stored_namespace()));
    format!(
        "{KOLLECT_DIRECTORY}/{}-{:032x}",
        cut(&readable, MAX_NAME_BYTES - 40),
        xxh3_128(identity.as_bytes())
    )
}
