//! Tests of the guards: nothing is left behind, however the owner ends, and the end of a server is noticed.

use super::*;

/// Set in the environment of the copy of this test binary that the test kills.
const VICTIM: &str = "KOLLECT_TESTBED_VICTIM";
const TIMEOUT: Duration = Duration::from_secs(5);

/// A server that writes its process id and then sleeps.
fn sleeping_server(scratch: &Scratch) -> Server {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ >pid.new; mv pid.new pid; exec sleep 1000"]);
    let mut server = Server::start(scratch, "sleeper", Stop::Kill, &command).unwrap();
    let pid = scratch.path().join("pid");
    server.wait_until(TIMEOUT, || pid.exists()).unwrap();
    server
}

fn pid(directory: &Path) -> String {
    fs::read_to_string(directory.join("pid")).unwrap().trim().to_owned()
}

fn is_running(pid: &str) -> bool {
    Command::new("kill").args(["-0", pid]).stderr(Stdio::null()).status().unwrap().success()
}

#[test]
fn drop_ends_the_server_then_removes_the_directory() {
    let scratch = Scratch::new().unwrap();
    let directory = scratch.path().to_owned();
    let server = sleeping_server(&scratch);
    let pid = pid(&directory);
    assert!(is_running(&pid));

    drop(scratch);
    assert!(directory.exists(), "a server still uses it");
    drop(server);
    assert!(!is_running(&pid));
    assert!(!directory.exists());
}

#[test]
fn sigkill_of_the_owner_ends_the_server_and_removes_the_directory() {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "guard::tests::victim", "--nocapture"])
        .env(VICTIM, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let directory = BufReader::new(victim.stdout.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("directory=").map(PathBuf::from))
        .unwrap();
    let pid = pid(&directory);
    assert!(is_running(&pid));

    victim.kill().unwrap();
    victim.wait().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while (is_running(&pid) || directory.exists()) && Instant::now() < deadline {
        sleep(POLL_INTERVAL);
    }
    assert!(!is_running(&pid));
    assert!(!directory.exists());
}

/// The body of the process that the test above kills; does nothing in an ordinary run.
#[test]
fn victim() {
    if std::env::var_os(VICTIM).is_none() {
        return;
    }
    let scratch = Scratch::new().unwrap();
    let _server = sleeping_server(&scratch);
    // The line break ends a line that libtest has begun.
    println!("\ndirectory={}", scratch.path().display());
    sleep(Duration::from_mins(1));
}

#[test]
fn a_server_that_ends_is_an_error_with_its_log() {
    let scratch = Scratch::new().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo no such luck; exit 3"]);
    let mut server = Server::start(&scratch, "unlucky", Stop::Kill, &command).unwrap();
    let started = Instant::now();
    let error = server.wait_until(Duration::from_mins(1), || false).unwrap_err();
    assert!(started.elapsed() < TIMEOUT);
    assert_eq!(error.to_string(), "unlucky ended with status 3; the end of its log:\nno such luck");
}

#[test]
fn a_signal_that_comes_too_early_is_repeated() {
    let scratch = Scratch::new().unwrap();
    // Like a server that has not set its handlers yet.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' TERM; echo >deaf; sleep 0.3; trap - TERM; exec sleep 1000"]);
    let mut server = Server::start(&scratch, "deaf", Stop::Terminate, &command).unwrap();
    server.wait_until(TIMEOUT, || scratch.path().join("deaf").exists()).unwrap();
    let started = Instant::now();
    drop(server);
    assert!(started.elapsed() < TIMEOUT);
}
