//! One target of the kind: makes its rows from the objects of the kind.

use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kollect_model::row::{Row, RowKey, TargetId};

use super::{
    ResolvedKind,
    feed::ListedUids,
    order::{ListedQuery, QueryMatches, deletes},
};
use crate::{
    collect::{CollectContext, CollectProblem, Target},
    extract::{CompiledProfile, ExtractError, Extracted, ProfileNeeds},
    select::{NamespaceEffect, Namespaces, QueryTarget, RejectingClause, same_metadata},
    store::{KindRows, NullCause, RowNotes, RowOrigin, Visibility},
    watch::{Metadata, Object, Query},
};

pub(super) struct KindTarget {
    target: Arc<Target>,
    rows: KindRows,
    /// Rows of earlier definitions, or outdated ones, may still be there.
    stale: bool,
    /// `None`: only one query can return an object.
    matches: Option<QueryMatches>,
    undecided: bool,
    /// The visibility that the store has; `None`: nothing has been seen yet.
    visibility: Option<Visibility>,
    notes: SharedNotes,
}

/// Notes of rows, each stored once: rows of a target have few different ones.
#[derive(Default)]
struct SharedNotes(BTreeSet<Arc<RowNotes>>);

/// More different notes than this are not shared.
const SHARED_NOTES: usize = 256;

impl SharedNotes {
    fn shared(&mut self, notes: &RowNotes) -> Option<Arc<RowNotes>> {
        if notes.is_empty() {
            return None;
        }
        if let Some(known) = self.0.get(notes) {
            return Some(known.clone());
        }
        let new = Arc::new(notes.clone());
        if self.0.len() < SHARED_NOTES {
            self.0.insert(new.clone());
        }
        Some(new)
    }
}

impl KindTarget {
    pub(super) fn new(context: &CollectContext, kind: &ResolvedKind, target: &Arc<Target>) -> Self {
        Self {
            target: target.clone(),
            rows: context.store.rows(&target.id, &kind.gvk).for_definition(target.definition),
            stale: true,
            matches: target.selection.has_several_field_selectors(&kind.gvk).then(QueryMatches::default),
            undecided: false,
            visibility: None,
            notes: SharedNotes::default(),
        }
    }

    pub(super) fn id(&self) -> &TargetId {
        &self.target.id
    }

    pub(super) fn definition(&self) -> u32 {
        self.target.definition
    }

    pub(super) fn has_several_field_selectors(&self) -> bool {
        self.matches.is_some()
    }

