//! Events to rows, with everything in between except the network: a scripted source, the collector, the store and a
//! reader of changes in one process.
//!
//! The first phase has the event rate of a large cluster under load, the second is as fast as possible. The source
//! makes each event from text and parses its metadata, as a real one does; CPU time includes that and the reader.
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot go on stops")]

mod shapes;

use std::{
    collections::BTreeSet,
    env, fs,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures::{FutureExt, Stream, StreamExt, stream, stream::BoxStream};
use kollect_engine::{
    collect::{CollectSettings, Collector, Target},
    extract::{CompiledProfile, ExtractPolicy, OptIns},
    select::{Bounds, NamespaceDefaults, Selection},
    store::{Changes, StoreReader, store},
    tasks::Tasks,
    watch::{Event, Object, Query, Resolution, Resource, WatchSource},
};
use kollect_model::{
    crd::{profile::KollectProfileSpec, shapes::Gvk, target::KollectTargetSpec},
    row::TargetId,
};
use serde_json::{json, value::RawValue};
use tokio::{
    sync::{Semaphore, watch},
    time,
};

const ROWS: u64 = 100_000;
const RATE: u64 = 5000;
const PACED: u64 = RATE * 10;
const UNPACED: u64 = 200_000;
/// The object whose change ends a phase. It has no other changes.
const LAST: u64 = ROWS;

/// A cluster with one kind, which changes twice: slowly and as fast as possible.
struct Script {
    /// What all objects look like.
    template: Arc<str>,
    /// A permit lets the next phase begin.
    phases: Arc<Semaphore>,
}

#[async_trait]
impl WatchSource for Script {
    async fn resolve(&self, gvk: &Gvk) -> Resolution {
        Resolution::Served(Resource { name: gvk.kind.clone(), namespaced: gvk.kind != "Namespace" })
    }

    async fn permits(&self, _: &Query) -> bool {
        true
    }

    fn watch(&self, query: Query) -> BoxStream<'static, Event> {
        let listing = stream::iter([Event::Listing { total: None }]);
        if query.gvk.kind == "Namespace" {
            let namespace = RawValue::from_string(r#"{"metadata":{"name":"shop"}}"#.into()).unwrap();
            let namespace = Event::Apply(Object::parse(namespace, &query.gvk).unwrap());
            let namespaces = listing.chain(stream::iter([namespace])).chain(synced());
            return namespaces.chain(stream::pending()).boxed();
        }
        let (gvk, template) = (query.gvk, self.template.clone());
        let apply = move |(version, index)| Event::Apply(object(&template, &gvk, version, index));
        let list = stream::iter((0..=LAST).map(|index| (index, index)));
        let changes = self.phase(ROWS * 2, PACED, Some(RATE)).chain(self.phase(ROWS * 3, UNPACED, None));
        let objects = (list.map(apply.clone()), changes.map(apply));
        listing.chain(objects.0).chain(synced()).chain(objects.1).chain(stream::pending()).boxed()
    }

    fn kinds(&self) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    fn is_complete(&self) -> bool {
        true
    }
}

impl Script {
    /// Versions and objects, each when it is due; the last one is the marker.
    fn phase(
        &self,
        version: u64,
        count: u64,
        rate: Option<u64>,
    ) -> impl Stream<Item = (u64, u64)> + Send + use<> {
        let phases = self.phases.clone();
        let begin = async move {
            phases.acquire().await.unwrap().forget();
            let began = time::Instant::now();
            stream::iter(0..count).then(move |number| async move {
                if let Some(rate) = rate {
                    time::sleep_until(began + Duration::from_micros(number * 1_000_000 / rate)).await;
                }
                // Far apart, so that no row changes twice in a row.
                let index = if number + 1 == count { LAST } else { number * 7919 % ROWS };
                (version + number, index)
            })
        };
        begin.into_stream().flatten()
    }
}

fn synced() -> impl Stream<Item = Event> {
    stream::iter([Event::Synced { version: ROWS }])
}

/// Text in which an object's number and version are to be filled in.
fn template() -> Arc<str> {
    let mut object = shapes::deployment();
    object["metadata"]["name"] = "web-@index@".into();
    object["metadata"]["uid"] = "6f0e7c1e-27a1-4a0e-9d5c-@index@".into();
    object["metadata"]["resourceVersion"] = "@version@".into();
    object["spec"]["replicas"] = "@replicas@".into();
    object.to_string().into()
}

/// An object as it looks at a version: each has another number of replicas.
fn object(template: &str, gvk: &Gvk, version: u64, index: u64) -> Object {
    let text = template.replace("@index@", &format!("{index:012}"));
    let text = text.replace("@version@", &version.to_string());
    let text = text.replace("\"@replicas@\"", &version.to_string());
    Object::parse(RawValue::from_string(text).unwrap(), gvk).unwrap()
}

fn target() -> Arc<Target> {
    let profile: KollectProfileSpec = serde_json::from_value(json!({
        "targetGVK": { "group": "apps", "version": "v1", "kind": "Deployment" },
        "attributes": shapes::ten_attributes("spec.template.spec"),
    }))
    .unwrap();
    let (policy, defaults) = (ExtractPolicy::default(), NamespaceDefaults::default());
    let profile = CompiledProfile::compile(&profile, &OptIns::default(), &policy).unwrap();
    let spec: KollectTargetSpec = serde_json::from_value(json!({ "profileRef": "p" })).unwrap();
    let selection =
        Selection::of_target(&spec, &profile.gvk, &Bounds::default(), &policy, &defaults).unwrap();
    Arc::new(Target::new(target_id(), Arc::new(profile), selection))
}

fn target_id() -> TargetId {
    TargetId { namespace: Some("team".into()), name: "deployments".into() }
}

/// CPU time of this process; the kernel reports it in hundredths of a second.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, numbers) = stat.rsplit_once(')').unwrap();
    let ticks = numbers.split_whitespace().skip(11).take(2);
    Duration::from_millis(10) * ticks.map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>()
}

