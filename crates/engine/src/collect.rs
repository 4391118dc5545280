//! The loop: an event comes in, a row or a removal goes to the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::StreamExt;
use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};

use crate::{
    extract::CompiledProfile,
    select::{Namespaces, Selection, queries},
    store::{Sight, StoreWriter},
    watch::{Blindness, Event, Metadata, Object, Query, Scope, WatchSource},
};

/// A target, ready to collect.
pub struct Target {
    /// Which target.
    pub id: TargetId,
    /// What it extracts.
    pub profile: Arc<CompiledProfile>,
    /// What it selects.
    pub selection: Selection,
}

/// Something that a run could not see or read.
#[derive(Debug)]
pub enum Problem {
    /// A kind, or a part of it, cannot be seen.
    Blind {
        /// The kind.
        gvk: Gvk,
        /// What, and why.
        blindness: Blindness,
    },
    /// Namespaces cannot be listed, and the target's selection depends on them.
    Undecided {
        /// The target.
        target: TargetId,
        /// The kind.
        gvk: Gvk,
    },
    /// An attribute of an object has another type than declared; it is null.
    TypeMismatch {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
        /// The attributes.
        attributes: Vec<String>,
    },
    /// An object could not be read; it has no row.
    Unreadable {
        /// The target.
        target: TargetId,
        /// `namespace/name` of the object.
        object: String,
        /// Why.
        error: crate::extract::ExtractError,
    },
}

/// What is known about the namespaces of a source.
pub async fn namespaces(source: &dyn WatchSource) -> Result<Namespaces, Blindness> {
    let gvk = Gvk { group: String::new(), version: "v1".into(), kind: "Namespace".into() };
    let mut events = source.watch(Query {
        gvk,
        scope: Scope::All,
        label_selector: None,
        name: None,
        field_selector: None,
    });
    let mut namespaces = Namespaces { complete: true, ..Namespaces::default() };
    while let Some(event) = events.next().await {
        match event {
            Event::Apply(object) => {
                namespaces.known.insert(object.metadata.name.to_string(), object.metadata);
            }
            Event::Delete(metadata) => {
                namespaces.known.remove(&*metadata.name);
            }
            Event::Blind(blindness) => return Err(blindness),
            Event::Synced { .. } => {}
        }
    }
    Ok(namespaces)
}

/// What is known about targets and kinds that a run was not asked for. `only`: the run looked at one
/// namespace.
pub fn rest(source: &dyn WatchSource, only: Option<&str>) -> Sight {
    match only {
        _ if !source.is_complete() => Sight::Partial,
        Some(namespace) => Sight::Namespace(namespace.to_owned()),
        None => Sight::Everything,
    }
}

/// Reads everything that the targets select, once, into an empty store. `only` restricts the run to
/// one namespace; `problem` hears what could not be seen.
pub async fn collect(
    source: &dyn WatchSource,
    targets: &[Target],
    namespaces: &Namespaces,
    only: Option<&str>,
    store: &mut StoreWriter,
    mut problem: impl FnMut(Problem),
) {
    let selections: Vec<&Selection> = targets.iter().map(|target| &target.selection).collect();
    let queries = queries(&selections, only);
    let queries: Vec<(Query, Vec<&Target>)> = queries
        .into_iter()
        .map(|(query, served)| (query, served.into_iter().map(|index| &targets[index]).collect()))
        .collect();
    for (query, targets) in &queries {
        targets.iter().for_each(|target| store.expect(&target.id, &query.gvk));
    }
    // Versions of a kind share their rows, and so do several queries of one kind.
    let mut sights: BTreeMap<(&TargetId, &str, &str), (Sight, &Gvk)> = BTreeMap::new();
    for (query, targets) in &queries {
        let end = run(source, query, targets, namespaces, store, &mut problem).await;
        for target in targets {
            let sight = match undecided(target, query, namespaces) && end.namespaced != Some(false) {
                true => {
                    problem(Problem::Undecided { target: target.id.clone(), gvk: query.gvk.clone() });
                    Sight::Partial
                }
                false if source.is_complete() => end.sight(only),
                false => Sight::Partial,
            };
            // What any of them did not see was not seen.
            sights
                .entry((&target.id, &query.gvk.group, &query.gvk.kind))
                .and_modify(|(known, _)| {
                    if *known != sight {
                        *known = Sight::Partial;
                    }
                })
                .or_insert((sight, &query.gvk));
        }
    }
    for ((target, ..), (sight, gvk)) in sights {
        store.set_sight(target, gvk, sight);
    }
}

