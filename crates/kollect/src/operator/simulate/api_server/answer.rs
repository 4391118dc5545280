//! Requests of operators, and the answers of the API server in memory.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Method, Request, Response, request::Parts};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    super::{
        network::{AnswerLost, ProcessLink, SentRequest, ServerAnswer, SimulatedServer},
        specs::text,
    },
    ApiServer, ApiServerState, FRESH_AFTER_ELECTION, KINDS, SimulatedKind, StoredObject, WrittenStatus,
    kinds::{kind_of, number_of},
    objects::StoredName,
    watch_stream::{self, ListSelection, WatchStart},
};

/// The path of a request.
struct RequestPath {
    kind: usize,
    namespace: String,
    name: Option<String>,
    subresource: Option<String>,
}

impl RequestPath {
    /// `/apis/GROUP/VERSION[/namespaces/NAMESPACE]/PLURAL[/NAME[/SUBRESOURCE]]`
    fn of(path: &str) -> Option<Self> {
        let mut parts = path.trim_start_matches('/').split('/');
        let skipped = if parts.next() == Some("api") { 1 } else { 2 };
        let mut parts = parts.skip(skipped).peekable();
        let mut plural = parts.next()?;
        let mut namespace = "";
        let mut name = parts.next();
        if plural == "namespaces" && parts.peek().is_some() {
            (namespace, plural, name) = (name?, parts.next()?, parts.next());
        }
        kind_of(plural)?;
        Some(Self {
            kind: number_of(plural),
            namespace: namespace.to_owned(),
            name: name.map(ToOwned::to_owned),
            subresource: parts.next().map(ToOwned::to_owned),
        })
    }

    fn resource(&self) -> &'static SimulatedKind {
        &KINDS[self.kind]
    }

    fn object(&self) -> Option<StoredName> {
        Some((self.namespace.clone(), self.name.clone()?))
    }
}

