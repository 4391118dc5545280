//! Wakes tasks when something has changed, in the order in which they began to wait.
//!
//! `tokio::sync::watch` wakes in an order that differs from run to run, and futures that one task waits for together,
//! such as streams in `select_all`, are read in the order in which they were woken.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

#[derive(Default)]
struct SignalState {
    /// How often something has changed.
    changes: u64,
    waiting: BTreeMap<u64, Waker>,
    /// How many futures have waited so far.
    waiters: u64,
}

/// Cheap to clone; clones are the same signal.
#[derive(Clone, Default)]
pub(super) struct Signal(Arc<Mutex<SignalState>>);

impl Signal {
    /// How often something has changed so far.
    pub(super) fn changes(&self) -> u64 {
        self.0.lock().unwrap().changes
    }

    /// Something has changed.
    pub(super) fn announce(&self) {
        let woken = {
            let mut state = self.0.lock().unwrap();
            state.changes += 1;
            std::mem::take(&mut state.waiting)
        };
        woken.into_values().for_each(Waker::wake);
    }

    /// Waits until the number of changes is larger than `changes`.
    pub(super) fn changed_since(&self, changes: u64) -> SignalChanged {
        SignalChanged { signal: self.clone(), changes, number: None }
    }
}

/// Ready when something has changed.
pub(super) struct SignalChanged {
    signal: Signal,
    changes: u64,
    /// Its key in [`SignalState::waiting`]; `None`: it has not been polled yet.
    number: Option<u64>,
}

impl Future for SignalChanged {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let signal = self.signal.clone();
        let mut state = signal.0.lock().unwrap();
        if state.changes > self.changes {
            return Poll::Ready(());
        }
        let number = *self.number.get_or_insert_with(|| {
            state.waiters += 1;
            state.waiters
        });
        state.waiting.insert(number, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for SignalChanged {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.signal.0.lock().unwrap().waiting.remove(&number);
        }
    }
}
