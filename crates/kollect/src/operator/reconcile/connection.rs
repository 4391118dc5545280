//! Connection tests, and probes that an annotation requests.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use kollect_model::crd::{GROUP, KollectConnectionTest, VERSION, connection_test::ConnectionTestStatus};
use kube::{
    Client,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::Operator;
use crate::{
    operator::{
        conditions::Conditions,
        objects::ObjectCache,
        probe::Probed,
        status_writer::{DesiredStatus, api},
    },
    reason::Reason,
    resolve::{Family, ObjectName, Resolved},
};

impl Operator {
    /// Adds the statuses of tests that have ended to `desired`, and finds the expired tests.
    pub(super) fn connection_tests(
        &self,
        cache: &ObjectCache,
        resolved: &Resolved,
        now: Timestamp,
        desired: &mut Vec<DesiredStatus>,
    ) -> DueTests {
        let mut tests = DueTests::default();
        for (name, test) in cache.connection_tests() {
            let before = test.status.clone().unwrap_or_default();
            let generation = test.metadata.generation.unwrap_or(0);
            if before.completed && before.observed_generation == Some(generation) {
                let Some(completed) = &before.completed_at else { continue };
                let ends = completed.0.as_second() + i64::from(test.spec.ttl_seconds_after_finished);
                let seconds_left = ends - now.as_second();
                match u64::try_from(seconds_left) {
                    Ok(seconds_left) if seconds_left > 0 => {
                        let expires = Instant::now() + Duration::from_secs(seconds_left);
                        tests.due = Some(tests.due.map_or(expires, |due| due.min(expires)));
                    }
                    _ => tests.expired.push((name.clone(), test.metadata.uid.clone())),
                }
                continue;
            }
            let outcome = self.test_outcome(resolved, name, test, generation);
            let Some((reason, outcome)) = outcome else { continue };
            let mut conditions = Conditions::after(&before.conditions, test.metadata.generation, now);
            let (verified, message) = match &outcome {
                Ok(_) => (true, "the sink answers".to_owned()),
                Err(message) => (false, message.clone()),
            };
            conditions.set("ConnectionVerified", verified, reason, message.clone());
            conditions.set(
                "Ready",
                verified,
                if verified { Reason::ProbeSucceeded } else { reason },
                message,
            );
            let after = ConnectionTestStatus {
                conditions: conditions.done(),
                observed_generation: test.metadata.generation,
                latency_ms: outcome.ok().and_then(|took| i64::try_from(took.as_millis()).ok()),
                completed: true,
                completed_at: Some(Time(now)),
            };
            desired.extend(DesiredStatus::new(
                "KollectConnectionTest",
                name,
                &test.metadata,
                &before,
                &after,
            ));
        }
        tests
    }

    /// Removes the annotation that requested a probe once it has succeeded, unless the sink is probed anyway.
    pub(super) async fn acknowledge_tests(&self, cache: &ObjectCache) {
        for ((family, name), sink) in cache.sinks() {
            let requested = test_connection(&sink.metadata)
                && sink.spec.common().connection_test == Some(false)
                && sink.metadata.deletion_timestamp.is_none();
            let result = requested.then(|| self.probes.result(&Probed::Sink(family, name.clone()))).flatten();
            if let Some(Ok(_)) = result {
                let patch = json!({ "metadata": {
                    "annotations": { TEST_CONNECTION: null },
                    "resourceVersion": sink.metadata.resource_version,
                } });
                merge(&self.client, family.kind(), &name, &patch).await;
            }
        }
    }

    /// Makes sinks the owners of their connection tests, so that Kubernetes deletes both.
    pub(super) async fn set_test_owners(&self, cache: &ObjectCache) {
        for (name, test) in cache.connection_tests() {
            let owned =
                test.metadata.owner_references.iter().flatten().any(|owner| owner.controller == Some(true));
            let wanted = test.spec.owner_sink.unwrap_or(true) && test.metadata.deletion_timestamp.is_none();
            let Some((family, sink)) = tested_sink(test).filter(|_| wanted && !owned) else { continue };
            let key = (family, (name.0.clone(), sink));
            let found = cache.sinks().find(|(found, _)| *found == key).map(|(_, sink)| sink);
            let Some(uid) = found.and_then(|sink| sink.metadata.uid.clone()) else { continue };
            let patch = json!({ "metadata": {
                "ownerReferences": [{
                    "apiVersion": format!("{GROUP}/{VERSION}"),
                    "kind": family.kind(),
                    "name": key.1.1,
                    "uid": uid,
                    "controller": true,
                    "blockOwnerDeletion": false,
                }],
                "resourceVersion": test.metadata.resource_version,
            } });
            merge(&self.client, "KollectConnectionTest", name, &patch).await;
        }
    }

    /// The result of a test, if it has ended.
    fn test_outcome(
        &self,
        resolved: &Resolved,
        name: &ObjectName,
        test: &KollectConnectionTest,
        generation: i64,
    ) -> Option<(Reason, Result<Duration, String>)> {
        let Some((family, sink)) = tested_sink(test) else {
            return Some((Reason::InvalidSpec, Err("spec.sinkRef names no sink".into())));
        };
        let key = (family, (name.0.clone(), sink));
        let Some(plan) = resolved.sinks.get(&key) else {
            let problem = format!("no {family} sink {} in namespace {}", key.1.1, name.0);
            return Some((Reason::SinkNotFound, Err(problem)));
        };
        if let Err(faults) = &**plan {
            let first = faults.first()?;
            return Some((first.reason, Err(first.to_string())));
        }
        match self.probes.result(&Probed::Test(name.clone(), generation))? {
            Ok(took) => Some((Reason::ConnectionOK, Ok(took))),
            Err(message) => Some((Reason::ConnectionTestFailed, Err(message))),
        }
    }

    /// Deletes expired tests. Errors are ignored: another client may have deleted the test.
    pub(super) async fn delete_expired(&self, expired: Vec<(ObjectName, Option<String>)>) {
        for ((namespace, name), uid) in expired {
            info!(namespace, name, "the connection test has expired");
            let same_object = Preconditions { uid, resource_version: None };
            let parameters = DeleteParams { preconditions: Some(same_object), ..DeleteParams::default() };
            api(&self.client, "KollectConnectionTest", &namespace).delete(&name, &parameters).await.ok();
        }
    }
}

/// What is left to do about connection tests.
#[derive(Default)]
pub(super) struct DueTests {
    pub(super) expired: Vec<(ObjectName, Option<String>)>,
    pub(super) due: Option<Instant>,
}

/// The sink that a test names.
pub(super) fn tested_sink(test: &KollectConnectionTest) -> Option<(Family, String)> {
    let reference = &test.spec.sink_ref;
    let named = [
        (Family::Snapshot, &reference.snapshot_sink_ref),
        (Family::Database, &reference.database_sink_ref),
        (Family::Event, &reference.event_sink_ref),
    ];
    named.into_iter().find_map(|(family, name)| Some((family, name.clone()?)))
}

/// Annotation that requests a probe.
const TEST_CONNECTION: &str = "kollect.dev/test-connection";

/// Patches the metadata of an object. After a conflict with another change a later turn tries again.
async fn merge(client: &Client, kind: &str, (namespace, name): &ObjectName, patch: &Value) {
    let patched =
        api(client, kind, namespace).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if let Err(error) = patched {
        info!(kind, namespace, name, %error, "cannot change the object yet");
    }
}

/// Whether the annotation requests a probe.
pub(super) fn test_connection(metadata: &ObjectMeta) -> bool {
    is_requested(metadata, TEST_CONNECTION)
}

/// Whether an annotation is true.
pub(super) fn is_requested(metadata: &ObjectMeta, annotation: &str) -> bool {
    let value = metadata.annotations.as_ref().and_then(|annotations| annotations.get(annotation));
    value.is_some_and(|value| value.trim().eq_ignore_ascii_case("true"))
}
