//! Tasks that serve a connection. No other code of this crate starts async tasks.
//!
//! They are not restarted. If one ends, the connection is lost, its user gets an error, and the binding or
//! probe that needs it retries with another connection.

use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, error, error_span};

/// Starts a task; dropping the handle aborts it. Bindings share connections, so its span has no parent.
pub(crate) fn spawn(
    task: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let work = async move {
        if AssertUnwindSafe(work).catch_unwind().await.is_err() {
            error!("task of a connection panicked");
        }
    };
    let work = work.instrument(error_span!(parent: None, "connection", task));
    #[expect(clippy::disallowed_methods, reason = "this is where tasks of connections are started")]
    AbortOnDropHandle::new(tokio::spawn(work))
}
