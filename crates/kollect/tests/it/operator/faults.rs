//! Faults of the Go implementation that only a running operator can show: see docs/faults.md.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use kollect_testbed::git::GitHttp;

use super::*;

impl World {
    /// What the status of an inventory says about a sink.
    pub(super) fn export(&self, inventory: &str, sink: &str) -> Value {
        let status = self.get(inventory)["status"]["sinkExports"].clone();
        let lines = status.as_array().cloned().unwrap_or_default();
        lines.into_iter().find(|line| line["name"] == sink).unwrap_or_default()
    }

    /// Waits for a condition of a sink of an inventory.
    pub(super) fn export_becomes(&self, (inventory, sink): (&str, &str), type_: &str, expected: &str) {
        eventually(&format!("{sink} of {inventory} {type_} {expected}"), || {
            let line = self.export(inventory, sink);
            let conditions = line["conditions"].as_array().cloned().unwrap_or_default();
            let told = conditions.iter().filter(|condition| condition["type"] == type_).any(|condition| {
                let (status, reason) = (condition["status"].as_str(), condition["reason"].as_str());
                status.zip(reason).is_some_and(|(status, reason)| format!("{status} {reason}") == expected)
            });
            told.then_some(()).ok_or(line.to_string())
        });
    }

    /// Waits for an event about an object of the namespace.
    fn event_comes(&self, expected: &str) {
        eventually(expected, || {
            let events = self.get("events")["items"].as_array().cloned().unwrap_or_default();
            let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let told: Vec<String> = events
                .iter()
                .map(|event| format!("{} {}", text(event, "type"), text(event, "reason")))
                .collect();
            told.iter().any(|told| told == expected).then_some(()).ok_or(format!("{told:?}"))
        });
    }

    fn vanishes(&self, what: &str) {
        eventually(&format!("{what} goes"), || {
            let gone = self.plane.kubectl(&["get", "-n", &self.namespace, what]);
            gone.is_err().then_some(()).ok_or("it is still there".into())
        });
    }

    /// A second sink beside the first, on a server of its own.
    pub(super) fn second_sink(&self, server: &Postgres) {
        self.apply(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "second" },
            "stringData": { "dsn": server.dsn() },
        }));
        let mut sink = self.sink();
        sink["postgres"]["databaseRef"]["name"] = json!("second");
        self.kollect("KollectDatabaseSink", "second", sink);
    }
}

#[test]
fn w23_a_database_that_comes_late_is_found_without_a_change_of_any_object() {
    let mut world = World::new("late");
    let mut postgres = Postgres::start().unwrap();
    postgres.crash();
    world.map("a", "1");
    world.install();
    world.secret(&postgres.dsn());
    world.start(&[]);
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    world.becomes("kollectdatabasesink/portal", "Degraded", "True ConnectionTestFailed");
    world.becomes("kollectinventory/all", "Degraded", "True Progressing");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "False ExportFailed");
    // Targets do not depend on sinks.
    world.becomes("kollecttarget/maps", "Ready", "True Collecting");
    // The write is retried again and again, but the status is not rewritten each time.
    let began = std::time::Instant::now();
    let mut versions = std::collections::BTreeSet::new();
    while began.elapsed() < Duration::from_secs(5) {
        versions.insert(world.get("kollectdatabasesink/portal")["metadata"]["resourceVersion"].to_string());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(versions.len() <= 2, "written more often than every ten seconds: {versions:?}");
    let generations = || {
        let generation = |what: &str| world.get(what)["metadata"]["generation"].clone();
        (generation("kollectdatabasesink/portal"), generation("kollectinventory/all"))
    };
    let before = generations();
    postgres.resume().unwrap();
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "True ConnectionOK");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(postgres.psql(&format!("SELECT name FROM {}", world.table())).unwrap(), "a\n");
    assert_eq!(generations(), before);
}

