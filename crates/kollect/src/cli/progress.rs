//! Progress of the first lists: one changing line on a terminal, otherwise a new line every few seconds.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use kollect_engine::coverage::{Coverage, WatchKey, WatchState};
use tokio::time::{self, Instant};

/// Work that ends sooner shows no progress.
const PROGRESS_DELAY: Duration = Duration::from_millis(500);
/// How often a new line is written.
const PERIOD: Duration = Duration::from_secs(5);
const BAR_WIDTH: u64 = 20;

/// Shows progress until the work is done.
pub(crate) async fn during<T>(coverage: &Coverage, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let terminal = io::stderr().is_terminal();
    let period = if terminal { Duration::from_millis(200) } else { PERIOD };
    let mut ticks =
        time::interval_at(Instant::now() + if terminal { PROGRESS_DELAY } else { PERIOD }, period);
    loop {
        tokio::select! {
            done = &mut work => {
                if terminal {
                    eprint!("\r\x1b[K");
                }
                return done;
            }
            _ = ticks.tick() => show(&lines(coverage), terminal),
        }
    }
}

/// Prints every few seconds that the work still runs.
pub(crate) async fn waiting<T>(name: &str, what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    let began = Instant::now();
    let mut ticks = time::interval_at(began + PROGRESS_DELAY * 2, PERIOD);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = ticks.tick() => eprintln!("{name}: {what}, {} s so far", began.elapsed().as_secs()),
        }
    }
}

fn show(lines: &[String], terminal: bool) {
    let mut out = io::stderr().lock();
    // Errors are ignored: the run does not depend on showing its progress.
    drop(if terminal {
        let line: String = lines.join(" · ").chars().take(100).collect();
        write!(out, "\r\x1b[K{line}").and_then(|()| out.flush())
    } else {
        lines.iter().try_for_each(|line| writeln!(out, "listing {line}"))
    });
}

fn lines(coverage: &Coverage) -> Vec<String> {
    let known = coverage.read();
    known.iter().filter_map(|(watched, coverage)| line(watched, &coverage.state)).collect()
}

fn line(watched: &WatchKey, state: &WatchState) -> Option<String> {
    let name = match &watched.namespace {
        Some(namespace) => format!("{} in {namespace}", watched.gvk.kind),
        None => watched.gvk.kind.clone(),
    };
    match state {
        WatchState::Waiting => Some(format!("{name}: waiting")),
        WatchState::Listing { seen, total: Some(total) } if *total > 0 => {
            let full = usize::try_from((seen * BAR_WIDTH / total).min(BAR_WIDTH)).unwrap_or(0);
            let empty = usize::try_from(BAR_WIDTH).unwrap_or(0) - full;
            Some(format!("{name}: {}{} {seen} of {total}", "█".repeat(full), "░".repeat(empty)))
        }
        WatchState::Listing { seen, .. } => Some(format!("{name}: {seen}")),
        WatchState::Synced { .. } | WatchState::Absent | WatchState::Blind { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use kollect_model::crd::shapes::Gvk;

    use super::*;

    #[test]
    fn a_list_shows_how_far_it_is() {
        let gvk = Gvk { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() };
        let watched = WatchKey { gvk, namespace: Some("shop".into()), field_selector: None };
        let half = WatchState::Listing { seen: 500, total: Some(1000) };
        assert_eq!(line(&watched, &half).unwrap(), "Deployment in shop: ██████████░░░░░░░░░░ 500 of 1000");
        let unknown = WatchState::Listing { seen: 7, total: None };
        assert_eq!(line(&watched, &unknown).unwrap(), "Deployment in shop: 7");
        let over = WatchState::Listing { seen: 1200, total: Some(1000) };
        assert!(line(&watched, &over).unwrap().contains("████████████████████ 1200"));
    }
}
