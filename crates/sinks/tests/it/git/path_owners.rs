//! A path belongs to one inventory: the one whose manifest names it, whether the file exists or not.

use std::{fs, slice::from_ref, sync::Arc};

use kollect_model::{
    batch::{Baseline, Batch, Delta},
    row::Row,
    sink::{ErrorClass, Sink, SinkReason},
};
use kollect_sinks::SinkPolicy;
use serde_json::{Value, json};

use super::{Remote, TestTransport, sinks_with_mirrors};
use crate::{
    conformance::{added, claimant, compare, holding, inventory, write},
    filesystem::{
        inventory_directories, object, owners,
        path_owners::{go_list, with_own_path},
        tree,
    },
};

const PATH: &str = "p.json";

/// One file per row; the path does not contain the inventory.
fn paths_without_inventory() -> Value {
    json!({ "layout": { "mode": "perResource", "pathTemplate": "{sourceName}.json" } })
}

fn pod(inventory: &str, content: &str) -> Arc<Row> {
    object(&format!("{inventory}-{content}"), "", "Pod", "shop", "p", &format!(r#"{{"n":"{content}"}}"#))
}

/// The same object in two inventories: their files would be equal.
fn same_pod() -> Arc<Row> {
    object("u", "", "Pod", "shop", "p", "{}")
}

/// Another user commits the removal of the file.
fn delete_file(remote: &Remote) {
    let checkout = remote.checkout();
    fs::remove_file(checkout.path.join(PATH)).unwrap();
    checkout.push("tidy up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_whose_file_was_deleted_keeps_its_owner_on_a_branch() {
    for rows in [[pod("one", "1"), pod("two", "2")], [same_pod(), same_pod()]] {
        let remote = Remote::new(TestTransport::Https, paths_without_inventory());
        let sink = remote.open().await;
        // The inventory with the later name has the path: here the order of names has no effect.
        let (one, two) = (inventory("", "two"), inventory("", "one"));
        write(&*sink, &one, None, &added(&rows[..1])).await.unwrap();
        let before = tree(&remote.checkout().path);
        delete_file(&remote);
        for _ in 0..2 {
            let receipt = compare(&*sink, &two, &rows[1..]).await.unwrap();
            assert_eq!(receipt.refused.len(), 1);
            let why = &receipt.refused[0].why;
            assert!(why.contains("p.json is a file of inventory team/two of cluster \"\": put"), "{why}");
            assert!(!remote.checkout().path.join(PATH).exists(), "it is not theirs to write");
        }
        compare(&*sink, &one, &rows[..1]).await.unwrap();
        compare(&*sink, &two, &rows[1..]).await.unwrap();
        let checkout = remote.checkout();
        assert_eq!(tree(&checkout.path), before);
        assert_eq!(owners(&checkout.path, PATH), ["two"]);
        assert_eq!(sink.baseline(&one).await.unwrap(), holding(&rows[..1]));
        assert_eq!(sink.baseline(&two).await.unwrap(), Baseline::new());
    }
}

/// Documents and indexes: the whole inventory is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_was_deleted_keeps_its_owner_on_a_branch() {
    for mode in ["document", "split"] {
        let fields = json!({ "pathTemplate": PATH, "layout": { "mode": mode, "index": { "pathTemplate": PATH },
            "pathTemplate": "{name}/{sourceName}.json" } });
        let remote = Remote::new(TestTransport::File, fields);
        let sink = remote.open().await;
        let (one, two) = (inventory("", "one"), inventory("", "two"));
        write(&*sink, &one, None, &added(&[same_pod()])).await.unwrap();
        delete_file(&remote);
        let error = compare(&*sink, &two, &[same_pod()]).await.unwrap_err();
        assert_eq!((error.reason, error.class()), (SinkReason::OwnedByOther, ErrorClass::Terminal));
        assert!(error.to_string().contains("a file of inventory team/one"), "{error}");
        compare(&*sink, &one, &[same_pod()]).await.unwrap();
        assert_eq!(owners(&remote.checkout().path, PATH), ["one"]);
        assert_eq!(sink.baseline(&one).await.unwrap(), holding(&[same_pod()]));
    }
}

/// Three ways to give up a path: its row is removed, the inventory is forgotten, or its files move.
#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_was_given_up_can_be_used_by_another_inventory_on_a_branch() {
    for reason in ["row", "inventory", "layout"] {
        let remote = Remote::new(TestTransport::File, paths_without_inventory());
        let sink = remote.open().await;
        let (one, two) = (inventory("", "one"), inventory("", "two"));
        let rows = [pod("one", "1"), pod("two", "2")];
        write(&*sink, &one, None, &added(&rows[..1])).await.unwrap();
        delete_file(&remote);
        assert_eq!(compare(&*sink, &two, &rows[1..]).await.unwrap().refused.len(), 1);
        match reason {
            "row" => drop(compare(&*sink, &one, &[]).await.unwrap()),
            "inventory" => {
                let claim = sink.claim(&one, &claimant(None)).await.unwrap();
                sink.forget(&one, &claim).await.unwrap();
            }
            _ => {
                let fields = json!({ "layout": { "mode": "perResource", "pathTemplate": "{uid}.json" } });
                compare(&*remote.open_with(&fields).await, &one, &rows[..1]).await.unwrap();
            }
        }
        assert!(compare(&*sink, &two, &rows[1..]).await.unwrap().refused.is_empty(), "{reason}");
        let checkout = remote.checkout();
        assert_eq!(owners(&checkout.path, PATH), ["two"], "{reason}");
        assert!(tree(&checkout.path)[PATH].contains("two-2"), "{reason}");
    }
}

/// A branch as an older release may have left it: the manifests of both inventories name one path. `file`: whose
/// file exists, or another text for its content; `None` for no file.
async fn contested_branch(fields: &Value, rows: &[Arc<Row>; 2], file: Option<&str>) -> Remote {
    let (remote, other) =
        (Remote::new(TestTransport::File, fields.clone()), Remote::new(TestTransport::File, fields.clone()));
    for (remote, name, row) in [(&remote, "one", &rows[0]), (&other, "two", &rows[1])] {
        write(&*remote.open().await, &inventory("", name), None, &added(&with_own_path(name, row)))
            .await
            .unwrap();
    }
    let (checkout, theirs) = (remote.checkout(), other.checkout());
    for (path, text) in tree(&theirs.path).iter().filter(|(path, _)| *path != PATH && !path.starts_with('.'))
    {
        let file = checkout.path.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let from = &inventory_directories(&theirs.path)[0];
    let to = checkout.path.join(".kollect").join(from.file_name().unwrap());
    fs::create_dir(&to).unwrap();
    for file in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    match file {
        Some("one") => {}
        Some("two") => drop(fs::copy(theirs.path.join(PATH), checkout.path.join(PATH)).unwrap()),
        Some(text) => fs::write(checkout.path.join(PATH), text).unwrap(),
        None => fs::remove_file(checkout.path.join(PATH)).unwrap(),
    }
    checkout.push("an older release");
    assert_eq!(owners(&remote.checkout().path, PATH), ["one", "two"]);
    remote
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_two_manifests_name_goes_to_one_of_them_on_a_branch() {
    let different = [pod("one", "1"), pod("two", "2")];
    for (rows, file, winner) in [
        (&different, Some("one"), "one"),
        (&different, Some("two"), "two"),
        (&different, Some("edited"), "one"),
        (&different, None, "one"),
        (&[same_pod(), same_pod()], Some("one"), "one"),
    ] {
        // The order does not matter.
        for order in [["one", "two"], ["two", "one"]] {
            let shown = format!("{file:?} {order:?}");
            let remote = contested_branch(&paths_without_inventory(), rows, file).await;
            let sink = remote.open().await;
            let all = |name: &str| with_own_path(name, &rows[usize::from(name == "two")]);
            let mut tip = String::new();
            for round in 0..4 {
                for name in order {
                    let receipt = compare(&*sink, &inventory("", name), &all(name)).await.unwrap();
                    assert_eq!(receipt.refused.len(), usize::from(name != winner), "{shown} {name}");
                    let plain = write(&*sink, &inventory("", name), None, &Delta::default()).await.unwrap();
                    assert!(plain.refused.is_empty());
                }
                match round {
                    0 => {}
                    1 => tip = remote.git(&["rev-parse", "main"]),
                    _ => assert_eq!(remote.git(&["rev-parse", "main"]), tip, "{shown}: no commit"),
                }
            }
            assert_eq!(owners(&remote.checkout().path, PATH), [winner], "{shown}");
            for name in order {
                let held = sink.baseline(&inventory("", name)).await.unwrap();
                let rows = &all(name)[usize::from(name != winner)..];
                assert_eq!(held, holding(rows), "{shown} {name}");
            }
            let loser = if winner == "one" { "two" } else { "one" };
            let subject = format!("--grep=chore(default/team/{loser}): give up files of other inventories");
            let body = remote.git(&["log", "--fixed-strings", &subject, "--format=%b", "main"]);
            assert_eq!(body.trim(), format!("p.json: inventory team/{winner} of cluster \"\""), "{shown}");
        }
    }
}

/// The inventory that loses a document has none and reports that; the file of the other one is not changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_two_manifests_name_goes_to_one_of_them_on_a_branch() {
    for mode in ["document", "split"] {
        let fields = json!({ "pathTemplate": PATH, "layout": { "mode": mode, "index": { "pathTemplate": PATH },
            "pathTemplate": "{name}/{sourceName}.json" } });
        for order in [["one", "two"], ["two", "one"]] {
            let rows = [pod("one", "1"), pod("two", "2")];
            let remote = contested_branch(&fields, &rows, Some("two")).await;
            let before = tree(&remote.checkout().path)[PATH].clone();
            let sink = remote.open().await;
            let mut tip = String::new();
            for round in 0..3 {
                for name in order {
                    let all = with_own_path(name, &rows[usize::from(name == "two")]);
                    let outcome = compare(&*sink, &inventory("", name), &all).await;
                    let reason = outcome.err().map(|error| error.reason);
                    assert_eq!(reason, (name == "one").then_some(SinkReason::OwnedByOther), "{mode}");
                }
                match round {
                    0 => {}
                    1 => tip = remote.git(&["rev-parse", "main"]),
                    _ => assert_eq!(remote.git(&["rev-parse", "main"]), tip, "{mode} {order:?}: no commit"),
                }
            }
            assert_eq!(owners(&remote.checkout().path, PATH), ["two"], "{mode} {order:?}");
            // Forgetting the losing inventory does not delete the file.
            let claim = sink.claim(&inventory("", "one"), &claimant(None)).await.unwrap();
            sink.forget(&inventory("", "one"), &claim).await.unwrap();
            assert_eq!(tree(&remote.checkout().path)[PATH], before, "{mode}");
        }
    }
}

/// An inventory gives up a contested path before the other one has settled it: the file stays for the other one.
#[tokio::test(flavor = "multi_thread")]
async fn a_contested_file_is_not_deleted_from_a_branch() {
    for (forget, file) in [(true, "one"), (true, "two"), (false, "one"), (false, "two")] {
        let rows = [pod("one", "1"), pod("two", "2")];
        let remote = contested_branch(&paths_without_inventory(), &rows, Some(file)).await;
        let sink = remote.open().await;
        let one = inventory("", "one");
        if forget {
            let claim = sink.claim(&one, &claimant(None)).await.unwrap();
            sink.forget(&one, &claim).await.unwrap();
        } else {
            compare(&*sink, &one, &[]).await.unwrap();
        }
        let checkout = remote.checkout();
        assert!(checkout.path.join(PATH).exists(), "{forget} {file}");
        assert_eq!(owners(&checkout.path, PATH), ["two"], "{forget} {file}");
        assert!(compare(&*sink, &inventory("", "two"), &rows[1..]).await.unwrap().refused.is_empty());
        assert!(tree(&remote.checkout().path)[PATH].contains("two-2"), "{forget} {file}");
    }
}

/// The file of one inventory was deleted. It repairs it while another one needs its path: in one process, and in
/// two.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_repair_and_write_leave_one_owner_of_a_path_on_a_branch() {
    for round in 0..8 {
        let rows = if round % 2 == 0 { [same_pod(), same_pod()] } else { [pod("one", "1"), pod("two", "2")] };
        let remote = Arc::new(Remote::new(TestTransport::Https, paths_without_inventory()));
        write(&*remote.open().await, &inventory("", "two"), None, &added(&rows[1..])).await.unwrap();
        delete_file(&remote);
        let sinks = Arc::new(remote.sinks());
        let writers = ["one", "two"].map(|name| {
            let (remote, sinks, rows) = (remote.clone(), sinks.clone(), rows.clone());
            tokio::spawn(async move {
                let mirrors = tempfile::tempdir().unwrap();
                let own = sinks_with_mirrors(mirrors.path().join("git"));
                let sinks = if round < 4 { &sinks } else { &own };
                let sink: Box<dyn Sink> =
                    sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap();
                let row = from_ref(&rows[usize::from(name == "two")]);
                compare(&*sink, &inventory("", name), row).await.unwrap().refused.len()
            })
        });
        let refused: Vec<usize> =
            futures::future::join_all(writers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(refused, [1, 0], "round {round}");
        assert_eq!(owners(&remote.checkout().path, PATH), ["two"], "round {round}");
        let held = remote.open().await.baseline(&inventory("", "two")).await.unwrap();
        assert_eq!(held, holding(&rows[1..]), "round {round}");
    }
}

/// Two inventories need a free path at the same time: one gets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_free_path_goes_to_one_of_two_inventories_that_need_it_at_once() {
    for round in 0..8 {
        let remote = Arc::new(Remote::new(TestTransport::Https, paths_without_inventory()));
        let sinks = Arc::new(remote.sinks());
        let writers = ["one", "two"].map(|name| {
            let (remote, sinks) = (remote.clone(), sinks.clone());
            tokio::spawn(async move {
                let mirrors = tempfile::tempdir().unwrap();
                let own = sinks_with_mirrors(mirrors.path().join("git"));
                let sinks = if round < 4 { &sinks } else { &own };
                let sink = sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap();
                compare(&*sink, &inventory("", name), &[same_pod()]).await.unwrap().refused.len()
            })
        });
        let refused: usize = futures::future::join_all(writers).await.into_iter().map(Result::unwrap).sum();
        assert_eq!(refused, 1, "round {round}");
        assert_eq!(owners(&remote.checkout().path, PATH).len(), 1, "round {round}");
    }
}

/// A damaged manifest affects only its own inventory.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_manifest_stops_no_other_inventory_on_a_branch() {
    let remote = Remote::new(TestTransport::File, paths_without_inventory());
    let sink = remote.open().await;
    let (damaged, intact) = (inventory("", "bad"), inventory("", "good"));
    let rows = [same_pod(), object("v", "", "Pod", "shop", "q", "{}")];
    write(&*sink, &damaged, None, &added(&rows[..1])).await.unwrap();
    let checkout = remote.checkout();
    fs::write(inventory_directories(&checkout.path)[0].join("manifest.json"), "nonsense\n").unwrap();
    checkout.push("meddle");
    let receipt = compare(&*sink, &intact, &rows).await.unwrap();
    let why = &receipt.refused[0].why;
    assert!(why.contains("p.json is a file of an inventory whose manifest in .kollect/team.bad-"), "{why}");
    assert_eq!(sink.baseline(&intact).await.unwrap(), holding(&rows[1..]));
    assert_eq!(sink.baseline(&damaged).await.unwrap_err().reason, SinkReason::Incompatible);
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_of_the_go_implementation_on_a_branch_are_adopted() {
    let remote = Remote::with_default_settings();
    let other = remote.open().await;
    write(&*other, &inventory("prod", "first"), None, &added(&[])).await.unwrap();
    let checkout = remote.checkout();
    let directory = checkout.path.join("inventory/team");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("all.yaml"), go_list("cart", "cart:1")).unwrap();
    std::fs::write(directory.join("all.part-0001-of-0002.yaml"), go_list("search", "search:1")).unwrap();
    let list =
        json!({ "kind": "KollectExportSetManifest", "namespace": "team", "name": "all", "paths": ["a"] });
    std::fs::write(directory.join("all.manifest.json"), list.to_string()).unwrap();
    checkout.push("as the Go implementation left it");
    let cart = object("uid-cart", "apps", "Deployment", "shop", "cart", r#"{"image":"cart:2"}"#);
    let sink = remote.open().await;
    compare(&*sink, &inventory("prod", "all"), &[cart]).await.unwrap();
    let document = remote.git(&["show", "main:inventory/team/all.yaml"]);
    assert!(document.contains("image: cart:2"), "{document}");
    let files = remote.git(&["ls-tree", "-r", "--name-only", "main", "inventory/"]);
    assert!(!files.contains(".part-") && !files.contains(".manifest.json"), "{files}");
    // A file that is too large to be read is not adopted, however it looks.
    let large = go_list("search", "x").repeat(30_000);
    std::fs::write(directory.join("large.yaml"), &large).unwrap();
    checkout.git(&["pull", "--quiet", "--rebase"]);
    checkout.push("a large file");
    let refused = compare(&*sink, &inventory("prod", "large"), &[]).await.unwrap_err();
    assert_eq!(refused.reason, SinkReason::Incompatible, "{refused}");
    // An auditor sees one change of one document.
    let shown = remote.git(&["log", "--format=%s", "main", "--", "inventory/team/all.yaml"]);
    assert!(shown.contains("chore(prod/team/all): export 1 items"), "{shown}");
}

/// Parts of another inventory look as those of the Go implementation do.
#[tokio::test(flavor = "multi_thread")]
async fn parts_of_other_inventories_are_not_removed() {
    let remote = Remote::with_default_settings();
    let shared = json!({ "pathTemplate": "x/{name}{extension}" });
    let rows: Vec<Arc<Row>> = (0..20)
        .map(|number| {
            object(&format!("u{number}"), "apps", "Deployment", "shop", &format!("d{number}"), "{}")
        })
        .collect();
    let sink = remote.open_with(&shared).await;
    let (first, second) = (inventory("prod", "all"), inventory("other", "all"));
    let claim = sink.claim(&first, &claimant(None)).await.unwrap();
    let delta = added(&rows);
    let batch = Batch { part_bytes: 1000, ..Batch::new(&first, &claim, &delta) };
    sink.write(&batch).await.unwrap();
    let files = remote.git(&["ls-tree", "-r", "--name-only", "main", "x/"]);
    assert!(files.contains("x/all.part-0001-of-"), "{files}");
    write(&*remote.open_with(&shared).await, &second, None, &added(&rows[..1])).await.unwrap();
    let after = remote.git(&["ls-tree", "-r", "--name-only", "main", "x/"]);
    assert_eq!(
        after.lines().filter(|path| path.contains(".part-")).count(),
        files.lines().count(),
        "{after}"
    );
    assert!(after.lines().any(|path| path == "x/all.yaml"), "{after}");
}
