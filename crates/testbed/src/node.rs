//! Stands in for a node. It runs the Pods of operators as processes of this machine, as a kubelet does, and forwards what
//! API servers send to their Services, as kube-proxy does ([`NodeNetwork`]).
//!
//! Called by tests of installations, the demo and the playground, through
//! [`ControlPlane::start_with_node`](crate::ControlPlane::start_with_node). Command line, variables, account and probes of
//! a process are those of its Pod. Two things differ, because all Pods share this machine: `:PORT` in arguments becomes a
//! free port on loopback, and `/tmp` in variables becomes a directory of the Pod. Pods of other images stay pending.

mod network;
mod pod;

use std::collections::BTreeMap;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

use crate::Error;
use crate::control_plane::{Access, Kubectl};
pub use network::NodeNetwork;
use pod::{Pod, PodSpec};

/// How often processes are looked at.
const TICK: Duration = Duration::from_millis(100);

/// A running node; dropping it stops its Pods.
#[derive(Debug)]
pub struct Node {
    state: Arc<NodeState>,
    watch: Arc<Mutex<Option<Child>>>,
    threads: Vec<JoinHandle<()>>,
    forwarding: Option<JoinHandle<()>>,
}

/// What the threads of a node share.
#[derive(Debug)]
struct NodeState {
    kubectl: Kubectl,
    access: Access,
    /// What runs in every Pod.
    program: PathBuf,
    more_args: Vec<String>,
    /// By UID.
    pods: Mutex<BTreeMap<String, Pod>>,
    stopping: AtomicBool,
}

impl Node {
    pub(crate) fn start(
        kubectl: Kubectl,
        access: Access,
        network: NodeNetwork,
        program: &Path,
        more_args: &[&str],
    ) -> Result<Self, Error> {
        let program = program.canonicalize().map_err(Error::io(format!("find {}", program.display())))?;
        let state = Arc::new(NodeState {
            kubectl,
            access,
            program,
            more_args: more_args.iter().map(ToString::to_string).collect(),
            pods: Mutex::default(),
            stopping: AtomicBool::new(false),
        });
        let (sender, events) = mpsc::channel();
        let watch = Arc::<Mutex<Option<Child>>>::default();
        let (watching, watched) = (state.clone(), watch.clone());
        let (running, forwarding) = (state.clone(), state.clone());
        let threads = vec![
            thread::spawn(move || watching.watch_pods(&watched, &sender)),
            thread::spawn(move || {
                while !running.is_stopping() {
                    match events.recv_timeout(TICK) {
                        Ok(event) => running.apply(&event),
                        Err(RecvTimeoutError::Timeout) => running.tend_pods(),
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }),
        ];
        let forwarding = Some(thread::spawn(move || network.forward(&forwarding)));
        Ok(Self { state, watch, threads, forwarding })
    }

    /// Names of the Pods whose readiness probe succeeds.
    pub fn ready_pods(&self) -> Vec<String> {
        let pods = self.state.pods();
        pods.values().filter(|pod| pod.is_ready()).map(|pod| pod.spec().name.clone()).collect()
    }

    /// The log of every Pod that runs, by its name.
    pub fn logs(&self) -> BTreeMap<String, String> {
        self.state.pods().values().map(|pod| (pod.spec().name.clone(), pod.log())).collect()
    }

    /// What a Pod answers to a request of its probe, such as `/readyz`; `None` if it does not answer.
    pub fn probe(&self, pod: &str, path: &str) -> Option<String> {
        let port = self.state.pods().values().find(|running| running.spec().name == pod)?.probe_port()?;
        network::get(port, path)
    }

    /// The port of this machine that a named port of a Pod is served at.
    pub fn port(&self, pod: &str, name: &str) -> Option<u16> {
        self.state.pods().values().find(|running| running.spec().name == pod)?.port(name)
    }

    /// Kills the process of a Pod; it is started again, as a kubelet would.
    pub fn kill(&self, pod: &str) {
        if let Some(pod) = self.state.pods().values_mut().find(|running| running.spec().name == pod) {
            pod.kill();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::Relaxed);
        if let Some(watch) = lock(&self.watch).as_mut() {
            // It may have ended by itself.
            watch.kill().ok();
        }
        // A panic was printed already.
        let join = |thread: JoinHandle<()>| drop(thread.join());
        self.threads.drain(..).for_each(join);
        self.state.pods().clear();
        // Connections end with the Pods.
        self.forwarding.take().into_iter().for_each(join);
    }
}

impl NodeState {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, Pod>> {
        lock(&self.pods)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Sends every change of a Pod. The watch is opened again when the API server ends it.
    fn watch_pods(&self, watch: &Mutex<Option<Child>>, events: &Sender<Value>) {
        let args = ["get", "pods", "--all-namespaces", "--watch", "--output-watch-events", "--output=json"];
        while !self.is_stopping() {
            let mut command = self.kubectl.command(&args);
            let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
            let Ok(mut child) = started else { return };
            let output = child.stdout.take().expect("it was piped");
            *lock(watch) = Some(child);
            // Dropping the node may have missed this process.
            if self.is_stopping() {
                break;
            }
            let lines = serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
            for event in lines.map_while(Result::ok) {
                if events.send(event).is_err() {
                    return;
                }
            }
            thread::sleep(TICK);
        }
        if let Some(child) = lock(watch).as_mut() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// Starts or stops the process of a Pod.
    fn apply(&self, event: &Value) {
        let Some(spec) = PodSpec::of_operator(&event["object"]) else { return };
        let is_deleted = event["type"] == "DELETED";
        let is_going = is_deleted || spec.is_being_deleted;
        if is_going {
            let Some(pod) = self.pods().remove(&spec.uid) else { return };
            let kubectl = self.kubectl.clone();
            // Other Pods must not wait until this one has stopped.
            thread::spawn(move || {
                pod.stop();
                if !is_deleted {
                    // What a kubelet does when a Pod has ended. The Pod may be gone already.
                    let delete = ["delete", "pod", "--now", "--force", "--ignore-not-found"];
                    kubectl.run(&[&delete[..], &["-n", &spec.namespace, &spec.name]].concat()).ok();
                }
            });
        } else if !self.pods().contains_key(&spec.uid) {
            let (uid, name) = (spec.uid.clone(), spec.name.clone());
            match Pod::start(spec, self) {
                Ok(pod) => drop(self.pods().insert(uid, pod)),
                // The next event of the Pod tries again; it shows in the status of its Deployment meanwhile.
                Err(error) => eprintln!("kollect-testbed: pod {name}: {}", error.with_causes()),
            }
        }
    }

    /// Starts processes again that have ended, probes them, and tells the API server whether they are ready.
    fn tend_pods(&self) {
        let uids: Vec<String> = self.pods().keys().cloned().collect();
        for uid in uids {
            // Only this thread removes Pods. Requests are made without the lock.
            let probe = self.pods().get_mut(&uid).and_then(Pod::restart_if_ended);
            let is_ready = probe.is_some_and(|(port, path)| network::is_ready(port, &path));
            let changed = self.pods().get_mut(&uid).and_then(|pod| pod.set_ready(is_ready));
            let Some((namespace, name, status)) = changed else { continue };
            let patch = ["patch", "pod", &name, "-n", &namespace, "--subresource=status", "-p", &status];
            if self.kubectl.run(&patch).is_err()
                && let Some(pod) = self.pods().get_mut(&uid)
            {
                pod.report_again();
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
