//! One cluster of a schedule: its API server, its objects and its operator processes.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    api_server::{ApiFaults, ApiServer, kind_of},
    executor::Executor,
    journal::Journal,
    network::Network,
    process::OperatorProcess,
    schedule::{
        ClusterStep, INVENTORIES, NAMESPACES, PROFILES, ProcessStep, SINKS, ScopeForm, TARGETS,
        WantedNamespaces,
    },
    sink_servers::{SimulatedTakeOver, SinkServers},
    specs::{LABEL, SCOPE, TEAM, text},
};

/// Processes recover from a watch that was cut, or a request that failed, within this time.
const RECOVERY_TIME: Duration = Duration::from_mins(2);

pub(super) struct SimulatedCluster {
    pub(super) name: &'static str,
    pub(super) api: ApiServer,
    pub(super) id: String,
    pub(super) processes: Vec<OperatorProcess>,
    /// Until then processes may see a change late.
    late_until: Instant,
    network: Network,
    faults: ApiFaults,
}

impl SimulatedCluster {
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
            let process_name = format!("{name}-{number}");
            OperatorProcess::new(&process_name, &api, sinks, &id, (executor, network, journal))
        };
        let processes = (0..processes).map(process).collect();
        let (network, faults) = (network.clone(), ApiFaults::default());
        let mut cluster = Self { name, api, id, processes, late_until: Instant::now(), network, faults };
        cluster.create_objects();
        cluster.processes.iter_mut().for_each(OperatorProcess::start);
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
            self.apply_step(&ClusterStep::ProfileKind(profile, plural));
        }
        self.apply_step(&ClusterStep::Target("t1", "p1", WantedNamespaces::Named(vec!["a", "b"])));
        self.apply_step(&ClusterStep::Target("t2", "p2", WantedNamespaces::Named(vec!["a", "c"])));
        self.apply_step(&ClusterStep::Inventory("all", vec!["s1", "s2"], vec![]));
        for number in 0..4 {
            self.apply_step(&ClusterStep::Object("deployments", "a", number, 1));
            self.apply_step(&ClusterStep::Object("widgets", "c", number, 1));
        }
    }

    /// Since when operators have seen each change at once; `None`: they may still see some late.
    pub(super) fn on_time_since(&self) -> Option<Instant> {
        let ApiFaults { errors, latency, stale } = self.faults;
        let is_late = errors > 0 || !latency.is_zero() || stale > 0 || self.late_until > Instant::now();
        (!is_late).then_some(self.late_until)
    }

    /// Operators may see changes late for some time.
    fn allow_late_changes(&mut self, time: Duration) {
        self.late_until = self.late_until.max(Instant::now() + time + RECOVERY_TIME);
    }

    /// Applies a step that concerns this cluster alone.
    pub(super) fn apply_step(&mut self, step: &ClusterStep) {
        if matches!(
            step,
            ClusterStep::ServeWidgets(_)
                | ClusterStep::Permit(..)
                | ClusterStep::CutWatches
                | ClusterStep::ForgetHistory
        ) {
            self.allow_late_changes(Duration::ZERO);
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
            _ => self.apply_spec_step(step),
        }
    }

    fn set_faults(&mut self, change: impl FnOnce(&mut ApiFaults)) {
        change(&mut self.faults);
        self.allow_late_changes(Duration::ZERO);
        self.api.set_faults(self.faults.clone());
    }

    /// Changes the spec of an object of Kollect, if it exists.
    fn edit(&self, plural: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        if self.api.object(plural, TEAM, name).is_some() {
            self.api.change(plural, TEAM, name, |object| edit(&mut object["spec"]));
        }
    }

    fn apply_spec_step(&self, step: &ClusterStep) {
        let api = &self.api;
        match step {
            ClusterStep::Target(name, profile, namespaces) => {
                let mut spec = json!({ "profileRef": profile });
                match namespaces {
                    WantedNamespaces::All => {}
                    WantedNamespaces::Labelled => {
                        spec["namespaceSelector"] = json!({ "matchLabels": { LABEL: "yes" } });
                    }
                    WantedNamespaces::Named(names) => spec["includedNamespaces"] = json!(names),
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
                    let initial = || json!([attribute("size")]);
                    let attributes = if attributes.is_null() { initial() } else { attributes };
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
                if !known.is_some_and(|object| object.is_being_deleted()) {
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

    /// Applies a step that concerns one of the processes.
    pub(super) fn apply_process_step(&mut self, number: usize, step: &ProcessStep) {
        let Some(number) = number.checked_rem(self.processes.len()) else { return };
        let process = &mut self.processes[number];
        match *step {
            ProcessStep::Crash => process.crash(),
            ProcessStep::CrashAt(counted, nth, point) => {
                self.network.crash_at(process.id, counted, nth, point);
            }
            ProcessStep::Start => {
                process.start();
                // Only a process that has seen newer versions can detect that a list is stale.
                self.set_faults(|faults| faults.stale = 0);
            }
            ProcessStep::Stop => process.stop(),
            ProcessStep::Pause(seconds) => {
                process.pause(seconds);
                self.allow_late_changes(Duration::from_secs(seconds));
            }
            ProcessStep::CutOffApi(is_cut) => {
                self.network.cut_off_from_api(process.id, is_cut);
                // Until the faults are over.
                self.allow_late_changes(Duration::from_hours(1));
            }
            ProcessStep::CutOff(destination, is_cut) => {
                self.network.cut_off(process.id, destination, is_cut);
            }
        }
    }

    /// Annotates an inventory: in the destination of a sink it may take over rows of another cluster. An annotation
    /// that names no sink has no effect.
    pub(super) fn take_over(&self, inventory: &str, sink: Option<&str>, other: &str, sinks: &SinkServers) {
        if self.api.object("kollectinventories", TEAM, inventory).is_none() {
            return;
        }
        let mut annotation = other.to_owned();
        if let Some(sink) = sink {
            let subject = format!("database/{sink}");
            annotation = format!("{subject}={other}");
            let (cluster, inventory, from) = (self.id.clone(), inventory.to_owned(), other.to_owned());
            sinks.request_take_over(SimulatedTakeOver { cluster, inventory, subject, from });
        }
        self.api.change("kollectinventories", TEAM, inventory, |object| {
            object["metadata"]["annotations"] = json!({ "kollect.dev/take-over": annotation });
        });
    }

    /// Faults stop, nothing is suspended any more, and all processes run.
    pub(super) fn end_faults(&mut self) {
        self.faults = ApiFaults::default();
        self.late_until = Instant::now() + RECOVERY_TIME;
        self.api.end_faults();
        for name in INVENTORIES {
            self.apply_step(&ClusterStep::SuspendInventory(name, false));
            self.apply_step(&ClusterStep::RemovalGuard(name, None));
        }
        for name in TARGETS {
            self.apply_step(&ClusterStep::SuspendTarget(name, false));
        }
        for (sink, _) in SINKS {
            self.apply_step(&ClusterStep::ClusterName(sink, self.name));
        }
        for profile in PROFILES {
            let object = self.api.object("kollectprofiles", TEAM, profile).unwrap();
            if object["spec"]["targetGVK"]["kind"] == "Deploymint" {
                self.apply_step(&ClusterStep::ProfileKind(profile, "deployments"));
            }
        }
        if super::specs::ScopeSpecs::now(&self.api) == super::specs::ScopeSpecs::Unreadable {
            self.apply_step(&ClusterStep::DeleteScope);
        }
        self.processes.iter().for_each(OperatorProcess::resume);
        self.start();
    }

    /// Starts all processes that do not run.
    pub(super) fn start(&mut self) {
        self.processes.iter_mut().for_each(OperatorProcess::start);
    }
}

fn attribute(name: &str) -> Value {
    json!({ "name": name, "path": "$.spec.size", "type": "int" })
}
