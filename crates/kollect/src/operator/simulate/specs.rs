//! What the objects of a cluster say, read in the plainest way: what should be collected, and where it should go.

use serde_json::Value;

use super::{
    api_server::{ApiServer, Object, Resource, kind_of},
    schedule::COLLECTED,
    sink_servers::destination_of,
};

/// The namespace of the objects of Kollect.
pub(super) const TEAM: &str = "team";
/// The only KollectScope.
pub(super) const SCOPE: &str = "scope";
/// The label of namespaces that selectors ask for.
pub(super) const LABEL: &str = "collect";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Inventory {
    pub(super) sinks: Vec<String>,
    /// Empty: all.
    targets: Vec<String>,
}

impl Inventory {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self { sinks: texts(&spec["databaseSinkRefs"]), targets: texts(&spec["targetRefs"]) }
    }

    pub(super) fn has_target(&self, name: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|own| own == name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sink {
    pub(super) destination: String,
    pub(super) cluster: String,
}

impl Sink {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            destination: destination_of(text(&spec["sqlite"]["path"])).to_owned(),
            cluster: text(&spec["cluster"]).to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) profile: String,
    /// Empty: all.
    namespaces: Vec<String>,
    /// Whether it wants labelled namespaces only.
    labelled: bool,
    pub(super) suspended: bool,
}

impl Target {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            profile: text(&spec["profileRef"]).to_owned(),
            namespaces: texts(&spec["includedNamespaces"]),
            labelled: spec.get("namespaceSelector").is_some(),
            suspended: spec["suspend"] == true,
        }
    }

    /// Whether it wants a namespace; `None`: there is no such namespace.
    pub(super) fn wants(&self, name: &str, namespace: Option<Namespace>) -> bool {
        let Some(namespace) = namespace else { return false };
        (self.namespaces.is_empty() || self.namespaces.iter().any(|own| own == name))
            && (!self.labelled || namespace.labelled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    labelled: bool,
}

impl Namespace {
    pub(super) fn of(object: &Value) -> Self {
        Self { labelled: object["metadata"]["labels"][LABEL] == "yes" }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) kind: String,
    /// Whether it has two attributes.
    pub(super) twice: bool,
}

impl Profile {
    pub(super) fn of(object: &Value) -> Self {
        let spec = &object["spec"];
        Self {
            kind: text(&spec["targetGVK"]["kind"]).to_owned(),
            twice: spec["attributes"].as_array().is_some_and(|all| all.len() > 1),
        }
    }

    /// What it collects; `None`: there is no such kind.
    pub(super) fn collects(&self) -> Option<&'static Resource> {
        COLLECTED.into_iter().filter_map(kind_of).find(|resource| resource.kind == self.kind)
    }
}

/// A scope, or that there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// It cannot be read: nothing is collected.
    Unreadable,
    Readable {
        denied: Vec<String>,
        /// Empty: all.
        allowed: Vec<String>,
    },
}

impl Scope {
    pub(super) fn of(object: Option<&Object>) -> Self {
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
        let is = |list: &[String]| list.iter().any(|own| own == namespace);
        Some(!is(denied) && (allowed.is_empty() || is(allowed)))
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
