//! Every transport against a real server, or against a repository that the real Git reads.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use git2::{Repository, Signature};
use kollect_model::crd::{
    shapes::SecretReference,
    sinks::{Git, SinkCommon, Tls},
};
use kollect_testbed::git::Repository as ServerRepository;
use tempfile::TempDir;

use super::*;
use crate::{AddressGuard, ApiServer, Network, Secrets};

mod file;
mod http;
mod ssh;

const MAIN: &str = "refs/heads/main";
const NONE: Oid = Oid::ZERO_SHA1;

/// The settings of a sink for a repository.
#[derive(Clone, Default)]
struct TestRemote {
    ca: Option<String>,
    insecure: bool,
    force_basic_auth: bool,
    secret: Vec<(&'static str, String)>,
    policy: SinkPolicy,
}

impl TestRemote {
    fn config(&self, endpoint: &str) -> Result<RemoteConfig, String> {
        let tls = Tls {
            insecure_skip_verify: self.insecure,
            ca_bundle: self.ca.as_ref().map(|ca| STANDARD.encode(ca)),
            ..Tls::default()
        };
        let reference = SecretReference { name: "git".into(), namespace: None };
        let common = SinkCommon {
            endpoint: Some(endpoint.into()),
            secret_ref: (!self.secret.is_empty()).then_some(reference),
            tls: Some(tls),
            ..SinkCommon::default()
        };
        let git = Git { force_basic_auth: Some(self.force_basic_auth), ..Git::default() };
        let mut secrets = Secrets::default();
        let content: BTreeMap<_, _> =
            self.secret.iter().map(|(key, value)| ((*key).to_owned(), value.clone().into_bytes())).collect();
        secrets.insert("spec.secretRef", content);
        let planned = RemoteConfig::plan(&common, Some(&git)).and_then(|plan| plan.with_secrets(&secrets));
        planned.map_err(|errors| errors[0].to_string())
    }