/// The value of a parameter of a request, as it was sent.
pub(super) fn parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    let mut all = query.split('&').filter_map(|pair| pair.split_once('='));
    all.find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn response(code: u16, body: impl Into<Body>) -> Response<Body> {
    Response::builder().status(code).header("content-type", "application/json").body(body.into()).unwrap()
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

fn error_response(code: u16, message: &str) -> Response<Body> {
    response(code, status(code, message).to_string())
}

impl ServerAnswer for Response<Body> {
    fn is_refusal(&self) -> bool {
        !self.status().is_success()
    }

    fn outcome(&self) -> impl fmt::Display {
        self.status().as_u16()
    }
}

impl ApiServer {
    /// A client of this API server.
    pub(in super::super) fn client(&self, link: ProcessLink) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (server, link) = (server.clone(), link.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                server.answer(link, parts, body).await
            }
        });
        Client::new(service, "kollect-system")
    }

    async fn answer(
        &self,
        link: ProcessLink,
        parts: Parts,
        body: Bytes,
    ) -> Result<Response<Body>, AnswerLost> {
        let duration = self.lock().delay();
        let (method, uri) = (&parts.method, &parts.uri);
        let request = SentRequest {
            to: SimulatedServer::Api,
            description: format!("{method} {uri}"),
            may_change: *method == Method::PUT || *method == Method::PATCH || *method == Method::POST,
            duration,
        };
        let (server, server_link, method, uri) = (self.clone(), link.clone(), method.clone(), uri.clone());
        link.send(request, move |_| server.handle(server_link, &method, &uri, &body)).await
    }

    fn handle(&self, link: ProcessLink, method: &Method, uri: &http::Uri, body: &Bytes) -> Response<Body> {
        {
            let mut state = self.lock();
            let errors = state.faults.errors;
            if errors > 0 && state.random.u8(..100) < errors {
                return error_response(500, "the API server has a fault");
            }
        }
        let (path, query) = (uri.path(), uri.query().unwrap_or_default());
        let parsed_body = || -> Value { std::str::from_utf8(body).unwrap().parse().unwrap_or_default() };
        match path {
            "/api" | "/apis" => return response(200, self.lock().discovery(path == "/api")),
            _ if path.ends_with("/selfsubjectaccessreviews") => return self.review(parsed_body()),
            _ if path.ends_with("/events") => return response(201, body.clone()),
            _ => {}
        }
        let Some(request_path) =
            RequestPath::of(path).filter(|request_path| self.is_served(request_path.resource().plural))
        else {
            return error_response(404, "the server could not find the requested resource");
        };
        let is_status = request_path.subresource.as_deref() == Some("status");
        match (method, request_path.object()) {
            (&Method::GET, None) if parameter(query, "watch").is_some() => {
                self.watch(link, &request_path, query)
            }
            (&Method::GET, None) => self.list(&request_path, query),
            (&Method::GET, Some(name)) => match self.lock().kinds[request_path.kind].objects.get(&name) {
                Some(object) => response(200, object.text.clone()),
                None => error_response(404, "not found"),
            },
            (&Method::POST, None) if request_path.resource().kind == "Lease" => {
                self.create(&request_path, parsed_body())
            }
            (&Method::PUT, Some(name)) if !is_status => self.replace(request_path.kind, name, parsed_body()),
            (&Method::PUT, Some(name)) => self.put_status(request_path.kind, name, parsed_body()),
            (&Method::PATCH, Some(name)) => self.patch_metadata(request_path.kind, name, &parsed_body()),
            (method, _) => panic!("the simulated API server knows no {method} {path}"),
        }
    }

    fn review(&self, mut review: Value) -> Response<Body> {
        let attributes = &review["spec"]["resourceAttributes"];
        let text = |field: &str| attributes[field].as_str().unwrap_or_default();
        let allowed = !self.lock().is_denied(text("resource"), text("namespace"));
        review["status"] = json!({ "allowed": allowed });
        response(201, review.to_string())
    }

    fn list(&self, path: &RequestPath, query: &str) -> Response<Body> {
        let state = self.lock();
        if state.is_denied(path.resource().plural, &path.namespace) {
            return error_response(403, "forbidden");
        }
        let version = state.version.saturating_sub(state.stale_versions()).max(1);
        let selected = ListSelection::of(&path.namespace, query);
        let kind = path.resource().kind;
        let mut list = format!(
            r#"{{"apiVersion":"v1","kind":"{kind}List","metadata":{{"resourceVersion":"{version}"}},"items":["#
        );
        let objects = state.kinds[path.kind].at(version);
        for (number, object) in objects.iter().filter(|object| selected.selects(object)).enumerate() {
            list.push_str(if number == 0 { "" } else { "," });
            list.push_str(&object.text);
        }
        list.push_str("]}");
        response(200, list)
    }

    fn watch(&self, link: ProcessLink, path: &RequestPath, query: &str) -> Response<Body> {
        let mut state = self.lock();
        if state.is_denied(path.resource().plural, &path.namespace) {
            return error_response(403, "forbidden");
        }
        let version: u64 =
            parameter(query, "resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
        let streams = parameter(query, "sendInitialEvents").is_some();
        if streams && !state.streams_lists {
            return error_response(422, "sendInitialEvents is forbidden for watch");
        }
        // A watch from version 0 begins with all objects, too.
        let start = match version {
            0 => WatchStart::Now { marks_end: streams },
            version if version < state.oldest && state.random.bool() => {
                return error_response(410, "too old resource version");
            }
            version => WatchStart::After(version),
        };
        drop(state);
        let seconds = parameter(query, "timeoutSeconds").and_then(|text| text.parse().ok()).unwrap_or(300);
        let selected = ListSelection::of(&path.namespace, query);
        let stream = watch_stream::open(self, link, path.kind, selected, start, seconds);
        response(200, Body::from_stream(stream))
    }

    fn create(&self, path: &RequestPath, mut sent: Value) -> Response<Body> {
        let name = (path.namespace.clone(), text(&sent["metadata"]["name"]).to_owned());
        let mut state = self.lock();
        if state.kinds[path.kind].objects.contains_key(&name) {
            return error_response(409, "the object exists already");
        }
        let mut value = state.new_object(&self.0.name, path.kind, &name);
        value["spec"] = sent["spec"].take();
        self.note_term(&mut state, None, text(&value["spec"]["holderIdentity"]));
        let object = state.store(path.kind, name, value);
        drop(state);
        self.announce(path.kind);
        response(201, object.text.clone())
    }

    /// Replaces the spec of an object.
    fn replace(&self, kind: usize, name: StoredName, mut sent: Value) -> Response<Body> {
        let mut state = self.lock();
        let Some(known) = state.kinds[kind].objects.get(&name).cloned() else {
            return error_response(404, "not found");
        };
        if is_outdated(&known, &sent) {
            return error_response(409, "the object has been modified");
        }
        let mut value = known.value.clone();
        value["spec"] = sent["spec"].take();
        let before = known["spec"]["holderIdentity"].as_str();
        self.note_term(&mut state, before, text(&value["spec"]["holderIdentity"]));
        let object = state.store(kind, name, value);
        drop(state);
        self.announce(kind);
        response(200, object.text.clone())
    }

    /// Notes that a process begins to lead. A lease that was given up has no holder.
    fn note_term(&self, state: &mut ApiServerState, before: Option<&str>, now: &str) {
        if now.is_empty() || before == Some(now) {
            return;
        }
        state.fresh_until = Instant::now() + FRESH_AFTER_ELECTION;
        self.0.journal.count("terms of leadership", 1);
        if before.is_some() {
            self.0.journal.count("terms that began when a lease had run out", 1);
        }
    }

    fn put_status(&self, kind: usize, name: StoredName, mut sent: Value) -> Response<Body> {
        let mut state = self.lock();
        let Some(known) = state.kinds[kind].objects.get(&name).cloned() else {
            return error_response(404, "not found");
        };
        if is_outdated(&known, &sent) {
            return error_response(409, "the object has been modified");
        }
        let status = sent["status"].take();
        let mut object = known.clone();
        if known["status"] != status {
            let mut value = known.value.clone();
            if is_blind(&status) && !is_blind(&known["status"]) {
                self.0.journal.count("statuses that became Blind", 1);
            }
            value["status"] = status;
            state.client_writes += 1;
            object = state.store(kind, name.clone(), value);
        }
        let Self { 0: shared } = self;
        shared.journal.note(format_args!("{} {} {}", shared.name, KINDS[kind].kind, object.text));
        let plural = KINDS[kind].plural;
        if ["kollectinventories", "kollecttargets", "kollectprofiles"].contains(&plural) {
            let now = shared.journal.moment();
            let (last, before) = state.status_times.get(&(kind, name.clone())).copied().unwrap_or_default();
            state.status_times.insert((kind, name), (now, last));
            state.written_statuses.push(WrittenStatus {
                plural,
                before: known,
                object: object.clone(),
                period: (before, now),
                written_at: Instant::now(),
            });
        }
        drop(state);
        self.announce(kind);
        response(200, object.without_spec_and_status())
    }

    fn patch_metadata(&self, kind: usize, name: StoredName, sent: &Value) -> Response<Body> {
        let mut state = self.lock();
        let Some(known) = state.kinds[kind].objects.get(&name).cloned() else {
            return error_response(404, "not found");
        };
        if is_outdated(&known, sent) {
            return error_response(409, "the object has been modified");
        }
        let mut value = known.value.clone();
        merge(&mut value["metadata"], &sent["metadata"]);
        value["metadata"]["resourceVersion"] = known["metadata"]["resourceVersion"].clone();
        let mut object = known.clone();
        if value != known.value {
            state.client_writes += 1;
            object = state.store(kind, name.clone(), value);
        }
        if object.is_being_deleted() && !object.has_finalizers() {
            state.remove(kind, &name);
        }
        drop(state);
        self.announce(kind);
        response(200, object.without_spec_and_status())
    }
}

