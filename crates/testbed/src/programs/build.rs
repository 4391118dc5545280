//! Builds the Go programs that the cache lacks.
//!
//! Called by [`super::Programs`] when a test asks for a server. Each bundle is built by one process, under
//! its lock file in the cache; other processes wait and find the result. Bundles are built side by side if
//! there is memory for it, else one after the other. A build runs under a guard, so it ends with this process,
//! and its temporary files are in a directory that is removed then. Progress goes directly to standard error,
//! which the test harness does not capture: a test that prints nothing for minutes would look stuck.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use super::{Bundle, Pins};
use crate::{Error, Scratch, Server, Stop};

const REPORT_INTERVAL: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Free memory that is enough for all bundles at once. The linker of kube-apiserver alone takes more than 1 GiB.
const MEMORY_SIDE_BY_SIDE: u64 = 8 << 30;

/// Builds each bundle that is not complete in `cache`.
pub(super) fn build_missing(bundles: &[Bundle], cache: &Path) -> Result<(), Error> {
    let missing: Vec<Bundle> = bundles.iter().copied().filter(|bundle| !bundle.is_complete(cache)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for bundle in &missing {
        check_go(OsStr::new("go"), bundle.pins)?;
    }
    fs::create_dir_all(cache).map_err(Error::io(format!("create {}", cache.display())))?;
    let order = if available_memory().is_some_and(|bytes| bytes >= MEMORY_SIDE_BY_SIDE) {
        BuildOrder::SideBySide
    } else {
        BuildOrder::OneByOne
    };
    build_all(&missing, cache, order, build)
}

/// Whether bundles are built at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BuildOrder {
    SideBySide,
    /// Also across processes.
    OneByOne,
}

/// Builds what is still missing once its lock is held, and returns when all bundles are complete.
fn build_all(
    bundles: &[Bundle],
    cache: &Path,
    order: BuildOrder,
    build: impl Fn(Bundle, &Path) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let build_one = |bundle: Bundle| {
        let _lock = lock(&cache.join(format!("{}.lock", bundle.name)), bundle.name)?;
        if bundle.is_complete(cache) { Ok(()) } else { build(bundle, cache) }
    };
    if order == BuildOrder::OneByOne {
        let _lock = lock(&cache.join("lock"), "other servers")?;
        return bundles.iter().try_for_each(|bundle| build_one(*bundle));
    }
    thread::scope(|spawner| {
        let builds: Vec<_> = bundles.iter().map(|bundle| spawner.spawn(|| build_one(*bundle))).collect();
        let ended = builds.into_iter().map(|build| build.join().expect("a build does not panic"));
        // Waits for all of them, and returns the first error.
        ended.fold(Ok(()), Result::and)
    })
}

