//! The connections between processes and servers.
//!
//! A request is applied by its server, not by its client: one that is on its way when its client crashes, gives up or is
//! cut off may still be applied, later. A process may be cut off from its API server or from destinations, and may
//! crash with its nth request: before it is sent, while it is on its way, or when it has been applied.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    future::pending,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fastrand::Rng;
use tokio::{sync::oneshot, time};

use super::{
    executor::{Executor, ProcessId},
    journal::Journal,
    signal::Signal,
};

/// How long a client waits for an answer: the timeout of the Kubernetes client.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(295);
/// Milliseconds after which requests that are cut off on their way have arrived, if they arrive at all.
const LATEST_ARRIVAL: u64 = 90_000;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedServer<'a> {
    Api,
    Destination(&'a str),
}

/// Which of a process's requests to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountedRequests {
    /// Those that change something in the API server.
    ApiWrites,
    /// Those that change something in a destination.
    SinkWrites,
}

/// When a process crashes with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashPoint {
    BeforeSent,
    OnTheWay,
    Applied,
}

/// A request.
pub(super) struct SentRequest<'a> {
    pub(super) to: SimulatedServer<'a>,
    /// For the journal.
    pub(super) description: String,
    pub(super) may_change: bool,
    /// How long it takes, the answer included.
    pub(super) duration: Duration,
}

/// Whether the client still waits for the answer when a request is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientState {
    Waiting,
    /// It crashed, gave up or was cut off.
    NotWaiting,
}

pub(super) trait ServerAnswer: Send + 'static {
    fn is_refusal(&self) -> bool;
    fn outcome(&self) -> impl fmt::Display;
}

/// No answer came: the request may have been applied, and may still be.
#[derive(Debug)]
pub(super) struct AnswerLost;

impl fmt::Display for AnswerLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is lost")
    }
}

impl std::error::Error for AnswerLost {}

/// All connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Network(Arc<NetworkShared>);

struct NetworkShared {
    executor: Executor,
    journal: Journal,
    state: Mutex<NetworkState>,
    /// Announced when connections are cut, or work again.
    connections_changed: Signal,
}

struct NetworkState {
    random: Rng,
    peers: BTreeMap<ProcessId, Peer>,
}

#[derive(Default)]
struct Peer {
    name: String,
    cut_off_from_api: bool,
    cut_off_from: BTreeSet<String>,
    /// Which requests are counted, how many come before the crash, and at which point it happens.
    crash: Option<(CountedRequests, u8, CrashPoint)>,
}

/// What happens to a request.
enum RequestFate {
    Crash(CrashPoint),
    /// It arrives after the first time, and the answer after the second one.
    Delivered {
        arrives_after: Duration,
        answered_after: Duration,
    },
    /// The connection is refused.
    Refused,
    /// It never arrives, and no answer comes.
    Lost,
    /// It arrives after this time, and the answer does not come back.
    Late(Duration),
}

