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

/// The longest time that a client waits for an answer: that of the Kubernetes client.
const PATIENCE: Duration = Duration::from_secs(295);
/// Requests that are cut off on their way arrive after this time at the latest, if at all.
const LATEST: u64 = 90_000;

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server<'a> {
    Api,
    Destination(&'a str),
}

/// Which of a process's requests to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
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
pub(super) struct Sent<'a> {
    pub(super) to: Server<'a>,
    /// What it asks for, for the journal.
    pub(super) what: String,
    /// Whether it may change something.
    pub(super) changes: bool,
    /// How long it takes, the answer included.
    pub(super) takes: Duration,
}

/// Whether the client still waits for the answer when a request is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    Waits,
    /// It crashed, gave up or was cut off.
    Gone,
}

/// What a server answers.
pub(super) trait Answer: Send + 'static {
    fn is_refusal(&self) -> bool;
    fn outcome(&self) -> impl fmt::Display;
}

/// No answer came: the request may have been applied, and may still be.
#[derive(Debug)]
pub(super) struct Lost;

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is lost")
    }
}

impl std::error::Error for Lost {}

/// All connections. Cheap to clone.
#[derive(Clone)]
pub(super) struct Network(Arc<Shared>);

struct Shared {
    executor: Executor,
    journal: Journal,
    state: Mutex<State>,
    /// Announced when connections that were cut work again.
    healed: Signal,
}

struct State {
    random: Rng,
    peers: BTreeMap<ProcessId, Peer>,
}

#[derive(Default)]
struct Peer {
    name: String,
    cut_off_from_api: bool,
    cut_off_from: BTreeSet<String>,
    /// The requests that are counted, how many are left, and where it ends.
    crash: Option<(Counted, u8, CrashPoint)>,
}

/// What happens to a request.
enum Way {
    Crash(CrashPoint),
    /// It arrives and is answered after these times.
    Through {
        there: Duration,
        back: Duration,
    },
    /// The connection is refused.
    Refused,
    /// It never arrives, and no answer comes.
    Swallowed,
    /// It arrives after this time, and the answer does not come back.
    Late(Duration),
}

