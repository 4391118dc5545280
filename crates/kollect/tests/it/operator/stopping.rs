//! How the operator ends while a write hangs.

use std::process::{Command, ExitStatus};

use super::OperatorTest;
use crate::program::eventually;

/// A table that is locked, and an operator that waits for the lock to write.
struct StuckWrite {
    test: OperatorTest,
}

impl StuckWrite {
    fn new(name: &str, grace: &str) -> Self {
        let mut test = OperatorTest::new(name);
        test.apply_config_map("a", "1");
        test.install();
        test.start(&["--shutdown-grace-period", grace]);
        test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
        let (postgres, table) = (test.postgres, test.table());
        // Ended with the session by [`StuckWrite::drop`], and long after the test in any case.
        let lock = format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(600)");
        std::thread::spawn(move || postgres.psql(&lock).is_ok());
        let stuck_write = Self { test };
        stuck_write.wait_for_lock(true);
        stuck_write.test.apply_config_map("b", "2");
        stuck_write.wait_for_lock(false);
        stuck_write
    }

    /// Waits until a lock on the table is granted, or until a session waits for one.
    fn wait_for_lock(&self, granted: bool) {
        let sql = format!(
            "SELECT count(*) > 0 FROM pg_locks WHERE relation = '{}'::regclass AND granted = {granted} \
             AND (NOT granted OR mode = 'AccessExclusiveLock')",
            self.test.table()
        );
        eventually(&format!("a lock, granted: {granted}"), || {
            let found = self.test.postgres.psql(&sql).unwrap();
            (found == "t\n").then_some(()).ok_or(found)
        });
    }

    fn terminate(&self) {
        let pid = self.test.operator.as_ref().unwrap().child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.test.operator.as_ref().unwrap().log).unwrap()
    }

    /// Waits for the end of the process. Returns the last line of the log that has the text.
    fn wait_for_end(&mut self, text: &str) -> (ExitStatus, String) {
        let status = self.test.operator.as_mut().unwrap().child.wait().unwrap();
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains(text)).unwrap_or_default();
        (status, line.to_owned())
    }

    fn binding_name(&self) -> String {
        format!("binding {}/all database/portal", self.test.namespace)
    }
}

impl Drop for StuckWrite {
    fn drop(&mut self) {
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_locks \
             WHERE relation = '{}'::regclass AND mode = 'AccessExclusiveLock' AND granted",
            self.test.table()
        );
        if let Err(error) = self.test.postgres.psql(&sql) {
            eprintln!("the lock stays: {error}");
        }
    }
}

#[test]
fn writes_that_do_not_end_are_stopped_at_the_deadline_and_logged() {
    let mut stuck_write = StuckWrite::new("deadline", "1");
    stuck_write.terminate();
    let (status, line) = stuck_write.wait_for_end("stopped before all writes were done");
    assert!(status.success(), "{status}");
    assert!(line.contains(&stuck_write.binding_name()), "{line}");
}

#[test]
fn a_second_signal_ends_the_operator_at_once() {
    let mut stuck_write = StuckWrite::new("second-signal", "600");
    stuck_write.terminate();
    eventually("it has begun to stop", || {
        let log = stuck_write.log();
        log.contains("stopping; running writes may finish").then_some(()).ok_or(log)
    });
    // Signals that come together with the first one are not a second request.
    eventually("it has ended", || {
        stuck_write.terminate();
        let ended = stuck_write.test.operator.as_mut().unwrap().child.try_wait().unwrap();
        ended.map(drop).ok_or("it is still running".into())
    });
    let (status, line) = stuck_write.wait_for_end("second signal");
    assert_eq!(status.code(), Some(1));
    assert!(line.contains(&stuck_write.binding_name()), "{line}");
}
