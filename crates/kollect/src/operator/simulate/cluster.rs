//! One cluster of a schedule: its API server, and the operator process in it, which can crash at any time.

use std::{sync::Arc, time::Duration};

use kollect_engine::{
    collect::{Collector, Settings},
    store::store,
    tasks::{Host, TaskKind, Tasks},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time};

use super::{
    super::{
        health::Health,
        leader::Leadership,
        metrics,
        progress::Board,
        reconcile::{Operator, Setup},
    },
    api_server::{ApiFaults, ApiServer, kind_of},
    executor::{Executor, ProcessId},
    journal::Journal,
    schedule::{NAMESPACES, PROFILES, SINKS, Step},
    sink_servers::SinkServers,
    truth::{TEAM, text},
};
use crate::{
    cluster::ClusterSource,
    world::{FileRoot, Rules},
};

pub(super) struct Cluster {
    pub(super) name: String,
    pub(super) api: ApiServer,
    sinks: SinkServers,
    executor: Executor,
    /// The operator.
    process: Option<ProcessId>,
    faults: ApiFaults,
}

impl Cluster {
    pub(super) fn new(
        name: &str,
        seed: u64,
        sinks: SinkServers,
        executor: Executor,
        journal: Journal,
    ) -> Self {
        let api = ApiServer::new(name, seed, journal);
        for namespace in [TEAM, "kollect-system"].into_iter().chain(NAMESPACES) {
            api.change("namespaces", "", namespace, |_| {});
        }
        api.serve("widgets", true);
        let faults = ApiFaults::default();
        let mut cluster = Self { name: name.into(), api, sinks, executor, process: None, faults };
        for (sink, destinations) in SINKS {
            cluster.api.change("kollectdatabasesinks", TEAM, sink, |object| {
                object["spec"] =
                    json!({ "type": "sqlite", "cluster": name, "sqlite": { "path": destinations[0] } });
            });
        }
        for (profile, plural) in PROFILES.into_iter().zip(["deployments", "widgets"]) {
            cluster.take(&Step::ProfileKind(0, profile, plural));
        }
        cluster.take(&Step::Target(0, "t1", "p1", vec!["a", "b"]));
        cluster.take(&Step::Target(0, "t2", "p2", vec!["a", "c"]));
        cluster.take(&Step::Inventory(0, "all", vec!["s1", "s2"], vec![]));
        for number in 0..4 {
            cluster.take(&Step::Object(0, "deployments", "a", number, 1));
            cluster.take(&Step::Object(0, "widgets", "c", number, 1));
        }
        cluster.start();
        cluster
    }

    fn start(&mut self) {
        if self.process.is_none() {
            let (api, sinks) = (self.api.clone(), self.sinks.clone());
            self.process = Some(self.executor.start(|host| Box::pin(operate(api, sinks, host))));
        }
    }

    /// Takes a step that concerns this cluster.
    pub(super) fn take(&mut self, step: &Step) {
        let api = &self.api;
        match *step {
            Step::Object(_, plural, namespace, number, size) => {
                if api.is_served(plural) && api.object("namespaces", "", namespace).is_some() {
                    api.change(plural, namespace, &format!("o{number}"), |object| {
                        object["spec"] = json!({ "size": size });
                    });
                }
            }
            Step::DeleteObject(_, plural, namespace, number) => {
                api.delete(plural, namespace, &format!("o{number}"));
            }
            Step::Namespace(_, name, true) => api.change("namespaces", "", name, |_| {}),
            Step::Namespace(_, name, false) => api.delete_namespace(name),
            Step::ServeWidgets(_, served) => api.serve("widgets", served),
            Step::Permit(_, plural, namespace, allowed) => api.permit(plural, namespace, allowed),
            Step::CutWatches(_) => api.cut_watches(),
            Step::ForgetHistory(_) => {
                api.forget_history();
                api.cut_watches();
            }
            Step::ApiErrors(_, errors) => {
                self.faults.errors = errors;
                api.set_faults(self.faults.clone());
            }
            Step::ApiLatency(_, millis) => {
                self.faults.latency = Duration::from_millis(millis);
                api.set_faults(self.faults.clone());
            }
            Step::StaleLists(_, versions) => {
                self.faults.stale = versions;
                api.set_faults(self.faults.clone());
            }
            Step::Crash(_) => {
                self.process.take().into_iter().for_each(|process| self.executor.crash(process));
                // Only a process that has seen newer versions can tell that a list is stale.
                self.faults.stale = 0;
                api.set_faults(self.faults.clone());
            }
            Step::Start(_) => self.start(),
            Step::Sink(..)
            | Step::EditRows(..)
            | Step::BackUp(..)
            | Step::Restore(..)
            | Step::LoseClaims(..)
            | Step::TakeOver(..) => {}
            _ => self.take_spec(step),
        }
    }

