//! Faults of the Go implementation that only a running operator can show: see docs/faults.md.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use kollect_testbed::git::GitHttp;

use super::*;

impl OperatorTest {
    /// The line of a sink in the status of an inventory.
    pub(super) fn export_line_of(&self, inventory: &str, sink: &str) -> Value {
        let status = self.get(inventory)["status"]["sinkExports"].clone();
        let lines = status.as_array().cloned().unwrap_or_default();
        lines.into_iter().find(|line| line["name"] == sink).unwrap_or_default()
    }

    /// Waits for a condition of a sink of an inventory.
    pub(super) fn wait_for_sink_condition(
        &self,
        (inventory, sink): (&str, &str),
        type_: &str,
        expected: &str,
    ) {
        eventually(&format!("{sink} of {inventory} {type_} {expected}"), || {
            let line = self.export_line_of(inventory, sink);
            let conditions = line["conditions"].as_array().cloned().unwrap_or_default();
            let is_reported =
                conditions.iter().filter(|condition| condition["type"] == type_).any(|condition| {
                    let (status, reason) = (condition["status"].as_str(), condition["reason"].as_str());
                    status
                        .zip(reason)
                        .is_some_and(|(status, reason)| format!("{status} {reason}") == expected)
                });
            is_reported.then_some(()).ok_or(line.to_string())
        });
    }

    /// Waits for an event about an object of the namespace.
    fn wait_for_event(&self, expected: &str) {
        eventually(expected, || {
            let events = self.get("events")["items"].as_array().cloned().unwrap_or_default();
            let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let found: Vec<String> = events
                .iter()
                .map(|event| format!("{} {}", text(event, "type"), text(event, "reason")))
                .collect();
            found.iter().any(|event| event == expected).then_some(()).ok_or(format!("{found:?}"))
        });
    }

    fn wait_until_deleted(&self, resource: &str) {
        eventually(&format!("{resource} goes"), || {
            let found = self.plane.kubectl(&["get", "-n", &self.namespace, resource]);
            found.is_err().then_some(()).ok_or("it is still there".into())
        });
    }

    /// A second sink beside the first, on a server of its own.
    pub(super) fn apply_second_sink(&self, server: &Postgres) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "second" },
            "stringData": { "dsn": server.dsn() },
        }));
        let mut sink = self.sink();
        sink["postgres"]["databaseRef"]["name"] = json!("second");
        self.apply_kollect("KollectDatabaseSink", "second", sink);
    }
}

#[test]
fn a_database_that_starts_late_is_found_without_a_change_of_any_object() {
    let mut test = OperatorTest::new("late");
    let mut postgres = Postgres::start().unwrap();
    postgres.crash();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&postgres.dsn());
    test.start(&[]);
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    test.wait_for_condition("kollectdatabasesink/portal", "Degraded", "True ConnectionTestFailed");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True Progressing");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "False ExportFailed");
    // Targets do not depend on sinks.
    test.wait_for_condition("kollecttarget/maps", "Ready", "True Collecting");
    // The write is retried again and again, but the status is not rewritten each time.
    let began = std::time::Instant::now();
    let mut versions = std::collections::BTreeSet::new();
    while began.elapsed() < Duration::from_secs(5) {
        versions.insert(test.get("kollectdatabasesink/portal")["metadata"]["resourceVersion"].to_string());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(versions.len() <= 2, "written more often than every ten seconds: {versions:?}");
    let generations = || {
        let generation = |what: &str| test.get(what)["metadata"]["generation"].clone();
        (generation("kollectdatabasesink/portal"), generation("kollectinventory/all"))
    };
    let before = generations();
    postgres.resume().unwrap();
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(postgres.psql(&format!("SELECT name FROM {}", test.table())).unwrap(), "a\n");
    assert_eq!(generations(), before);
}

impl OperatorTest {
    /// What a sink expects an administrator to create.
    pub(super) fn expected_ddl(&self, sink: &str) -> String {
        self.annotate(sink, "kollect.dev/preview=true");
        let mut ddl = String::new();
        eventually("the preview", || {
            let preview = self.get(sink)["status"]["preview"].clone();
            preview["postgres"]["expectedDDL"].as_str().ok_or(preview.to_string())?.clone_into(&mut ddl);
            Ok(())
        });
        ddl
    }
}

