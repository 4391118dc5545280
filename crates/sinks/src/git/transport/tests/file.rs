//! Repositories in directories of this machine.

use std::path::Path;

use kollect_testbed::GitHttp;

use super::*;
use crate::Files;

fn at(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[tokio::test]
async fn directories_talk_like_servers() {
    let server = GitHttp::shared().create("in_a_directory").unwrap();
    conversation(&Settings::default().remote(&at(server.path())), &server).await;
}

#[tokio::test]
async fn large_packs_arrive_in_directories() {
    let server = GitHttp::shared().create("large_directory").unwrap();
    large_packs(&Settings::default().remote(&at(server.path())), &server).await;
}

#[tokio::test]
async fn a_directory_without_a_repository_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let remote = Settings::default().remote(&at(directory.path()));
    assert_error(remote.refs().await, SinkReason::Missing, &["no bare repository", "git init --bare"]);
}

#[tokio::test]
async fn the_policy_says_which_directories() {
    let root = tempfile::tempdir().unwrap();
    Repository::init_bare(root.path().join("x.git")).unwrap();
    let policy = Policy { files: Files::Below(root.path().to_owned()), ..Policy::default() };
    let settings = Settings { policy, ..Settings::default() };
    settings.remote("file:x.git").refs().await.unwrap();
    for endpoint in ["file:../x.git".to_owned(), at(&root.path().join("x.git"))] {
        let config = settings.config(&endpoint).unwrap();
        let opened = Remote::open(&config, &settings.policy);
        assert_error(opened, SinkReason::Forbidden, &["open the repository"]);
    }
    let config = settings.config("file:x.git").unwrap();
    assert_error(Remote::open(&config, &guarded()), SinkReason::Forbidden, &["--file-sink-root"]);
}

#[tokio::test]
async fn a_pack_that_lacks_something_moves_nothing() {
    let server = GitHttp::shared().create("half_a_pack").unwrap();
    let remote = Settings::default().remote(&at(server.path()));
    let ours = Local::new();
    let (one, other) = (ours.commit(None, b"1"), ours.commit(None, b"2"));
    let mut alone = ours.repository.packbuilder().unwrap();
    alone.insert_object(other, None).unwrap();
    let mut without_files = git2::Buf::new();
    alone.write_buf(&mut without_files).unwrap();
    for pack in [ours.pack(one, None), Bytes::copy_from_slice(&without_files)] {
        let pushed = remote.push(MAIN, NONE, other, &[], pack).await;
        assert_error(pushed, SinkReason::WriteFailed, &["push to"]);
    }
    assert_eq!(remote.refs().await.unwrap().refs, BTreeMap::new());
}