fn is_blind(status: &Value) -> bool {
    let blind = |condition: &Value| condition["type"] == "Blind" && condition["status"] == "True";
    status["conditions"].as_array().is_some_and(|all| all.iter().any(blind))
}

/// A JSON merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

/// Whether a client has seen an older version of the object, or another object.
fn is_outdated(known: &StoredObject, sent: &Value) -> bool {
    let differs = |field: &str| {
        let sent = &sent["metadata"][field];
        !sent.is_null() && *sent != known["metadata"][field]
    };
    differs("resourceVersion") || differs("uid")
}

impl ApiServerState {
    /// The kinds that are served, those of the core group or all others. The texts are kept: nearly all schedules need
    /// the same few.
    fn discovery(&self, core: bool) -> Bytes {
        thread_local! {
            static KNOWN: RefCell<BTreeMap<(bool, BTreeSet<&'static str>), Bytes>> = RefCell::default();
        }
        let unserved = &self.unserved;
        let make = || {
            let served = KINDS.iter().filter(|kind| !unserved.contains(kind.plural));
            discovery(served.filter(|kind| kind.group.is_empty() == core)).to_string().into()
        };
        KNOWN.with_borrow_mut(|known| known.entry((core, unserved.clone())).or_insert_with(make).clone())
    }
}

/// The kinds that are served, by group.
fn discovery<'a>(served: impl Iterator<Item = &'a SimulatedKind>) -> Value {
    let mut groups: Vec<(&str, Vec<&SimulatedKind>)> = Vec::new();
    for kind in served {
        match groups.iter_mut().find(|(group, _)| *group == kind.group) {
            Some((_, kinds)) => kinds.push(kind),
            None => groups.push((kind.group, vec![kind])),
        }
    }
    let resource = |kind: &&SimulatedKind| {
        json!({
            "resource": kind.plural,
            "responseKind": { "group": kind.group, "version": kind.version, "kind": kind.kind },
            "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "verbs": ["get", "list", "watch"],
        })
    };
    let group = |(name, kinds): &(&str, Vec<&SimulatedKind>)| {
        let resources: Vec<Value> = kinds.iter().map(resource).collect();
        let version = kinds.first().map_or("v1", |kind| kind.version);
        let versions = [json!({ "version": version, "resources": resources, "freshness": "Current" })];
        json!({ "metadata": { "name": name }, "versions": versions })
    };
    let items: Vec<Value> = groups.iter().map(group).collect();
    json!({ "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items })
}
