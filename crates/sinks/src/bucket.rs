//! Objects of a store in the cloud: read, put under a condition, deleted.
//!
//! What an error says is decided here, by the status and the error code that the server sent: [`answer`]. Requests are never
//! repeated here: a put whose answer was lost may have been applied, and only a comparison can tell.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use kollect_model::sink::{SinkError, SinkReason};
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
    path::Path as Key,
};
use serde::{Deserialize, Serialize};

mod answer;
pub(crate) mod connector;

/// The state of an object: another one after each change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectVersion {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    e_tag: Option<String>,
    /// The generation, in GCS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
}

/// When a put takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PutCondition {
    /// No object has the key.
    IsAbsent,
    /// The object is in this state.
    IsAt(ObjectVersion),
}

/// A put, or the reason that it had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PutOutcome {
    Stored(ObjectVersion),
    /// The condition does not hold.
    Conflict,
}

/// Metadata of an object: which inventory has written it.
const OWNER: &str = "kollect-inventory";

/// An object that was read.
pub(crate) struct FoundObject {
    pub(crate) bytes: Bytes,
    pub(crate) version: ObjectVersion,
    /// Which inventory has written it; `None`: another program.
    pub(crate) owner: Option<String>,
}

/// What is put.
#[derive(Clone, Debug)]
pub(crate) struct NewObject<'a> {
    pub(crate) bytes: Bytes,
    pub(crate) media_type: &'static str,
    pub(crate) owner: &'a str,
}

/// The objects below a prefix of a bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// Begins every key; empty or without a slash at its end.
    prefix: String,
    /// The bucket in messages: `s3://inventory/prod`.
    described: String,
    /// For all objects, where the store has classes.
    storage_class: Option<String>,
    /// The store ignores conditions, and the sink says that this is accepted.
    unconditional: bool,
}

