//! Reviews as an API server sends them, and admission that answers them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::body::Body;
use futures::{StreamExt as _, stream, stream::BoxStream};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use kollect_engine::tasks::Tasks;
use kollect_engine::watch::{
    BlindReason, Blindness, Event, Object, Query, Resolution, Resource, WatchSource,
};
use kollect_model::crd::shapes::Gvk;
use serde_json::{Value, json, value::to_raw_value};
use tokio::sync::watch;
use tower::ServiceExt as _;

use super::super::{Admission, path};
use crate::{operator::objects::ObjectWatches, resolve::OperatorPolicy, schema};

/// An object of namespace shop, or of none.
pub(super) fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "kollect.dev/v1alpha1", "kind": kind,
        "metadata": { "name": name, "uid": format!("{kind}/{name}"), "resourceVersion": "1" },
        "spec": spec,
    });
    if schema::kinds()[kind].namespaced {
        object["metadata"]["namespace"] = json!("shop");
    }
    object
}

/// A profile of a kind in the core group.
pub(super) fn profile(name: &str, kind: &str) -> Value {
    let attributes = json!([{ "name": "a", "path": "$.metadata.name" }]);
    let spec = json!({ "targetGVK": { "version": "v1", "kind": kind }, "attributes": attributes });
    object("KollectProfile", name, &spec)
}

pub(super) fn create(kind: &str, name: &str, spec: &Value) -> Value {
    let object = object(kind, name, spec);
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": format!("review of {name}"), "operation": "CREATE", "name": name,
            "kind": { "group": "kollect.dev", "version": "v1alpha1", "kind": kind },
            "namespace": object["metadata"].get("namespace").cloned().unwrap_or(json!("")),
            "object": object, "oldObject": null,
        },
    })
}

pub(super) fn update(kind: &str, name: &str, before: &Value, after: &Value) -> Value {
    let mut review = create(kind, name, after);
    review["request"]["operation"] = json!("UPDATE");
    review["request"]["oldObject"] = object(kind, name, before);
    review
}

/// A cluster that shows these objects and never changes.
#[derive(Default)]
struct Source {
    objects: Vec<Value>,
    blind: Option<(String, BlindReason)>,
    /// The kind that cannot be seen does not exist.
    absent: bool,
    silent: bool,
}

#[async_trait]
impl WatchSource for Source {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        if self.absent && self.blind.as_ref().is_some_and(|(kind, _)| *kind == gvk.kind) {
            return Resolution::Absent;
        }
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: true })
    }

    async fn permits(&self, _: &Query) -> bool {
        true
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        if self.silent {
            return stream::pending().boxed();
        }
        let mut events = vec![Event::Listing { total: None }];
        for object in self.objects.iter().filter(|object| object["kind"] == *query.gvk.kind) {
            events.push(Event::Apply(Object::parse(to_raw_value(object).unwrap(), &query.gvk).unwrap()));
        }
        events.push(Event::Synced { version: 1 });
        if let Some((_, reason)) = self.blind.as_ref().filter(|(kind, _)| *kind == query.gvk.kind) {
            let message = "this user may not list them".to_owned();
            events = vec![Event::Blind(Blindness { reason: *reason, message })];
        }
        stream::iter(events).chain(stream::pending()).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_complete(&self) -> bool {
        true
    }
}

pub(super) struct WebhookTest(Admission);

impl WebhookTest {
    pub(super) fn of(objects: &[Value], operator_policy: OperatorPolicy) -> Self {
        Self::start(Source { objects: objects.to_vec(), ..Source::default() }, operator_policy, None)
    }

    pub(super) fn within(objects: &[Value], operator_policy: OperatorPolicy, namespaces: &[&str]) -> Self {
        let within = namespaces.iter().map(|name| Arc::from(*name)).collect();
        Self::start(Source { objects: objects.to_vec(), ..Source::default() }, operator_policy, Some(within))
    }

    /// One kind cannot be seen.
    pub(super) fn blind(kind: &str, reason: BlindReason) -> Self {
        Self::start(
            Source { blind: Some((kind.into(), reason)), ..Source::default() },
            OperatorPolicy::default(),
            None,
        )
    }

    /// One kind does not exist.
    pub(super) fn without(kind: &str) -> Self {
        let blind = Some((kind.into(), BlindReason::NotServed));
        Self::start(Source { blind, absent: true, ..Source::default() }, OperatorPolicy::default(), None)
    }

    /// No list ever ends.
    pub(super) fn silent() -> Self {
        let mut test =
            Self::start(Source { silent: true, ..Source::default() }, OperatorPolicy::default(), None);
        test.0.first_lists_timeout = Duration::from_millis(50);
        test
    }

    fn start(source: Source, operator_policy: OperatorPolicy, within: Option<BTreeSet<Arc<str>>>) -> Self {
        let source: Arc<dyn WatchSource> = Arc::new(source);
        let objects = Arc::new(ObjectWatches::follow(source, within.clone(), Tasks::default()));
        Self(Admission::new(objects, Arc::new(operator_policy), within, None))
    }

    pub(super) async fn post(&self, path: &str, body: String) -> (StatusCode, String) {
        let request = Request::post(path).body(Body::from(body)).unwrap();
        let response = self.0.router().oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    pub(super) async fn review(&self, review: Value) -> TestAnswer {
        let kind = review["request"]["kind"]["kind"].as_str().unwrap();
        let (status, text) = self.post(&path(kind), review.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&answer["apiVersion"], &answer["kind"]),
            (&json!("admission.k8s.io/v1"), &json!("AdmissionReview"))
        );
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        TestAnswer(answer["response"].clone())
    }
}

#[derive(Debug)]
pub(super) struct TestAnswer(Value);

impl TestAnswer {
    fn warnings(&self) -> Vec<&str> {
        self.0["warnings"].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
    }

    /// Exactly so many warnings, each with its text.
    pub(super) fn warns(&self, expected: &[&str]) {
        let found = self.warnings();
        assert_eq!(found.len(), expected.len(), "{self:?}");
        for text in expected {
            assert!(found.iter().any(|warning| warning.contains(text)), "{text} is not in {found:?}");
        }
    }

    pub(super) fn allowed(&self, warnings: &[&str]) {
        assert_eq!(self.0["allowed"], json!(true), "{self:?}");
        self.warns(warnings);
    }

    pub(super) fn denied(&self, code: u16, expected: &[&str]) {
        assert_eq!(self.0["allowed"], json!(false), "{self:?}");
        assert_eq!(self.0["status"]["code"], json!(code), "{self:?}");
        let message = self.0["status"]["message"].as_str().unwrap();
        for text in expected {
            assert!(message.contains(text), "{text} is not in {message}");
        }
    }
}
