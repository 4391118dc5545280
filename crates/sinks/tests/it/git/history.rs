//! The history: commits that say what happened, and no commit if nothing changed.

use std::sync::Arc;

use kollect_model::{
    batch::{Batch, ChangedRow, Delta, RemovedRow},
    row::Row,
    sink::Sink,
};
use serde_json::json;

use super::{Remote, TestTransport};
use crate::{
    conformance::{added, changed, claimant, holding, inventory, removed, write},
    filesystem::{object, tree},
};

fn deployment(name: &str, attributes: &str) -> Arc<Row> {
    object(&format!("uid-{name}"), "apps", "Deployment", "shop", name, attributes)
}

fn removal(row: &Row) -> Delta {
    Delta { removed: vec![removed(row)], ..Delta::default() }
}

fn change(after: &Arc<Row>) -> Delta {
    Delta { changed: vec![changed(after)], ..Delta::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_messages_say_which_rows_changed() {
    let remote = Remote::with_default_settings();
    let sink = remote.open().await;
    let all = inventory("prod", "all");
    let (old, new) =
        (deployment("cart", r#"{"image":"cart:1.1"}"#), deployment("cart", r#"{"image":"cart:1.2"}"#));
    let node = object("n1", "", "Node", "", "worker-1", r#"{"ready":true}"#);
    write(&*sink, &all, None, &added(&[node.clone(), old.clone()])).await.unwrap();
    let delta = Delta {
        added: vec![deployment("web", "{}")],
        changed: vec![ChangedRow { before: Some(old), after: new.clone() }],
        removed: vec![RemovedRow { key: node.key.clone(), before: None }],
    };
    write(&*sink, &all, None, &delta).await.unwrap();
    // After a restart the delta has no former rows; they are read from the files.
    let again = remote.open().await;
    let newer = deployment("cart", r#"{"image":"cart:1.3","note":"two\nlines"}"#);
    write(&*again, &all, None, &change(&newer)).await.unwrap();
    let log = remote.git(&["log", "--reverse", "--format=%an <%ae>%n%B%x00"]);
    let commits: Vec<&str> = log.split('\0').map(str::trim).filter(|text| !text.is_empty()).collect();
    let checksum = |commit: &str| commit.split(" @ ").nth(1).unwrap().split('\n').next().unwrap().to_owned();
    let subject = |commit: &str, items| {
        let checksum = checksum(commit);
        assert_eq!(checksum.len(), 12);
        format!("kollect <kollect@kollect.dev>\nchore(prod/team/all): export {items} items @ {checksum}\n\n")
    };
    assert_eq!(commits[0], subject(commits[0], 2) + "+ Node/worker-1\n+ shop/Deployment/cart");
    assert_eq!(
        commits[1],
        subject(commits[1], 2)
            + "- Node/worker-1\n~ shop/Deployment/cart: image cart:1.1 → cart:1.2\n+ shop/Deployment/web"
    );
    assert_eq!(
        commits[2],
        subject(commits[2], 2)
            + "~ shop/Deployment/cart: image cart:1.2 → cart:1.3, note - → \"two\\nlines\""
    );
    assert_eq!(commits.len(), 3);
    // Manifests are committed, but hidden in diffs.
    let diff = remote.checkout().git(&["log", "-1", "-p"]);
    assert!(diff.contains("-    image: cart:1.2\n+    image: cart:1.3\n"), "{diff}");
    assert!(diff.contains("Binary files a/.kollect/") && !diff.contains("+{\"target\""), "{diff}");
}

#[tokio::test(flavor = "multi_thread")]
async fn templates_and_trailers_are_filled() {
    let git = json!({ "git": {
        "branch": "audit",
        "commitMessage": "{sink} {cluster} {namespace}/{name} {generation} {exportGeneration} {itemCount}\n{nothing}",
        "commitBody": "{path} at {exportedAt}\n{checksum}\n\n{changes}",
        "commitTrailers": ["Signed-off-by: Audit <audit@example.com>", "Inventory: {name}"],
        "author": { "name": "Robot", "email": "robot@example.com" },
    } });
    let remote = Remote::new(TestTransport::File, git);
    let plan = remote.plan(&json!({})).named("nightly");
    let sink = remote.sinks().open(&plan, &kollect_sinks::SinkPolicy::default()).await.unwrap();
    let all = inventory("", "all");
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let delta = added(&[deployment("cart", "{}")]);
    let receipt = sink.write(&Batch { generation: 7, ..Batch::new(&all, &claim, &delta) }).await.unwrap();
    let message = remote.git(&["log", "-1", "--format=%an <%ae>%n%B", "audit"]);
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[..3], ["Robot <robot@example.com>", "nightly default team/all 7 7 1 {nothing}", ""]);
    assert!(lines[3].starts_with("inventory/team/all.yaml at 20"), "{}", lines[3]);
    assert_eq!(lines[4], receipt.checksum.unwrap());
    assert_eq!(
        lines[5..],
        ["", "+ shop/Deployment/cart", "", "Signed-off-by: Audit <audit@example.com>", "Inventory: all"]
    );
    let parsed = remote.git(&["log", "-1", "--format=%(trailers:key=Inventory,valueonly)", "audit"]);
    assert_eq!(parsed, "all");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_lists_are_cut_with_a_count() {
    let remote = Remote::with_default_settings();
    let rows: Vec<_> = (0..60).map(|i| deployment(&format!("d{i:02}"), "{}")).collect();
    write(&*remote.open().await, &inventory("", "all"), None, &added(&rows)).await.unwrap();
    let body = remote.git(&["log", "-1", "--format=%b"]);
    assert_eq!(body.lines().count(), 51);
    assert!(body.ends_with("+ shop/Deployment/d49\n… and 10 more"), "{body}");
}

/// Also after a restart, and although documents contain the time of the export.
#[tokio::test(flavor = "multi_thread")]
async fn unchanged_rows_make_no_commit() {
    for (mode, format) in [
        ("document", "yaml"),
        ("document", "json"),
        ("document", "ndjson"),
        ("perResource", "yaml"),
        ("split", "json"),
        ("split", "yaml"),
    ] {
        let remote = Remote::new(
            TestTransport::File,
            json!({ "layout": { "mode": mode }, "serialization": { "format": format } }),
        );
        let all = inventory("", "all");
        let rows = [deployment("cart", r#"{"n":1}"#), deployment("web", r#"{"n":2}"#)];
        write(&*remote.open().await, &all, None, &added(&rows)).await.unwrap();
        let before = remote.git(&["rev-parse", "main"]);
        let again = remote.open().await;
        assert_eq!(again.baseline(&all).await.unwrap(), holding(&rows), "{mode} {format}");
        for delta in [Delta::default(), added(&rows), change(&rows[0])] {
            write(&*again, &all, None, &delta).await.unwrap();
            assert_eq!(remote.git(&["rev-parse", "main"]), before, "{mode} {format}");
        }
    }
}

/// Files are removed with their rows, also the last one of a directory; files of other inventories there stay.
#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_removes_only_its_own_files_from_a_branch() {
    let fields = json!({ "layout": { "mode": "perResource" } });
    let remote = Remote::new(TestTransport::Https, fields);
    let sink = remote.open().await;
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let (cart, web) = (deployment("cart", "{}"), deployment("web", "{}"));
    let job = object("j", "batch", "Job", "night", "copy", "{}");
    write(&*sink, &one, None, &added(&[cart.clone(), job.clone()])).await.unwrap();
    write(&*sink, &two, None, &added(std::slice::from_ref(&web))).await.unwrap();
    let files = || tree(&remote.checkout().path).into_keys().collect::<Vec<_>>();
    let (cart_file, web_file) = ("default/shop/deployment/cart.yaml", "default/shop/deployment/web.yaml");
    assert_eq!(files(), ["default/night/job/copy.yaml", cart_file, web_file]);
    write(&*sink, &one, None, &removal(&job)).await.unwrap();
    assert_eq!(files(), [cart_file, web_file]);
    // The same object in both: neither inventory takes the file of the other.
    let receipt = write(&*sink, &two, None, &added(std::slice::from_ref(&cart))).await.unwrap();
    assert!(receipt.refused[0].why.contains("cart.yaml is a file of inventory team/one"), "{receipt:?}");
    assert_eq!(sink.baseline(&two).await.unwrap(), holding([&web]));
    write(&*sink, &one, None, &removal(&cart)).await.unwrap();
    assert_eq!(files(), [web_file]);
    let claim = sink.claim(&one, &claimant(None)).await.unwrap();
    sink.forget(&one, &claim).await.unwrap();
    assert_eq!(files(), [web_file]);
    let claim = sink.claim(&two, &claimant(None)).await.unwrap();
    sink.forget(&two, &claim).await.unwrap();
    assert_eq!(remote.git(&["ls-tree", "-r", "main"]), "", "the manifests are removed too");
    assert_eq!(remote.git(&["for-each-ref", "--format=%(refname)"]), "refs/heads/main");
    assert_eq!(remote.git(&["log", "-1", "--format=%B"]), "chore(default/team/two): remove the inventory");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_would_share_a_path_get_different_files_on_a_branch() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let knative = object("k1", "serving.knative.dev", "Service", "shop", "cart", "{}");
    let core = object("c1", "", "Service", "shop", "cart", "{}");
    let receipt = write(&*sink, &all, None, &added(&[knative.clone(), core.clone()])).await.unwrap();
    let files: Vec<String> = tree(&remote.checkout().path).into_keys().collect();
    let grouped =
        ["default/shop/service.core/cart.yaml", "default/shop/service.serving.knative.dev/cart.yaml"];
    assert_eq!(files, grouped);
    assert_eq!(receipt.warnings, Vec::<String>::new());
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&knative, &core]));
    // The group does not distinguish these two.
    let same_name = object("c2", "", "Service", "shop", "cart", "{}");
    let receipt = write(&*sink, &all, None, &added(std::slice::from_ref(&same_name))).await.unwrap();
    let files: Vec<String> = tree(&remote.checkout().path).into_keys().collect();
    assert_eq!(files.len(), 3, "{files:?}");
    assert_eq!(files[0], grouped[1]);
    assert!(files[1..].iter().all(|file| file.starts_with("default/shop/service/cart-")), "{files:?}");
    let warning = receipt.warnings.join("\n");
    assert!(
        warning.contains("Service shop/cart") && warning.contains("c1") && warning.contains("c2"),
        "{warning}"
    );
    // The warning is given when the collision begins, not with every write.
    let web = deployment("web", "{}");
    assert_eq!(write(&*sink, &all, None, &added(&[web])).await.unwrap().warnings, Vec::<String>::new());
    for row in [&same_name, &knative] {
        write(&*sink, &all, None, &removal(row)).await.unwrap();
    }
    let files: Vec<String> = tree(&remote.checkout().path).into_keys().collect();
    assert_eq!(files, ["default/shop/deployment/web.yaml", "default/shop/service/cart.yaml"]);
}

/// Kinds with equal names in different API groups and different inventories: both are written, and an existing file
/// does not move because of the other.
#[tokio::test(flavor = "multi_thread")]
async fn kinds_with_equal_names_in_two_inventories_get_different_files_on_a_branch() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let core = object("c1", "", "Service", "shop", "cart", "{}");
    let knative = object("k1", "serving.knative.dev", "Service", "shop", "cart", r#"{"n":1}"#);
    let other = object("k2", "serving.knative.dev", "Service", "shop", "other", "{}");
    write(&*sink, &one, None, &added(std::slice::from_ref(&core))).await.unwrap();
    let receipt = write(&*sink, &two, None, &added(&[knative.clone(), other.clone()])).await.unwrap();
    assert!(receipt.refused.is_empty() && receipt.warnings.is_empty(), "{receipt:?}");
    let files = || tree(&remote.checkout().path).into_keys().collect::<Vec<_>>();
    let (plain, second) = ("default/shop/service/cart.yaml", "default/shop/service/other.yaml");
    assert_eq!(files(), ["default/shop/service.serving.knative.dev/cart.yaml", plain, second]);
    for inventory in [&one, &two] {
        write(&*sink, inventory, None, &Delta::default()).await.unwrap();
    }
    assert_eq!(remote.commits(), 2, "nothing is written again");
    assert_eq!(sink.baseline(&one).await.unwrap(), holding([&core]));
    assert_eq!(sink.baseline(&two).await.unwrap(), holding([&knative, &other]));
    // Once the other file is gone, one commit moves the row to the path without the group.
    write(&*sink, &one, None, &removal(&core)).await.unwrap();
    write(&*sink, &two, None, &Delta::default()).await.unwrap();
    assert_eq!(files(), [plain, second]);
    assert_eq!(remote.commits(), 4);
}

/// A manifest of an older release spells the same settings in another way: that alone is no reason for a commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_of_an_older_release_is_not_written_again_on_a_branch() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let all = inventory("", "all");
    let (cart, web) = (deployment("cart", "{}"), deployment("web", "{}"));
    write(&*remote.open().await, &all, None, &added(&[cart.clone(), web.clone()])).await.unwrap();
    let header = |path: &std::path::Path| {
        let entries = std::fs::read_dir(path.join(".kollect")).unwrap().map(|entry| entry.unwrap().path());
        let file =
            entries.map(|directory| directory.join("manifest.json")).find(|file| file.is_file()).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let header: serde_json::Value = serde_json::from_str(&text).unwrap();
        (file, text, header["settings"].as_str().unwrap().to_owned())
    };
    let checkout = remote.checkout();
    let (file, text, now) = header(&checkout.path);
    // What the older release wrote for these settings.
    std::fs::write(&file, text.replace(&now, "06e12ffb526a33619fce6aa2fe144396")).unwrap();
    checkout.push("the older release");
    let before = remote.git(&["rev-parse", "main"]);
    let sink = remote.open().await;
    assert_eq!(sink.baseline(&all).await.unwrap(), holding([&cart, &web]));
    write(&*sink, &all, None, &Delta::default()).await.unwrap();
    assert_eq!(remote.git(&["rev-parse", "main"]), before, "no commit for the spelling alone");
    let new = deployment("cart", r#"{"n":1}"#);
    write(&*sink, &all, None, &Delta { changed: vec![changed(&new)], ..Delta::default() }).await.unwrap();
    let shown = remote.git(&["diff", "--name-only", &before, "main", "--", "default"]);
    assert_eq!(shown, "default/shop/deployment/cart.yaml");
    assert_eq!(header(&remote.checkout().path).2, now);
}

/// With `layout: {}` the rows decide: whole objects get separate files.
#[tokio::test(flavor = "multi_thread")]
async fn with_an_empty_layout_the_rows_decide_the_mode() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": {} }));
    let whole_object = r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","spec":{"replicas":2}}}"#;
    write(&*remote.open().await, &inventory("", "all"), None, &added(&[deployment("cart", whole_object)]))
        .await
        .unwrap();
    let files = tree(&remote.checkout().path);
    assert_eq!(
        files["default/shop/deployment/cart.yaml"],
        "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: 2\n"
    );
}

/// One changed file among many sends only a few objects.
#[tokio::test(flavor = "multi_thread")]
async fn one_change_sends_few_objects() {
    let remote = Remote::new(TestTransport::Https, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let rows: Vec<_> = (0..2000).map(|i| deployment(&format!("d{i}"), r#"{"n":1}"#)).collect();
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    let objects = || -> usize {
        let counts = remote.git(&["count-objects", "-v"]);
        let count = |name: &str| {
            let line = counts.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()
        };
        count("count:") + count("in-pack:")
    };
    let before = objects();
    let claim = sink.claim(&all, &claimant(None)).await.unwrap();
    let claimed = objects();
    sink.write(&Batch::new(&all, &claim, &change(&deployment("d7", r#"{"n":2}"#)))).await.unwrap();
    assert!(objects() - claimed <= 10, "{before} {claimed} {}", objects());
    assert_eq!(remote.commits(), 2);
}

/// Inventories that are written at the same time share one push.
#[tokio::test(flavor = "multi_thread")]
async fn inventories_that_are_written_at_once_share_a_push() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let count = remote.repository.path().join("pushes");
    // Slow enough that the other writes queue up.
    remote.repository.hook("post-receive", &format!("cat >> {}; sleep 0.3", count.display())).unwrap();
    let sinks = remote.sinks();
    let sink: Arc<dyn Sink> =
        sinks.open(&remote.plan(&json!({})), &kollect_sinks::SinkPolicy::default()).await.unwrap().into();
    let mut claims = Vec::new();
    for i in 0..8 {
        let own = inventory("", &format!("i{i}"));
        let claim = sink.claim(&own, &claimant(None)).await.unwrap();
        claims.push((own, claim));
    }
    std::fs::write(&count, "").unwrap();
    let writes = claims.into_iter().map(|(inventory, claim)| {
        let sink = sink.clone();
        tokio::spawn(async move {
            let delta = added(&[deployment(&inventory.name, "{}")]);
            sink.write(&Batch::new(&inventory, &claim, &delta)).await.map(drop)
        })
    });
    for written in futures::future::join_all(writes).await {
        written.unwrap().unwrap();
    }
    let pushes = std::fs::read_to_string(&count).unwrap().lines().count();
    assert_eq!(remote.commits(), 8);
    assert!(pushes <= 3, "{pushes} pushes");
    assert_eq!(tree(&remote.checkout().path).len(), 8);
}