    /// The target, for the plan.
    pub(super) fn member(&self) -> QueryTarget<'_> {
        let metadata_only = self.target.profile.needs() == ProfileNeeds::MetadataOnly;
        QueryTarget { number: self.definition(), selection: &self.target.selection, metadata_only }
    }

    /// The version of the object's row or failure, if this definition has made it. An undecided object counts as older.
    pub(super) fn version(&self, uid: &str) -> Option<u64> {
        let origin = self.rows.origin(uid).filter(|origin| origin.is_of(self.definition()))?;
        // Another query may decide about the same version.
        let is_undecided = self.rows.is_undecided(uid);
        Some(if is_undecided { origin.version.saturating_sub(1) } else { origin.version })
    }

    /// Whether the object has a row or a failure, of any definition.
    pub(super) fn knows(&self, uid: &str) -> bool {
        self.rows.origin(uid).is_some()
    }

    /// Checks whether the query selects an object whose row was made from this version.
    pub(super) fn reselect(&mut self, query: &Query, object: &Object, namespaces: &Namespaces) {
        if let Some(matches) = &mut self.matches {
            match self.target.selection.check(query, object, namespaces) {
                Ok(()) => matches.add(&object.metadata, query),
                Err(RejectingClause::BeyondReach | RejectingClause::Undecided) => {}
                Err(_) => drop(self.remove_match(&object.metadata.uid, query, object.metadata.version)),
            }
        }
    }

    /// Makes a row or a failure of an object, or removes them if it is not selected. Returns whether a row changed.
    pub(super) fn read(
        &mut self,
        context: &CollectContext,
        kind: &ResolvedKind,
        namespaces: &Namespaces,
        query: &Query,
        object: &Object,
        extractions: &mut Extractions,
    ) -> bool {
        let metadata = &object.metadata;
        let selected = self.target.selection.check(query, object, namespaces);
        match selected {
            Ok(()) | Err(RejectingClause::Undecided) => {}
            // Rows beyond the reach of the target stay as they were.
            Err(RejectingClause::BeyondReach) => return false,
            Err(_) => return self.remove_match(&metadata.uid, query, metadata.version),
        }
        let Target { id, profile, .. } = &*self.target;
        let namespace = namespaces.known.get_key_value(&metadata.namespace);
        let key = RowKey {
            target: id.clone(),
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            // All rows share the names of namespaces.
            namespace: namespace.map_or_else(|| metadata.namespace.clone(), |(name, _)| name.clone()),
            uid: metadata.uid.clone(),
        };
        let origin = RowOrigin { version: metadata.version, definition: self.definition(), outdated: false };
        if let Some(matches) = &mut self.matches {
            matches.add(metadata, query);
        }
        if selected.is_err() {
            if self.rows.undecide(key, metadata.name.clone(), origin) {
                let (target, object) = (id.clone(), path(metadata));
                (context.report)(CollectProblem::ObjectUndecided { target, object });
            }
            return false;
        }
        let extraction = extractions.of(profile, || {
            profile.extract(&kind.gvk, &object.raw, namespace.map(|(_, metadata)| &**metadata))
        });
        match extraction {
            Ok(extracted) => {
                let attributes = extracted.attributes.clone();
                let row = Row::new(key, kind.version.clone(), metadata.name.clone(), attributes);
                let notes = self.notes.shared(&extracted.notes).map(|notes| (notes, &extracted.examples));
                let changed = self.rows.upsert(row, origin, notes);
                // Problems of an unchanged row have been reported before.
                if changed {
                    report_attributes(context, id, metadata, extracted);
                }
                changed
            }
            Err(error) => {
                let object = path(metadata);
                let failed = self.rows.fail(key, origin, format!("{object}: {error}"));
                if failed.is_new {
                    let target = id.clone();
                    (context.report)(CollectProblem::RowDropped { target, object, error: error.clone() });
                }
                failed.removed_row
            }
        }
    }

    /// The query does not return the object at this version. Returns whether a row was removed.
    fn remove_match(&mut self, uid: &str, query: &Query, version: u64) -> bool {
        self.matches.as_mut().is_none_or(|matches| matches.remove(uid, query, version))
            && self.rows.remove(uid)
    }

    /// The object is gone, or has left the query.
    pub(super) fn delete(
        &mut self,
        kind: &ResolvedKind,
        namespaces: &Namespaces,
        query: &Query,
        object: &Metadata,
    ) {
        if self.target.selection.is_beyond_reach(&kind.gvk, object, namespaces) {
            return;
        }
        let known = || self.rows.origin(&object.uid).map(|origin| origin.version);
        // If several queries may return the object, their matches decide whether its row stays.
        let matched = self.matches.as_ref().is_some_and(|matches| matches.contains(&object.uid));
        if matched || deletes(object.version, known()) {
            self.remove_match(&object.uid, query, object.version);
        }
    }

    /// The objects with rows of this definition that a complete list proves gone.
    fn proven_gone(&self, listed: &ListedQuery, listed_uids: &ListedUids) -> Vec<Arc<str>> {
        self.rows.find(|key, origin| {
            origin.is_of(self.definition())
                && listed.proves_gone(key, origin.version, self.matches.as_ref())
                && !listed_uids.contains(&key.uid)
        })
    }

    /// Removes rows that a complete list proves gone. Returns their number.
    pub(super) fn prune(&mut self, listed: &ListedQuery, listed_uids: &ListedUids) -> u64 {
        let uids = self.proven_gone(listed, listed_uids);
        uids.iter().map(|uid| u64::from(self.remove_match(uid, &listed.query, listed.version))).sum()
    }

    /// Whether this version of an object in the list of a comparison is missing here. Rows of earlier definitions do
    /// not count: rows beyond the reach of the target stay as they were.
    pub(super) fn misses(&self, query: &Query, object: &Object, namespaces: &Namespaces) -> bool {
        match self.rows.origin(&object.metadata.uid) {
            Some(origin) => origin.is_of(self.definition()) && origin.version < object.metadata.version,
            // A policy may read fields that are not in the metadata, so its result does not count.
            None => {
                let selected = self.target.selection.check(query, object, namespaces);
                matches!(selected, Ok(()) | Err(RejectingClause::Policy | RejectingClause::Undecided))
            }
        }
    }

    /// The objects with rows that a comparison did not list, and that are not newer than it.
    pub(super) fn extra(&self, listed: &ListedQuery, listed_uids: &ListedUids) -> Vec<Arc<str>> {
        let mut extra = self.proven_gone(listed, listed_uids);
        extra.retain(|uid| self.version(uid).is_some_and(|version| version <= listed.version));
        extra
    }

    /// Whether a difference still exists: no row or an older one, or for version 0 any row at all.
    pub(super) fn still_differs(&self, uid: &str, version: u64) -> bool {
        let origin = self.rows.origin(uid);
        if version == 0 { origin.is_some() } else { origin.is_none_or(|origin| origin.version < version) }
    }

    /// How a change of a namespace affects the rows.
    pub(super) fn effect(
        &self,
        kind: &ResolvedKind,
        name: &str,
        old: Option<&Metadata>,
        new: Option<&Metadata>,
    ) -> NamespaceEffect {
        let Target { selection, profile, .. } = &*self.target;
        let reads = || new.is_some() && profile.reads_namespace() && !same_metadata(old, new);
        match selection.effect(&kind.gvk, name, old, new) {
            NamespaceEffect::None if reads() => NamespaceEffect::Other,
            effect => effect,
        }
    }

    /// Removes the rows of a namespace of which no object is selected any more.
    pub(super) fn remove_namespace(&mut self, name: &str) {
        for uid in self.rows.find(|key, _| &*key.namespace == name) {
            self.matches.iter_mut().for_each(|matches| matches.forget(&uid));
            self.rows.remove(&uid);
        }
    }

    /// No feed can read the namespace now: the next one that can makes its rows again.
    pub(super) fn outdate_namespace(&mut self, name: &str) {
        self.rows.outdate(Some(name));
        self.stale = true;
    }

    /// Removes all rows: the kind does not exist.
    pub(super) fn remove_all(&mut self) {
        self.rows.clear();
        self.matches.iter_mut().for_each(QueryMatches::clear);
    }

    /// Resource versions went back: all rows are made again, and until then nothing counts as seen.
    pub(super) fn start_over(&mut self) {
        self.rows.outdate(None);
        (self.stale, self.visibility) = (true, None);
        self.matches.iter_mut().for_each(QueryMatches::clear);
    }

    /// Sets whether the selection depends on namespaces that could not be listed. Returns whether to report it.
    pub(super) fn set_undecided(&mut self, undecided: bool) -> bool {
        undecided && !std::mem::replace(&mut self.undecided, undecided)
    }

    /// Reports to the store how much has been seen within the reach of the target, and removes rows that only earlier
    /// definitions made. `is_complete`: everything that the collector covers has been listed.
    pub(super) fn set_visibility(
        &mut self,
        seen: Visibility,
        is_complete: bool,
        kind: &ResolvedKind,
        namespaces: &Namespaces,
    ) {
        let visibility = match &self.visibility {
            // What was seen before stays valid while a list runs again.
            Some(known) if seen == Visibility::Pending => known.clone(),
            _ => seen.limited_by(self.target.selection.beyond(&kind.gvk, kind.is_namespaced(), namespaces)),
        };
        self.visibility = (visibility != Visibility::Pending).then(|| visibility.clone());
        if self.stale && !matches!(visibility, Visibility::Pending | Visibility::Partial) {
            let definition = self.definition();
            self.rows.remove_where(|key, origin| !origin.is_of(definition) && visibility.covers(key));
            self.stale = !matches!(visibility, Visibility::Everything | Visibility::Absent);
        }
        self.rows.set_visibility(visibility);
        if is_complete {
            self.rows.complete();
        }
    }
}