impl Network {
    pub(super) fn new(seed: u64, executor: Executor, journal: Journal) -> Self {
        let state = Mutex::new(State { random: Rng::with_seed(seed), peers: BTreeMap::new() });
        Self(Arc::new(Shared { executor, journal, state, healed: Signal::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// The connections of a process.
    pub(super) fn link(&self, process: ProcessId, name: &str) -> Link {
        self.lock().peers.entry(process).or_default().name = name.to_owned();
        Link { network: self.clone(), process, name: name.into() }
    }

    /// Cuts a process off from its API server, or lets it through again.
    pub(super) fn cut_off_from_api(&self, process: ProcessId, cut: bool) {
        let mut state = self.lock();
        let peer = state.peers.entry(process).or_default();
        peer.cut_off_from_api = cut;
        drop(state);
        self.0.healed.announce();
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
        self.0.healed.announce();
    }

    /// A process crashes with its nth request from now on.
    pub(super) fn crash_at(&self, process: ProcessId, counted: Counted, nth: u8, point: CrashPoint) {
        self.lock().peers.entry(process).or_default().crash = Some((counted, nth, point));
    }

    /// All connections work again, and no process crashes.
    pub(super) fn heal(&self) {
        for peer in self.lock().peers.values_mut() {
            *peer = Peer { name: std::mem::take(&mut peer.name), ..Peer::default() };
        }
        self.0.healed.announce();
    }
}

impl State {
    fn is_cut(&self, process: ProcessId, server: Server<'_>) -> bool {
        let Some(peer) = self.peers.get(&process) else { return false };
        match server {
            Server::Api => peer.cut_off_from_api,
            Server::Destination(name) => peer.cut_off_from.contains(name),
        }
    }

    fn way(&mut self, process: ProcessId, sent: &Sent<'_>) -> Way {
        let counted = match sent.to {
            Server::Api => Counted::ApiWrites,
            Server::Destination(_) => Counted::SinkWrites,
        };
        let peer = self.peers.entry(process).or_default();
        if let Some((which, left, point)) = &mut peer.crash
            && *which == counted
            && sent.changes
        {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let point = *point;
                peer.crash = None;
                return Way::Crash(point);
            }
        }
        if self.is_cut(process, sent.to) {
            return match self.random.u8(..3) {
                0 => Way::Refused,
                1 if sent.changes => Way::Late(self.late()),
                _ => Way::Swallowed,
            };
        }
        let millis = u64::try_from(sent.takes.as_millis()).unwrap_or(0);
        let there = if millis == 0 { 0 } else { self.random.u64(0..=millis) };
        Way::Through { there: Duration::from_millis(there), back: Duration::from_millis(millis - there) }
    }

    fn late(&mut self) -> Duration {
        Duration::from_millis(self.random.u64(1..LATEST))
    }
}

/// The connections of one process. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    network: Network,
    process: ProcessId,
    name: Arc<str>,
}

impl Link {
    /// Name of the process.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_cut(&self, server: Server<'_>) -> bool {
        self.network.lock().is_cut(self.process, server)
    }

    /// Waits until the connection to a server works.
    pub(super) async fn healed(&self, server: Server<'_>) {
        loop {
            let changes = self.network.0.healed.changes();
            if !self.is_cut(server) {
                return;
            }
            self.network.0.healed.changed_since(changes).await;
        }
    }

    /// True in one of two cases, at random.
    pub(super) fn flip(&self) -> bool {
        self.network.lock().random.bool()
    }

    /// Sends a request. The server applies it even if the client ends meanwhile.
    pub(super) async fn send<T: Answer>(
        &self,
        sent: Sent<'_>,
        apply: impl FnOnce(Client) -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let Shared { executor, .. } = &*self.network.0;
        let way = self.network.lock().way(self.process, &sent);
        let answer = match way {
            Way::Through { there, back } => {
                let answer = self.deliver(&sent, there, apply).await;
                if !back.is_zero() {
                    time::sleep(back).await;
                }
                Some(answer)
            }
            Way::Refused => return Err(Lost),
            Way::Swallowed => None,
            Way::Late(there) => {
                drop(self.carry(&sent, there, apply));
                None
            }
            Way::Crash(point) => {
                match point {
                    CrashPoint::BeforeSent => {}
                    CrashPoint::OnTheWay => {
                        let there = self.network.lock().late();
                        drop(self.carry(&sent, there, apply));
                    }
                    CrashPoint::Applied => drop(self.apply(&sent.what, (Client::Waits, apply))),
                }
                self.network.0.journal.count("crashes with a request", 1);
                executor.crash(self.process);
                return pending().await;
            }
        };
        if let Some(answer) = answer.filter(|_| !self.is_cut(sent.to)) {
            return Ok(answer);
        }
        self.network.0.journal.count("answers that were lost", 1);
        // The client notices when the connection works again, or when its timeout has passed.
        time::timeout(PATIENCE, self.healed(sent.to)).await.ok();
        Err(Lost)
    }

    /// Applies a request when it has arrived, and returns the answer.
    async fn deliver<T: Answer>(
        &self,
        sent: &Sent<'_>,
        there: Duration,
        apply: impl FnOnce(Client) -> T + Send + 'static,
    ) -> T {
        if there.is_zero() {
            return self.apply(&sent.what, (Client::Waits, apply));
        }
        self.carry(sent, there, apply).await.unwrap()
    }

    /// Carries a request to its server, which applies it later.
    fn carry<T: Answer>(
        &self,
        sent: &Sent<'_>,
        there: Duration,
        apply: impl FnOnce(Client) -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, answer) = oneshot::channel();
        let (link, what, changes) = (self.clone(), sent.what.clone(), sent.changes);
        self.network.0.executor.serve(async move {
            time::sleep(there).await;
            let late = changes && sender.is_closed();
            let client = if late { Client::Gone } else { Client::Waits };
            let answer = link.apply(&what, (client, apply));
            if late {
                let outcome =
                    if answer.is_refusal() { "late requests refused" } else { "late requests applied" };
                link.network.0.journal.count(outcome, 1);
            }
            drop(sender.send(answer));
        });
        answer
    }

    fn apply<T: Answer>(&self, what: &str, (client, apply): (Client, impl FnOnce(Client) -> T)) -> T {
        let answer = apply(client);
        self.network.0.journal.count("requests answered", 1);
        self.network.0.journal.note(format_args!("{} {what}: {}", self.name, answer.outcome()));
        answer
    }
}