#[test]
fn a_probe_that_fails_blocks_no_export() {
    let mut test = OperatorTest::new("probed");
    let server = Postgres::start().unwrap();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_secret(&server.dsn().replace("postgres@", "portal@"));
    let mut sink = test.sink();
    sink["provisioning"] = json!({ "mode": "existing" });
    test.apply_kollect("KollectDatabaseSink", "portal", sink);
    test.start(&[]);
    let ddl = test.expected_ddl("kollectdatabasesink/portal");
    // The probe checks the right to delete claims, which only a deleted inventory needs.
    let grant = format!(
        "CREATE ROLE portal LOGIN; GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO portal;
         GRANT DELETE ON {} TO portal",
        test.table()
    );
    server.psql(&format!("{ddl}; {grant}")).unwrap();
    test.annotate("kollectdatabasesink/portal", "kollect.dev/requestedAt=1");
    eventually("the first row", || {
        let line = test.export_line_of("kollectinventory/all", "database/portal");
        (line["rows"] == 1).then_some(()).ok_or(line.to_string())
    });
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(server.psql(&format!("SELECT name FROM {}", test.table())).unwrap(), "a\n");
    test.wait_for_condition("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    let message = test.condition_message("kollectdatabasesink/portal", "Ready");
    assert!(message.contains("may not DELETE"), "{message}");
    test.apply_config_map("b", "1");
    eventually("the next row", || {
        let found = server.psql(&format!("SELECT name FROM {} ORDER BY 1", test.table())).unwrap();
        (found == "a\nb\n").then_some(()).ok_or(found)
    });
    assert_eq!(
        test.condition("kollectdatabasesink/portal", "ConnectionVerified"),
        "False ConnectionTestFailed"
    );
}

/// Command lines and environments of a process and everything that it has started.
fn processes_of(pid: u32) -> Vec<u8> {
    let mut found = Vec::new();
    let mut waiting = vec![pid];
    while let Some(pid) = waiting.pop() {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        found.extend([read("cmdline"), read("environ")].concat());
        for thread in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        }
    }
    found
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}

#[test]
fn a_password_is_in_no_file_and_no_process_list() {
    let mut test = OperatorTest::new("passwords");
    let temporary = test.dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    test.environment = vec![("TMPDIR".into(), temporary.to_str().unwrap().into())];
    test.apply_config_map("a", "1");
    test.install();
    // The server asks for no password, and the sink does not know that.
    test.apply_secret(&test.postgres.dsn().replace("postgres@", "postgres:correct-horse@"));
    let repository = super::acknowledged_status::git_sink(&test);
    let inventory =
        json!({ "databaseSinkRefs": ["portal"], "snapshotSinkRefs": ["git"], "minChangeInterval": "0s" });
    test.apply_kollect("KollectInventory", "all", inventory);
    test.start(&["--log-level", "kollect=trace"]);
    let pid = test.operator.as_ref().unwrap().child.id();
    let passwords = [GitHttp::PASSWORD, "correct-horse"];
    let contains =
        |bytes: &[u8], password: &str| bytes.windows(password.len()).any(|part| part == password.as_bytes());
    let running = AtomicBool::new(true);
    std::thread::scope(|spawner| {
        let process_checks = spawner.spawn(|| {
            let mut checks = 0;
            while running.load(Relaxed) {
                let processes = processes_of(pid);
                // A process that is just being started has nothing to read yet.
                if processes.is_empty() {
                    continue;
                }
                for password in passwords {
                    assert!(!contains(&processes, password), "{password} is in the list of processes");
                }
                checks += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            checks
        });
        test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
        for value in ["2", "3"] {
            test.apply_config_map("a", value);
            test.wait_for_rows(&[&format!("a={value}")]);
            eventually("the commit", || {
                let log = repository.git(&["log", "-p", "-1", "main"]).unwrap();
                log.contains(value).then_some(()).ok_or(log)
            });
        }
        // A refused push is reported without the password, too.
        repository.git(&["config", "http.receivepack", "false"]).unwrap();
        test.apply_config_map("a", "4");
        test.wait_for_sink_condition(
            ("kollectinventory/all", "snapshot/git"),
            "Synced",
            "False ExportTerminal",
        );
        running.store(false, Relaxed);
        assert!(process_checks.join().unwrap() > 100);
    });
    let kinds = "kinv,ktgt,kprof,kollectdatabasesinks,kollectsnapshotsinks,events";
    let objects = test.plane.kubectl(&["get", "-n", &test.namespace, kinds, "-o", "json"]).unwrap();
    let files = files_below(test.dir.path());
    assert!(files.iter().any(|file| file.ends_with("HEAD")), "the mirror is among them: {files:?}");
    for password in passwords {
        assert!(!objects.contains(password), "{password} is in an object");
        for file in &files {
            assert!(
                !contains(&fs::read(file).unwrap_or_default(), password),
                "{password} in {}",
                file.display()
            );
        }
    }
}

#[test]
fn an_idle_sink_stays_synced_while_another_one_fails() {
    let mut test = OperatorTest::new("idle");
    let mut second = Postgres::start().unwrap();
    second.crash();
    test.apply_config_map("a", "1");
    test.install();
    test.apply_second_sink(&second);
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "second"] }));
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True PartiallySynced");
    test.wait_for_condition("kollectinventory/all", "Synced", "False PartiallySynced");
    test.wait_for_condition("kollectinventory/all", "SinkReachable", "False ExportFailed");
    test.wait_for_sink_condition(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
    test.wait_for_sink_condition(("kollectinventory/all", "database/second"), "Synced", "False ExportFailed");
    let synced_checksum = || {
        let line = test.export_line_of("kollectinventory/all", "database/portal");
        let synced = &line["conditions"][0];
        assert_eq!((&synced["type"], &synced["status"]), (&json!("Synced"), &json!("True")), "{line}");
        assert!(line["lastExportTime"].is_string() && line["lastChecksum"].is_string(), "{line}");
        line["lastChecksum"].clone()
    };
    let checksum = synced_checksum();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(synced_checksum(), checksum);
    }
    test.stop();
    test.start(&[]);
    let began = std::time::Instant::now();
    let checksum_and_status = || {
        let line = test.export_line_of("kollectinventory/all", "database/portal");
        assert!(line["lastExportTime"].is_string(), "{line}");
        assert_eq!(line["conditions"][0]["status"], "True", "{line}");
        (line["lastChecksum"].clone(), line["conditions"][0]["status"].clone())
    };
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(checksum_and_status(), (checksum.clone(), json!("True")), "a restart takes nothing back");
    }

    // Rows of a sink that is no longer named are removed when that can be done.
    test.apply_kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    test.wait_for_sink_condition(("kollectinventory/all", "database/second"), "Synced", "False Cleaning");
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.wait_for_condition("kollectinventory/all", "SinkReachable", "True SinksReachable");
    second.resume().unwrap();
    eventually("the second sink is clean", || {
        let line = test.export_line_of("kollectinventory/all", "database/second");
        line.is_null().then_some(()).ok_or(line.to_string())
    });
}

