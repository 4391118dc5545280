//! A branch is shared with people, with other operators, and with the rules of its server.

use std::{fs, sync::Arc};

use kollect_model::{
    batch::Batch,
    sink::{ErrorClass, Sink, SinkReason},
};
use kollect_sinks::SinkPolicy;
use serde_json::json;

use super::{Remote, TestTransport, git, sinks_with_mirrors};
use crate::{
    conformance::{added, changed, claimant, holding, inventory, removed, row, write},
    filesystem::{object, tree},
};

#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_stay_and_their_commits_too() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let sink = remote.open().await;
    let all = inventory("", "all");
    write(&*sink, &all, None, &added(&[row("u1", "{}")])).await.unwrap();
    let checkout = remote.checkout();
    fs::write(checkout.path.join("README.md"), "Ours.\n").unwrap();
    checkout.push("say what this is");
    write(&*sink, &all, None, &added(&[row("u2", "{}")])).await.unwrap();
    assert_eq!(tree(&remote.checkout().path)["README.md"], "Ours.\n");
    let subjects = remote.git(&["log", "--format=%an", "main"]);
    assert_eq!(subjects, "kollect\nEve\nkollect");
    // Files of others are not overwritten.
    let theirs = inventory("", "theirs");
    let checkout = remote.checkout();
    fs::write(checkout.path.join("inventory/team/theirs.yaml"), "mine\n").unwrap();
    checkout.push("a file that is in the way");
    let refused = write(&*sink, &theirs, None, &added(&[row("u1", "{}")])).await.unwrap_err();
    assert_eq!((refused.reason, refused.class()), (SinkReason::Incompatible, ErrorClass::Terminal));
    assert!(refused.to_string().contains("inventory/team/theirs.yaml"), "{refused}");
    assert_eq!(tree(&remote.checkout().path)["inventory/team/theirs.yaml"], "mine\n");
}

/// Two operators with separate mirrors: no lost file, no lost commit, linear history.
#[tokio::test(flavor = "multi_thread")]
async fn two_operators_push_to_one_branch() {
    let remote = Arc::new(Remote::new(TestTransport::Https, json!({ "layout": { "mode": "perResource" } })));
    let operators = ["a", "b"].map(|name| {
        let remote = remote.clone();
        tokio::spawn(async move {
            let mirrors = tempfile::tempdir().unwrap();
            let sinks = sinks_with_mirrors(mirrors.path().join("git"));
            let sink = sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap();
            let all = inventory(name, "all");
            let claim = sink.claim(&all, &claimant(Some(name))).await.unwrap();
            for i in 0..12 {
                let delta =
                    added(&[object(&format!("{name}{i}"), "", "Pod", "shop", &format!("p{i}"), "{}")]);
                // Other pushes were first too many times: the engine retries as well.
                while let Err(error) = sink.write(&Batch::new(&all, &claim, &delta)).await {
                    assert_eq!(error.reason, SinkReason::Busy, "{error}");
                }
            }
        })
    });
    for operator in operators {
        operator.await.unwrap();
    }
    assert_eq!(tree(&remote.checkout().path).len(), 24);
    assert_eq!(remote.commits(), 24);
    assert_eq!(remote.git(&["rev-list", "--min-parents=2", "main"]), "", "no merges");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_push_says_why_without_the_text_of_the_server() {
    let remote = Remote::new(TestTransport::Ssh, json!({}));
    let sink = remote.open().await;
    let all = inventory("", "all");
    write(&*sink, &all, None, &added(&[row("u1", "{}")])).await.unwrap();
    let before = remote.git(&["rev-parse", "main"]);
    let script = "while read old new ref; do case $ref in refs/heads/main) \
                  echo 'main is protected: ask the audit team' >&2; exit 1;; esac; done";
    remote.repository.hook("pre-receive", script).unwrap();
    let refused = write(&*sink, &all, None, &added(&[row("u2", "{}")])).await.unwrap_err();
    assert_eq!((refused.reason, refused.class()), (SinkReason::Forbidden, ErrorClass::Forbidden));
    let text = refused.to_string();
    assert!(text.contains("the branch is protected") && !text.contains("audit team"), "{text}");
    assert_eq!(remote.git(&["rev-parse", "main"]), before);
    fs::remove_file(remote.repository.path().join("hooks/pre-receive")).unwrap();
    write(&*sink, &all, None, &added(&[row("u2", "{}")])).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap().len(), 2);
}

