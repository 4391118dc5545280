//! One cluster of a schedule: its API server, its objects and its operator processes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api_server::{ApiFaults, ApiServer, kind_of},
    executor::Executor,
    journal::Journal,
    network::Network,
    process::Process,
    schedule::{
        ClusterStep, INVENTORIES, NAMESPACES, PROFILES, ProcessStep, SINKS, ScopeForm, TARGETS, Wants,
    },
    sink_servers::{SinkServers, TakeOver},
    specs::{LABEL, SCOPE, TEAM, text},
};

/// Processes recover from a watch that was cut, or a request that failed, within this time.
const CATCHING_UP: Duration = Duration::from_mins(2);

pub(super) struct Cluster {
    pub(super) name: &'static str,
    pub(super) api: ApiServer,
    /// Its id.
    pub(super) id: String,
    pub(super) processes: Vec<Process>,
    /// Until then processes may see a change late.
    late_until: Instant,
    network: Network,
    faults: ApiFaults,
}

impl Cluster {
    pub(super) fn new(
        name: &'static str,
        seed: u64,
        processes: usize,
        sinks: &SinkServers,
        (executor, network, journal): (&Executor, &Network, &Journal),
    ) -> Self {
        let api = ApiServer::new(name, seed, journal.clone());
        let system = api.object("namespaces", "", "kube-system").unwrap();
        let id = text(&system["metadata"]["uid"]).to_owned();
        let process = |number| {
            let own = format!("{name}-{number}");
            Process::new(&own, &api, sinks, &id, (executor, network, journal))
        };
        let processes = (0..processes).map(process).collect();
        let (network, faults) = (network.clone(), ApiFaults::default());
        let mut cluster = Self { name, api, id, processes, late_until: Instant::now(), network, faults };
        cluster.create_objects();
        cluster.processes.iter_mut().for_each(Process::start);
        cluster
    }

    fn create_objects(&mut self) {
        let name = self.name;
        for namespace in [TEAM, "kollect-system"].into_iter().chain(NAMESPACES) {
            self.api.change("namespaces", "", namespace, |_| {});
        }
        self.api.serve("widgets", true);
        for (sink, destinations) in SINKS {
            self.api.change("kollectdatabasesinks", TEAM, sink, |object| {
                object["spec"] =
                    json!({ "type": "sqlite", "cluster": name, "sqlite": { "path": destinations[0] } });
            });
        }
        for (profile, plural) in PROFILES.into_iter().zip(["deployments", "widgets"]) {
            self.take(&ClusterStep::ProfileKind(profile, plural));
        }
        self.take(&ClusterStep::Target("t1", "p1", Wants::Named(vec!["a", "b"])));
        self.take(&ClusterStep::Target("t2", "p2", Wants::Named(vec!["a", "c"])));
        self.take(&ClusterStep::Inventory("all", vec!["s1", "s2"], vec![]));
        for number in 0..4 {
            self.take(&ClusterStep::Object("deployments", "a", number, 1));
            self.take(&ClusterStep::Object("widgets", "c", number, 1));
        }
    }

    /// Since when operators have seen each change at once; `None`: they may still see some late.
    pub(super) fn on_time_since(&self) -> Option<Instant> {
        let ApiFaults { errors, latency, stale } = self.faults;
        let is_late = errors > 0 || !latency.is_zero() || stale > 0 || self.late_until > Instant::now();
        (!is_late).then_some(self.late_until)
    }

    /// Changes may be seen late for some time.
    fn sees_late(&mut self, time: Duration) {
        self.late_until = self.late_until.max(Instant::now() + time + CATCHING_UP);
    }

