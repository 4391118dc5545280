//! The paths of rows in a tree: from the template, with a suffix for rows that would share a file.
//!
//! A path depends on the rows of the inventory and on files of others at the same paths, never on the order in
//! which rows arrived.

use std::collections::{HashMap, HashSet};

use kollect_model::{batch::InventoryId, crd::sinks::GroupInPath, row::RowKey};

use super::{
    DecidedLayout, LayoutSettings,
    foreign::ForeignPaths,
    paths::{FilePath, clean, inventory_value, key_hash},
};

/// The template for rows if the spec has none. It has no API group: the group is added for rows whose paths would
/// otherwise be equal, see [`PathSuffix::Grouped`].
pub(super) const DEFAULT_TEMPLATE: &str = "{cluster}/{sourceNamespace}/{kind}/{sourceName}{extension}";

/// The row that a path is for.
pub(crate) struct PathRow<'a> {
    pub(crate) key: &'a RowKey,
    pub(crate) name: &'a str,
}

/// The file of a row.
pub(crate) struct RowPath {
    pub(crate) path: String,
    /// The path of the template, if a suffix was added.
    pub(crate) shared: Option<String>,
}

/// What is added to the path of the template.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathSuffix {
    /// Nothing.
    Plain,
    /// The API group, after the kind.
    Grouped,
    /// A hash of the key.
    Hashed,
    /// The whole hash and a number.
    Numbered(usize),
}

struct PathCandidate<'a> {
    group: &'a str,
    plain: FilePath,
    grouped: Option<FilePath>,
    hash: u128,
    suffix: PathSuffix,
}

impl PathCandidate<'_> {
    fn path(&self) -> String {
        let FilePath { stem, extension } = &self.plain;
        match self.suffix {
            PathSuffix::Plain => self.plain.full_path(),
            PathSuffix::Grouped => self.grouped.as_ref().unwrap_or(&self.plain).full_path(),
            PathSuffix::Hashed => format!("{stem}-{:016x}{extension}", self.hash >> 64),
            PathSuffix::Numbered(number) => format!("{stem}-{:032x}-{number}{extension}", self.hash),
        }
    }

    /// Takes the next suffix. `by_group`: the API group alone makes the path unique.
    fn use_next_suffix(&mut self, by_group: bool) {
        self.suffix = match self.suffix {
            PathSuffix::Plain if by_group && self.grouped.is_some() => PathSuffix::Grouped,
            PathSuffix::Plain | PathSuffix::Grouped => PathSuffix::Hashed,
            PathSuffix::Hashed => PathSuffix::Numbered(2),
            PathSuffix::Numbered(number) => PathSuffix::Numbered(number + 1),
        };
    }
}

/// The paths of rows, in their order. `taken` are paths of the inventory that rows must not use.
pub(crate) fn assign<'a>(
    sources: impl IntoIterator<Item = PathRow<'a>>,
    settings: &LayoutSettings,
    shape: DecidedLayout,
    inventory: &InventoryId,
    generation: i64,
    taken: &[String],
    foreign: &ForeignPaths,
) -> Vec<RowPath> {
    let is_default_template = settings.rows.text() == DEFAULT_TEMPLATE;
    let candidate = |source: PathRow<'a>| {
        let path = |with_group| template_path(&source, settings, shape, inventory, generation, with_group);
        let (plain, grouped) = (path(false), is_default_template.then(|| path(true)));
        let hash = key_hash(source.key);
        PathCandidate { group: &source.key.group, plain, grouped, hash, suffix: PathSuffix::Plain }
    };
    let mut candidates: Vec<PathCandidate<'_>> = sources.into_iter().map(candidate).collect();
    loop {
        let paths: Vec<String> = candidates.iter().map(PathCandidate::path).collect();
        let mut groups_by_path: HashMap<&str, Vec<&str>> = HashMap::with_capacity(paths.len());
        for (candidate, path) in candidates.iter().zip(&paths) {
            groups_by_path.entry(path).or_default().push(candidate.group);
        }
        let taken: HashSet<&str> = taken.iter().map(|path| &**path).collect();
        // A file cannot have the path of a directory that another file needs.
        let directories: HashSet<&str> = paths
            .iter()
            .map(|path| &**path)
            .chain(taken.iter().copied())
            .flat_map(|path| path.match_indices('/').filter_map(|(position, _)| path.get(..position)))
            .collect();
        let moves: Vec<Option<bool>> = candidates
            .iter()
            .zip(&paths)
            .map(|(candidate, path)| {
                if taken.contains(&**path) || directories.contains(&**path) {
                    return Some(false);
                }
                let groups = groups_by_path.get(&**path).map_or(&[][..], |groups| groups);
                if groups.len() > 1 {
                    return Some(groups.iter().filter(|group| **group == candidate.group).count() == 1);
                }
                let other_group = candidate.suffix == PathSuffix::Plain
                    && candidate.grouped.is_some()
                    && foreign.is_of_another_group(path, candidate.group);
                other_group.then_some(true)
            })
            .collect();
        if moves.iter().all(Option::is_none) {
            let assigned = |(candidate, path): (&PathCandidate<'_>, String)| {
                let suffixed = matches!(candidate.suffix, PathSuffix::Hashed | PathSuffix::Numbered(_));
                RowPath { path, shared: suffixed.then(|| candidate.plain.full_path()) }
            };
            return candidates.iter().zip(paths).map(assigned).collect();
        }
        for (candidate, moves) in candidates.iter_mut().zip(moves) {
            if let Some(by_group) = moves {
                candidate.use_next_suffix(by_group);
            }
        }
    }
}

fn template_path(
    source: &PathRow<'_>,
    settings: &LayoutSettings,
    shape: DecidedLayout,
    inventory: &InventoryId,
    generation: i64,
    with_group: bool,
) -> FilePath {
    let key = source.key;
    settings.rows.fill(shape.format.extension(), settings.max_segment, |name| {
        let kind = if settings.lowercase_kind { key.kind.to_lowercase() } else { key.kind.to_string() };
        let group = if key.group.is_empty() { "core" } else { &key.group };
        let kind = if with_group { format!("{kind}.{group}") } else { kind };
        let value = match name {
            "targetNamespace" => key.target.namespace.as_deref().unwrap_or(&key.namespace),
            "targetName" => &key.target.name,
            "sourceNamespace" => &key.namespace,
            "sourceName" => source.name,
            "group" => match settings.group_in_path {
                GroupInPath::Never => "",
                GroupInPath::Always => group,
                GroupInPath::Auto => &key.group,
            },
            "kind" => &kind,
            "uid" => &key.uid,
            // Placeholders of the inventory.
            name => return inventory_value(name, inventory, generation),
        };
        clean(value)
    })
}
