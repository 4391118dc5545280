//! The loop: an event comes in, a row or a removal goes to the store.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt;
use kollect_model::{
    crd::shapes::Gvk,
    row::{Row, RowKey, TargetId},
};

use crate::{
    extract::CompiledProfile,
    select::{Namespaces, Selection},
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
    let mut events = source.watch(Query { gvk, scope: Scope::All, field_selector: None });
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

/// Reads everything that the targets select, once. `only` restricts the run to one namespace;
/// `problem` hears what could not be seen.
pub async fn collect(
    source: &dyn WatchSource,
    targets: &[Target],
    namespaces: &Namespaces,
    only: Option<&str>,
    store: &mut StoreWriter,
    mut problem: impl FnMut(Problem),
) {
    let mut queries: BTreeMap<Query, Vec<&Target>> = BTreeMap::new();
    for target in targets {
        for query in target.selection.queries(only) {
            store.expect(&target.id, &query.gvk);
            queries.entry(query).or_default().push(target);
        }
    }
    let mut sights: BTreeMap<(&TargetId, &Gvk), Sight> = BTreeMap::new();
    for (query, targets) in &queries {
        let end = run(source, query, targets, namespaces, store, &mut problem).await;
        for target in targets {
            let decided = namespaces.complete
                || end.synced == Some(false)
                || query.scope != Scope::All && target.selection.needs_only_names();
            let sight = if source.is_complete() && decided { end.sight(query) } else { Sight::Partial };
            if !decided {
                problem(Problem::Undecided { target: target.id.clone(), gvk: query.gvk.clone() });
            }
            // Several queries of one kind: what any of them did not see was not seen.
            sights
                .entry((&target.id, &query.gvk))
                .and_modify(|known| {
                    if *known != sight {
                        *known = Sight::Partial;
                    }
                })
                .or_insert(sight);
        }
    }
    for ((target, gvk), sight) in sights {
        store.set_sight(target, gvk, sight);
    }
}

/// How a query ended.
#[derive(Default)]
struct End {
    /// Whether everything else has been seen, and if so, whether the kind lives in namespaces.
    synced: Option<bool>,
    blind: Vec<Blindness>,
}

impl End {
    fn sight(&self, query: &Query) -> Sight {
        match (self.synced, &query.scope) {
            (Some(true), Scope::Namespaces(names)) => {
                let dark =
                    |name: &String| self.blind.iter().any(|b| b.namespace.as_ref().is_none_or(|n| n == name));
                Sight::Namespaces(names.iter().filter(|name| !dark(name)).cloned().collect())
            }
            (Some(_), _) if self.blind.is_empty() => Sight::Everything,
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
            Event::Synced { namespaced } => end.synced = Some(namespaced),
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
    if target.selection.verdict(query, metadata, namespaces).is_err() {
        store.remove(&target.id, &metadata.uid);
        return;
    }
    let place = || place(metadata);
    match target.profile.extract(&query.gvk, &object.raw) {
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
            store.remove(&target.id, &metadata.uid);
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