impl World {
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
fn w22_w23_a_probe_that_fails_blocks_no_export() {
    let mut world = World::new("probed");
    let server = Postgres::start().unwrap();
    world.map("a", "1");
    world.install();
    world.secret(&server.dsn().replace("postgres@", "portal@"));
    let mut sink = world.sink();
    sink["provisioning"] = json!({ "mode": "existing" });
    world.kollect("KollectDatabaseSink", "portal", sink);
    world.start(&[]);
    let ddl = world.expected_ddl("kollectdatabasesink/portal");
    // The probe asks for the right to delete claims, which only an inventory that goes needs.
    let grant = format!(
        "CREATE ROLE portal LOGIN; GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO portal;
         GRANT DELETE ON {} TO portal",
        world.table()
    );
    server.psql(&format!("{ddl}; {grant}")).unwrap();
    world.annotate("kollectdatabasesink/portal", "kollect.dev/requestedAt=1");
    eventually("the first row", || {
        let line = world.export("kollectinventory/all", "database/portal");
        (line["rows"] == 1).then_some(()).ok_or(line.to_string())
    });
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    assert_eq!(server.psql(&format!("SELECT name FROM {}", world.table())).unwrap(), "a\n");
    world.becomes("kollectdatabasesink/portal", "ConnectionVerified", "False ConnectionTestFailed");
    let message = world.message("kollectdatabasesink/portal", "Ready");
    assert!(message.contains("may not DELETE"), "{message}");
    world.map("b", "1");
    eventually("the next row", || {
        let found = server.psql(&format!("SELECT name FROM {} ORDER BY 1", world.table())).unwrap();
        (found == "a\nb\n").then_some(()).ok_or(found)
    });
    assert_eq!(
        world.condition("kollectdatabasesink/portal", "ConnectionVerified"),
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
fn w41_a_password_is_in_no_file_and_no_process_list() {
    let mut world = World::new("passwords");
    let temporary = world.dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    world.environment = vec![("TMPDIR".into(), temporary.to_str().unwrap().into())];
    world.map("a", "1");
    world.install();
    // The server asks for no password, and the sink does not know that.
    world.secret(&world.postgres.dsn().replace("postgres@", "postgres:correct-horse@"));
    let repository = super::truth::git_sink(&world);
    let inventory =
        json!({ "databaseSinkRefs": ["portal"], "snapshotSinkRefs": ["git"], "minChangeInterval": "0s" });
    world.kollect("KollectInventory", "all", inventory);
    world.start(&["--log-level", "kollect=trace"]);
    let pid = world.operator.as_ref().unwrap().child.id();
    let passwords = [GitHttp::PASSWORD, "correct-horse"];
    let holds =
        |bytes: &[u8], password: &str| bytes.windows(password.len()).any(|part| part == password.as_bytes());
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let mut looked = 0;
            while running.load(Relaxed) {
                let processes = processes_of(pid);
                assert!(!processes.is_empty());
                for password in passwords {
                    assert!(!holds(&processes, password), "{password} is in the list of processes");
                }
                looked += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            looked
        });
        world.becomes("kollectinventory/all", "Ready", "True Exported");
        for value in ["2", "3"] {
            world.map("a", value);
            world.holds(&[&format!("a={value}")]);
            eventually("the commit", || {
                let log = repository.git(&["log", "-p", "-1", "main"]).unwrap();
                log.contains(value).then_some(()).ok_or(log)
            });
        }
        // What is refused is told without the password, too.
        repository.git(&["config", "http.receivepack", "false"]).unwrap();
        world.map("a", "4");
        world.export_becomes(("kollectinventory/all", "snapshot/git"), "Synced", "False ExportTerminal");
        running.store(false, Relaxed);
        assert!(watched.join().unwrap() > 100);
    });
    let kinds = "kinv,ktgt,kprof,kollectdatabasesinks,kollectsnapshotsinks,events";
    let told = world.plane.kubectl(&["get", "-n", &world.namespace, kinds, "-o", "json"]).unwrap();
    let files = files_below(world.dir.path());
    assert!(files.iter().any(|file| file.ends_with("HEAD")), "the mirror is among them: {files:?}");
    for password in passwords {
        assert!(!told.contains(password), "{password} is in an object");
        for file in &files {
            assert!(
                !holds(&fs::read(file).unwrap_or_default(), password),
                "{password} in {}",
                file.display()
            );
        }
    }
}

