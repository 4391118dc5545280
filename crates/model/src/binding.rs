//! Names of inventories, of sinks, and of bindings: one inventory together with one of its sinks.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::{CLUSTER_NAMESPACE, InventoryId};

/// The three kinds of sinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// KollectSnapshotSink
    Snapshot,
    /// KollectDatabaseSink
    Database,
    /// KollectEventSink
    Event,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 3] = [Self::Snapshot, Self::Database, Self::Event];

    /// The kind of its sinks.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Snapshot => "KollectSnapshotSink",
            Self::Database => "KollectDatabaseSink",
            Self::Event => "KollectEventSink",
        }
    }

    /// The name of the family in statuses and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Database => "database",
            Self::Event => "event",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An inventory of either kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InventoryName {
    /// Namespace of a KollectInventory; `None` for a KollectClusterInventory.
    pub namespace: Option<String>,
    /// Name of the inventory.
    pub name: String,
}

impl InventoryName {
    /// The kind of the inventory.
    pub fn kind(&self) -> &'static str {
        if self.namespace.is_some() { "KollectInventory" } else { "KollectClusterInventory" }
    }

    /// Whether its namespace is [`CLUSTER_NAMESPACE`], under which sinks store cluster inventories.
    pub fn is_reserved(&self) -> bool {
        self.namespace.as_deref() == Some(CLUSTER_NAMESPACE)
    }

    /// The id of the inventory in a sink whose `spec.cluster` is `cluster`.
    pub fn in_cluster(&self, cluster: &str) -> InventoryId {
        InventoryId {
            cluster: cluster.to_owned(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

impl From<&InventoryId> for InventoryName {
    fn from(id: &InventoryId) -> Self {
        Self { namespace: id.namespace.clone(), name: id.name.clone() }
    }
}

impl fmt::Display for InventoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE), self.name)
    }
}

/// A sink, as an inventory names it: `database/portal`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(with = "String")]
pub enum SinkName {
    /// A sink object.
    Object {
        /// Its family.
        family: Family,
        /// Its name.
        name: String,
    },
    /// A destination of a command line, or a text that names no sink.
    Other(String),
}

impl Default for SinkName {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for SinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object { family, name } => write!(f, "{family}/{name}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl From<String> for SinkName {
    fn from(text: String) -> Self {
        let object = text.split_once('/').and_then(|(word, name)| {
            let family = Family::ALL.into_iter().find(|family| family.as_str() == word)?;
            Some(Self::Object { family, name: name.to_owned() })
        });
        object.unwrap_or(Self::Other(text))
    }
}

impl From<&str> for SinkName {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<SinkName> for String {
    fn from(name: SinkName) -> Self {
        name.to_string()
    }
}

/// One inventory bound to one sink. Sorted names have the bindings of an inventory side by side.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BindingName {
    /// The inventory.
    pub inventory: InventoryName,
    /// The sink.
    pub sink: SinkName,
}

impl fmt::Display for BindingName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.inventory, self.sink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sinks_are_read_back() {
        for (text, family) in [
            ("snapshot/a", Some(Family::Snapshot)),
            ("database/a.b", Some(Family::Database)),
            ("event/a", Some(Family::Event)),
            ("events/a", None),
            ("sqlite:a/b.db", None),
            ("", None),
        ] {
            let name = SinkName::from(text);
            assert_eq!(name.to_string(), text);
            let found = if let SinkName::Object { family, .. } = name { Some(family) } else { None };
            assert_eq!(found, family, "{text}");
        }
    }
}
