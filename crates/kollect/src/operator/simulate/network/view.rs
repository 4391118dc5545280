//! How old the view that a process has of its cluster may be.

use std::time::Duration;

use tokio::time::Instant;

/// Everything that happened so long ago has been seen by a process that nothing keeps from it.
const USUAL: Duration = Duration::from_mins(1);
/// So long after a fault watches work again: the longest pause between two tries is half a minute.
const RECOVERY: Duration = Duration::from_mins(2);

/// What keeps a process from seeing its cluster until further notice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hindrance {
    CutOff,
    ApiFaults,
}

/// What kept a process from seeing its cluster.
#[derive(Clone, Default)]
pub(super) struct View {
    /// What keeps it from that now.
    now: Vec<Hindrance>,
    /// From when until when something did.
    hindered: Option<(Instant, Instant)>,
}

impl View {
    /// Something keeps the process from seeing its cluster, for some time from now on.
    pub(super) fn hinder(&mut self, time: Duration) {
        let (now, until) = (Instant::now(), Instant::now() + time + RECOVERY);
        self.hindered = Some(match self.hindered {
            Some((since, before)) if before >= now || !self.now.is_empty() => (since, before.max(until)),
            _ => (now, until),
        });
    }

    /// Something keeps the process from seeing its cluster, or no longer.
    pub(super) fn set(&mut self, hindrance: Hindrance, hinders: bool) {
        self.hinder(Duration::ZERO);
        self.now.retain(|own| *own != hindrance);
        if hinders {
            self.now.push(hindrance);
        }
    }

    /// Nothing keeps it any more.
    pub(super) fn heal(&mut self) {
        self.hinder(Duration::ZERO);
        self.now.clear();
    }

    /// Everything that happened before this has been seen; `None`: perhaps nothing.
    pub(super) fn fresh_at(&self) -> Option<Instant> {
        let now = Instant::now();
        match self.hindered {
            Some((since, until)) if until >= now || !self.now.is_empty() => since.checked_sub(USUAL),
            _ => now.checked_sub(USUAL),
        }
    }
}