impl Network {
    pub(super) fn new(seed: u64, executor: Executor, journal: Journal) -> Self {
        let state = Mutex::new(NetworkState { random: Rng::with_seed(seed), peers: BTreeMap::new() });
        Self(Arc::new(NetworkShared { executor, journal, state, connections_changed: Signal::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.0.state.lock().unwrap()
    }

    /// The connections of a process.
    pub(super) fn link(&self, process: ProcessId, name: &str) -> ProcessLink {
        self.lock().peers.entry(process).or_default().name = name.to_owned();
        ProcessLink { network: self.clone(), process, name: name.into() }
    }

    /// Cuts a process off from its API server, or lets it through again.
    pub(super) fn cut_off_from_api(&self, process: ProcessId, cut: bool) {
        let mut state = self.lock();
        let peer = state.peers.entry(process).or_default();
        peer.cut_off_from_api = cut;
        drop(state);
        self.0.connections_changed.announce();
    }

    /// Cuts a process off from a destination, or lets it through again.
    pub(super) fn cut_off(&self, process: ProcessId, destination: &str, cut: bool) {
        let mut state = self.lock();
        let peer = state.peers.entry(process).or_default();
        if cut {
            peer.cut_off_from.insert(destination.to_owned());
        } else {
            peer.cut_off_from.remove(destination);
        }
        drop(state);
        self.0.connections_changed.announce();
    }

    /// A process crashes with its nth request from now on.
    pub(super) fn crash_at(&self, process: ProcessId, counted: CountedRequests, nth: u8, point: CrashPoint) {
        self.lock().peers.entry(process).or_default().crash = Some((counted, nth, point));
    }

    /// All connections work again, and no process crashes.
    pub(super) fn end_faults(&self) {
        for peer in self.lock().peers.values_mut() {
            *peer = Peer { name: std::mem::take(&mut peer.name), ..Peer::default() };
        }
        self.0.connections_changed.announce();
    }
}

impl NetworkState {
    fn is_cut(&self, process: ProcessId, server: SimulatedServer<'_>) -> bool {
        let Some(peer) = self.peers.get(&process) else { return false };
        match server {
            SimulatedServer::Api => peer.cut_off_from_api,
            SimulatedServer::Destination(name) => peer.cut_off_from.contains(name),
        }
    }

    fn fate_of(&mut self, process: ProcessId, request: &SentRequest<'_>) -> RequestFate {
        let counted = match request.to {
            SimulatedServer::Api => CountedRequests::ApiWrites,
            SimulatedServer::Destination(_) => CountedRequests::SinkWrites,
        };
        let peer = self.peers.entry(process).or_default();
        if let Some((kind, remaining, point)) = &mut peer.crash
            && *kind == counted
            && request.may_change
        {
            *remaining = remaining.saturating_sub(1);
            if *remaining == 0 {
                let point = *point;
                peer.crash = None;
                return RequestFate::Crash(point);
            }
        }
        if self.is_cut(process, request.to) {
            return match self.random.u8(..3) {
                0 => RequestFate::Refused,
                1 if request.may_change => RequestFate::Late(self.random_delay()),
                _ => RequestFate::Lost,
            };
        }
        let millis = u64::try_from(request.duration.as_millis()).unwrap_or(0);
        let arrival = if millis == 0 { 0 } else { self.random.u64(0..=millis) };
        RequestFate::Delivered {
            arrives_after: Duration::from_millis(arrival),
            answered_after: Duration::from_millis(millis - arrival),
        }
    }

    fn random_delay(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(1..LATEST_ARRIVAL))
    }
}

/// The connections of one process. Cheap to clone.
#[derive(Clone)]
pub(super) struct ProcessLink {
    network: Network,
    process: ProcessId,
    name: Arc<str>,
}

impl ProcessLink {
    /// Name of the process.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_cut(&self, server: SimulatedServer<'_>) -> bool {
        self.network.lock().is_cut(self.process, server)
    }

    /// Waits until the connection to a server works.
    pub(super) async fn wait_until_connected(&self, server: SimulatedServer<'_>) {
        loop {
            let changes = self.network.0.connections_changed.changes();
            if !self.is_cut(server) {
                return;
            }
            self.network.0.connections_changed.changed_since(changes).await;
        }
    }

    pub(super) fn random_bool(&self) -> bool {
        self.network.lock().random.bool()
    }

    /// Sends a request. The server applies it even if the client ends meanwhile.
    pub(super) async fn send<T: ServerAnswer>(
        &self,
        request: SentRequest<'_>,
        apply: impl FnOnce(ClientState) -> T + Send + 'static,
    ) -> Result<T, AnswerLost> {
        let NetworkShared { executor, .. } = &*self.network.0;
        let fate = self.network.lock().fate_of(self.process, &request);
        let answer = match fate {
            RequestFate::Delivered { arrives_after, answered_after } => {
                let answer = self.deliver(&request, arrives_after, apply).await;
                if !answered_after.is_zero() {
                    time::sleep(answered_after).await;
                }
                Some(answer)
            }
            RequestFate::Refused => return Err(AnswerLost),
            RequestFate::Lost => None,
            RequestFate::Late(delay) => {
                drop(self.apply_later(&request, delay, apply));
                None
            }
            RequestFate::Crash(point) => {
                match point {
                    CrashPoint::BeforeSent => {}
                    CrashPoint::OnTheWay => {
                        let delay = self.network.lock().random_delay();
                        drop(self.apply_later(&request, delay, apply));
                    }
                    CrashPoint::Applied => {
                        drop(self.apply(&request.description, (ClientState::Waiting, apply)));
                    }
                }
                self.network.0.journal.count("crashes with a request", 1);
                executor.crash(self.process);
                return pending().await;
            }
        };
        if let Some(answer) = answer.filter(|_| !self.is_cut(request.to)) {
            return Ok(answer);
        }
        self.network.0.journal.count("answers that were lost", 1);
        // The client notices when the connection works again, or when its timeout has passed.
        time::timeout(CLIENT_TIMEOUT, self.wait_until_connected(request.to)).await.ok();
        Err(AnswerLost)
    }

    /// Applies a request when it has arrived, and returns the answer.
    async fn deliver<T: ServerAnswer>(
        &self,
        request: &SentRequest<'_>,
        delay: Duration,
        apply: impl FnOnce(ClientState) -> T + Send + 'static,
    ) -> T {
        if delay.is_zero() {
            return self.apply(&request.description, (ClientState::Waiting, apply));
        }
        self.apply_later(request, delay, apply).await.unwrap()
    }

    /// Lets the server apply a request after a time.
    fn apply_later<T: ServerAnswer>(
        &self,
        request: &SentRequest<'_>,
        delay: Duration,
        apply: impl FnOnce(ClientState) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, answer) = oneshot::channel();
        let (link, description, may_change) = (self.clone(), request.description.clone(), request.may_change);
        self.network.0.executor.serve(async move {
            time::sleep(delay).await;
            let is_late = may_change && sender.is_closed();
            let client = if is_late { ClientState::NotWaiting } else { ClientState::Waiting };
            let answer = link.apply(&description, (client, apply));
            if is_late {
                let outcome =
                    if answer.is_refusal() { "late requests refused" } else { "late requests applied" };
                link.network.0.journal.count(outcome, 1);
            }
            drop(sender.send(answer));
        });
        answer
    }

    fn apply<T: ServerAnswer>(
        &self,
        description: &str,
        (client, apply): (ClientState, impl FnOnce(ClientState) -> T),
    ) -> T {
        let answer = apply(client);
        self.network.0.journal.count("requests answered", 1);
        self.network.0.journal.note(format_args!("{} {description}: {}", self.name, answer.outcome()));
        answer
    }
}