#[test]
fn inventories_of_a_namespace_divide_its_targets() {
    let mut test = OperatorTest::new("divided");
    test.apply_config_map("a", "1");
    test.apply_config_map("b", "2");
    test.install();
    let apply_target = |name: &str, object: &str| {
        let spec = json!({
            "profileRef": "maps", "includedNamespaces": [test.namespace], "names": [object],
        });
        test.apply_kollect("KollectTarget", name, spec);
    };
    apply_target("only-a", "a");
    apply_target("only-b", "b");
    let label = ["label", "-n", &test.namespace, "kollecttarget/only-b", "part=b"];
    test.plane.kubectl(&label).unwrap();
    let by_name = json!({ "databaseSinkRefs": ["portal"], "targetRefs": ["only-a"] });
    let by_label =
        json!({ "databaseSinkRefs": ["portal"], "targetSelector": { "matchLabels": { "part": "b" } } });
    for (inventory, spec) in [("first", by_name), ("second", by_label)] {
        test.apply_kollect("KollectInventory", inventory, spec);
    }
    test.delete("kollectinventory/all");
    test.start(&[]);
    let sql = format!("SELECT inventory_name || ' ' || name FROM {} ORDER BY 1", test.table());
    eventually("each has its own", || {
        let found = test.postgres.psql(&sql).unwrap_or_default();
        (found == "first a\nsecond b\n").then_some(()).ok_or(found)
    });
}

#[test]
fn a_deleted_sink_does_not_delay_the_deletion_of_its_inventory() {
    let mut test = OperatorTest::new("gone");
    test.apply_config_map("a", "1");
    test.install();
    test.start(&[]);
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    // The process that has written there still has a client, and cleans up.
    test.delete("kollectdatabasesink/portal");
    test.wait_for_condition("kollectinventory/all", "Degraded", "True SinkNotFound");
    test.delete("kollectinventory/all");
    test.wait_until_deleted("kollectinventory/all");
    assert!(test.rows().is_empty());

    // Another process has none, and reports what it leaves behind.
    test.install();
    test.wait_for_condition("kollectinventory/all", "Ready", "True Exported");
    test.stop();
    test.delete("kollectdatabasesink/portal");
    test.delete("kollectinventory/all");
    test.start(&[]);
    test.wait_until_deleted("kollectinventory/all");
    test.wait_for_event("Warning CleanupTerminal");
    assert_eq!(test.rows(), ["a=1"]);
}
