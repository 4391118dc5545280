//! Sessions that sinks share.
//!
//! Sinks with equal servers, credentials and bounds use the same few sessions, each for one operation at
//! a time. Whoever finds all of them taken waits in line. What is shared is found by comparing all of
//! it, so a changed password is another server.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use kollect_model::sink::{SinkError, SinkReason};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ANSWER_LIMIT,
    session::{Server, Session},
};
use crate::{Network, connection_task};

/// Sessions of one server. Few writers keep a server as busy as many.
const SESSIONS: usize = 4;
/// Until a session that nobody uses is closed.
const IDLE_LIMIT: Duration = Duration::from_mins(1);

/// Between two looks at idle sessions.
const SHORTEST_WAIT: Duration = Duration::from_millis(10);

/// All pools; one lives as long as a sink uses it.
pub struct Pools {
    idle_limit: Duration,
    known: Mutex<Vec<Weak<Pool>>>,
}

impl Pools {
    /// Pools that close sessions that are not used for this long; `None`: a minute.
    pub(super) fn new(idle_limit: Option<Duration>) -> Self {
        Self { idle_limit: idle_limit.unwrap_or(IDLE_LIMIT), known: Mutex::default() }
    }

    /// The pool of a server.
    pub(super) fn of(&self, server: Server) -> Arc<Pool> {
        let mut known = locked(&self.known);
        known.retain(|pool| pool.strong_count() > 0);
        if let Some(pool) = known.iter().filter_map(Weak::upgrade).find(|pool| pool.server == server) {
            return pool;
        }
        let pool = Pool::new(server, self.idle_limit);
        known.push(Arc::downgrade(&pool));
        pool
    }
}

/// The sessions of one server.
pub(super) struct Pool {
    server: Server,
    /// Who may have a session. First come, first served.
    seats: Arc<Semaphore>,
    /// With the time of their last use; the latest is last.
    idle: Mutex<Vec<(Instant, Session)>>,
    idle_limit: Duration,
    _closer: AbortOnDropHandle<()>,
}

impl Pool {
    fn new(server: Server, idle_limit: Duration) -> Arc<Self> {
        Arc::new_cyclic(|pool| Self {
            server,
            seats: Arc::new(Semaphore::new(SESSIONS)),
            idle: Mutex::default(),
            idle_limit,
            _closer: connection_task::spawn("close idle sessions", close_idle(pool.clone(), idle_limit)),
        })
    }

    /// A session for one operation: one that is open, else a new one, else the first that comes free. `network`
    /// equals that of the server, and names the namespace of this sink in refusals.
    pub(super) async fn lease(
        self: &Arc<Self>,
        network: &Network,
        attempt: &str,
    ) -> Result<Lease, SinkError> {
        let Ok(Ok(seat)) = timeout(ANSWER_LIMIT, self.seats.clone().acquire_owned()).await else {
            let attempt = format!("{attempt}: all {SESSIONS} sessions are in use by other inventories");
            return Err(SinkError::new(SinkReason::Busy, attempt));
        };
        let reused = loop {
            let idle = locked(&self.idle).pop();
            match idle {
                Some((_, session)) if session.is_closed() => {}
                idle => break idle,
            }
        };
        let session = match reused {
            Some((_, session)) => session,
            None => Session::open(&self.server, network, attempt).await?,
        };
        Ok(Lease { session: session.taken(seat), pool: self.clone() })
    }

    /// Closes what nobody has used for long. Answers how long nothing more is to be done.
    fn close_idle(&self) -> Duration {
        let mut idle = locked(&self.idle);
        idle.retain(|(since, session)| since.elapsed() < self.idle_limit && !session.is_closed());
        let oldest = idle.iter().map(|(since, _)| since.elapsed()).max().unwrap_or_default();
        self.idle_limit.saturating_sub(oldest)
    }
}

async fn close_idle(pool: Weak<Pool>, idle_limit: Duration) {
    let mut wait = idle_limit;
    loop {
        sleep(wait.max(SHORTEST_WAIT)).await;
        let Some(pool) = pool.upgrade() else { return };
        wait = pool.close_idle();
    }
}

/// A session in use. Dropped in the middle of something, it ends that and closes.
pub(super) struct Lease {
    pub(super) session: Session,
    pool: Arc<Pool>,
}

impl Lease {
    /// For the next one.
    pub(super) fn give_back(mut self) {
        let seat = self.session.free();
        // Before the seat is free: whoever takes it finds the session and opens no other.
        locked(&self.pool.idle).push((Instant::now(), self.session));
        drop(seat);
    }

    /// Closes the session, which has nothing left to do.
    pub(super) fn close(mut self) {
        drop(self.session.free());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
