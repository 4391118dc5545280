//! How the operator ends while a write hangs.

use std::process::{Command, ExitStatus};

use super::World;
use crate::program::eventually;

/// A table that is locked, and an operator that waits for the lock to write.
struct Stuck {
    world: World,
}

impl Stuck {
    fn new(name: &str, grace: &str) -> Self {
        let mut world = World::new(name);
        world.map("a", "1");
        world.install();
        world.start(&["--shutdown-grace-period", grace]);
        world.becomes("kollectinventory/all", "Ready", "True Exported");
        let (postgres, table) = (world.postgres, world.table());
        // Ended with the session by [`Stuck::drop`], and long after the test in any case.
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)");
        std::thread::spawn(move || postgres.psql(&lock).is_ok());
        let stuck = Self { world };
        stuck.locks(true);
        stuck.world.map("b", "2");
        stuck.locks(false);
        stuck
    }

    /// Waits until a lock on the table is granted, or until a session waits for one.
    fn locks(&self, granted: bool) {
        let sql = format!(
            "SELECT count(*) > 0 FROM pg_locks WHERE relation = '{}'::regclass AND granted = {granted} \
             AND (NOT granted OR mode = 'AccessExclusiveLock')",
            self.world.table()
        );
        eventually(&format!("a lock, granted: {granted}"), || {
            let found = self.world.postgres.psql(&sql).unwrap();
            (found == "t\n").then_some(()).ok_or(found)
        });
    }

    fn signal(&self) {
        let pid = self.world.operator.as_ref().unwrap().child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.world.operator.as_ref().unwrap().log).unwrap()
    }

    /// Waits for the end. Answers the last line of the log that has the text.
    fn end(&mut self, text: &str) -> (ExitStatus, String) {
        let status = self.world.operator.as_mut().unwrap().child.wait().unwrap();
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains(text)).unwrap_or_default();
        (status, line.to_owned())
    }

    fn binding(&self) -> String {
        format!("binding {}/all database/portal", self.world.namespace)
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_locks \
             WHERE relation = '{}'::regclass AND mode = 'AccessExclusiveLock' AND granted",
            self.world.table()
        );
        if let Err(error) = self.world.postgres.psql(&sql) {
            eprintln!("the lock stays: {error}");
        }
    }
}

#[test]
fn writes_that_do_not_end_are_cut_at_the_deadline_and_named() {
    let mut stuck = Stuck::new("deadline", "1");
    stuck.signal();
    let (status, line) = stuck.end("stopped before all writes were done");
    assert!(status.success(), "{status}");
    assert!(line.contains(&stuck.binding()), "{line}");
}

#[test]
fn a_second_signal_ends_the_operator_at_once() {
    let mut stuck = Stuck::new("second-signal", "600");
    stuck.signal();
    eventually("it has begun to stop", || {
        let log = stuck.log();
        log.contains("stopping; running writes may finish").then_some(()).ok_or(log)
    });
    // Signals that come together with the first one are not a second request.
    eventually("it has ended", || {
        stuck.signal();
        let ended = stuck.world.operator.as_mut().unwrap().child.try_wait().unwrap();
        ended.map(drop).ok_or("it is still running".into())
    });
    let (status, line) = stuck.end("second signal");
    assert_eq!(status.code(), Some(1));
    assert!(line.contains(&stuck.binding()), "{line}");
}
