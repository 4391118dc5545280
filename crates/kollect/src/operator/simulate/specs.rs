//! The specs of the objects of a cluster: what should be collected, and which destinations it should be written to.

use serde_json::Value;

use super::{
    api_server::{ApiServer, SimulatedKind, StoredObject, kind_of},
    schedule::COLLECTED_KINDS,
    sink_servers::destination_of,
};

/// The namespace of the objects of Kollect.
pub(super) const TEAM: &str = "team";
/// The only KollectScope.
pub(super) const SCOPE: &str = "scope";
/// The label that namespace selectors match.
pub(super) const LABEL: &str = "collect";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InventorySpecs {
    pub(super) sinks: Vec<String>,
    /// Empty: all.
    targets: Vec<String>,
}

impl InventorySpecs {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self { sinks: texts(&spec["databaseSinkRefs"]), targets: texts(&spec["targetRefs"]) }
    }

    pub(super) fn has_target(&self, name: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| target == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SinkSpecs {
    pub(super) destination: String,
    pub(super) cluster: String,
}

impl SinkSpecs {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            destination: destination_of(text(&spec["sqlite"]["path"])).to_owned(),
            cluster: text(&spec["cluster"]).to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetSpecs {
    pub(super) profile: String,
    /// Empty: all.
    namespaces: Vec<String>,
    /// Whether it selects labelled namespaces only.
    only_labelled: bool,
    pub(super) suspended: bool,
}

impl TargetSpecs {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            profile: text(&spec["profileRef"]).to_owned(),
            namespaces: texts(&spec["includedNamespaces"]),
            only_labelled: spec.get("namespaceSelector").is_some(),
            suspended: spec["suspend"] == true,
        }
    }

    /// Whether it selects a namespace; `None`: there is no such namespace.
    pub(super) fn selects(&self, name: &str, namespace: Option<NamespaceSpecs>) -> bool {
        let Some(namespace) = namespace else { return false };
        (self.namespaces.is_empty() || self.namespaces.iter().any(|listed| listed == name))
            && (!self.only_labelled || namespace.is_labelled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceSpecs {
    is_labelled: bool,
}

impl NamespaceSpecs {
    pub(super) fn of(object: &Value) -> Self {
        Self { is_labelled: object["metadata"]["labels"][LABEL] == "yes" }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfileSpecs {
    pub(super) kind: String,
    pub(super) has_two_attributes: bool,
}

impl ProfileSpecs {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            kind: text(&spec["targetGVK"]["kind"]).to_owned(),
            has_two_attributes: spec["attributes"].as_array().is_some_and(|all| all.len() > 1),
        }
    }

    /// `None`: there is no such kind.
    pub(super) fn collected_kind(&self) -> Option<&'static SimulatedKind> {
        COLLECTED_KINDS.into_iter().filter_map(kind_of).find(|resource| resource.kind == self.kind)
    }
}

/// A scope, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScopeSpecs {
    /// It cannot be read: nothing is collected.
    Unreadable,
    Readable {
        denied: Vec<String>,
        /// Empty: all.
        allowed: Vec<String>,
    },
}

impl ScopeSpecs {
    pub(super) fn of(object: Option<&StoredObject>) -> Self {
        let Some(object) = object else { return Self::Readable { denied: Vec::new(), allowed: Vec::new() } };
        let spec = &object["spec"];
        if spec["deniedNamespaces"].is_string() {
            return Self::Unreadable;
        }
        Self::Readable {
            denied: texts(&spec["deniedNamespaces"]),
            allowed: texts(&spec["allowedNamespaces"]),
        }
    }

    /// Whether a namespace may be collected from; `None`: that cannot be known.
    pub(super) fn permits(&self, namespace: &str) -> Option<bool> {
        let Self::Readable { denied, allowed } = self else { return None };
        let is_in = |list: &[String]| list.iter().any(|listed| listed == namespace);
        Some(!is_in(denied) && (allowed.is_empty() || is_in(allowed)))
    }

    /// The scope of a cluster.
    pub(super) fn now(api: &ApiServer) -> Self {
        Self::of(api.object("kollectscopes", TEAM, SCOPE).as_deref())
    }
}

/// The name of an object.
pub(super) fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|value| text(value).to_owned()).collect()
}
