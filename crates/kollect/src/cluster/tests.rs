//! Collection from a real API server, on a network that breaks. After each fault the rows must equal a fresh list,
//! and no row may have been removed while its objects could not be seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use kollect_engine::{
    collect::{CollectProblem, CollectSettings, Collector, Target},
    coverage::{KindCoverage, WatchState},
    extract::{CompiledProfile, ExtractPolicy, OptIns},
    select::{Bounds, NamespaceDefaults, Selection},
    store::{Changes, StoreChange, StoreReader, Visibility, store},
    tasks::Tasks,
    watch::BlindReason,
};
use kollect_model::{
    crd::{
        profile::KollectProfileSpec,
        target::{KollectClusterTargetSpec, KollectTargetSpec},
    },
    row::TargetId,
};
use kollect_testbed::{ControlPlane, Grant, Proxy, RecordedList};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use super::{ClusterIdentity, ClusterSource, follow::WatchLimits};

/// Long enough for a machine that is busy with something else.
const WAIT_LIMIT: Duration = Duration::from_secs(40);

fn short_limits() -> WatchLimits {
    WatchLimits {
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(1),
        longest_watch: Duration::from_secs(4),
        longest_silence: Duration::from_secs(3),
        absent_after: Duration::from_secs(1),
        restored_after: Duration::from_secs(6),
    }
}

fn config_maps() -> Value {
    json!({ "version": "v1", "kind": "ConfigMap" })
}

fn profile(gvk: &Value) -> Arc<CompiledProfile> {
    let attributes = match gvk["kind"].as_str() {
        Some("ConfigMap") => json!([{ "name": "value", "path": "$.data.value" }]),
        _ => json!([{ "name": "size", "path": "$.spec.size" }]),
    };
    let spec = json!({ "targetGVK": gvk, "attributes": attributes });
    let spec: KollectProfileSpec = serde_json::from_value(spec).unwrap();
    Arc::new(CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default()).unwrap())
}

fn target(name: &str, gvk: &Value, spec: &Value) -> Arc<Target> {
    let mut spec = spec.clone();
    spec["profileRef"] = "p".into();
    let spec: KollectTargetSpec = serde_json::from_value(spec).unwrap();
    let profile = profile(gvk);
    let (policy, defaults) = (ExtractPolicy::default(), NamespaceDefaults::default());
    let selection =
        Selection::of_target(&spec, &profile.gvk, &Bounds::default(), &policy, &defaults).unwrap();
    Arc::new(Target::new(id(name), profile, selection))
}

fn id(name: &str) -> TargetId {
    TargetId { namespace: Some("team".into()), name: name.into() }
}

/// Some namespaces that only one test uses, found by a label.
fn labelled_namespace(plane: &ControlPlane, prefix: &str) -> (String, Value) {
    let namespace = plane.namespace(prefix).unwrap();
    plane.kubectl(&["label", "namespace", &namespace, &format!("test={namespace}")]).unwrap();
    let selector = json!({ "namespaceSelector": { "matchLabels": { "test": namespace } } });
    (namespace, selector)
}

fn put(plane: &ControlPlane, namespace: &str, name: &str, value: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name, "namespace": namespace }, "data": { "value": value },
    });
    plane.apply(&object.to_string()).unwrap();
}

fn delete(plane: &ControlPlane, namespace: &str, name: &str) {
    plane.kubectl(&["delete", "configmap", name, "-n", namespace]).unwrap();
}

type RowsByName = BTreeMap<(String, String), String>;

/// The engine on a live cluster.
struct Live {
    collector: Collector,
    rows: StoreReader,
    targets: Vec<Arc<Target>>,
    changes: Changes,
    problems: Arc<Mutex<Vec<String>>>,
    _kinds: tokio::task::JoinHandle<()>,
}

impl Live {
    async fn start(kubeconfig: &Path, targets: Vec<Arc<Target>>) -> Self {
        let settings = CollectSettings { review: Duration::from_secs(1), ..CollectSettings::default() };
        Self::start_with(kubeconfig, targets, settings, short_limits()).await
    }

