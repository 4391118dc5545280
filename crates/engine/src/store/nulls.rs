//! Attributes that are null or left out: which, why, and in how many rows.

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
    /// Type of the object's value, such as `a string`, if it is not the declared one; otherwise empty.
    pub found: &'static str,
}

/// The attributes of a row that have no value. Rows in which the same ones are missing share one list.
pub type NullAttributes = Arc<[NullAttribute]>;

/// How many rows lack a value of an attribute for a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NullCount {
    /// Name of the attribute.
    pub attribute: Arc<str>,
    /// Why.
    pub cause: NullCause,
    /// How many rows.
    pub rows: usize,
    /// One of the objects, as `namespace/name`, and the type of its value.
    pub example: (String, &'static str),
}

/// The counts of one kind.
#[derive(Default)]
pub(super) struct NullCounts {
    counts: BTreeMap<(Arc<str>, NullCause), NullTally>,
    /// Rows with an attribute that is not of the declared type.
    mismatched: usize,
}

fn is_mismatched(nulls: Option<&NullAttributes>) -> bool {
    nulls.is_some_and(|nulls| nulls.iter().any(|null| null.cause == NullCause::TypeMismatch))
}

struct NullTally {
    rows: usize,
    /// UID of an object; `None`: the last example no longer lacks the value.
    example: Option<Arc<str>>,
}

impl NullCounts {
    /// Replaces the null attributes of the row of an object. Returns whether a count has changed.
    pub(super) fn replace(
        &mut self,
        uid: &Arc<str>,
        before: Option<&NullAttributes>,
        after: Option<&NullAttributes>,
    ) -> bool {
        if before == after {
            return false;
        }
        self.mismatched += usize::from(is_mismatched(after));
        self.mismatched -= usize::from(is_mismatched(before));
        for null in before.into_iter().flat_map(|nulls| nulls.iter()) {
            let key = (null.name.clone(), null.cause);
            let Some(count) = self.counts.get_mut(&key) else { continue };
            count.rows -= 1;
            count.example.take_if(|example| example == uid);
            if count.rows == 0 {
                self.counts.remove(&key);
            }
        }
        for null in after.into_iter().flat_map(|nulls| nulls.iter()) {
            let count = self.counts.entry((null.name.clone(), null.cause));
            let count = count.or_insert(NullTally { rows: 0, example: None });
            count.rows += 1;
            count.example.get_or_insert_with(|| uid.clone());
        }
        true
    }

    /// How many rows have an attribute that is not of the declared type.
    pub(super) fn mismatched(&self) -> usize {
        self.mismatched
    }

    /// Attribute, cause, number of rows and UID of an example, if one is known.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, NullCause, usize, Option<&Arc<str>>)> {
        self.counts.iter().map(|((name, cause), count)| (name, *cause, count.rows, count.example.as_ref()))
    }
}