#[test]
fn w36_w66_an_idle_sink_stays_synced_whatever_happens_to_another() {
    let mut world = World::new("idle");
    let mut second = Postgres::start().unwrap();
    second.crash();
    world.map("a", "1");
    world.install();
    world.second_sink(&second);
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal", "second"] }));
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True PartiallySynced");
    world.becomes("kollectinventory/all", "Synced", "False PartiallySynced");
    world.becomes("kollectinventory/all", "SinkReachable", "False ExportFailed");
    world.export_becomes(("kollectinventory/all", "database/portal"), "Synced", "True Exported");
    world.export_becomes(("kollectinventory/all", "database/second"), "Synced", "False ExportFailed");
    let idle = || {
        let line = world.export("kollectinventory/all", "database/portal");
        let synced = &line["conditions"][0];
        assert_eq!((&synced["type"], &synced["status"]), (&json!("Synced"), &json!("True")), "{line}");
        assert!(line["lastExportTime"].is_string() && line["lastChecksum"].is_string(), "{line}");
        line["lastChecksum"].clone()
    };
    let checksum = idle();
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(idle(), checksum);
    }
    world.stop();
    world.start(&[]);
    let began = std::time::Instant::now();
    let idle = || {
        let line = world.export("kollectinventory/all", "database/portal");
        assert!(line["lastExportTime"].is_string(), "{line}");
        assert_eq!(line["conditions"][0]["status"], "True", "{line}");
        (line["lastChecksum"].clone(), line["conditions"][0]["status"].clone())
    };
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!(idle(), (checksum.clone(), json!("True")), "a restart takes nothing back");
    }

    // Rows of a sink that is no longer named are removed when that can be done.
    world.kollect("KollectInventory", "all", json!({ "databaseSinkRefs": ["portal"] }));
    world.export_becomes(("kollectinventory/all", "database/second"), "Synced", "False Cleaning");
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.becomes("kollectinventory/all", "SinkReachable", "True SinksReachable");
    second.resume().unwrap();
    eventually("the second sink is clean", || {
        let line = world.export("kollectinventory/all", "database/second");
        line.is_null().then_some(()).ok_or(line.to_string())
    });
}

#[test]
fn w60_inventories_of_a_namespace_divide_its_targets() {
    let mut world = World::new("divided");
    world.map("a", "1");
    world.map("b", "2");
    world.install();
    let target = |name: &str, object: &str| {
        let spec = json!({
            "profileRef": "maps", "includedNamespaces": [world.namespace], "names": [object],
        });
        world.kollect("KollectTarget", name, spec);
    };
    target("only-a", "a");
    target("only-b", "b");
    let label = ["label", "-n", &world.namespace, "kollecttarget/only-b", "part=b"];
    world.plane.kubectl(&label).unwrap();
    let by_name = json!({ "databaseSinkRefs": ["portal"], "targetRefs": ["only-a"] });
    let by_label =
        json!({ "databaseSinkRefs": ["portal"], "targetSelector": { "matchLabels": { "part": "b" } } });
    for (inventory, spec) in [("first", by_name), ("second", by_label)] {
        world.kollect("KollectInventory", inventory, spec);
    }
    world.delete("kollectinventory/all");
    world.start(&[]);
    let sql = format!("SELECT inventory_name || ' ' || name FROM {} ORDER BY 1", world.table());
    eventually("each has its own", || {
        let found = world.postgres.psql(&sql).unwrap_or_default();
        (found == "first a\nsecond b\n").then_some(()).ok_or(found)
    });
}

#[test]
fn a_sink_that_is_gone_holds_up_no_deletion() {
    let mut world = World::new("gone");
    world.map("a", "1");
    world.install();
    world.start(&[]);
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    // The process that has written there still has a client, and cleans up.
    world.delete("kollectdatabasesink/portal");
    world.becomes("kollectinventory/all", "Degraded", "True SinkNotFound");
    world.delete("kollectinventory/all");
    world.vanishes("kollectinventory/all");
    assert!(world.rows().is_empty());

    // Another process has none, and reports what it leaves behind.
    world.install();
    world.becomes("kollectinventory/all", "Ready", "True Exported");
    world.stop();
    world.delete("kollectdatabasesink/portal");
    world.delete("kollectinventory/all");
    world.start(&[]);
    world.vanishes("kollectinventory/all");
    world.event_comes("Warning CleanupTerminal");
    assert_eq!(world.rows(), ["a=1"]);
}
