//! Digest of everything that happens in a schedule: two runs of a seed are the same if their digests are.
//!
//! `TRACE=1` prints the lines, each with the virtual time.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// Counts of outcomes, by name.
pub(super) type Outcomes = BTreeMap<&'static str, u64>;

/// The journal of a schedule. Cheap to clone.
#[derive(Clone)]
pub(super) struct Journal(Arc<Mutex<Entries>>);

struct Entries {
    began: Instant,
    count: u64,
    digest: Xxh3,
    prints: bool,
    outcomes: Outcomes,
}

impl Write for Entries {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.digest.update(text.as_bytes());
        if self.prints {
            print!("{text}");
        }
        Ok(())
    }
}

impl Journal {
    /// Begins now.
    pub(super) fn new() -> Self {
        let prints = std::env::var("TRACE").is_ok_and(|value| !value.is_empty());
        let (digest, outcomes) = (Xxh3::new(), Outcomes::new());
        Self(Arc::new(Mutex::new(Entries { began: Instant::now(), count: 0, digest, prints, outcomes })))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap()
    }

    /// Adds a line with the current time.
    pub(super) fn note(&self, event: fmt::Arguments<'_>) {
        let mut entries = self.lock();
        entries.count += 1;
        let millis = entries.began.elapsed().as_millis();
        writeln!(entries, "{millis:>8} {event}").unwrap();
    }

    /// Adds to the count of an outcome.
    pub(super) fn count(&self, outcome: &'static str, more: u64) {
        *self.lock().outcomes.entry(outcome).or_default() += more;
    }

    /// A number for this moment: later moments have larger numbers.
    pub(super) fn moment(&self) -> u64 {
        let mut entries = self.lock();
        entries.count += 1;
        entries.count
    }

    /// Digest of all entries in their order.
    pub(super) fn digest(&self) -> u64 {
        self.lock().digest.digest()
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        self.lock().outcomes.clone()
    }
}
