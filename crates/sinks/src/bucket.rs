//! Objects of a store in the cloud: read, put under a condition, deleted.
//!
//! What an error says is decided here, by the status and the error code that the server sent: [`answer`]. Requests are never
//! repeated here: a put whose answer was lost may have been applied, and only a comparison can tell.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt as _, TryStreamExt as _};
use kollect_model::sink::{SinkError, SinkReason};
use object_store::{
    Attribute, Attributes, GetOptions, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, UpdateVersion,
    path::Path as Key,
};
use serde::{Deserialize, Serialize};

use crate::layout::paths::KOLLECT_DIRECTORY;

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

impl ObjectVersion {
    /// Whether it can stand in the header of a request.
    pub(crate) fn is_plain(&self) -> bool {
        let texts = self.e_tag.iter().chain(&self.version);
        texts.flat_map(|text| text.bytes()).all(|byte| byte.is_ascii_graphic() || byte == b' ')
    }
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

/// Metadata of a record: the claim, so that a check need not read all of it.
const CLAIM: &str = "kollect-claim";

/// The largest object that is read, and the largest text that it may be decompressed to. The server is one of a tenant.
pub(crate) const MAX_OBJECT_BYTES: usize = 128 << 20;

/// The most objects of a directory that are listed.
const MAX_LISTED: usize = 10_000;

/// What is known of an object without reading it.
pub(crate) struct FoundHead {
    pub(crate) version: ObjectVersion,
    /// Which inventory has written it; `None`: another program.
    pub(crate) owner: Option<String>,
    /// The claim in it, as JSON.
    pub(crate) claim: Option<String>,
}

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
    /// The claim in it, as JSON.
    pub(crate) claim: Option<String>,
}

/// The objects below a prefix of a bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    /// Begins every key; empty or without a slash at its end.
    prefix: String,
    /// The bucket in messages: `s3://inventory/prod`.
    described: String,
    /// For documents, where the store has classes.
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
        let too_large = || {
            let most = MAX_OBJECT_BYTES >> 20;
            let attempt =
                format!("{}: it is larger than {most} MiB, which is not read", self.attempt("read", path));
            SinkError::new(SinkReason::Incompatible, attempt)
        };
        if found.meta.size > MAX_OBJECT_BYTES as u64 {
            return Err(too_large());
        }
        let mut bytes = BytesMut::new();
        let mut parts = found.into_stream();
        while let Some(part) = parts.try_next().await.map_err(failed)? {
            if bytes.len() + part.len() > MAX_OBJECT_BYTES {
                return Err(too_large());
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Some(FoundObject { bytes: bytes.freeze(), version, owner }))
    }

    /// The state of the object, if there is one.
    pub(crate) async fn version(&self, path: &str) -> Result<Option<ObjectVersion>, SinkError> {
        Ok(self.head(path).await?.map(|found| found.version))
    }

    /// What is known of the object without reading it, if there is one.
    pub(crate) async fn head(&self, path: &str) -> Result<Option<FoundHead>, SinkError> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        match self.store.get_opts(&self.key(path)?, options).await {
            Ok(found) => {
                let metadata = |name: &'static str| {
                    let value = found.attributes.get(&Attribute::Metadata(name.into()));
                    value.map(|value| value.to_string())
                };
                let (owner, claim) = (metadata(OWNER), metadata(CLAIM));
                let version = ObjectVersion { e_tag: found.meta.e_tag, version: found.meta.version };
                Ok(Some(FoundHead { version, owner, claim }))
            }
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
        if let Some(claim) = object.claim {
            attributes.insert(Attribute::Metadata(CLAIM.into()), claim.into());
        }
        // Records are read often, and small.
        let is_record = path.starts_with(KOLLECT_DIRECTORY);
        if let Some(class) = self.storage_class.as_ref().filter(|_| !is_record) {
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
            .take(MAX_LISTED)
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
        let probe = NewObject {
            bytes: Bytes::from_static(b"probe"),
            media_type: "text/plain",
            owner: "probe",
            claim: None,
        };
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
