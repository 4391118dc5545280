//! The seam through which objects come in: one event stream per query.
//!
//! A live cluster, a one-shot list and a set of files are sources; the engine cannot tell them apart.

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
    /// Label selector for the API server; an object that it leaves out is wanted by nobody.
    pub label_selector: Option<String>,
    /// The only name that anybody wants.
    pub name: Option<String>,
    /// Field selector for the API server.
    pub field_selector: Option<String>,
    /// Whether nobody reads more than metadata.
    pub metadata_only: bool,
    /// Whether changes are wanted after the list.
    pub follow: bool,
}

impl Query {
    /// Everything of a kind.
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
    /// What permissions call it, such as `deployments.apps`.
    pub name: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

/// What a source knows about a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It can be listed.
    Served(Resource),
    /// It certainly does not exist: it has no objects.
    Absent,
    /// Nothing can be said about its objects.
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
    /// The object exists and looks like this.
    Apply(Object),
    /// The object is gone, or the query no longer selects it.
    Delete(Metadata),
    /// Everything that existed at this version has been sent.
    Synced {
        /// Resource version of the list; 0: unknown.
        version: u64,
    },
    /// Everything that happened before this version has been sent.
    Progress {
        /// Resource version.
        version: u64,
    },
    /// The query cannot be seen from now on. What is known stays as it is.
    Blind(Blindness),
    /// The query can be seen again, and nothing was missed.
    Resumed,
}

/// Why something cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blindness {
    /// Class of the reason.
    pub reason: BlindReason,
    /// What was tried and what came back.
    pub message: String,
}

/// Why something cannot be seen.
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

/// An object as it was sent. It lives only while it is being read.
#[derive(Debug)]
pub struct Object {
    /// The part of the metadata that selection needs.
    pub metadata: Metadata,
    /// The whole object.
    pub raw: Box<RawValue>,
}

impl Object {
    /// Reads the metadata of an object. Objects without a UID get a stable one from their place.
    pub fn parse(raw: Box<RawValue>, gvk: &Gvk) -> Result<Self, serde_json::Error> {
        let mut metadata = metadata_of(raw.get())?;
        if metadata.uid.is_empty() {
            let group = &gvk.group;
            metadata.uid = format!("{group}/{}/{}/{}", gvk.kind, metadata.namespace, metadata.name).into();
        }
        Ok(Self { metadata, raw })
    }
}

/// Reads `metadata` and stops there: what follows is most of the object, and is read once, later.
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
                        // Only an error ends a map before its end.
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

/// Versions of one kind are ordered numbers. A source whose versions are not has none.
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

/// Where objects come from.
#[async_trait]
pub trait WatchSource: Send + Sync + 'static {
    /// What the kind is, if it is served.
    async fn resolve(&self, gvk: &Gvk) -> Resolution;

    /// Whether the query may be made. Nobody is bothered with requests that must fail.
    async fn permits(&self, query: &Query) -> bool;

    /// Everything that the query selects, then what changes if it follows. A stream ends after
    /// [`Event::Synced`] if it does not follow, and after [`Event::Blind`] if only a change of
    /// permissions, of the kinds that are served or of the query itself can help.
    fn watch(&self, query: Query) -> BoxStream<'static, Event>;

    /// Changes whenever kinds may have come or gone.
    fn kinds(&self) -> watch::Receiver<u64>;

    /// Whether the end of a list means that everything there is has been seen. Files say nothing
    /// about objects that they do not contain.
    fn is_complete(&self) -> bool;
}