/// Memory that new programs can use, in bytes; `None` if the system does not report it.
fn available_memory() -> Option<u64> {
    parse_available(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let value = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Waits for the lock. It is released when the file is dropped or this process ends.
fn lock(path: &Path, what: &str) -> Result<File, Error> {
    let action = || format!("lock {}", path.display());
    let file = File::create(path).map_err(Error::io(action()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => report(&format!("waiting for another process that builds {what}")),
        Err(TryLockError::Error(source)) => {
            return Err(Error::Io { action: action(), source });
        }
    }
    file.lock().map_err(Error::io(action()))?;
    Ok(file)
}

/// Fails with advice if `go` is not there or too old for `go.mod`.
fn check_go(go: &OsStr, pins: Pins) -> Result<(), Error> {
    let needed = pins.value("go").expect("go.mod has a go line");
    let missing = |found: String| Error::GoMissing { needed: needed.to_owned(), found };
    // Runs inside the module: there a Go that downloads toolchains by itself reports the newer version.
    let output = Command::new(go)
        .args(["env", "GOVERSION"])
        .current_dir(pins.directory)
        .env("GOWORK", "off")
        .output()
        .map_err(|_| missing("there is no `go` on PATH".to_owned()))?;
    let found = String::from_utf8_lossy(&output.stdout);
    let found = found.trim();
    if !output.status.success() || is_older(found, needed) {
        return Err(missing(format!("found {found}")));
    }
    Ok(())
}

/// Compares major and minor. A version that cannot be parsed is not older: `go build` then reports a problem.
fn is_older(found: &str, needed: &str) -> bool {
    let parse = |version: &str| {
        let mut parts = version.trim_start_matches("go").split('.').map(str::parse::<u32>);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    matches!((parse(found), parse(needed)), (Some(found), Some(needed)) if found < needed)
}

fn build(bundle: Bundle, cache: &Path) -> Result<(), Error> {
    let names: Vec<&str> = bundle.programs.iter().map(|(file, _)| *file).collect();
    let names = names.join(", ");
    let version = bundle.version();
    report(&format!(
        "building {names} {version} from Go modules, once; about {} min on 2 cores",
        bundle.minutes
    ));
    let target = bundle.directory(cache);
    let staging = cache.join(format!("{}-{version}.building", bundle.name));
    // Left behind by an earlier build that was killed.
    if staging.exists() {
        fs::remove_dir_all(&staging).map_err(Error::io(format!("remove {}", staging.display())))?;
    }
    for directory in [&staging, &target] {
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
    }
    run(&format!("{}-build", bundle.name), go_build(bundle, &staging))?;
    for (file, _) in bundle.programs {
        fs::rename(staging.join(file), target.join(file))
            .map_err(Error::io(format!("move {file} into {}", target.display())))?;
    }
    fs::remove_dir(&staging).map_err(Error::io(format!("remove {}", staging.display())))
}

fn go_build(bundle: Bundle, staging: &Path) -> Command {
    let mut command = Command::new("go");
    command
        .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly"])
        .arg(format!("-tags={}", bundle.tags))
        .arg(format!("-ldflags={}", linker_flags(bundle)))
        .arg("-o");
    match bundle.programs {
        // Sets the file name of a single program: etcd's package is called "server".
        [(file, _)] => command.arg(staging.join(file)),
        // The final slash tells Go that it is a directory.
        _ => command.arg(staging.join("")),
    };
    command
        .args(bundle.programs.iter().map(|(_, package)| package))
        .current_dir(bundle.pins.directory)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off");
    command
}

/// Leaves out symbols, and sets the version that the program reports.
fn linker_flags(bundle: Bundle) -> String {
    let version = bundle.version();
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut number = || numbers.next().unwrap_or_default();
    let flags = bundle.version_flags.replace("{version}", version);
    format!("-s -w {}", flags.replace("{major}", number()).replace("{minor}", number()))
}

fn run(name: &str, mut command: Command) -> Result<(), Error> {
    let scratch = Scratch::new()?;
    // Go does not remove its own temporary files when it is killed.
    command.env("GOTMPDIR", scratch.path());
    let mut build = Server::start(&scratch, name, Stop::Kill, &command)?;
    let started = Instant::now();
    let mut next_report = REPORT_INTERVAL;
    while build.running()? {
        if started.elapsed() >= next_report {
            report(&format!("{name}: {} s", next_report.as_secs()));
            next_report += REPORT_INTERVAL;
        }
        sleep(POLL_INTERVAL);
    }
    report(&format!("{name}: done after {} s", started.elapsed().as_secs()));
    Ok(())
}

fn report(line: &str) {
    // A closed standard error must not stop the build.
    writeln!(io::stderr(), "kollect-testbed: {line}").ok();
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::super::{ETCD, NATS};
    use super::*;

    #[test]
    fn a_missing_go_is_reported_with_what_to_install() {
        let error = check_go(OsStr::new("/nonexistent/go"), super::super::CONTROL_PLANE_MODULE)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("Go 1."), "{error}");
        assert!(error.contains("or newer is needed to build the servers"), "{error}");
        assert!(error.contains("https://go.dev/dl"), "{error}");
    }

    #[test]
    fn go_versions_are_compared_as_numbers() {
        assert!(is_older("go1.9.2", "1.26.0"));
        assert!(is_older("go1.25.9", "1.26.0"));
        assert!(!is_older("go1.26.8", "1.26.0"));
        assert!(!is_older("go2.0", "1.26.0"));
        assert!(!is_older("devel +abc", "1.26.0"));
    }

    #[test]
    fn kubernetes_is_linked_with_its_version() {
        let flags = linker_flags(super::super::KUBERNETES);
        let version = super::super::KUBERNETES.version();
        assert!(flags.contains(&format!("version.gitVersion={version} ")), "{flags}");
        assert!(flags.contains("version.gitMajor=1 "), "{flags}");
    }

    /// Replaces a build: creates files that count as programs.
    fn create_fake_programs(bundle: Bundle, cache: &Path) {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = bundle.directory(cache);
        fs::create_dir_all(&directory).unwrap();
        for (file, _) in bundle.programs {
            fs::write(directory.join(file), "x").unwrap();
            fs::set_permissions(directory.join(file), fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_bundle_is_built_once_for_many_callers() {
        for order in [BuildOrder::SideBySide, BuildOrder::OneByOne] {
            let cache = tempfile::tempdir().unwrap();
            let names = Mutex::new(Vec::new());
            let build = |bundle: Bundle, cache: &Path| {
                names.lock().unwrap().push(bundle.name);
                create_fake_programs(bundle, cache);
                Ok(())
            };
            thread::scope(|spawner| {
                for _ in 0..4 {
                    spawner.spawn(|| build_all(&[ETCD, NATS], cache.path(), order, build).unwrap());
                }
            });
            let mut names = names.into_inner().unwrap();
            names.sort_unstable();
            assert_eq!(names, ["etcd", "nats"], "{order:?}");
        }
    }

    #[test]
    fn bundles_are_built_side_by_side_only_if_requested() {
        for (order, max_parallel) in [(BuildOrder::SideBySide, 2), (BuildOrder::OneByOne, 1)] {
            let cache = tempfile::tempdir().unwrap();
            // Number of builds that run, and the highest number so far.
            let (running, change) = (Mutex::new((0, 0)), Condvar::new());
            let build = |bundle: Bundle, cache: &Path| {
                let mut state = running.lock().unwrap();
                state.0 += 1;
                state.1 = state.0.max(state.1);
                change.notify_all();
                // Waits for the other build; the limit is reached only if the test fails.
                let limit = Duration::from_mins(1);
                let (mut state, _) =
                    change.wait_timeout_while(state, limit, |state| state.1 < max_parallel).unwrap();
                state.0 -= 1;
                drop(state);
                create_fake_programs(bundle, cache);
                Ok(())
            };
            build_all(&[ETCD, NATS], cache.path(), order, build).unwrap();
            assert_eq!(running.into_inner().unwrap(), (0, max_parallel), "{order:?}");
        }
    }

    #[test]
    fn an_error_is_returned_after_all_builds_have_ended() {
        let cache = tempfile::tempdir().unwrap();
        let build = |bundle: Bundle, cache: &Path| match bundle.name {
            "etcd" => Err(Error::Io { action: "build etcd".into(), source: io::ErrorKind::Other.into() }),
            _ => {
                create_fake_programs(bundle, cache);
                Ok(())
            }
        };
        let error = build_all(&[ETCD, NATS], cache.path(), BuildOrder::SideBySide, build).unwrap_err();
        assert_eq!(error.to_string(), "could not build etcd");
        assert!(NATS.is_complete(cache.path()));
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo =
            "MemTotal:       24599740 kB\nMemFree:  1 kB\nMemAvailable:   23068672 kB\nBuffers: 1 kB\n";
        assert_eq!(parse_available(meminfo), Some(23_068_672 << 10));
        assert_eq!(parse_available("MemTotal: 1 kB\n"), None);
    }
}