/// If a server refuses one inventory, the others of the same push are written.
#[tokio::test(flavor = "multi_thread")]
async fn an_inventory_that_the_server_refuses_does_not_stop_others_of_the_push() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let script = "while read old new ref; do if git ls-tree -r --name-only $new | grep -q /bad; then \
                  echo 'no bad files' >&2; exit 1; fi; done; sleep 0.2";
    let sinks = remote.sinks();
    let sink: Arc<dyn Sink> =
        sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap().into();
    let mut claims = Vec::new();
    for name in ["first", "good", "bad", "fine"] {
        let own = inventory("", name);
        let claim = sink.claim(&own, &claimant(None)).await.unwrap();
        claims.push((own, claim));
    }
    remote.repository.hook("pre-receive", script).unwrap();
    let writes = claims.into_iter().map(|(inventory, claim)| {
        let sink = sink.clone();
        tokio::spawn(async move {
            let delta = added(&[row("u1", "{}")]);
            (inventory.name.clone(), sink.write(&Batch::new(&inventory, &claim, &delta)).await)
        })
    });
    for written in futures::future::join_all(writes).await {
        let (name, written) = written.unwrap();
        match written {
            Ok(_) => assert_ne!(name, "bad"),
            Err(error) => {
                assert_eq!((&*name, error.reason), ("bad", SinkReason::Forbidden), "{error}");
                assert!(error.to_string().contains("a hook of the server declined it"), "{error}");
            }
        }
    }
    assert_eq!(remote.commits(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn push_policy_force_push_drops_commits_of_others_and_commit_keeps_them() {
    for (policy, kept) in [("Commit", true), ("ForcePush", false)] {
        let remote = Remote::new(TestTransport::Https, json!({ "git": { "pushPolicy": policy } }));
        let sink = remote.open().await;
        let all = inventory("", "all");
        write(&*sink, &all, None, &added(&[row("u1", "{}")])).await.unwrap();
        let checkout = remote.checkout();
        fs::write(checkout.path.join("notes.txt"), "hello\n").unwrap();
        checkout.push("notes");
        write(&*sink, &all, None, &added(&[row("u2", "{}")])).await.unwrap();
        assert_eq!(tree(&remote.checkout().path).contains_key("notes.txt"), kept, "{policy}");
        assert_eq!(sink.baseline(&all).await.unwrap().len(), 2);
        assert_eq!(remote.commits(), if kept { 3 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_branch_starts_from_the_default_branch() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let (all, branch) = (inventory("", "all"), json!({ "git": { "branch": "audit/prod" } }));
    let existing = json!({ "git": { "branch": "audit/prod" }, "provisioning": { "mode": "existing" } });
    let error = remote.open_with(&existing).await.check().await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Missing);
    assert!(error.to_string().contains("no such branch"), "{error}");
    // An empty repository has no default branch either.
    write(&*remote.open().await, &all, None, &added(&[row("u1", "{}")])).await.unwrap();
    let checkout = remote.checkout();
    fs::write(checkout.path.join("README.md"), "Ours.\n").unwrap();
    checkout.push("readme");
    let sink = remote.open_with(&branch).await;
    let other = inventory("", "other");
    write(&*sink, &other, None, &added(&[row("u1", "{}")])).await.unwrap();
    let files = remote.git(&["ls-tree", "-r", "--name-only", "audit/prod"]);
    assert!(files.contains("README.md") && files.contains("inventory/team/other.yaml"), "{files}");
    assert_eq!(remote.commits(), 2, "main is as it was");
    remote.open_with(&existing).await.check().await.unwrap();
}

/// A sink that moves to a new branch finds its rows there, because the branch starts from the old one. The branch is
/// still created, before the old one is cleaned.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_branch_is_created_even_if_no_row_differs() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let all = inventory("", "all");
    let rows = [row("u1", "{}")];
    let main = remote.open().await;
    write(&*main, &all, None, &added(&rows)).await.unwrap();
    let moved = remote.open_with(&json!({ "git": { "branch": "audit" } })).await;
    assert_eq!(moved.baseline(&all).await.unwrap(), holding(&rows));
    write(&*moved, &all, None, &added(&[])).await.unwrap();
    let claim = main.claim(&all, &claimant(None)).await.unwrap();
    main.forget(&all, &claim).await.unwrap();
    assert_eq!(moved.baseline(&all).await.unwrap(), holding(&rows));
    assert_eq!(remote.git(&["ls-tree", "--name-only", "-r", "main"]), "");
    // A missing branch has nothing to forget, and is not created for that.
    let never = json!({ "git": { "branch": "never" }, "provisioning": { "mode": "existing" } });
    let other = remote.open_with(&never).await;
    let claim = other.claim(&all, &claimant(None)).await.unwrap();
    other.forget(&all, &claim).await.unwrap();
    assert_eq!(remote.git(&["branch", "--list", "never"]), "");
}

/// Claims in the same second get different epochs, and a claim that another user has removed is made again.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_claims_get_different_epochs_and_a_removed_claim_is_noticed() {
    let remote = Arc::new(Remote::new(TestTransport::Https, json!({})));
    let all = inventory("", "all");
    let claims = (0..4).map(|_| {
        let (remote, all) = (remote.clone(), all.clone());
        tokio::spawn(async move {
            let mirrors = tempfile::tempdir().unwrap();
            let sinks = sinks_with_mirrors(mirrors.path().join("git"));
            let sink = sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap();
            loop {
                match sink.claim(&all, &claimant(Some("c"))).await {
                    Ok(claim) => return claim.epoch,
                    // The others were faster each time: a binding tries again, too.
                    Err(error) => assert_eq!(error.reason, SinkReason::Busy, "{error}"),
                }
            }
        })
    });
    let mut epochs: Vec<i64> =
        futures::future::join_all(claims).await.into_iter().map(Result::unwrap).collect();
    epochs.sort_unstable();
    assert_eq!(epochs, [1, 2, 3, 4]);

    let sink = remote.open().await;
    let claim = sink.claim(&all, &claimant(Some("c"))).await.unwrap();
    let reference = remote.git(&["for-each-ref", "--format=%(refname)", "refs/kollect"]);
    remote.git(&["update-ref", "-d", &reference]);
    let delta = added(&[row("u1", "{}")]);
    let refused = sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap_err();
    assert_eq!(
        (refused.reason, refused.class()),
        (SinkReason::ClaimLost, ErrorClass::Transient),
        "{refused}"
    );
    write(&*sink, &all, Some("c"), &delta).await.unwrap();
}

/// One claim is damaged by another user: the other inventories of the branch are still written.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_claim_stops_no_other_inventory() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let sinks = remote.sinks();
    let sink: Arc<dyn Sink> =
        sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap().into();
    let inventories = ["first", "bad", "good"].map(|name| inventory("", name));
    let delta = added(&[row("u1", "{}")]);
    let mut claims = Vec::new();
    for inventory in &inventories {
        claims.push(sink.claim(inventory, &claimant(None)).await.unwrap());
    }
    sink.write(&Batch::new(&inventories[0], &claims[0], &delta)).await.unwrap();
    let damaged_ref = remote.git(&["for-each-ref", "--format=%(refname)", "refs/kollect/main/team_bad*"]);
    remote.git(&["update-ref", &damaged_ref, "refs/heads/main"]);
    remote.repository.hook("pre-receive", "sleep 0.5").unwrap();
    let first = [row("u2", "{}")];
    let slow = added(&first);
    let batches = [
        Batch::new(&inventories[0], &claims[0], &slow),
        Batch::new(&inventories[1], &claims[1], &delta),
        Batch::new(&inventories[2], &claims[2], &delta),
    ];
    // The last two wait together for the first.
    let (one, two, three) =
        futures::join!(sink.write(&batches[0]), sink.write(&batches[1]), sink.write(&batches[2]));
    one.unwrap();
    three.unwrap();
    assert_eq!(two.unwrap_err().reason, SinkReason::Incompatible);
}

#[tokio::test(flavor = "multi_thread")]
async fn force_push_restores_files_that_others_changed() {
    let remote = Remote::new(TestTransport::Https, json!({ "git": { "pushPolicy": "ForcePush" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let rows = [row("u1", "{}")];
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    let checkout = remote.checkout();
    fs::write(checkout.path.join("inventory/team/all.yaml"), "nonsense\n").unwrap();
    checkout.push("meddle");
    assert_ne!(sink.baseline(&all).await.unwrap(), holding(&rows));
    write(&*sink, &all, None, &added(&rows)).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding(&rows));
    assert_eq!(remote.commits(), 1, "the branch is as it was");
    // The server has dropped our commits: continue from what it has.
    let name = ["-c", "user.name=Eve", "-c", "user.email=eve@example.com"];
    let empty = remote.git(&["hash-object", "-t", "tree", "-w", "/dev/null"]);
    let start = remote.git(&[&name[..], &["commit-tree", "-m", "start again", &empty]].concat());
    remote.git(&["update-ref", "refs/heads/main", &start]);
    remote.git(&["reflog", "expire", "--expire=now", "--all"]);
    remote.git(&["gc", "--quiet", "--prune=now"]);
    let both_rows = [rows[0].clone(), row("u2", "{}")];
    write(&*sink, &all, None, &added(&both_rows)).await.unwrap();
    assert_eq!(remote.open().await.baseline(&all).await.unwrap(), holding(&both_rows));
}

/// Another user has replaced our file with something else: it stays.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_others_put_at_our_paths_stay() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let pods: Vec<_> = ["p1", "p2"].iter().map(|name| object(name, "", "Pod", "shop", name, "{}")).collect();
    write(&*sink, &all, None, &added(&pods)).await.unwrap();
    let checkout = remote.checkout();
    git(&checkout.path, &["rm", "-r", "--quiet", "default/shop/pod"]);
    fs::create_dir_all(checkout.path.join("default/shop")).unwrap();
    fs::write(checkout.path.join("default/shop/pod"), "a file\n").unwrap();
    checkout.push("meddle");
    let removal = kollect_model::batch::Delta {
        removed: pods.iter().map(|pod| removed(pod)).collect(),
        ..Default::default()
    };
    sink.baseline(&all).await.unwrap();
    write(&*sink, &all, None, &removal).await.unwrap();
    assert_eq!(tree(&remote.checkout().path)["default/shop/pod"], "a file\n");
    let receipt = write(&*sink, &all, None, &added(&pods)).await.unwrap();
    assert_eq!(receipt.refused.len(), 2);
    assert!(receipt.refused[0].why.contains("default/shop/pod/p1.yaml"), "{receipt:?}");
    assert_eq!(tree(&remote.checkout().path)["default/shop/pod"], "a file\n");

    let taken = Remote::with_default_settings();
    write(&*taken.open().await, &all, None, &added(&[])).await.unwrap();
    let checkout = taken.checkout();
    git(&checkout.path, &["rm", "-r", "--quiet", ".kollect", "inventory"]);
    fs::write(checkout.path.join(".kollect"), "mine\n").unwrap();
    checkout.push("meddle");
    let refused = write(&*taken.open().await, &all, None, &added(&pods)).await.unwrap_err();
    assert!(refused.to_string().contains(".kollect"), "{refused}");
}

/// A changed template may turn a file into a directory and back.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_template_turns_files_into_directories_and_back() {
    let remote = Remote::with_default_settings();
    let layout = |template: &str| json!({ "layout": { "mode": "perResource", "pathTemplate": template } });
    let all = inventory("", "all");
    let pods: Vec<_> = ["p1", "p2"].iter().map(|name| object(name, "", "Pod", "shop", name, "{}")).collect();
    let mut seen = Vec::new();
    for template in [
        "{sourceNamespace}/{sourceName}",
        "{sourceNamespace}/{sourceName}/{kind}",
        "{sourceNamespace}/{sourceName}",
    ] {
        let sink = remote.open_with(&layout(template)).await;
        write(&*sink, &all, None, &added(&pods)).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&pods), "{template}");
        seen.push(tree(&remote.checkout().path).into_keys().collect::<Vec<_>>());
    }
    assert_eq!(seen, [["shop/p1", "shop/p2"], ["shop/p1/pod", "shop/p2/pod"], ["shop/p1", "shop/p2"]]);
}