/// Resident memory of this process in bytes.
fn memory() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    value.trim().strip_suffix(" kB").unwrap().parse::<f64>().unwrap() * 1024.0
}

/// Lets a phase run, and prints its line when the reader has received its last change.
async fn run(name: &str, events: u64, due: Duration, phases: &Semaphore, changes: &mut Changes) {
    let (began, cpu_before, memory_before) = (Instant::now(), cpu(), memory());
    phases.add_permits(1);
    let last = format!("{LAST:012}");
    while !changes.next().await.iter().any(|change| change.key.uid.ends_with(&last)) {}
    let took = began.elapsed();
    let events = f64::from(u32::try_from(events).unwrap());
    println!(
        "{name:<28}{:>10.0}{:>10.2}{:>12.1}{:>14.1}{:>14.1}",
        events / took.as_secs_f64(),
        took.saturating_sub(due).as_secs_f64(),
        cpu().saturating_sub(cpu_before).as_secs_f64() * 1e6 / events,
        memory_before / 1e6,
        (memory() - memory_before) / 1e6,
    );
}

async fn list(phases: &Arc<Semaphore>) -> (Collector, StoreReader) {
    let source = Script { template: template(), phases: phases.clone() };
    let (writer, rows) = store();
    let mut collector =
        Collector::start(Arc::new(source), writer, CollectSettings::default(), Tasks::default(), |_| {});
    collector.set_targets(&[target()], &BTreeSet::new());
    rows.wait_until_seen().await;
    (collector, rows)
}

#[tokio::main]
async fn main() {
    // Cargo passes this argument when it is asked to test benches.
    if env::args().any(|argument| argument == "--test") {
        return;
    }
    let phases = Arc::new(Semaphore::new(0));
    let began = Instant::now();
    let (_collector, rows) = list(&phases).await;
    let count = rows.count(&target_id());
    assert_eq!(u64::try_from(count), Ok(ROWS + 1));
    println!("{count} rows, listed in {:.1} s", began.elapsed().as_secs_f64());
    let mut changes = rows.changes(&[target_id()]);
    println!(
        "{:<28}{:>10}{:>10}{:>12}{:>14}{:>14}",
        "", "events/s", "lag s", "CPU µs each", "memory MB", "growth MB"
    );
    let due = Duration::from_micros((PACED - 1) * 1_000_000 / RATE);
    run("5,000 events/s", PACED, due, &phases, &mut changes).await;
    run("as many as possible", UNPACED, Duration::MAX, &phases, &mut changes).await;
}
