//! Limits on what a target may collect, whatever its spec selects. Admission, collection and status use them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kollect_model::crd::{scope::ScopeCeiling, shapes::Gvk};

use super::RejectingClause;

/// The bounds of one target. The default has no limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The ceilings of scopes; an object must be allowed by all of them.
    pub ceilings: Vec<ScopeCeiling>,
    /// Namespaces that the target reaches without a scope that names them; `None`: all.
    pub namespaces: Option<BTreeSet<Arc<str>>>,
    /// Whether a scope must name cluster-scoped kinds.
    pub cluster_scoped_by_name: bool,
}

impl Bounds {
    /// Whether scopes allow the kind.
    pub fn permit_kind(&self, gvk: &Gvk) -> bool {
        self.ceilings.iter().all(|ceiling| ceiling.allows_kind(gvk))
    }

    /// Whether the target may be collected from a namespace; `None`: its labels decide, and are not given.
    pub fn permit_namespace(
        &self,
        name: &str,
        labels: Option<&BTreeMap<String, String>>,
    ) -> Option<Result<(), RejectingClause>> {
        let mut undecided = false;
        for ceiling in &self.ceilings {
            match ceiling.allows_namespace(name, labels) {
                Some(true) => {}
                Some(false) => return Some(Err(RejectingClause::NamespaceDenied)),
                None => undecided = true,
            }
        }
        if undecided {
            return None;
        }
        let reached = self.namespaces.as_ref().is_none_or(|names| names.contains(name));
        let named = || self.ceilings.iter().any(ScopeCeiling::names_namespaces);
        // All scopes allow the namespace: one that names namespaces names this one.
        Some(if reached || named() { Ok(()) } else { Err(RejectingClause::BeyondReach) })
    }

    /// Whether cluster-scoped objects of the kind may be collected.
    pub fn permit_cluster_scoped(&self, gvk: &Gvk) -> Result<(), RejectingClause> {
        let limits = |ceiling: &ScopeCeiling| {
            ceiling.names_namespaces() && !ceiling.names_all_namespaces()
                || !ceiling.denied_namespaces.is_empty()
        };
        if self.ceilings.iter().any(|ceiling| ceiling.names_kind(gvk)) {
            Ok(())
        } else if self.ceilings.iter().any(limits) {
            Err(RejectingClause::ClusterScoped)
        } else if self.cluster_scoped_by_name {
            Err(RejectingClause::BeyondReach)
        } else {
            Ok(())
        }
    }

    /// Whether the answer depends on labels of namespaces.
    pub(super) fn read_labels(&self) -> bool {
        self.ceilings.iter().any(|ceiling| ceiling.selector().is_some() && !ceiling.names_all_namespaces())
    }

    /// Whether some namespaces are out of bounds, other than those that a scope denies by name.
    pub(super) fn limit_namespaces(&self) -> bool {
        let limits = |ceiling: &ScopeCeiling| ceiling.names_namespaces() && !ceiling.names_all_namespaces();
        self.ceilings.iter().any(limits) || self.reach().is_some()
    }

    /// The namespaces that are within reach; `None`: all that scopes allow.
    pub fn reach(&self) -> Option<&BTreeSet<Arc<str>>> {
        let named = self.ceilings.iter().any(ScopeCeiling::names_namespaces);
        self.namespaces.as_ref().filter(|_| !named)
    }

    /// Lists of names. A namespace can be within bounds only if every list contains it.
    pub(super) fn named_namespaces(&self) -> Vec<BTreeSet<Arc<str>>> {
        let by_name = |ceiling: &&ScopeCeiling| {
            ceiling.names_namespaces() && !ceiling.names_all_namespaces() && ceiling.selector().is_none()
        };
        let lists = self.ceilings.iter().filter(by_name);
        let lists = lists.map(|c| c.allowed_namespaces.iter().map(|name| name.as_str().into()).collect());
        lists.chain(self.reach().cloned()).collect()
    }
}

/// The part of a selection that is beyond the reach of a target: rows from there stay as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeyondReach {
    /// The whole kind, which is cluster-scoped.
    Kind,
    /// These namespaces.
    Namespaces(BTreeSet<Arc<str>>),
    /// All namespaces but these.
    OtherNamespaces(BTreeSet<Arc<str>>),
}

impl BeyondReach {
    /// Whether objects of the namespace are beyond the reach.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::Kind => true,
            Self::Namespaces(names) => names.contains(namespace),
            Self::OtherNamespaces(names) => !names.contains(namespace),
        }
    }
}
