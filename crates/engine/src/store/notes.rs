//! What is worth knowing about the attributes of rows: those that are null or left out and why, those with redacted values, in how
//! many rows, with examples.

use std::{collections::BTreeMap, sync::Arc};

/// Why an attribute has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NullCause {
    /// The value is not of the declared type.
    TypeMismatch,
    /// The object has no value for it.
    Missing,
    /// The expression failed, and the attribute is optional.
    Failed,
}

impl NullCause {
    /// The word that statuses and metrics use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TypeMismatch => "TypeMismatch",
            Self::Missing => "Missing",
            Self::Failed => "Failed",
        }
    }
}

/// An attribute of a row that has no value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NullAttribute {
    /// Its name.
    pub name: Arc<str>,
    /// Why.
    pub cause: NullCause,
    /// If the value is not of the declared type: the declared type, such as `int`, and what it is, such as `a string`.
    pub types: Option<(&'static str, &'static str)>,
}

/// An attribute of a row with redacted values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RedactedAttribute {
    /// Its name.
    pub name: Arc<str>,
    /// How many of its values are redacted, or texts with a credential that was masked.
    pub values: usize,
}

/// What is worth knowing about the attributes of a row. Rows with the same notes share them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowNotes {
    /// Attributes without a value.
    pub nulls: Vec<NullAttribute>,
    /// Attributes with redacted values.
    pub redactions: Vec<RedactedAttribute>,
}

impl RowNotes {
    /// Whether there is nothing to note.
    pub fn is_empty(&self) -> bool {
        self.nulls.is_empty() && self.redactions.is_empty()
    }

    fn is_mismatched(&self) -> bool {
        self.nulls.iter().any(|null| null.cause == NullCause::TypeMismatch)
    }
}

/// What the object has in place of the value of an attribute: a value of another type, redacted and cut, or why the expression
/// failed. By the name of the attribute.
pub type NullExamples = Vec<(Arc<str>, String)>;

/// How many rows lack a value of an attribute for a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullCount {
    /// Name of the attribute.
    pub attribute: Arc<str>,
    /// Why.
    pub cause: NullCause,
    /// How many rows.
    pub rows: usize,
    /// One of the objects, as `namespace/name`.
    pub object: String,
    /// What that object has instead; empty: not known.
    pub found: String,
    /// As [`NullAttribute::types`] of that object.
    pub types: Option<(&'static str, &'static str)>,
}

/// How many rows have redacted values in an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedactionCount {
    /// Name of the attribute.
    pub attribute: Arc<str>,
    /// How many rows.
    pub rows: usize,
    /// How many values in all of them.
    pub values: usize,
    /// One of the objects, as `namespace/name`.
    pub object: String,
}

/// The counts of one kind.
#[derive(Default)]
pub(super) struct NoteCounts {
    nulls: BTreeMap<(Arc<str>, NullCause), NoteTally>,
    redactions: BTreeMap<Arc<str>, NoteTally>,
    /// Rows with an attribute that is not of the declared type.
    mismatched: usize,
}

/// How many rows have a note.
#[derive(Default)]
pub(super) struct NoteTally {
    pub(super) rows: usize,
    pub(super) values: usize,
    /// UID of an object, and what it has instead of a value; `None`: the last example is gone.
    pub(super) example: Option<(Arc<str>, String)>,
}

impl NoteTally {
    fn add(&mut self, uid: &Arc<str>, values: usize, found: impl FnOnce() -> String) {
        self.rows += 1;
        self.values += values;
        self.example.get_or_insert_with(|| (uid.clone(), found()));
    }

    /// Returns whether no row is left.
    fn remove(&mut self, uid: &Arc<str>, values: usize) -> bool {
        self.rows -= 1;
        self.values -= values;
        self.example.take_if(|(example, _)| example == uid);
        self.rows == 0
    }
}

impl NoteCounts {
    /// Replaces the notes of the row of an object. Returns whether a count or an example has changed.
    pub(super) fn replace(
        &mut self,
        uid: &Arc<str>,
        before: Option<&Arc<RowNotes>>,
        after: Option<&Arc<RowNotes>>,
        examples: &[(Arc<str>, String)],
    ) -> bool {
        if before == after {
            return self.update_examples(uid, examples);
        }
        let is_mismatched = |notes: Option<&Arc<RowNotes>>| notes.is_some_and(|notes| notes.is_mismatched());
        self.mismatched += usize::from(is_mismatched(after));
        self.mismatched -= usize::from(is_mismatched(before));
        if let Some(notes) = before {
            for null in &notes.nulls {
                let key = (null.name.clone(), null.cause);
                if self.nulls.get_mut(&key).is_some_and(|tally| tally.remove(uid, 0)) {
                    self.nulls.remove(&key);
                }
            }
            for redacted in &notes.redactions {
                let tally = self.redactions.get_mut(&redacted.name);
                if tally.is_some_and(|tally| tally.remove(uid, redacted.values)) {
                    self.redactions.remove(&redacted.name);
                }
            }
        }
        if let Some(notes) = after {
            for null in &notes.nulls {
                let found = || {
                    let example = examples.iter().find(|(name, _)| *name == null.name);
                    example.map(|(_, found)| found.clone()).unwrap_or_default()
                };
                self.nulls.entry((null.name.clone(), null.cause)).or_default().add(uid, 0, found);
            }
            for redacted in &notes.redactions {
                let tally = self.redactions.entry(redacted.name.clone()).or_default();
                tally.add(uid, redacted.values, String::new);
            }
        }
        true
    }

    /// Replaces what the object has instead of a value, where it is the example. Returns whether an example has changed.
    fn update_examples(&mut self, uid: &Arc<str>, examples: &[(Arc<str>, String)]) -> bool {
        let mut changed = false;
        for (attribute, found) in examples {
            let causes = [NullCause::TypeMismatch, NullCause::Failed];
            for cause in causes {
                let tally = self.nulls.get_mut(&(attribute.clone(), cause));
                let example =
                    tally.and_then(|tally| tally.example.as_mut()).filter(|(example, _)| example == uid);
                if let Some((_, known)) = example.filter(|(_, known)| known != found) {
                    known.clone_from(found);
                    changed = true;
                }
            }
        }
        changed
    }

    /// How many rows have an attribute that is not of the declared type.
    pub(super) fn mismatched(&self) -> usize {
        self.mismatched
    }

    /// Attribute and cause, with what is counted.
    pub(super) fn nulls(&self) -> impl Iterator<Item = (&Arc<str>, NullCause, &NoteTally)> {
        self.nulls.iter().map(|((name, cause), tally)| (name, *cause, tally))
    }

    /// Attribute, with what is counted.
    pub(super) fn redactions(&self) -> impl Iterator<Item = (&Arc<str>, &NoteTally)> {
        self.redactions.iter()
    }
}