    /// Takes a step that concerns this cluster alone.
    pub(super) fn take(&mut self, step: &ClusterStep) {
        if matches!(
            step,
            ClusterStep::ServeWidgets(_)
                | ClusterStep::Permit(..)
                | ClusterStep::CutWatches
                | ClusterStep::ForgetHistory
        ) {
            self.sees_late(Duration::ZERO);
        }
        let api = &self.api;
        match *step {
            ClusterStep::Object(plural, namespace, number, size) => {
                if api.is_served(plural) && api.object("namespaces", "", namespace).is_some() {
                    api.change(plural, namespace, &format!("o{number}"), |object| {
                        object["spec"] = json!({ "size": size });
                    });
                }
            }
            ClusterStep::DeleteObject(plural, namespace, number) => {
                api.delete(plural, namespace, &format!("o{number}"));
            }
            ClusterStep::Namespace(name, true) => api.change("namespaces", "", name, |_| {}),
            ClusterStep::Namespace(name, false) => api.delete_namespace(name),
            ClusterStep::LabelNamespace(name, labelled) => {
                if api.object("namespaces", "", name).is_some() {
                    api.change("namespaces", "", name, |object| {
                        object["metadata"]["labels"] =
                            if labelled { json!({ LABEL: "yes" }) } else { json!({}) };
                    });
                }
            }
            ClusterStep::ServeWidgets(served) => api.serve("widgets", served),
            ClusterStep::Permit(plural, namespace, allowed) => {
                api.permit(plural, namespace, allowed);
            }
            ClusterStep::CutWatches => {
                api.cut_watches();
            }
            ClusterStep::ForgetHistory => {
                api.forget_history();
                api.cut_watches();
            }
            ClusterStep::ApiErrors(errors) => self.set_faults(|faults| faults.errors = errors),
            ClusterStep::ApiLatency(millis) => {
                self.set_faults(|faults| faults.latency = Duration::from_millis(millis));
            }
            ClusterStep::StaleLists(versions) => self.set_faults(|faults| faults.stale = versions),
            _ => self.take_spec(step),
        }
    }

    fn set_faults(&mut self, change: impl FnOnce(&mut ApiFaults)) {
        change(&mut self.faults);
        self.sees_late(Duration::ZERO);
        self.api.set_faults(self.faults.clone());
    }

    /// Changes the spec of an object of Kollect, if it exists.
    fn edit(&self, plural: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        if self.api.object(plural, TEAM, name).is_some() {
            self.api.change(plural, TEAM, name, |object| edit(&mut object["spec"]));
        }
    }

    fn take_spec(&self, step: &ClusterStep) {
        let api = &self.api;
        match step {
            ClusterStep::Target(name, profile, wants) => {
                let mut spec = json!({ "profileRef": profile });
                match wants {
                    Wants::All => {}
                    Wants::Labelled => {
                        spec["namespaceSelector"] = json!({ "matchLabels": { LABEL: "yes" } });
                    }
                    Wants::Named(names) => spec["includedNamespaces"] = json!(names),
                }
                api.change("kollecttargets", TEAM, name, |object| object["spec"] = spec);
            }
            ClusterStep::SuspendTarget(name, suspend) => {
                self.edit("kollecttargets", name, |spec| spec["suspend"] = json!(suspend));
            }
            ClusterStep::DeleteTarget(name) => api.delete("kollecttargets", TEAM, name),
            ClusterStep::ProfileKind(name, plural) => {
                let gvk = match kind_of(plural) {
                    Some(kind) => json!({ "group": kind.group, "version": kind.version, "kind": kind.kind }),
                    None => json!({ "group": "apps", "version": "v1", "kind": "Deploymint" }),
                };
                api.change("kollectprofiles", TEAM, name, |object| {
                    let attributes = object["spec"]["attributes"].take();
                    let first = || json!([attribute("size")]);
                    let attributes = if attributes.is_null() { first() } else { attributes };
                    object["spec"] = json!({ "targetGVK": gvk, "attributes": attributes });
                });
            }
            ClusterStep::ProfileAttributes(name, count) => {
                let names = ["size", "again"].into_iter().take((*count).into());
                let attributes: Vec<Value> = names.map(attribute).collect();
                self.edit("kollectprofiles", name, |spec| spec["attributes"] = json!(attributes));
            }
            ClusterStep::Inventory(name, sinks, targets) => {
                let known = api.object("kollectinventories", TEAM, name);
                if !known.is_some_and(|object| object.is_leaving()) {
                    api.change("kollectinventories", TEAM, name, |object| {
                        object["spec"] = json!({ "databaseSinkRefs": sinks, "targetRefs": targets });
                    });
                }
            }
            ClusterStep::SuspendInventory(name, suspend) => {
                self.edit("kollectinventories", name, |spec| spec["suspend"] = json!(suspend));
            }
            ClusterStep::RemovalGuard(name, rows) => {
                let guard = rows.map_or(Value::Null, |rows| json!({ "rows": rows }));
                self.edit("kollectinventories", name, |spec| spec["removalGuard"] = guard);
            }
            ClusterStep::DeleteInventory(name) => api.delete("kollectinventories", TEAM, name),
            ClusterStep::ClusterName(sink, name) => {
                self.edit("kollectdatabasesinks", sink, |spec| spec["cluster"] = json!(name));
            }
            ClusterStep::MoveSink(name, path) => {
                self.edit("kollectdatabasesinks", name, |spec| spec["sqlite"]["path"] = json!(path));
            }
            ClusterStep::Scope(form) => {
                let spec = match form {
                    ScopeForm::Denies(names) => json!({ "deniedNamespaces": names }),
                    ScopeForm::Allows(names) => json!({ "allowedNamespaces": names }),
                    ScopeForm::Unreadable => json!({ "deniedNamespaces": "a" }),
                };
                api.change("kollectscopes", TEAM, SCOPE, |object| object["spec"] = spec);
            }
            ClusterStep::DeleteScope => api.delete("kollectscopes", TEAM, SCOPE),
            other => panic!("{other:?} is not a step of specs"),
        }
    }