impl Bucket {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, prefix: &str, described: String) -> Self {
        let prefix = prefix.trim_matches('/').to_owned();
        Self { store, prefix, described, storage_class: None, unconditional: false }
    }

    #[must_use]
    pub(crate) fn with_storage_class(self, storage_class: Option<String>) -> Self {
        Self { storage_class, ..self }
    }

    #[must_use]
    pub(crate) fn unconditional(self, unconditional: bool) -> Self {
        Self { unconditional, ..self }
    }

    /// The bucket in messages.
    pub(crate) fn described(&self) -> &str {
        &self.described
    }

    fn key(&self, path: &str) -> Result<Key, SinkError> {
        let full = if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        Key::parse(&full).map_err(|error| {
            SinkError::because(
                SinkReason::Incompatible,
                format!("use {full:?} as the key of an object"),
                error,
            )
        })
    }

    fn attempt(&self, verb: &str, path: &str) -> String {
        format!("{verb} {path} in {}", self.described)
    }

    /// The object with its state, if there is one.
    pub(crate) async fn read(&self, path: &str) -> Result<Option<FoundObject>, SinkError> {
        let failed = |error| answer::failed(self.attempt("read", path), error);
        let found = match self.store.get(&self.key(path)?).await {
            Ok(found) => found,
            Err(error) if answer::is_absent(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let version = ObjectVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
        let owner = found.attributes.get(&Attribute::Metadata(OWNER.into()));
        let owner = owner.map(|owner| owner.to_string());
        Ok(Some(FoundObject { bytes: found.bytes().await.map_err(failed)?, version, owner }))
    }

    /// The state of the object, if there is one.
    pub(crate) async fn version(&self, path: &str) -> Result<Option<ObjectVersion>, SinkError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&self.key(path)?, options).await {
            Ok(found) => Ok(Some(ObjectVersion { e_tag: found.meta.e_tag, version: found.meta.version })),
            Err(error) if answer::is_absent(&error) => Ok(None),
            Err(error) => Err(answer::failed(self.attempt("look for", path), error)),
        }
    }

    /// Puts an object under a condition. Without conditions, the state is read before.
    pub(crate) async fn put(
        &self,
        path: &str,
        object: NewObject<'_>,
        condition: &PutCondition,
    ) -> Result<PutOutcome, SinkError> {
        let mode = if self.unconditional {
            let holds = match (self.version(path).await?, condition) {
                (None, PutCondition::IsAbsent) => true,
                (Some(found), PutCondition::IsAt(expected)) => found == *expected,
                _ => false,
            };
            if !holds {
                return Ok(PutOutcome::Conflict);
            }
            PutMode::Overwrite
        } else {
            mode(condition)
        };
        self.put_with(path, object, mode).await
    }

    async fn put_with(
        &self,
        path: &str,
        object: NewObject<'_>,
        mode: PutMode,
    ) -> Result<PutOutcome, SinkError> {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::ContentType, object.media_type.into());
        attributes.insert(Attribute::Metadata(OWNER.into()), object.owner.to_owned().into());
        if let Some(class) = &self.storage_class {
            attributes.insert(Attribute::StorageClass, class.clone().into());
        }
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        match self.store.put_opts(&self.key(path)?, object.bytes.into(), options).await {
            Ok(stored) => {
                Ok(PutOutcome::Stored(ObjectVersion { e_tag: stored.e_tag, version: stored.version }))
            }
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(PutOutcome::Conflict)
            }
            Err(error) => Err(answer::failed(self.attempt("write", path), error)),
        }
    }

    /// Deletes an object, if there is one.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), SinkError> {
        match self.store.delete(&self.key(path)?).await {
            Ok(()) => Ok(()),
            Err(error) if answer::is_absent(&error) => Ok(()),
            Err(error) => Err(answer::failed(self.attempt("remove", path), error)),
        }
    }

    /// The paths of all objects of a directory.
    pub(crate) async fn list(&self, directory: &str) -> Result<Vec<String>, SinkError> {
        let key = self.key(directory)?;
        let listed: Vec<_> = self
            .store
            .list(Some(&key))
            .try_collect()
            .await
            .map_err(|error| answer::failed(self.attempt("list", directory), error))?;
        let begin = if self.prefix.is_empty() { String::new() } else { format!("{}/", self.prefix) };
        let path = |found: &object_store::ObjectMeta| {
            found.location.as_ref().strip_prefix(&begin).map(ToOwned::to_owned)
        };
        Ok(listed.iter().filter_map(path).collect())
    }

    /// Whether the store can be written, and keeps the conditions of puts: if it ignored them, two writers would overwrite each
    /// other. `name`: a path that nothing else uses.
    pub(crate) async fn probe(&self, name: &str) -> Result<(), SinkError> {
        let probe =
            NewObject { bytes: Bytes::from_static(b"probe"), media_type: "text/plain", owner: "probe" };
        let put = |mode| self.put_with(name, probe.clone(), mode);
        let first = put(PutMode::Create).await?;
        let outcome = async {
            if self.unconditional {
                return Ok(());
            }
            let second = put(PutMode::Create).await?;
            let wrong = UpdateVersion {
                e_tag: Some("\"00000000000000000000000000000000\"".into()),
                version: Some("1".into()),
            };
            let third = put(PutMode::Update(wrong)).await?;
            let is_stored = |outcome: &PutOutcome| matches!(outcome, PutOutcome::Stored(_));
            if !is_stored(&first) || is_stored(&second) || is_stored(&third) {
                let attempt = format!(
                    "use {}: it does not keep the conditions of puts (If-None-Match, If-Match), so that two writers would overwrite each \
                     other; use a store that does, or accept it with objectStore.unconditional: true",
                    self.described
                );
                return Err(SinkError::new(SinkReason::Incompatible, attempt));
            }
            Ok(())
        };
        let outcome = outcome.await;
        self.delete(name).await?;
        outcome
    }
}

fn mode(condition: &PutCondition) -> PutMode {
    match condition {
        PutCondition::IsAbsent => PutMode::Create,
        PutCondition::IsAt(ObjectVersion { e_tag, version }) => {
            PutMode::Update(UpdateVersion { e_tag: e_tag.clone(), version: version.clone() })
        }
    }
}
