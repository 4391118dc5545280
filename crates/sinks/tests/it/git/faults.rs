//! Mirrors and servers that fail, and names that try to leave the tree.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use kollect_model::sink::{ErrorClass, SinkReason};
use kollect_sinks::{FilePolicy, SinkPolicy, plan_out};
use kollect_testbed::git::GitHttp;
use serde_json::json;

use super::{Remote, TestTransport, sinks_with_mirrors};
use crate::{
    conformance::{added, claimant, holding, inventory, row, write},
    filesystem::{object, tree},
};

/// Every file below a directory.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files(&entry));
        } else {
            found.push(entry);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_mirror_is_replaced() {
    for damage in 0..7 {
        let remote = Remote::new(TestTransport::Https, json!({ "layout": { "mode": "perResource" } }));
        let sink = remote.open().await;
        let all = inventory("", "all");
        let mut rows: Vec<_> =
            (0..4).map(|i| object(&format!("u{i}"), "", "Pod", "s", &format!("p{i}"), "{}")).collect();
        for row in &rows {
            write(&*sink, &all, None, &added(std::slice::from_ref(row))).await.unwrap();
        }
        let mirror = remote.mirror();
        let packs: Vec<_> =
            files(&mirror).into_iter().filter(|path| path.extension().is_some_and(|e| e == "pack")).collect();
        match damage {
            0 => fs::remove_dir_all(&mirror).unwrap(),
            1 => fs::remove_dir_all(mirror.join("objects")).unwrap(),
            2 => packs.iter().for_each(|pack| {
                fs::set_permissions(pack, fs::Permissions::from_mode(0o600)).unwrap();
                fs::write(pack, "PACK?").unwrap();
            }),
            3 => packs.iter().skip(1).for_each(|pack| fs::remove_file(pack).unwrap()),
            4 => fs::write(mirror.join("HEAD"), "nonsense").unwrap(),
            5 => fs::remove_dir_all(mirror.join("objects/pack")).unwrap(),
            _ => fs::write(mirror.join("config"), "[core\nnonsense").unwrap(),
        }
        let another = object("u9", "", "Pod", "s", "p9", "{}");
        write(&*sink, &all, None, &added(std::slice::from_ref(&another))).await.unwrap();
        rows.push(another);
        assert_eq!(remote.open().await.baseline(&all).await.unwrap(), holding(&rows), "damage {damage}");
        assert_eq!(tree(&remote.checkout().path).len(), 5);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_stays_small() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let rows: Vec<_> =
        (0..200).map(|i| object(&format!("u{i}"), "", "Pod", "s", &format!("p{i}"), "{}")).collect();
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    // The mirror is tidied after a write has ended: a file that disappears meanwhile counts as empty.
    let length = |path: &std::path::PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    let size = || files(&remote.mirror()).iter().map(length).sum::<u64>();
    let (first, claim) = (size(), sink.claim(&all, &claimant(None)).await.unwrap());
    let mut largest = 0;
    for i in 0..150 {
        let delta = added(&[object("u0", "", "Pod", "s", "p0", &format!("{{\"n\":{i}}}"))]);
        sink.write(&kollect_model::batch::Batch::new(&all, &claim, &delta)).await.unwrap();
        largest = largest.max(size());
    }
    assert_eq!(remote.commits(), 151);
    // At most about fifty packs of one commit each, then they are merged. A pack takes about ten thousand bytes.
    assert!(largest < first + 60 * 12_288, "{first} {largest}");
    let packs =
        files(&remote.mirror()).into_iter().filter(|path| path.extension().is_some_and(|e| e == "pack"));
    assert!(packs.count() <= 50);
    super::git(&remote.mirror(), &["fsck", "--strict"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_directory_that_other_users_can_write_is_refused() {
    let remote = Remote::with_default_settings();
    let all = inventory("", "all");
    let outside = tempfile::tempdir().unwrap();
    let parent = tempfile::tempdir().unwrap();
    let link = parent.path().join("link");
    symlink(outside.path(), &link).unwrap();
    let writable_by_all = parent.path().join("open");
    fs::create_dir(&writable_by_all).unwrap();
    fs::set_permissions(&writable_by_all, fs::Permissions::from_mode(0o777)).unwrap();
    for (mirrors, why) in [(&link, "symbolic link"), (&writable_by_all, "others may write")] {
        let sinks = sinks_with_mirrors(mirrors.clone());
        let sink = sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap();
        let error = sink.baseline(&all).await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Forbidden);
        assert!(
            error.to_string().contains(why) && error.to_string().contains("KOLLECT_GIT_MIRROR_DIR"),
            "{error}"
        );
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    let private = parent.path().join("new/er");
    let sink = sinks_with_mirrors(private.clone())
        .open(&remote.plan(&json!({})), &SinkPolicy::default())
        .await
        .unwrap();
    sink.baseline(&all).await.unwrap();
    assert_eq!(fs::metadata(&private).unwrap().permissions().mode() & 0o777, 0o700);
}

/// If a push fails, the objects of its commits are stored nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_push_leaves_no_objects() {
    let mut server = GitHttp::start().unwrap();
    let repository = server.create("broken").unwrap();
    let mut remote = Remote::new(TestTransport::Https, json!({}));
    remote.url = server.url("broken");
    remote.fields = json!({ "tls": { "insecureSkipVerify": true } });
    let sink = remote.open().await;
    let all = inventory("", "all");
    write(&*sink, &all, None, &added(&[row("u1", "{}")])).await.unwrap();
    let (before, objects) = (repository.git(&["rev-parse", "main"]).unwrap(), files(&remote.mirror()).len());
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    repository.hook("pre-receive", "kill -9 $PPID").unwrap();
    let delta = added(&[row("u2", "{}")]);
    let failed = sink.write(&kollect_model::batch::Batch::new(&all, &claim, &delta)).await.unwrap_err();
    assert_eq!(failed.class(), ErrorClass::Transient, "{failed}");
    fs::remove_file(repository.path().join("hooks/pre-receive")).unwrap();
    server.kill();
    let failed = sink.write(&kollect_model::batch::Batch::new(&all, &claim, &delta)).await.unwrap_err();
    assert_eq!((failed.reason, failed.class()), (SinkReason::Unreachable, ErrorClass::Transient), "{failed}");
    server.resume().unwrap();
    assert_eq!(repository.git(&["rev-parse", "main"]).unwrap(), before);
    assert_eq!(files(&remote.mirror()).len(), objects);
    sink.write(&kollect_model::batch::Batch::new(&all, &claim, &delta)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap().len(), 2);
    repository.fsck().unwrap();
}

/// Credentials are in no file, and in no error.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_stay_in_memory() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let sink = remote.open().await;
    write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap();
    for file in files(remote.mirrors.path()) {
        let bytes = fs::read(&file).unwrap();
        let secret = GitHttp::PASSWORD.as_bytes();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{}", file.display());
    }
    assert!(!format!("{:?}", remote.plan(&json!({}))).contains(GitHttp::PASSWORD));
    remote.git(&["config", "http.receivepack", "false"]);
    let refused = write(&*sink, &inventory("", "all"), None, &added(&[row("u2", "{}")])).await.unwrap_err();
    assert!(!format!("{refused:?}").contains(GitHttp::PASSWORD), "{refused:?}");
}

/// The check uses the same client as the export, with its certificates and known hosts.
#[tokio::test(flavor = "multi_thread")]
async fn the_probe_uses_the_client_of_the_export() {
    for transport in [TestTransport::Https, TestTransport::Ssh, TestTransport::File] {
        let remote = Remote::new(transport, json!({}));
        remote.open().await.check().await.unwrap();
        fs::remove_dir_all(remote.repository.path()).unwrap();
        let sink = remote.open_with(&json!({ "provisioning": { "mode": "existing" } })).await;
        let error = sink.check().await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Missing, "{transport:?} {error}");
    }
    // A user who may read and not write gets the error before the first export.
    let remote = Remote::new(TestTransport::Https, json!({}));
    remote.git(&["config", "http.receivepack", "false"]);
    let error = remote.open().await.check().await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Forbidden, "{error}");
    // `engine: cli` uses the same engine.
    let remote = Remote::new(TestTransport::Https, json!({ "git": { "engine": "cli" } }));
    write(&*remote.open().await, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap();
}

/// Names that are special to Git or to file systems, and ordinary ones.
#[tokio::test(flavor = "multi_thread")]
async fn no_name_of_an_object_leads_out_of_the_branch() {
    let template = ".{sourceName}/{sourceNamespace}.{group}/{kind}~{uid}{extension}";
    let remote = Remote::new(
        TestTransport::Https,
        json!({ "layout": { "mode": "perResource", "pathTemplate": template } }),
    );
    let sink = remote.open().await;
    let all = inventory("", "all");
    let long = "n".repeat(4000);
    let names = [
        "git",
        "GIT",
        "g\u{200c}it",
        "git ",
        "git.",
        "git::$INDEX_ALLOCATION",
        "..",
        ".",
        "",
        "a/../../b",
        "/etc",
        "kollect",
        "KOLLECT",
        "C:\\x",
        "a\0b",
        &long,
    ];
    let rows: Vec<_> =
        names.iter().enumerate().map(|(i, name)| object(&i.to_string(), "", "Git", "", name, "{}")).collect();
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows));
    for path in remote
        .git(&["ls-tree", "-r", "-z", "--name-only", "main"])
        .split('\0')
        .filter(|path| !path.is_empty())
    {
        assert!(path.len() < 1024, "{} bytes", path.len());
        for (depth, segment) in path.split('/').enumerate() {
            let plain: String = segment.chars().filter(|c| c.is_ascii() && !c.is_ascii_control()).collect();
            let plain = plain.to_lowercase();
            let plain = plain.split(':').next().unwrap().trim_end_matches(['.', ' ']);
            assert!(!matches!(plain, ".git" | "git~1" | "" | "." | ".."), "{path}");
            let is_kollect_file = path.ends_with(".ndjson")
                || path.ends_with("/manifest.json")
                || path == ".kollect/.gitattributes";
            assert!(depth > 0 || plain != ".kollect" || is_kollect_file, "{path}");
        }
    }
    for template in [".git/{uid}", "x/.GIT/{uid}", "a/.git./{uid}", "git~1/{uid}", "x/../{uid}"] {
        let spec = json!({ "type": "git", "endpoint": "https://example.com/x.git", "layout": { "pathTemplate": template } });
        let spec = kollect_model::sink::SinkSpec::Snapshot(serde_json::from_value(spec).unwrap());
        let errors = kollect_sinks::plan(&spec).unwrap_err();
        assert!(errors[0].to_string().contains("spec.layout.pathTemplate"), "{}", errors[0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_in_a_directory_is_created_if_it_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/inventory.git");
    let plan = plan_out(&format!("git:{}?layout=perResource&format=json", path.display())).unwrap();
    let sinks = sinks_with_mirrors(directory.path().join("mirrors"));
    let sink = sinks.open(&plan, &SinkPolicy::default()).await.unwrap();
    write(&*sink, &inventory("", "all"), None, &added(&[row("u1", "{}")])).await.unwrap();
    let log = super::git(&path, &["log", "--format=%s", "main"]);
    assert!(log.starts_with("chore(default/team/all): export 1 items @ "), "{log}");
    // In the operator, files must be below its root, or are refused.
    for (files, why) in
        [(FilePolicy::Refused, "--file-sink-root"), (FilePolicy::Below(directory.path().into()), "relative")]
    {
        let policy = SinkPolicy { files, ..SinkPolicy::default() };
        let errors = plan.check(&policy).unwrap_err();
        assert!(errors[0].to_string().contains(why), "{}", errors[0]);
    }
    for (text, problem) in [
        ("git:", "names no"),
        ("git:x?layout=heap", "an option that is not known, layout=heap"),
        ("git:https://user:hunter2@example.com/x.git", "holds a password"),
    ] {
        let found = plan_out(text).unwrap_err();
        assert!(found.contains(problem) && !found.contains("hunter2"), "{found}");
    }
}
