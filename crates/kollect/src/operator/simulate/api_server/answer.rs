//! Requests of the operator, and the answers of the API server in memory.

use std::{collections::BTreeMap, convert::Infallible};

use axum::body::Body;
use http::{Method, Request, Response};
use kube::Client;
use serde_json::{Value, json};
use tokio::time;

use super::{ApiServer, KINDS, ObjectKey, Resource, Shared, State, kind_of, watch_stream};

/// Where a request leads.
struct Place {
    kind: &'static Resource,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl Place {
    /// `/apis/GROUP/VERSION[/namespaces/NAMESPACE]/PLURAL[/NAME[/SUBRESOURCE]]`
    fn of(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        parts.drain(..if parts.first() == Some(&"api") { 2 } else { 3.min(parts.len()) });
        let mut namespace = "";
        if parts.len() > 2 && parts.first() == Some(&"namespaces") {
            namespace = parts.get(1)?;
            parts.drain(..2);
        }
        Some(Self {
            kind: kind_of(parts.first()?)?,
            namespace: namespace.to_owned(),
            name: parts.get(1).map(|&name| name.to_owned()),
            subresource: parts.get(2).map(|&part| part.to_owned()),
        })
    }

    fn key(&self) -> Option<ObjectKey> {
        Some((self.kind.plural, self.namespace.clone(), self.name.clone()?))
    }
}

/// The parameters of a request.
pub(super) type Parameters = BTreeMap<String, String>;

fn answered(code: u16, body: &Value) -> Response<Body> {
    let body = Body::from(body.to_string());
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

/// The status object of a refusal.
pub(super) fn status(code: u16, message: &str) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        _ => "InternalError",
    };
    json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "metadata": {},
        "code": code, "reason": reason, "message": message,
    })
}

fn refused(code: u16, message: &str) -> Response<Body> {
    answered(code, &status(code, message))
}

/// Whether a request for a namespace, with the selectors that the operator writes, takes an object.
pub(super) fn takes(parameters: &Parameters, namespace: &str, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let here = namespace.is_empty() || metadata["namespace"].as_str() == Some(namespace);
    let named = parameters.get("fieldSelector").and_then(|terms| terms.strip_prefix("metadata.name="));
    here && named.is_none_or(|name| metadata["name"].as_str() == Some(name))
}