/// Another user resets the branch to an older state, or deletes it: the known state is outdated and must not be
/// used.
#[tokio::test(flavor = "multi_thread")]
async fn a_rewritten_or_deleted_branch_is_compared_again() {
    for delete in [false, true] {
        let remote = Remote::new(TestTransport::Https, json!({ "layout": { "mode": "perResource" } }));
        let sink = remote.open().await;
        let all = inventory("", "all");
        let pods: Vec<_> =
            ["p1", "p2", "p3"].iter().map(|name| object(name, "", "Pod", "shop", name, "{}")).collect();
        let claim = sink.claim(&all, &claimant(None)).await.unwrap();
        for pod in &pods[..2] {
            sink.write(&Batch::new(&all, &claim, &added(std::slice::from_ref(pod)))).await.unwrap();
        }
        if delete {
            remote.git(&["update-ref", "-d", "refs/heads/main"]);
        } else {
            remote.git(&["update-ref", "refs/heads/main", "main~1"]);
        }
        let delta = added(&pods[2..]);
        let refused = sink.write(&Batch::new(&all, &claim, &delta)).await.unwrap_err();
        assert_eq!(
            (refused.reason, refused.class()),
            (SinkReason::ClaimLost, ErrorClass::Transient),
            "{refused}"
        );
        let held = sink.baseline(&all).await.unwrap();
        assert_eq!(held, holding(&pods[..usize::from(!delete)]));
        sink.write(&Batch::new(&all, &claim, &added(&pods[held.len()..]))).await.unwrap();
        assert_eq!(sink.baseline(&all).await.unwrap(), holding(&pods));
        assert_eq!(tree(&remote.checkout().path).len(), 3);
    }
}

