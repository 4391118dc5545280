//! The seam through which objects come in: one event stream per query.
//!
//! A live cluster, a one-shot list and a set of files are sources; the engine cannot tell them apart.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::stream::BoxStream;
use kollect_model::crd::shapes::Gvk;
use serde::Deserialize;
use serde_json::value::RawValue;

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Query {
    /// Kind.
    pub gvk: Gvk,
    /// Where.
    pub scope: Scope,
    /// Label selector for the API server; an object that it leaves out is wanted by nobody.
    pub label_selector: Option<String>,
    /// The only name that anybody wants.
    pub name: Option<String>,
    /// Field selector for the API server.
    pub field_selector: Option<String>,
}

/// Where to watch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// The whole cluster.
    All,
    /// These namespaces.
    Namespaces(BTreeSet<String>),
}

impl Scope {
    /// Whether objects of the namespace are in scope. Cluster-scoped objects are in scope of
    /// [`Scope::All`] only.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(names) => names.contains(namespace),
        }
    }
}

/// What happened to the objects of a query.
#[derive(Debug)]
pub enum Event {
    /// The object exists and looks like this.
    Apply(Object),
    /// The object is gone.
    Delete(Metadata),
    /// Everything that exists in the query's scope has been sent.
    Synced {
        /// Whether the kind lives in namespaces.
        namespaced: bool,
    },
    /// A part of the query cannot be seen.
    Blind(Blindness),
}

/// A part of a query that cannot be seen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blindness {
    /// The namespace concerned; `None`: the whole query.
    pub namespace: Option<String>,
    /// Class of the reason.
    pub reason: BlindReason,
    /// What was tried and what came back.
    pub message: String,
}

/// Why something cannot be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlindReason {
    /// Listing is not permitted.
    Forbidden,
    /// The API server does not serve the kind.
    NotServed,
    /// The API server failed.
    Failed,
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
        #[derive(Deserialize)]
        struct Envelope {
            metadata: Metadata,
        }
        let Envelope { mut metadata } = serde_json::from_str(raw.get())?;
        if metadata.uid.is_empty() {
            let group = &gvk.group;
            metadata.uid = format!("{group}/{}/{}/{}", gvk.kind, metadata.namespace, metadata.name).into();
        }
        Ok(Self { metadata, raw })
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
    /// Labels.
    #[serde(deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(deserialize_with = "null_as_default")]
    pub annotations: BTreeMap<String, String>,
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Where objects come from.
pub trait WatchSource: Send + Sync {
    /// Everything in the query's scope, then what changes. A source that cannot follow changes ends
    /// after [`Event::Synced`] or [`Event::Blind`].
    fn watch(&self, query: Query) -> BoxStream<'_, Event>;

    /// Whether the end of a stream means that everything there is has been seen. Files say nothing
    /// about objects that they do not contain.
    fn is_complete(&self) -> bool;
}