    async fn start_with(
        kubeconfig: &Path,
        targets: Vec<Arc<Target>>,
        settings: CollectSettings,
        limits: WatchLimits,
    ) -> Self {
        let source = Arc::new(ClusterSource::connect_with(Some(kubeconfig), None, limits).await.unwrap());
        let kinds = tokio::spawn(source.clone().follow_kinds());
        let (writer, rows) = store();
        let problems: Arc<Mutex<Vec<String>>> = Arc::default();
        let recorded = problems.clone();
        let report = move |problem: CollectProblem| recorded.lock().unwrap().push(format!("{problem:?}"));
        let mut collector = Collector::start(source, writer, settings, Tasks::default(), report);
        collector.set_targets(&targets, &BTreeSet::new());
        let ids: Vec<TargetId> = targets.iter().map(|target| target.id.clone()).collect();
        let changes = rows.changes(&ids);
        Self { collector, rows, targets, changes, problems, _kinds: kinds }
    }

    fn found(rows: &StoreReader, targets: &[Arc<Target>]) -> Option<RowsByName> {
        let ids: Vec<TargetId> = targets.iter().map(|target| target.id.clone()).collect();
        let snapshot = rows.snapshot(&ids, Visibility::Everything)?;
        let row = |(key, row): (&kollect_model::row::RowKey, &Arc<kollect_model::row::Row>)| {
            let object_name = format!("{}/{}", key.namespace, row.name);
            ((key.target.name.to_string(), object_name), row.attributes.get().to_owned())
        };
        Some(snapshot.rows.iter().map(row).collect())
    }

    /// What a fresh list gives.
    async fn fresh_rows(&self, kubeconfig: &Path) -> RowsByName {
        let source = Arc::new(ClusterSource::connect(Some(kubeconfig), None).await.unwrap());
        let (writer, rows) = store();
        let settings = CollectSettings { follow: false, ..CollectSettings::default() };
        let mut collector = Collector::start(source, writer, settings, Tasks::default(), |_| {});
        collector.set_targets(&self.targets, &BTreeSet::new());
        rows.wait_until_seen().await;
        Self::found(&rows, &self.targets).unwrap()
    }

    /// Waits until the rows are what a fresh list gives.
    async fn catches_up(&self, plane: &ControlPlane) {
        let deadline = Instant::now() + WAIT_LIMIT;
        loop {
            let expected = self.fresh_rows(plane.kubeconfig()).await;
            let found = Self::found(&self.rows, &self.targets);
            if found.as_ref() == Some(&expected) {
                return;
            }
            assert!(Instant::now() < deadline, "found {found:#?}\nexpected {expected:#?}");
            time::sleep(Duration::from_millis(100)).await;
        }
    }

    fn count(&self) -> usize {
        self.targets.iter().map(|target| self.rows.count(&target.id)).sum()
    }

    fn coverage_of(&self, kind: &str) -> Vec<(Option<String>, KindCoverage)> {
        let coverage = self.collector.coverage().read();
        let of_kind = coverage.into_iter().filter(|(watched, _)| watched.gvk.kind == kind);
        of_kind.map(|(watched, known)| (watched.namespace.as_deref().map(Into::into), known)).collect()
    }

    fn is_blind(&self, kind: &str) -> bool {
        self.coverage_of(kind).iter().any(|(_, known)| matches!(known.state, WatchState::Blind { .. }))
    }

    fn removed(&mut self) -> Vec<StoreChange> {
        self.changes.take().into_iter().filter(|change| change.after.is_none()).collect()
    }
}