    /// Something happens to one of the processes.
    pub(super) fn take_process(&mut self, number: usize, step: &ProcessStep) {
        let Some(number) = number.checked_rem(self.processes.len()) else { return };
        let process = &mut self.processes[number];
        match *step {
            ProcessStep::Crash => process.crash(),
            ProcessStep::CrashAt(counted, nth, point) => {
                self.network.crash_at(process.id, counted, nth, point);
            }
            ProcessStep::Start => {
                process.start();
                // Only a process that has seen newer versions can tell that a list is stale.
                self.set_faults(|faults| faults.stale = 0);
            }
            ProcessStep::Stop => process.stop(),
            ProcessStep::Pause(seconds) => {
                process.pause(seconds);
                self.sees_late(Duration::from_secs(seconds));
            }
            ProcessStep::CutOffApi(cut) => {
                self.network.cut_off_from_api(process.id, cut);
                // Until the faults are over.
                self.sees_late(Duration::from_hours(1));
            }
            ProcessStep::CutOff(destination, cut) => self.network.cut_off(process.id, destination, cut),
        }
    }

    /// Annotates an inventory: it may take what belongs to another cluster, where a sink leads to. An annotation that
    /// names no sink asks for nothing.
    pub(super) fn take_over(&self, inventory: &str, sink: Option<&str>, other: &str, sinks: &SinkServers) {
        if self.api.object("kollectinventories", TEAM, inventory).is_none() {
            return;
        }
        let mut annotation = other.to_owned();
        if let Some(sink) = sink {
            let what = format!("database/{sink}");
            annotation = format!("{what}={other}");
            let (cluster, inventory, from) = (self.id.clone(), inventory.to_owned(), other.to_owned());
            sinks.ask_take_over(TakeOver { cluster, inventory, what, from });
        }
        self.api.change("kollectinventories", TEAM, inventory, |object| {
            object["metadata"]["annotations"] = json!({ "kollect.dev/take-over": annotation });
        });
    }

    /// Faults stop, nothing is suspended any more, and all processes run.
    pub(super) fn heal(&mut self) {
        self.faults = ApiFaults::default();
        self.late_until = Instant::now() + CATCHING_UP;
        self.api.heal();
        for name in INVENTORIES {
            self.take(&ClusterStep::SuspendInventory(name, false));
            self.take(&ClusterStep::RemovalGuard(name, None));
        }
        for name in TARGETS {
            self.take(&ClusterStep::SuspendTarget(name, false));
        }
        for (sink, _) in SINKS {
            self.take(&ClusterStep::ClusterName(sink, self.name));
        }
        for profile in PROFILES {
            let object = self.api.object("kollectprofiles", TEAM, profile).unwrap();
            if object["spec"]["targetGVK"]["kind"] == "Deploymint" {
                self.take(&ClusterStep::ProfileKind(profile, "deployments"));
            }
        }
        if super::specs::Scope::now(&self.api) == super::specs::Scope::Unreadable {
            self.take(&ClusterStep::DeleteScope);
        }
        self.processes.iter().for_each(Process::resume);
        self.start();
    }

    /// Starts all processes that do not run.
    pub(super) fn start(&mut self) {
        self.processes.iter_mut().for_each(Process::start);
    }
}

fn attribute(name: &str) -> Value {
    json!({ "name": name, "path": "$.spec.size", "type": "int" })
}
