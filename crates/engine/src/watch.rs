//! The interface through which objects come in: one event stream per query.
//!
//! A live cluster, a one-shot list and a set of files are sources; the engine treats them alike.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use futures::stream::BoxStream;
use kollect_model::crd::shapes::Gvk;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use tokio::sync::watch;

/// What to watch: one kind, in one namespace or everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Query {
    /// Kind.
    pub gvk: Gvk,
    /// The namespace; `None`: the whole cluster.
    pub namespace: Option<Arc<str>>,
    /// Label selector for the API server; no target selects an object that it excludes.
    pub label_selector: Option<String>,
    /// The only object name that the targets select; `None`: there may be several.
    pub name: Option<String>,
    /// Field selector for the API server.
    pub field_selector: Option<String>,
    /// Whether only metadata is read.
    pub metadata_only: bool,
    /// Whether to watch for changes after the list.
    pub follow: bool,
}

impl Query {
    /// All objects of a kind, and their changes.
    pub fn all(gvk: Gvk) -> Self {
        Self {
            gvk,
            namespace: None,
            label_selector: None,
            name: None,
            field_selector: None,
            metadata_only: false,
            follow: true,
        }
    }
}

/// A kind that the source can list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Resource name as in RBAC rules, such as `deployments.apps`.
    pub name: String,
    /// Whether it is namespaced.
    pub namespaced: bool,
}

/// What a source knows about a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It can be listed.
    Served(Resource),
    /// It certainly does not exist: it has no objects.
    Absent,
    /// Whether it has objects is not known.
    Blind(Blindness),
}

/// What happened to the objects of a query.
#[derive(Debug)]
pub enum Event {
    /// A list begins. An object that it does not repeat before [`Event::Synced`] is gone.
    Listing {
        /// How many objects there are, if the source knows.
        total: Option<u64>,
    },
    /// The object exists, in this version.
    Apply(Object),
    /// The object is gone, or the query no longer selects it.
    Delete(Metadata),
    /// The list is complete: every object that existed at this version has been sent.
    Synced {
        /// Resource version of the list; 0: unknown.
        version: u64,
    },
    /// Every event up to this version has been sent.
    Progress {
        /// Resource version.
        version: u64,
    },
    /// Events of the query are not received from now on. Rows stay as they are.
    Blind(Blindness),
    /// Events of the query are received again, and none was missed.
    Resumed,
}

/// Why objects cannot be listed or watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blindness {
    /// The reason, for programs.
    pub reason: BlindReason,
    /// The request and the error, for users.
    pub message: String,
}

/// Why objects cannot be listed or watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlindReason {
    /// Listing is not permitted.
    Forbidden,
    /// The API server does not serve the kind.
    NotServed,
    /// The API server serves the kind in other versions.
    VersionNotServed,
    /// The kind cannot be listed or watched.
    NotListable,
    /// The API server does not accept the query.
    Rejected,
    /// The API server failed.
    Failed,
}

impl fmt::Display for BlindReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An object as the source sent it. It is dropped when it has been read.
#[derive(Debug)]
pub struct Object {
    /// The part of the metadata that selection needs.
    pub metadata: Metadata,
    /// The whole object.
    pub raw: Box<RawValue>,
}

impl Object {
    /// Reads the metadata of an object. An object without a UID gets a stable one from its kind, namespace and name.
    pub fn parse(raw: Box<RawValue>, gvk: &Gvk) -> Result<Self, serde_json::Error> {
        let mut metadata = metadata_of(raw.get())?;
        if metadata.uid.is_empty() {
            let group = &gvk.group;
            metadata.uid = format!("{group}/{}/{}/{}", gvk.kind, metadata.namespace, metadata.name).into();
        }
        Ok(Self { metadata, raw })
    }
}

/// Reads `metadata` and stops there: the rest of the object is larger, and is read once, later.
fn metadata_of(raw: &str) -> Result<Metadata, serde_json::Error> {
    #[derive(Deserialize)]
    #[serde(field_identifier, rename_all = "lowercase")]
    enum Key {
        Metadata,
        #[serde(other)]
        Other,
    }
    struct Seek<'m>(&'m mut Option<Metadata>);
    impl<'de> Visitor<'de> for Seek<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a Kubernetes object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key()? {
                match key {
                    Key::Metadata => {
                        *self.0 = Some(map.next_value()?);
                        // Only an error stops the reading of a map before its end.
                        return Err(A::Error::custom("found"));
                    }
                    Key::Other => map.next_value::<IgnoredAny>().map(drop)?,
                }
            }
            Err(A::Error::missing_field("metadata"))
        }
    }
    let mut found = None;
    let end = serde_json::Deserializer::from_str(raw).deserialize_map(Seek(&mut found));
    match (found, end) {
        (Some(metadata), _) => Ok(metadata),
        (None, end) => Err(end.err().unwrap_or_else(|| serde_json::Error::missing_field("metadata"))),
    }
}

/// The part of an object's metadata that selection needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Name.
    pub name: Arc<str>,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    /// UID.
    pub uid: Arc<str>,
    /// Resource version; 0 when the source has none.
    #[serde(rename = "resourceVersion", deserialize_with = "version")]
    pub version: u64,
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

/// Resource versions of one kind are ordered numbers. A version that is not a number counts as 0.
fn version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Option::<&str>::deserialize(deserializer)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A source of objects, such as a cluster or files.
#[async_trait]
pub trait WatchSource: Send + Sync + 'static {
    /// Whether the kind is served, and as which resource.
    async fn resolve(&self, gvk: &Gvk) -> Resolution;

    /// Whether the query is permitted. The engine does not make queries that must fail.
    async fn permits(&self, query: &Query) -> bool;

    /// Lists all objects of the query, then watches for changes if it follows. A stream ends after [`Event::Synced`]
    /// if it does not follow, and after [`Event::Blind`] if a retry can only succeed once permissions, the served
    /// kinds or the query have changed.
    fn watch(&self, query: Query) -> BoxStream<'static, Event>;

    /// Notified when the served kinds may have changed.
    fn kinds(&self) -> watch::Receiver<u64>;

    /// Whether a complete list proves that objects which it does not contain are gone. Lists of files prove nothing
    /// about objects that they do not contain.
    fn is_complete(&self) -> bool;
}