/// A claim of another writer makes no commit, and fences earlier writers.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_with_an_old_claim_is_fenced() {
    let remote = Remote::new(TestTransport::Ssh, json!({}));
    let (first_writer, second_writer) = (remote.open().await, remote.open().await);
    let all = inventory("", "all");
    let old = first_writer.claim(&all, &claimant(Some("c"))).await.unwrap();
    first_writer.write(&Batch::new(&all, &old, &added(&[row("u1", "{}")]))).await.unwrap();
    let before = remote.git(&["rev-parse", "main"]);
    second_writer.claim(&all, &claimant(Some("c"))).await.unwrap();
    assert_eq!(remote.git(&["rev-parse", "main"]), before);
    let delta = added(&[row("u2", "{}")]);
    let fenced = first_writer.write(&Batch::new(&all, &old, &delta)).await.unwrap_err();
    assert_eq!(fenced.reason, SinkReason::Fenced);
    assert_eq!(remote.git(&["rev-parse", "main"]), before);
}

/// A caller that stops waiting may have lost its claim: nothing is written for it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_for_a_caller_that_stopped_waiting() {
    let remote = Remote::new(TestTransport::Https, json!({}));
    let sinks = remote.sinks();
    let sink: Arc<dyn Sink> =
        sinks.open(&remote.plan(&json!({})), &SinkPolicy::default()).await.unwrap().into();
    let (one, two) = (inventory("", "one"), inventory("", "two"));
    let claim_one = sink.claim(&one, &claimant(None)).await.unwrap();
    let claim_two = sink.claim(&two, &claimant(None)).await.unwrap();
    remote.repository.hook("pre-receive", "sleep 1").unwrap();
    let delta = added(&[row("u1", "{}")]);
    let slow = tokio::spawn({
        let (sink, one, delta) = (sink.clone(), one.clone(), delta.clone());
        async move { sink.write(&Batch::new(&one, &claim_one, &delta)).await.map(drop) }
    });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let batch = Batch::new(&two, &claim_two, &delta);
    let abandoned = tokio::time::timeout(std::time::Duration::from_millis(100), sink.write(&batch));
    assert!(abandoned.await.is_err(), "the other one was not slow");
    slow.await.unwrap().unwrap();
    // The next write serves all callers that still wait.
    write(&*sink, &one, None, &added(&[row("u2", "{}")])).await.unwrap();
    assert_eq!(tree(&remote.checkout().path).into_keys().collect::<Vec<_>>(), ["inventory/team/one.yaml"]);
}

