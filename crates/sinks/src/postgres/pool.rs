//! Sessions that sinks share.
//!
//! Sinks with equal servers, credentials and policies share a few sessions, each used for one operation at a
//! time. If all sessions are in use, an operation waits in a queue. The whole configuration is compared, so a
//! changed password gets a pool of its own.

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

use super::session::{PostgresServer, Session};
use crate::{Network, connection_task};

/// Maximum sessions per server. A few writers are as fast as many.
const MAX_SESSIONS: usize = 4;
/// How long an unused session stays open.
const IDLE_LIMIT: Duration = Duration::from_mins(1);

/// Minimum time between two checks for idle sessions.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// All pools; a pool lives as long as a sink uses it.
pub struct Pools {
    idle_limit: Duration,
    known: Mutex<Vec<Weak<Pool>>>,
}

impl Pools {
    /// Pools that close sessions after this idle time; `None`: a minute.
    pub(super) fn new(idle_limit: Option<Duration>) -> Self {
        Self { idle_limit: idle_limit.unwrap_or(IDLE_LIMIT), known: Mutex::default() }
    }

    /// The pool of a server.
    pub(super) fn of(&self, server: PostgresServer) -> Arc<Pool> {
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
    server: PostgresServer,
    /// One permit per session. Operations that wait get them in order.
    permits: Arc<Semaphore>,
    /// Idle sessions with the time of their last use; the most recently used is last.
    idle: Mutex<Vec<(Instant, Session)>>,
    idle_limit: Duration,
    _closer: AbortOnDropHandle<()>,
}

impl Pool {
    fn new(server: PostgresServer, idle_limit: Duration) -> Arc<Self> {
        Arc::new_cyclic(|pool| Self {
            server,
            permits: Arc::new(Semaphore::new(MAX_SESSIONS)),
            idle: Mutex::default(),
            idle_limit,
            _closer: connection_task::spawn("close idle sessions", close_idle(pool.clone(), idle_limit)),
        })
    }

    /// A session for one operation: an idle one, else a new one; waits while all are in use. `network` allows the
    /// same addresses as that of the server, and has the namespace of this sink, for the text of refusals.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        network: &Network,
        attempt: &str,
    ) -> Result<PooledSession, SinkError> {
        let Ok(Ok(permit)) =
            timeout(self.server.timeouts.answer_limit(), self.permits.clone().acquire_owned()).await
        else {
            let attempt = format!("{attempt}: all {MAX_SESSIONS} sessions are in use by other inventories");
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
        Ok(PooledSession { session: session.in_use(permit), pool: self.clone() })
    }

    /// Closes sessions that were idle for too long. Returns the time until the next check.
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
        sleep(wait.max(MIN_WAIT)).await;
        let Some(pool) = pool.upgrade() else { return };
        wait = pool.close_idle();
    }
}

/// A session in use. If it is dropped during an operation, the operation is cancelled and the session closed.
pub(super) struct PooledSession {
    pub(super) session: Session,
    pool: Arc<Pool>,
}

impl PooledSession {
    /// Returns the session to the pool.
    pub(super) fn give_back(mut self) {
        let permit = self.session.take_permit();
        // Before the permit is free: the next operation must find this session and not open another one.
        locked(&self.pool.idle).push((Instant::now(), self.session));
        drop(permit);
    }

    /// Closes the session. Must not be called while an operation runs.
    pub(super) fn close(mut self) {
        drop(self.session.take_permit());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
