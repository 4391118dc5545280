//! The open connections of a server, at most `limit`. At the limit a new connection takes the place of the one that
//! has waited longest for its client: a client that sends nothing cannot block others.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// All open connections.
pub(super) struct Connections {
    limit: usize,
    state: Mutex<ConnectionsState>,
    /// Notified when a connection has ended or waits for its client again. Only the task that accepts waits for it.
    changed: Notify,
}

#[derive(Default)]
struct ConnectionsState {
    next: u64,
    open: BTreeMap<u64, OpenConnection>,
}

/// An open connection.
struct OpenConnection {
    /// Requests that have arrived completely and are not answered yet.
    answering: usize,
    /// Since when it has waited: for a handshake, for the rest of a request, or for another request.
    waiting_since: Instant,
    /// Dropping it closes the connection.
    _close: oneshot::Sender<Infallible>,
}

/// Resolves when a connection must close to make room for another one.
pub(super) type MustClose = oneshot::Receiver<Infallible>;

/// The slot of one connection, which is freed when the connection ends. Requests of the connection have clones.
#[derive(Clone)]
pub(super) struct ConnectionSlot(Arc<HeldSlot>);

struct HeldSlot {
    connections: Arc<Connections>,
    id: u64,
}

/// A request that is being answered; dropped with its response.
pub(super) struct RequestInFlight(ConnectionSlot);

impl Connections {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), changed: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more, and closes another connection for it if necessary. Returns whether it
    /// closed one. Connections whose requests are being answered are not closed.
    pub(super) async fn wait_for_room(&self) -> bool {
        loop {
            {
                let mut state = self.state();
                if state.open.len() < self.limit {
                    return false;
                }
                let waiting = state.open.iter().filter(|(_, open)| open.answering == 0);
                let longest = waiting.min_by_key(|(_, open)| open.waiting_since).map(|(id, _)| *id);
                if let Some(id) = longest {
                    state.open.remove(&id);
                    return true;
                }
            }
            self.changed.notified().await;
        }
    }

    /// Adds a new connection; call [`Self::wait_for_room`] first.
    pub(super) fn admit(self: &Arc<Self>) -> (ConnectionSlot, MustClose) {
        let (close, closed) = oneshot::channel();
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.open.insert(id, OpenConnection { answering: 0, waiting_since: Instant::now(), _close: close });
        (ConnectionSlot(Arc::new(HeldSlot { connections: self.clone(), id })), closed)
    }
}

impl ConnectionSlot {
    /// A request has arrived completely: the client waits for the server from now on.
    pub(super) fn answering(&self) -> RequestInFlight {
        if let Some(open) = self.0.connections.state().open.get_mut(&self.0.id) {
            open.answering += 1;
        }
        RequestInFlight(self.clone())
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        let HeldSlot { connections, id } = &*self.0.0;
        if let Some(open) = connections.state().open.get_mut(id) {
            open.answering = open.answering.saturating_sub(1);
            open.waiting_since = Instant::now();
        }
        connections.changed.notify_one();
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        self.connections.state().open.remove(&self.id);
        self.connections.changed.notify_one();
    }
}