/// Edits of our files by others are found in the baseline and undone.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_edits_show_in_the_baseline() {
    let remote = Remote::new(TestTransport::File, json!({ "layout": { "mode": "perResource" } }));
    let sink = remote.open().await;
    let all = inventory("", "all");
    let pods: Vec<_> =
        ["p1", "p2", "p3"].iter().map(|name| object(name, "", "Pod", "shop", name, "{}")).collect();
    write(&*sink, &all, None, &added(&pods)).await.unwrap();
    let checkout = remote.checkout();
    git(&checkout.path, &["rm", "--quiet", "default/shop/pod/p1.yaml"]);
    fs::write(checkout.path.join("default/shop/pod/p2.yaml"), "nonsense\n").unwrap();
    checkout.push("meddle");
    let held = sink.baseline(&all).await.unwrap();
    let wrong: Vec<&str> =
        pods.iter().filter(|pod| held.get(&pod.key) != Some(&pod.digest)).map(|pod| &*pod.name).collect();
    assert_eq!(wrong, ["p1", "p2"]);
    let repair = kollect_model::batch::Delta {
        changed: pods[..2].iter().map(changed).collect(),
        removed: vec![removed(&pods[2])],
        ..Default::default()
    };
    write(&*sink, &all, None, &repair).await.unwrap();
    assert_eq!(sink.baseline(&all).await.unwrap(), holding(&pods[..2]));
    let files: Vec<String> = tree(&remote.checkout().path).into_keys().collect();
    assert_eq!(files, ["default/shop/pod/p1.yaml", "default/shop/pod/p2.yaml"]);
}
