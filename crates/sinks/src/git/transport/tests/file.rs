//! Repositories in directories of this machine.

use std::path::Path;

use kollect_testbed::GitHttp;

use super::*;
use crate::FilePolicy;

fn file_url(path: &Path) -> String {
    format!("file://{}", path.display())
}

#[tokio::test]
async fn a_repository_in_a_directory_can_be_pushed_to_and_fetched() {
    let server = GitHttp::shared().create("in_a_directory").unwrap();
    push_and_fetch(&TestRemote::default().remote(&file_url(server.path())), &server).await;
}

#[tokio::test]
async fn large_packs_are_pushed_to_and_fetched_from_a_directory() {
    let server = GitHttp::shared().create("large_directory").unwrap();
    large_packs(&TestRemote::default().remote(&file_url(server.path())), &server).await;
}

#[tokio::test]
async fn a_directory_without_a_repository_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    let remote = TestRemote::default().remote(&file_url(directory.path()));
    assert_error(remote.refs().await, SinkReason::Missing, &["no bare repository", "git init --bare"]);
}

#[tokio::test]
async fn the_policy_decides_which_directories_may_be_used() {
    let root = tempfile::tempdir().unwrap();
    Repository::init_bare(root.path().join("x.git")).unwrap();
    let policy = SinkPolicy { files: FilePolicy::Below(root.path().to_owned()), ..SinkPolicy::default() };
    let test_remote = TestRemote { policy, ..TestRemote::default() };
    test_remote.remote("file:x.git").refs().await.unwrap();
    for endpoint in ["file:../x.git".to_owned(), file_url(&root.path().join("x.git"))] {
        let config = test_remote.config(&endpoint).unwrap();
        let opened = Remote::open(&config, &test_remote.policy);
        assert_error(opened, SinkReason::Forbidden, &["open the repository"]);
    }
    let config = test_remote.config("file:x.git").unwrap();
    assert_error(Remote::open(&config, &guarded()), SinkReason::Forbidden, &["--file-sink-root"]);
}

#[tokio::test]
async fn a_pack_that_lacks_objects_does_not_move_the_ref() {
    let server = GitHttp::shared().create("half_a_pack").unwrap();
    let remote = TestRemote::default().remote(&file_url(server.path()));
    let ours = Local::new();
    let (one, other) = (ours.commit(None, b"1"), ours.commit(None, b"2"));
    let mut builder = ours.repository.packbuilder().unwrap();
    builder.insert_object(other, None).unwrap();
    let mut without_files = git2::Buf::new();
    builder.write_buf(&mut without_files).unwrap();
    for pack in [ours.pack(one, None), Bytes::copy_from_slice(&without_files)] {
        let pushed = remote.push(MAIN, NONE, other, &[], pack).await;
        assert_error(pushed, SinkReason::WriteFailed, &["push to"]);
    }
    assert_eq!(remote.refs().await.unwrap().refs, BTreeMap::new());
}