    fn remote(&self, endpoint: &str) -> Remote {
        Remote::open(&self.config(endpoint).unwrap(), &self.policy).unwrap()
    }
}

fn guarded() -> SinkPolicy {
    SinkPolicy {
        network: Network::Guarded(AddressGuard { allow_private: true, ..AddressGuard::default() }),
        files: crate::FilePolicy::Refused,
    }
}

/// The text of an error with its causes, which must not contain secrets.
fn text_of(error: &SinkError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(!text.contains("hunter2") && !text.contains("PRIVATE KEY"), "{text}");
    text
}

fn assert_error<T: fmt::Debug>(outcome: Result<T, SinkError>, reason: SinkReason, parts: &[&str]) {
    let error = outcome.unwrap_err();
    let text = text_of(&error);
    assert_eq!(error.reason, reason, "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// A local repository that the tests push from.
struct Local {
    repository: Repository,
    _directory: TempDir,
}

#[derive(Clone, Default)]
struct ReceivedPack(Arc<Mutex<Vec<u8>>>);

impl Write for ReceivedPack {
    fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Local {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let repository = Repository::init_bare(directory.path()).unwrap();
        Self { repository, _directory: directory }
    }

    /// A commit with one file.
    fn commit(&self, parent: Option<Oid>, content: &[u8]) -> Oid {
        let repository = &self.repository;
        let blob = repository.blob(content).unwrap();
        let mut tree = repository.treebuilder(None).unwrap();
        tree.insert("rows.json", blob, 0o100_644).unwrap();
        let tree = repository.find_tree(tree.write().unwrap()).unwrap();
        let author = Signature::now("kollect", "kollect@kollect.dev").unwrap();
        let parent = parent.map(|parent| repository.find_commit(parent).unwrap());
        let parents: Vec<_> = parent.iter().collect();
        repository.commit(None, &author, &author, "rows", &tree, &parents).unwrap()
    }

    /// A pack with the objects that a repository with `old` needs.
    fn pack(&self, new: Oid, old: Option<Oid>) -> Bytes {
        let mut walk = self.repository.revwalk().unwrap();
        walk.push(new).unwrap();
        if let Some(old) = old {
            walk.hide(old).unwrap();
        }
        let mut pack = self.repository.packbuilder().unwrap();
        pack.insert_walk(&mut walk).unwrap();
        let mut bytes = Vec::new();
        pack.foreach(|piece| {
            bytes.extend_from_slice(piece);
            true
        })
        .unwrap();
        bytes.into()
    }

    async fn fetch(
        &self,
        remote: &Remote,
        want: Oid,
        have: &[Oid],
        depth: Option<u32>,
    ) -> Result<(Vec<Oid>, usize), SinkError> {
        let received = ReceivedPack::default();
        let shallow = remote.fetch(want, have, depth, &[], Box::new(received.clone())).await?;
        let bytes = std::mem::take(&mut *received.0.lock().unwrap());
        let odb = self.repository.odb().unwrap();
        let mut writer = odb.packwriter().unwrap();
        writer.write_all(&bytes).unwrap();
        writer.commit().unwrap();
        Ok((shallow, bytes.len()))
    }
}

/// Operations that every transport must support.
async fn push_and_fetch(remote: &Remote, server: &ServerRepository) {
    let ours = Local::new();
    assert_eq!(remote.refs().await.unwrap().refs, BTreeMap::new(), "an empty repository");

    let first = ours.commit(None, b"1");
    let pack = ours.pack(first, None);
    assert_eq!(remote.push(MAIN, NONE, first, &[], pack.clone()).await.unwrap(), Ok(()));
    let found = remote.refs().await.unwrap();
    assert_eq!(found.refs, BTreeMap::from([(MAIN.to_owned(), first)]));
    assert_eq!(found.head.as_deref(), Some(MAIN));
    assert_eq!(remote.push(MAIN, NONE, first, &[], pack).await.unwrap(), Ok(()), "a lost answer");

    let theirs = Local::new();
    let (shallow, _) = theirs.fetch(remote, first, &[], None).await.unwrap();
    assert_eq!(shallow, []);
    assert!(theirs.repository.find_commit(first).is_ok());

    let second = ours.commit(Some(first), b"2");
    let pack = ours.pack(second, Some(first));
    for (name, id) in [("refs/kollect/claim", first), (MAIN, second)] {
        let wrong_refs = [(name.to_owned(), id)];
        let outcome = remote.push(MAIN, first, second, &wrong_refs, pack.clone()).await.unwrap();
        assert!(matches!(outcome, Err(RejectedPush::NonFastForward(_))), "{outcome:?}");
    }
    let unmoved = [(MAIN.to_owned(), first)];
    assert_eq!(remote.push(MAIN, first, second, &unmoved, pack).await.unwrap(), Ok(()));
    let third = ours.commit(Some(first), b"3");
    for old in [NONE, first] {
        let outcome = remote.push(MAIN, old, third, &[], ours.pack(third, Some(first))).await.unwrap();
        assert!(matches!(outcome, Err(RejectedPush::NonFastForward(_))), "{outcome:?}");
    }
    server.fsck().unwrap();
    assert_eq!(server.git(&["show", "main:rows.json"]).unwrap(), "2");
    assert_eq!(server.git(&["rev-list", "--count", "main"]).unwrap(), "2\n");

    let unknown = ours.commit(None, b"not pushed");
    let (_, size) = theirs.fetch(remote, second, &[unknown, first], None).await.unwrap();
    let commit = theirs.repository.find_commit(second).unwrap();
    assert!(commit.tree().unwrap().get_name("rows.json").is_some());
    let (_, all_bytes) = Local::new().fetch(remote, second, &[], None).await.unwrap();
    assert!(size < all_bytes, "{size} bytes of {all_bytes}: what is known was sent again");
    let (_, unchanged) = theirs.fetch(remote, second, &[second], None).await.unwrap();
    assert!(unchanged < size, "{unchanged}");
}

/// Fetches a part of the history, then more.
async fn shallow_history(remote: &Remote) {
    let ours = Local::new();
    let first = ours.commit(None, b"1");
    let second = ours.commit(Some(first), b"2");
    let third = ours.commit(Some(second), b"3");
    remote.push(MAIN, NONE, third, &[], ours.pack(third, None)).await.unwrap().unwrap();
    let theirs = Local::new();
    let (shallow, _) = theirs.fetch(remote, third, &[], Some(1)).await.unwrap();
    assert_eq!(shallow, [third]);
    assert!(theirs.repository.find_commit(third).is_ok());
    assert!(theirs.repository.find_commit(second).is_err(), "more than was requested");

    // Without a depth the boundary stays where it is.
    let fourth = ours.commit(Some(third), b"4");
    remote.push(MAIN, third, fourth, &[], ours.pack(fourth, Some(third))).await.unwrap().unwrap();
    let received = ReceivedPack::default();
    let shallow = remote.fetch(fourth, &[third], None, &[third], Box::new(received.clone())).await.unwrap();
    assert_eq!(shallow, [third]);
    // With one it moves.
    let shallow = remote.fetch(fourth, &[third], Some(3), &[third], Box::new(received)).await.unwrap();
    assert_eq!(shallow, [second]);
}

/// A push that a hook declines is reported in our own words; a push that loses a race is not reported as refused.
async fn declined_and_concurrent_pushes(remote: &Remote, server: &ServerRepository) {
    let ours = Local::new();
    let first = ours.commit(None, b"1");
    remote.push(MAIN, NONE, first, &[], ours.pack(first, None)).await.unwrap().unwrap();
    let second = ours.commit(Some(first), b"2");
    let pack = ours.pack(second, Some(first));
    for hook in ["pre-receive", "update"] {
        server.hook(hook, "echo 'no rows on'; echo 'Fridays' >&2; exit 1").unwrap();
        let outcome = remote.push(MAIN, first, second, &[], pack.clone()).await.unwrap();
        let Err(RejectedPush::Refused(why)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(why, "a hook of the server declined it");
        server.hook(hook, "exit 0").unwrap();
    }
    // The ref moves between the advertisement and the push.
    let third = ours.commit(Some(first), b"3");
    remote.push("refs/heads/other", NONE, third, &[], ours.pack(third, Some(first))).await.unwrap().unwrap();
    server.hook("pre-receive", &format!("env -u GIT_QUARANTINE_PATH git update-ref {MAIN} {third}")).unwrap();
    let outcome = remote.push(MAIN, first, second, &[], pack).await.unwrap();
    assert!(matches!(outcome, Err(RejectedPush::NonFastForward(_))), "{outcome:?}");
    assert_eq!(remote.refs().await.unwrap().refs[MAIN], third);
}

/// A pack larger than any buffer between client and server.
async fn large_packs(remote: &Remote, server: &ServerRepository) {
    let ours = Local::new();
    let mut random = fastrand::Rng::with_seed(1);
    let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(30 << 20).collect();
    let commit = ours.commit(None, &content);
    let pack = ours.pack(commit, None);
    assert!(pack.len() > 30 << 20);
    remote.push(MAIN, NONE, commit, &[], pack).await.unwrap().unwrap();
    server.fsck().unwrap();
    let theirs = Local::new();
    let (_, size) = theirs.fetch(remote, commit, &[], None).await.unwrap();
    assert!(size > 30 << 20);
    assert!(theirs.repository.find_commit(commit).is_ok());
}