/// Whether namespaces that cannot be listed decide what the target selects. Those that a spec names
/// are taken to exist; their labels are not known.
fn undecided(target: &Target, query: &Query, namespaces: &Namespaces) -> bool {
    !namespaces.complete && (query.scope == Scope::All || !target.selection.needs_only_names())
}

/// How a query ended.
#[derive(Default)]
struct End {
    /// Whether the kind lives in namespaces; known when everything that can be seen has been seen.
    namespaced: Option<bool>,
    blind: Vec<Blindness>,
}

impl End {
    /// What is known now. That a spec names namespaces is knowledge about all others.
    fn sight(&self, only: Option<&str>) -> Sight {
        let dark: Option<BTreeSet<String>> = self.blind.iter().map(|b| b.namespace.clone()).collect();
        match (self.namespaced, dark, only) {
            (Some(true), Some(dark), Some(only)) if !dark.contains(only) => Sight::Namespace(only.to_owned()),
            (Some(true), Some(dark), None) => Sight::AllBut(dark),
            (Some(false), Some(dark), _) if dark.is_empty() => Sight::Everything,
            _ => Sight::Partial,
        }
    }
}

/// Follows one query to its end.
async fn run(
    source: &dyn WatchSource,
    query: &Query,
    targets: &[&Target],
    namespaces: &Namespaces,
    store: &mut StoreWriter,
    problem: &mut impl FnMut(Problem),
) -> End {
    let mut end = End::default();
    let mut events = source.watch(query.clone());
    while let Some(event) = events.next().await {
        match event {
            Event::Apply(object) => {
                for target in targets {
                    apply(target, query, &object, namespaces, store, problem);
                }
            }
            Event::Delete(metadata) => {
                targets.iter().for_each(|target| store.remove(&target.id, &metadata.uid));
            }
            Event::Synced { namespaced } => end.namespaced = Some(namespaced),
            Event::Blind(blindness) => {
                problem(Problem::Blind { gvk: query.gvk.clone(), blindness: blindness.clone() });
                end.blind.push(blindness);
            }
        }
    }
    end
}

/// One object and one target: a row, or none.
fn apply(
    target: &Target,
    query: &Query,
    object: &Object,
    namespaces: &Namespaces,
    store: &mut StoreWriter,
    problem: &mut impl FnMut(Problem),
) {
    let metadata = &object.metadata;
    // An object that one query's rules leave out may be selected by another's: nothing is removed here.
    let selected = target.selection.verdict(query, object, namespaces).is_ok();
    if !selected || !metadata.namespace.is_empty() && undecided(target, query, namespaces) {
        return;
    }
    let place = || place(metadata);
    match target.profile.extract(&query.gvk, &object.raw, namespaces.known.get(&*metadata.namespace)) {
        Ok(extracted) => {
            if !extracted.mismatches.is_empty() {
                let attributes = extracted.mismatches;
                problem(Problem::TypeMismatch { target: target.id.clone(), object: place(), attributes });
            }
            let key = RowKey {
                target: target.id.clone(),
                group: query.gvk.group.as_str().into(),
                kind: query.gvk.kind.as_str().into(),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
            };
            let version = query.gvk.version.as_str().into();
            store.upsert(Row::new(key, version, metadata.name.clone(), extracted.attributes));
        }
        Err(error) => {
            problem(Problem::Unreadable { target: target.id.clone(), object: place(), error });
        }
    }
}

fn place(metadata: &Metadata) -> String {
    match &*metadata.namespace {
        "" => metadata.name.to_string(),
        namespace => format!("{namespace}/{}", metadata.name),
    }
}