fn path(metadata: &Metadata) -> String {
    match &*metadata.namespace {
        "" => metadata.name.to_string(),
        namespace => format!("{namespace}/{}", metadata.name),
    }
}

/// Reports attributes that are not of the declared type, and the places where something was redacted.
fn report_attributes(context: &CollectContext, id: &TargetId, metadata: &Metadata, extracted: &Extracted) {
    for null in extracted.notes.nulls.iter().filter(|null| null.cause == NullCause::TypeMismatch) {
        let found = extracted.examples.iter().find(|(name, _)| *name == null.name);
        (context.report)(CollectProblem::TypeMismatch {
            target: id.clone(),
            object: path(metadata),
            attribute: null.name.clone(),
            found: found.map(|(_, found)| found.clone()).unwrap_or_default(),
            types: null.types.unwrap_or_default(),
        });
    }
    if !extracted.places.is_empty() {
        let (target, object) = (id.clone(), path(metadata));
        (context.report)(CollectProblem::Redacted { target, object, places: extracted.places.clone() });
    }
}

type Extraction = Result<Extracted, ExtractError>;

/// What the profiles extract from one object: each reads it once, however many targets use the profile.
#[derive(Default)]
pub(super) struct Extractions(Vec<(*const CompiledProfile, Extraction)>);

impl Extractions {
    fn of(
        &mut self,
        profile: &Arc<CompiledProfile>,
        extract: impl FnOnce() -> Result<Extracted, ExtractError>,
    ) -> &Extraction {
        let pointer = Arc::as_ptr(profile);
        let index = self.0.iter().position(|(known, _)| *known == pointer).unwrap_or_else(|| {
            // A panic on one object must not stop the kind.
            let result = catch_unwind(AssertUnwindSafe(extract)).unwrap_or(Err(ExtractError::Panicked));
            self.0.push((pointer, result));
            self.0.len() - 1
        });
        &self.0[index].1
    }
}