impl ApiServer {
    /// A client of this API server.
    pub(in super::super) fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let server = server.clone();
            async move {
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let answer = server.answer(request).await;
                let Shared { journal, state, .. } = &*server.0;
                let (name, code) = (&state.lock().unwrap().name, answer.status().as_u16());
                journal.note(format_args!("{name} {method} {uri}: {code}"));
                Ok::<_, Infallible>(answer)
            }
        });
        Client::new(service, "kollect-system")
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (delay, fails) = {
            let mut state = self.lock();
            let errors = state.faults.errors;
            (state.delay(), state.random.u8(..100) < errors)
        };
        if !delay.is_zero() {
            time::sleep(delay).await;
        }
        if fails {
            return refused(500, "the API server has a fault");
        }
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let path = parts.uri.path();
        let query = parts.uri.query().unwrap_or_default();
        let parameters: Parameters =
            form_urlencoded::parse(query.as_bytes()).map(|(k, v)| (k.into(), v.into())).collect();
        match path {
            "/api" | "/apis" => return answered(200, &self.lock().discovery(path == "/api")),
            _ if path.ends_with("/selfsubjectaccessreviews") => return self.review(body),
            _ if path.ends_with("/events") => return answered(201, &body),
            _ => {}
        }
        let Some(place) = Place::of(path).filter(|place| self.is_served(place.kind.plural)) else {
            return refused(404, "the server could not find the requested resource");
        };
        match (parts.method, place.key()) {
            (Method::GET, None) if parameters.contains_key("watch") => self.watch(&place, parameters),
            (Method::GET, None) => self.list(&place, &parameters),
            (Method::GET, Some(key)) => match self.lock().objects.get(&key) {
                Some(object) => answered(200, object),
                None => refused(404, "not found"),
            },
            (Method::PUT, Some(key)) if place.subresource.as_deref() == Some("status") => {
                self.put_status(&key, &body)
            }
            (Method::PATCH, Some(key)) => self.patch_metadata(&key, &body),
            (method, _) => panic!("the simulated API server knows no {method} {path}"),
        }
    }

    fn review(&self, mut review: Value) -> Response<Body> {
        let asked = &review["spec"]["resourceAttributes"];
        let text = |field: &str| asked[field].as_str().unwrap_or_default();
        let allowed = !self.lock().is_denied(text("resource"), text("namespace"));
        review["status"] = json!({ "allowed": allowed });
        answered(201, &review)
    }

    fn list(&self, place: &Place, parameters: &Parameters) -> Response<Body> {
        let state = self.lock();
        if state.is_denied(place.kind.plural, &place.namespace) {
            return refused(403, "forbidden");
        }
        let version = state.version.saturating_sub(state.behind()).max(1);
        let objects = state.objects_at(place.kind.plural, version);
        let items: Vec<&Value> = objects
            .values()
            .map(|object| &**object)
            .filter(|object| takes(parameters, &place.namespace, object))
            .collect();
        let list = json!({
            "apiVersion": "v1",
            "kind": format!("{}List", place.kind.kind),
            "metadata": { "resourceVersion": version.to_string() },
            "items": items,
        });
        answered(200, &list)
    }

    fn watch(&self, place: &Place, parameters: Parameters) -> Response<Body> {
        let mut state = self.lock();
        if state.is_denied(place.kind.plural, &place.namespace) {
            return refused(403, "forbidden");
        }
        let begins: u64 = parameters.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let lists = parameters.contains_key("sendInitialEvents");
        if lists && !state.streams_lists {
            return refused(422, "sendInitialEvents is forbidden for watch");
        }
        if !lists && begins < state.oldest && state.random.bool() {
            return refused(410, "too old resource version");
        }
        drop(state);
        let (plural, namespace) = (place.kind.plural, place.namespace.clone());
        let stream = watch_stream::open(self, plural, namespace, parameters, begins, lists);
        let body = Body::from_stream(stream);
        Response::builder().status(200).header("content-type", "application/json").body(body).unwrap()
    }

    fn put_status(&self, key: &ObjectKey, sent: &Value) -> Response<Body> {
        let mut state = self.lock();
        let Some(known) = state.objects.get(key).cloned() else { return refused(404, "not found") };
        if is_outdated(&known, sent) {
            return refused(409, "the object has been modified");
        }
        let mut object = (*known).clone();
        object["status"] = sent["status"].clone();
        if object != *known {
            state.written += 1;
            state.store(key.clone(), object);
        }
        let object = state.objects[key].clone();
        self.0.journal.note(format_args!("{} status {}: {}", state.name, key.2, object["status"]));
        if key.0 == "kollectinventories" {
            state.told.push(object.clone());
        }
        self.announce(state);
        answered(200, &object)
    }

    fn patch_metadata(&self, key: &ObjectKey, sent: &Value) -> Response<Body> {
        let mut state = self.lock();
        let Some(known) = state.objects.get(key).cloned() else { return refused(404, "not found") };
        if is_outdated(&known, sent) {
            return refused(409, "the object has been modified");
        }
        let mut object = (*known).clone();
        merge(&mut object["metadata"], &sent["metadata"]);
        object["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
        if object != *known {
            state.written += 1;
            state.store(key.clone(), object.clone());
        }
        let metadata = &object["metadata"];
        let guarded = metadata["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if metadata.get("deletionTimestamp").is_some() && !guarded {
            state.remove(key);
        }
        self.announce(state);
        answered(200, &object)
    }
}

/// A JSON merge patch.
fn merge(into: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut into[name], value);
        }
    }
}

/// Whether a client has seen an older version of the object, or another object.
fn is_outdated(known: &Value, sent: &Value) -> bool {
    let differs = |field: &str| {
        let sent = &sent["metadata"][field];
        !sent.is_null() && *sent != known["metadata"][field]
    };
    differs("resourceVersion") || differs("uid")
}

impl State {
    fn discovery(&self, core: bool) -> Value {
        let mut groups: BTreeMap<&str, Vec<&Resource>> = BTreeMap::new();
        let served = KINDS.iter().filter(|kind| !self.unserved.contains(kind.plural));
        for kind in served.filter(|kind| kind.group.is_empty() == core) {
            groups.entry(kind.group).or_default().push(kind);
        }
        let resource = |kind: &&Resource| {
            json!({
                "resource": kind.plural,
                "responseKind": { "group": kind.group, "version": kind.version, "kind": kind.kind },
                "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
                "verbs": ["get", "list", "watch"],
            })
        };
        let group = |(name, kinds): (&&str, &Vec<&Resource>)| {
            let resources: Vec<Value> = kinds.iter().map(resource).collect();
            let version = kinds.first().map_or("v1", |kind| kind.version);
            let versions = [json!({ "version": version, "resources": resources, "freshness": "Current" })];
            json!({ "metadata": { "name": name }, "versions": versions })
        };
        let items: Vec<Value> = groups.iter().map(group).collect();
        json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items })
    }
}
