//! Everything that happens in a schedule, as one number: two runs of a seed are the same run if it is the same.
//!
//! `TRACE=1` prints the lines, each with the virtual time.

use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

/// The journal of a schedule. Cheap to clone.
#[derive(Clone)]
pub(super) struct Journal(Arc<Mutex<Entries>>);

struct Entries {
    began: Instant,
    digest: Xxh3,
    prints: bool,
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
        Self(Arc::new(Mutex::new(Entries { began: Instant::now(), digest: Xxh3::new(), prints })))
    }

    /// Notes what has happened now.
    pub(super) fn note(&self, what: fmt::Arguments<'_>) {
        let mut entries = self.0.lock().unwrap();
        let millis = entries.began.elapsed().as_millis();
        writeln!(entries, "{millis:>8} {what}").unwrap();
    }

    /// A number that stands for all entries in their order.
    pub(super) fn digest(&self) -> u64 {
        self.0.lock().unwrap().digest.digest()
    }
}