async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_LIMIT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} never came true");
        time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_frozen_while_the_api_server_is_down_and_updated_when_it_is_back() {
    let mut plane = ControlPlane::start().unwrap();
    let (namespace, selector) = labelled_namespace(&plane, "dead");
    (0..20).for_each(|number| put(&plane, &namespace, &format!("c{number}"), "1"));
    let mut live = Live::start(plane.kubeconfig(), vec![target("a", &config_maps(), &selector)]).await;
    live.catches_up(&plane).await;
    live.changes.take();

    plane.stop_api_server();
    eventually("blindness", || live.is_blind("ConfigMap")).await;
    assert!(live.removed().is_empty());
    plane.start_api_server().unwrap();
    put(&plane, &namespace, "new", "1");
    delete(&plane, &namespace, "c0");
    live.catches_up(&plane).await;
    assert!(!live.is_blind("ConfigMap"));
    let gaps: Vec<_> = live.coverage_of("ConfigMap").into_iter().flat_map(|(_, known)| known.gaps).collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    assert_eq!(gaps[0].blindness.reason, BlindReason::Failed);
    let removed: Vec<String> =
        live.removed().iter().map(|change| change.before.as_ref().unwrap().name.to_string()).collect();
    assert_eq!(removed, ["c0"], "nothing else was removed on the way");

    // The API server has compacted its history and no longer knows the version of the watch: it is listed again.
    plane.stop_api_server();
    plane.compact_etcd().unwrap();
    plane.start_api_server().unwrap();
    put(&plane, &namespace, "c1", "2");
    delete(&plane, &namespace, "c2");
    live.catches_up(&plane).await;
    assert_eq!(live.changes.take().len(), 2, "unchanged rows are not reported again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_cut_off_in_the_middle_begins_again() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let (namespace, selector) = labelled_namespace(plane, "middle");
    (0..5).for_each(|number| put(plane, &namespace, &format!("c{number}"), "1"));
    proxy.stall(true);
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let targets = vec![target("a", &config_maps(), &selector)];
    let start = tokio::spawn(async move { Live::start(&kubeconfig, targets).await });
    time::sleep(Duration::from_millis(500)).await;
    proxy.stall(false);
    let live = start.await.unwrap();
    for _ in 0..10 {
        proxy.cut();
        time::sleep(Duration::from_millis(30)).await;
    }
    live.catches_up(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_network_loses_nothing() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let (namespace, selector) = labelled_namespace(plane, "broken");
    (0..5).for_each(|number| put(plane, &namespace, &format!("c{number}"), "1"));
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let mut live = Live::start(&kubeconfig, vec![target("a", &config_maps(), &selector)]).await;
    live.catches_up(plane).await;
    live.changes.take();

    // Cut: the watch goes on where it was.
    let lists = |proxy: &Proxy| {
        let is_list = |line: &&String| line.contains("configmaps") && !line.contains("resourceVersion=");
        proxy.requests().iter().filter(is_list).count()
    };
    let before = lists(&proxy);
    proxy.cut();
    put(plane, &namespace, "c0", "cut");
    live.catches_up(plane).await;
    assert_eq!(lists(&proxy), before, "no list was needed");

    // Refused for a while: blind, and nothing is removed.
    proxy.refuse(true);
    delete(plane, &namespace, "c1");
    eventually("blindness", || live.is_blind("ConfigMap")).await;
    assert_eq!(live.count(), 5);
    proxy.refuse(false);
    live.catches_up(plane).await;
    assert_eq!(live.count(), 4);

    // Silent: a dead connection is found out.
    proxy.stall(true);
    put(plane, &namespace, "c2", "stalled");
    time::sleep(Duration::from_secs(1)).await;
    proxy.cut();
    proxy.stall(false);
    live.catches_up(plane).await;

    // The server answers that the client must wait, then that it no longer has the version.
    let watch = |line: &str| line.contains("configmaps") && line.contains("watch=true");
    let expired = r#"{"kind":"Status","code":410,"reason":"Expired","message":"too old"}"#;
    proxy.answer(1, watch, 429, &[("Retry-After", "1")], "{}");
    proxy.answer(1, watch, 410, &[], expired);
    proxy.answer(2, watch, 500, &[], "{}");
    proxy.cut();
    put(plane, &namespace, "c3", "after");
    live.catches_up(plane).await;
    assert!(live.removed().len() == 1, "only what was deleted is removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_older_than_what_was_seen_changes_nothing_unless_the_cluster_was_restored() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let (namespace, selector) = labelled_namespace(plane, "behind");
    (0..4).for_each(|number| put(plane, &namespace, &format!("c{number}"), "1"));
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let mut live = Live::start(&kubeconfig, vec![target("a", &config_maps(), &selector)]).await;
    live.catches_up(plane).await;
    let old = RecordedList::of(plane, "/api/v1/configmaps").unwrap();
    delete(plane, &namespace, "c1");
    put(plane, &namespace, "c2", "2");
    put(plane, &namespace, "c9", "1");
    live.catches_up(plane).await;
    live.changes.take();

    proxy.lag(&old, 4);
    eventually("the lag is reported", || {
        format!("{:?}", live.coverage_of("ConfigMap")).contains("was seen before")
    })
    .await;
    put(plane, &namespace, "c3", "3");
    live.catches_up(plane).await;
    let changed: Vec<String> = live.changes.take().iter().map(|change| format!("{change:?}")).collect();
    assert_eq!(changed.len(), 1, "what was deleted, changed and created stays so: {changed:?}");

    // A server that stays behind is accepted: the cluster was restored from a backup.
    let from_old_version = format!("/configmaps?watch=true&resourceVersion={}&", old.version());
    let watched = || proxy.requests().iter().filter(|line| line.contains(&from_old_version)).count();
    let before = watched();
    proxy.lag(&old, 1000);
    eventually("a watch from there", || watched() > before).await;
    live.catches_up(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_refuses_watch_lists_is_read_in_pages() {
    let plane = ControlPlane::start_with(&["--feature-gates=WatchList=false"]).unwrap();
    let (namespace, selector) = labelled_namespace(&plane, "pages");
    put(&plane, &namespace, "c0", "1");
    let proxy = Proxy::start(&plane).unwrap();
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let live = Live::start(&kubeconfig, vec![target("a", &config_maps(), &selector)]).await;
    live.catches_up(&plane).await;
    put(&plane, &namespace, "c1", "1");
    live.catches_up(&plane).await;
    let refused = proxy.requests().iter().filter(|line| line.contains("sendInitialEvents")).count();
    assert!(refused <= 8, "the refusal is remembered: {refused}");
    assert!(!live.is_blind("ConfigMap"));
}

#[tokio::test(flavor = "multi_thread")]
async fn granted_namespaces_are_collected_and_rows_of_revoked_ones_are_frozen() {
    let plane = ControlPlane::shared();
    let (seen, _) = labelled_namespace(plane, "seen");
    let (hidden, _) = labelled_namespace(plane, "hidden");
    put(plane, &seen, "c", "1");
    put(plane, &hidden, "c", "1");
    let verbs = &["list", "watch"];
    let namespaces_grant = Grant::cluster("", &["namespaces"], verbs);
    let config_maps_grant = Grant::in_namespace(&seen, "", &["configmaps"], verbs);
    let user = plane.user(&seen, "reader", &[namespaces_grant, config_maps_grant]).unwrap();
    let included = json!({ "includedNamespaces": [&seen, &hidden] });
    let mut live = Live::start(&user, vec![target("a", &config_maps(), &included)]).await;
    live.rows.wait_until_seen().await;
    assert_eq!(live.count(), 1);
    let blind_namespaces = |live: &Live| -> BTreeSet<Option<String>> {
        let blind = live.coverage_of("ConfigMap").into_iter();
        blind
            .filter(|(_, known)| matches!(known.state, WatchState::Blind { .. }))
            .map(|(namespace, _)| namespace)
            .collect()
    };
    assert_eq!(blind_namespaces(&live), [Some(hidden.clone())].into());

    // Granted: the other namespace joins without a restart.
    let binding = format!("{seen}-reader-1");
    let account = format!("--serviceaccount={seen}:reader");
    plane
        .kubectl(&["create", "role", "r", "-n", &hidden, "--verb=list,watch", "--resource=configmaps"])
        .unwrap();
    plane.kubectl(&["create", "rolebinding", "r", "-n", &hidden, "--role=r", &account]).unwrap();
    eventually("the granted namespace", || live.count() == 2).await;
    assert!(blind_namespaces(&live).is_empty());

    // Revoked: the rows are frozen when the watch ends.
    live.changes.take();
    plane.kubectl(&["delete", "rolebinding", &binding, "-n", &seen]).unwrap();
    eventually("blindness", || blind_namespaces(&live).contains(&Some(seen.clone()))).await;
    delete(plane, &seen, "c");
    put(plane, &hidden, "c", "2");
    eventually("the other namespace", || !live.changes.take().is_empty()).await;
    assert_eq!(live.count(), 2, "the deletion could not be seen");
    plane
        .kubectl(&["create", "rolebinding", &binding, "-n", &seen, &format!("--role={binding}"), &account])
        .unwrap();
    eventually("what happened meanwhile", || live.count() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_in_one_namespace_is_enough() {
    let plane = ControlPlane::shared();
    let (namespace, _) = labelled_namespace(plane, "tenant");
    put(plane, &namespace, "c", "1");
    let user = plane
        .user(
            &namespace,
            "tenant",
            &[Grant::in_namespace(&namespace, "", &["configmaps"], &["list", "watch"])],
        )
        .unwrap();
    let proxy = Proxy::start(plane).unwrap();
    let kubeconfig = proxy.kubeconfig(&user).unwrap();
    let included = json!({ "includedNamespaces": [namespace] });
    let live = Live::start(&kubeconfig, vec![target("a", &config_maps(), &included)]).await;
    live.rows.wait_until_seen().await;
    assert_eq!(live.count(), 1);
    put(plane, &namespace, "d", "1");
    eventually("the new object", || live.count() == 2).await;
    let denied: Vec<String> = proxy
        .requests()
        .into_iter()
        .filter(|line| line.contains("/namespaces?") || line.contains("/v1/configmaps?"))
        .collect();
    assert!(denied.is_empty(), "nothing is requested that must be denied: {denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_namespaces_change_what_is_collected() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let (namespace, selector) = labelled_namespace(plane, "moving");
    put(plane, &namespace, "c", "1");
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let everything = json!({ "namespaceExcludeSelector": { "matchLabels": { "skip": &namespace } } });
    let targets = vec![target("some", &config_maps(), &selector), target("all", &config_maps(), &everything)];
    let live = Live::start(&kubeconfig, targets).await;
    live.catches_up(plane).await;
    assert_eq!(live.rows.count(&id("some")), 1);

    let label = format!("skip={namespace}");
    plane.kubectl(&["label", "namespace", &namespace, &label]).unwrap();
    let rows_in_namespace = |live: &Live| {
        let snapshot =
            live.rows.snapshot_of_seen(&[id("all")], kollect_engine::store::Visibility::Everything);
        snapshot.rows.keys().filter(|key| *key.namespace == *namespace).count()
    };
    eventually("the exclusion", || rows_in_namespace(&live) == 0).await;
    assert_eq!(live.rows.count(&id("some")), 1, "others do not notice");
    plane.kubectl(&["label", "namespace", &namespace, "skip-"]).unwrap();
    live.catches_up(plane).await;
    plane.kubectl(&["annotate", "namespace", &namespace, "kollect.dev/namespace-watch=disabled"]).unwrap();
    eventually("the opt-out", || live.rows.count(&id("some")) == 0).await;
    plane.kubectl(&["annotate", "namespace", &namespace, "kollect.dev/namespace-watch-"]).unwrap();
    live.catches_up(plane).await;
    plane.kubectl(&["label", "namespace", &namespace, "test-"]).unwrap();
    eventually("the label", || live.rows.count(&id("some")) == 0).await;
    let second = plane.namespace("joining").unwrap();
    put(plane, &second, "c", "1");
    plane.kubectl(&["label", "namespace", &second, &format!("test={namespace}")]).unwrap();
    eventually("another namespace", || live.rows.count(&id("some")) == 1).await;
    plane.kubectl(&["delete", "namespace", &second]).unwrap();
    eventually("its end", || live.rows.count(&id("some")) == 0).await;
    live.catches_up(plane).await;
    let lists = proxy.requests().iter().filter(|line| line.contains("/api/v1/namespaces?limit")).count();
    assert_eq!(lists, 0, "namespaces are watched, not listed again and again");
}

fn definition(plural: &str, kind: &str) -> String {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.shop.test") },
        "spec": {
            "group": "shop.test", "scope": "Namespaced",
            "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_is_collected_when_it_is_added_and_its_rows_are_removed_with_it() {
    let plane = ControlPlane::shared();
    let (namespace, selector) = labelled_namespace(plane, "kinds");
    put(plane, &namespace, "c", "1");
    // The plural is irregular.
    let gvk = json!({ "group": "shop.test", "version": "v1", "kind": "Wharf" });
    let other = json!({ "group": "shop.test", "version": "v2", "kind": "Wharf" });
    let targets = vec![target("wharfs", &gvk, &selector), target("maps", &config_maps(), &selector)];
    let mut live = Live::start(plane.kubeconfig(), targets).await;
    live.rows.wait_until_seen().await;
    assert_eq!(live.rows.count(&id("maps")), 1, "one missing kind does not concern the others");
    let create = || {
        plane.apply(&definition("wharves", "Wharf")).unwrap();
        plane.wait(&["--for=condition=Established", "crd/wharves.shop.test"]).unwrap();
        let wharf = json!({
            "apiVersion": "shop.test/v1", "kind": "Wharf",
            "metadata": { "name": "w", "namespace": namespace }, "spec": { "size": 3 },
        });
        eventually_applied(plane, &wharf.to_string());
    };
    create();
    eventually("the new kind", || live.rows.count(&id("wharfs")) == 1).await;

    // Another version than the one that is served.
    live.targets.push(target("other", &other, &selector));
    live.collector.set_targets(&live.targets, &BTreeSet::new());
    eventually("the refusal", || {
        live.problems.lock().unwrap().iter().any(|problem| problem.contains("Wharf is served as v1"))
    })
    .await;
    live.targets.pop();
    live.collector.set_targets(&live.targets, &BTreeSet::new());

    plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
    eventually("the end of the kind", || live.rows.count(&id("wharfs")) == 0).await;
    create();
    eventually("the kind again", || live.rows.count(&id("wharfs")) == 1).await;
    plane.kubectl(&["delete", "crd", "wharves.shop.test"]).unwrap();
}

fn eventually_applied(plane: &ControlPlane, object: &str) {
    let deadline = std::time::Instant::now() + WAIT_LIMIT;
    while plane.apply(object).is_err() {
        assert!(std::time::Instant::now() < deadline, "the object was never accepted");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_cannot_be_collected_is_reported_and_the_others_are_collected() {
    let plane = ControlPlane::shared();
    let (namespace, selector) = labelled_namespace(plane, "refused");
    put(plane, &namespace, "c", "1");
    let with = |more: Value| {
        let mut spec = selector.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let gvk =
        |group: &str, version: &str, kind: &str| json!({ "group": group, "version": version, "kind": kind });
    let targets = vec![
        target("good", &config_maps(), &selector),
        target("unknown", &gvk("", "v1", "Unicorn"), &selector),
        target("version", &gvk("apps", "v1beta1", "Deployment"), &selector),
        target("part", &gvk("autoscaling", "v1", "Scale"), &selector),
        target("write-only", &gvk("authentication.k8s.io", "v1", "TokenReview"), &json!({})),
        target("field", &config_maps(), &with(json!({ "fieldSelector": "data.value=1" }))),
    ];
    let live = Live::start(plane.kubeconfig(), targets).await;
    live.rows.wait_until_seen().await;
    assert_eq!(live.rows.count(&id("good")), 1);
    let problems = live.problems.lock().unwrap().join("\n");
    for expected in [
        "v1 Unicorn is not served by the cluster: check group, version and kind",
        "Deployment is served as v1; name one of these versions",
        "autoscaling/v1 Scale cannot be collected: it is a part of replicationcontrollers",
        "TokenReview cannot be collected: the API server offers no list and watch for it",
        "Rejected",
        "is not a known field selector",
    ] {
        assert!(problems.contains(expected), "{expected} is not in {problems}");
    }
    put(plane, &namespace, "d", "1");
    eventually("the good target", || live.rows.count(&id("good")) == 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_and_a_cluster_target_of_the_same_name_have_separate_rows() {
    let plane = ControlPlane::shared();
    let (namespace, selector) = labelled_namespace(plane, "twins");
    put(plane, &namespace, "c", "1");
    let target_of_namespace = target("twin", &config_maps(), &selector);
    let mut spec = selector.clone();
    spec["profileRef"] = json!({ "name": "p", "namespace": "team" });
    let spec: KollectClusterTargetSpec = serde_json::from_value(spec).unwrap();
    let (policy, defaults) = (ExtractPolicy::default(), NamespaceDefaults::default());
    let selection = Selection::of_cluster_target(
        &spec,
        &target_of_namespace.profile.gvk,
        &Bounds::default(),
        &policy,
        &defaults,
    )
    .unwrap();
    let cluster_id = TargetId { namespace: None, name: "twin".into() };
    let cluster_target =
        Arc::new(Target::new(cluster_id.clone(), target_of_namespace.profile.clone(), selection));
    let mut live = Live::start(plane.kubeconfig(), vec![target_of_namespace, cluster_target]).await;
    live.rows.wait_until_seen().await;
    assert_eq!((live.rows.count(&id("twin")), live.rows.count(&cluster_id)), (1, 1));
    live.targets.pop();
    live.collector.set_targets(&live.targets, &BTreeSet::new());
    assert_eq!((live.rows.count(&id("twin")), live.rows.count(&cluster_id)), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_metadata_is_read_if_no_profile_needs_more() {
    let plane = ControlPlane::shared();
    let (namespace, selector) = labelled_namespace(plane, "slim");
    put(plane, &namespace, "c", "1");
    let spec = json!({
        "targetGVK": config_maps(),
        "attributes": [{ "name": "uid", "path": "$.metadata.uid", "type": "string" }],
    });
    let spec: KollectProfileSpec = serde_json::from_value(spec).unwrap();
    let profile =
        Arc::new(CompiledProfile::compile(&spec, &OptIns::default(), &ExtractPolicy::default()).unwrap());
    let template = target("slim", &config_maps(), &selector);
    let metadata_only = Arc::new(Target::new(id("slim"), profile, template.selection.clone()));
    let mut live = Live::start(plane.kubeconfig(), vec![metadata_only]).await;
    live.catches_up(plane).await;
    assert_eq!(live.count(), 1);
    // A target that needs more than metadata joins: complete objects are read, and rows of the first one do not change.
    live.changes.take();
    live.targets.push(target("full", &config_maps(), &selector));
    live.collector.set_targets(&live.targets, &BTreeSet::new());
    live.catches_up(plane).await;
    assert!(live.changes.take().iter().all(|change| change.key.target == id("full")));
    put(plane, &namespace, "c", "2");
    live.catches_up(plane).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_correct_while_targets_and_objects_change() {
    let plane = ControlPlane::shared();
    let proxy = Proxy::start(plane).unwrap();
    let (first, selector) = labelled_namespace(plane, "busy");
    let second = plane.namespace("busy").unwrap();
    let kubeconfig = proxy.kubeconfig(plane.kubeconfig()).unwrap();
    let mut live = Live::start(&kubeconfig, Vec::new()).await;
    let specs = [
        selector.clone(),
        json!({ "includedNamespaces": [&first, &second] }),
        json!({ "includedNamespaces": [&second], "names": ["c1", "c2"] }),
        json!({ "namespaceSelector": selector["namespaceSelector"], "fieldSelector": "metadata.name=c3" }),
        json!({}),
    ];
    let end = Instant::now() + Duration::from_secs(15);
    let mut round = 0_usize;
    while Instant::now() < end {
        round += 1;
        let name = format!("t{}", fastrand::usize(..20));
        live.targets.retain(|target| *target.id.name != *name);
        if fastrand::usize(..3) > 0 {
            live.targets.push(target(&name, &config_maps(), &specs[fastrand::usize(..specs.len())]));
        }
        live.collector.set_targets(&live.targets, &BTreeSet::new());
        let namespace = if fastrand::bool() { &first } else { &second };
        let object = format!("c{}", fastrand::usize(..5));
        match fastrand::usize(..4) {
            0 => drop(plane.kubectl(&["delete", "configmap", &object, "-n", namespace])),
            _ => put(plane, namespace, &object, &round.to_string()),
        }
        if fastrand::usize(..10) == 0 {
            proxy.cut();
        }
    }
    live.catches_up(plane).await;
    let watches = |proxy: &Proxy| proxy.open();
    eventually("old watches are gone", || watches(&proxy) <= 3 + 2 + 3).await;
    live.collector.set_targets(&[], &BTreeSet::new());
    eventually("the last watch is gone", || watches(&proxy) <= 3).await;
    assert!(live.problems.lock().unwrap().iter().all(|problem| !problem.contains("Crashed")));
}

#[tokio::test]
async fn operators_of_one_namespace_share_one_identity() {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let plane = ControlPlane::shared();
    let verbs = &["get", "create"];
    let namespace = plane.namespace("identity").unwrap();
    // A kubeconfig that names no namespace means this one.
    let rules = [Grant::in_namespace("default", "", &["configmaps"], verbs)];
    let kubeconfig = plane.user(&namespace, "tenant", &rules).unwrap();
    let connect = || ClusterSource::connect_in_cluster(Some(&kubeconfig), ClusterIdentity::Namespace);
    let (first, second) = tokio::join!(connect(), connect());
    let get = ["get", "configmap", "kollect-identity", "-n", "default", "-o", "jsonpath={.metadata.uid}"];
    let uid = plane.kubectl(&get).unwrap();
    assert_eq!([first.unwrap().id, second.unwrap().id], [uid.clone(), uid]);

    let unprivileged = plane.user(&namespace, "stranger", &[]).unwrap();
    let refused = ClusterSource::connect_in_cluster(Some(&unprivileged), ClusterIdentity::Namespace).await;
    let error = format!("{:#}", refused.err().unwrap());
    assert!(error.contains("read ConfigMap kollect-identity in namespace default"), "{error}");
}