    fn take_spec(&self, step: &Step) {
        let api = &self.api;
        // What does not exist cannot be changed.
        let edit = |plural, name: &str, edit: &dyn Fn(&mut Value)| {
            if api.object(plural, TEAM, name).is_some() {
                api.change(plural, TEAM, name, |object| edit(&mut object["spec"]));
            }
        };
        match step {
            Step::Target(_, name, profile, namespaces) => {
                api.change("kollecttargets", TEAM, name, |object| {
                    object["spec"] = json!({ "profileRef": profile, "includedNamespaces": namespaces });
                });
            }
            Step::SuspendTarget(_, name, suspend) => {
                edit("kollecttargets", name, &|spec| spec["suspend"] = json!(suspend));
            }
            Step::DeleteTarget(_, name) => api.delete("kollecttargets", TEAM, name),
            Step::ProfileKind(_, name, plural) => {
                let gvk = match kind_of(plural) {
                    Some(kind) => json!({ "group": kind.group, "version": kind.version, "kind": kind.kind }),
                    None => json!({ "group": "apps", "version": "v1", "kind": "Deploymint" }),
                };
                api.change("kollectprofiles", TEAM, name, |object| {
                    let attributes = object["spec"]["attributes"].take();
                    let first = || json!([{ "name": "size", "path": "$.spec.size", "type": "int" }]);
                    let attributes = if attributes.is_null() { first() } else { attributes };
                    object["spec"] = json!({ "targetGVK": gvk, "attributes": attributes });
                });
            }
            Step::ProfileAttributes(_, name, count) => {
                let names = ["size", "again"].into_iter().take((*count).into());
                let attribute = |name| json!({ "name": name, "path": "$.spec.size", "type": "int" });
                let attributes: Vec<Value> = names.map(attribute).collect();
                edit("kollectprofiles", name, &|spec| spec["attributes"] = json!(attributes));
            }
            Step::Inventory(_, name, sinks, targets) => {
                let leaving = |object: &Value| object["metadata"].get("deletionTimestamp").is_some();
                if !api.object("kollectinventories", TEAM, name).is_some_and(|object| leaving(&object)) {
                    api.change("kollectinventories", TEAM, name, |object| {
                        object["spec"] = json!({ "databaseSinkRefs": sinks, "targetRefs": targets });
                    });
                }
            }
            Step::SuspendInventory(_, name, suspend) => {
                edit("kollectinventories", name, &|spec| spec["suspend"] = json!(suspend));
            }
            Step::DeleteInventory(_, name) => api.delete("kollectinventories", TEAM, name),
            Step::ClusterName(_, sink, name) => {
                edit("kollectdatabasesinks", sink, &|spec| spec["cluster"] = json!(name));
            }
            Step::MoveSink(_, name, path) => {
                edit("kollectdatabasesinks", name, &|spec| spec["sqlite"]["path"] = json!(path));
            }
            other => panic!("{other:?} is not a step of specs"),
        }
    }

    /// The id of the cluster.
    pub(super) fn id(&self) -> String {
        let namespace = self.api.object("namespaces", "", "kube-system").unwrap();
        text(&namespace["metadata"]["uid"]).to_owned()
    }

    /// Annotates an inventory: it may take what belongs to another cluster.
    pub(super) fn take_over(&self, inventory: &str, other: &str) {
        if self.api.object("kollectinventories", TEAM, inventory).is_some() {
            self.api.change("kollectinventories", TEAM, inventory, |object| {
                object["metadata"]["annotations"] = json!({ "kollect.dev/take-over": other });
            });
        }
    }

    /// Faults stop, and nothing is suspended any more.
    pub(super) fn heal(&mut self) {
        self.faults = ApiFaults::default();
        self.api.heal();
        for name in ["all", "some"] {
            self.take(&Step::SuspendInventory(0, name, false));
        }
        for name in ["t1", "t2", "t3"] {
            self.take(&Step::SuspendTarget(0, name, false));
        }
        for (sink, _) in SINKS {
            let name = self.name.clone();
            self.api
                .change("kollectdatabasesinks", TEAM, sink, |object| object["spec"]["cluster"] = json!(name));
        }
        for profile in PROFILES {
            let object = self.api.object("kollectprofiles", TEAM, profile).unwrap();
            if object["spec"]["targetGVK"]["kind"] == "Deploymint" {
                self.take(&Step::ProfileKind(0, profile, "deployments"));
            }
        }
        self.start();
    }
}

/// The operator as the program runs it, but for its servers and the lease.
async fn operate(api: ApiServer, sinks: SinkServers, host: Arc<dyn Host>) {
    let source = loop {
        match ClusterSource::in_memory(api.client()).await {
            Ok(source) => break Arc::new(source),
            Err(_) => time::sleep(Duration::from_secs(1)).await,
        }
    };
    let files = FileRoot::Directory("/simulated".into());
    let own_namespace = Some("kollect-system".to_owned());
    let rules =
        Arc::new(Rules { own_namespace, cluster_id: Some(source.id.clone()), files, ..Rules::default() });
    let tasks = Tasks::hosted_by(host);
    let _kinds = tasks.core(TaskKind::Discovery.into(), source.clone().follow_kinds());
    let (writer, rows) = store();
    let meter = metrics::Meter::default();
    let collector = Collector::start(source.clone(), writer, Settings::default(), tasks.clone(), |_| {});
    let leading = Leadership::Leading { term: 1, until: None, problem: None };
    let (_lease, leadership) = watch::channel(leading);
    let board = Board::default();
    let asked = source.clone();
    let sources = metrics::Sources {
        rows: rows.clone(),
        coverage: collector.coverage().clone(),
        board: board.clone(),
        leadership: leadership.clone(),
        tasks: tasks.clone(),
        discovery: Box::new(move || asked.knows_all_kinds()),
    };
    let metrics = metrics::Metrics::new(sources, meter);
    let setup = Setup {
        source,
        rules,
        collector,
        rows,
        within: None,
        sinks: Arc::new(sinks),
        board,
        metrics,
        tasks,
        cleanup_timeout: Duration::from_hours(1),
    };
    Operator::new(setup, leadership, Health::default()).run().await;
}
