//! How much of a kind has been seen, and which absent rows are therefore known to be gone.

use std::{collections::BTreeSet, sync::Arc};

use kollect_model::row::RowKey;

use crate::select::BeyondReach;

/// How much of a kind has been seen for a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Nothing yet.
    Pending,
    /// Everything: what is absent does not exist.
    Everything,
    /// The kind is not served: it has no objects. Nothing has been listed.
    Absent,
    /// Everything except in these namespaces.
    AllBut(BTreeSet<Arc<str>>),
    /// Everything in these namespaces, and cluster-scoped objects not at all.
    Within(BTreeSet<Arc<str>>),
    /// Some objects: an absent row proves nothing.
    Partial,
    /// As `seen`, for what is within the reach of the target.
    WithinReach {
        /// How much has been seen, as if the reach had no limit.
        seen: Box<Self>,
        /// What is not collected.
        beyond: Arc<BeyondReach>,
    },
}

impl Visibility {
    /// Limits the visibility to what is within the reach of the target.
    pub(crate) fn limited_by(self, beyond: Option<BeyondReach>) -> Self {
        match beyond {
            None => self,
            Some(_) if matches!(self, Self::Pending | Self::Absent | Self::Partial) => self,
            Some(beyond) => Self::WithinReach { seen: Box::new(self), beyond: Arc::new(beyond) },
        }
    }

    /// How much has been seen of what is within the reach of the target.
    pub fn within_reach(&self) -> &Self {
        match self {
            Self::WithinReach { seen, .. } => seen,
            seen => seen,
        }
    }

    /// What is not collected, because it is beyond the reach of the target.
    pub fn beyond(&self) -> Option<&BeyondReach> {
        match self {
            Self::WithinReach { beyond, .. } => Some(beyond),
            _ => None,
        }
    }

    /// Whether objects have been listed, in some namespaces at least.
    pub(super) fn is_listed(&self) -> bool {
        !matches!(self.within_reach(), Self::Pending | Self::Absent | Self::Partial)
    }

    /// Whether an absent row with this key is known to be gone.
    pub(crate) fn covers(&self, key: &RowKey) -> bool {
        match self {
            Self::Everything | Self::Absent => true,
            Self::AllBut(names) => !names.contains(&key.namespace),
            Self::Within(names) => names.contains(&key.namespace),
            Self::Pending | Self::Partial => false,
            Self::WithinReach { seen, beyond } => seen.covers(key) && !beyond.contains(&key.namespace),
        }
    }
}

/// Whether a row of a kind that its target no longer selects is gone: every kind that the target selects now has been
/// listed where the object of the row was. `wanted` has the visibility of each. A kind that is not served, may not be
/// listed or is still being listed replaces no rows: a target whose kind was mistyped keeps its rows.
pub(super) fn is_replaced<'a>(key: &RowKey, mut wanted: impl Iterator<Item = &'a Visibility>) -> bool {
    wanted.all(|visibility| match &*key.namespace {
        // Rows of cluster-scoped objects are replaced by kinds that have been listed in the whole cluster.
        "" => {
            *visibility.within_reach() == Visibility::Everything
                && visibility.beyond() != Some(&BeyondReach::Kind)
        }
        _ => visibility.is_listed() && visibility.covers(key),
    })
}
