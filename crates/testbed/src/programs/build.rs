//! Builds the Go programs that the cache lacks.
//!
//! Called by [`super::Programs`]. One process builds at a time, under a lock file in the cache; the
//! others wait and find the result. The build runs under a guard, so it ends with us, and its
//! temporary files are in a directory that is removed then. Progress goes straight to standard error,
//! past the capture of the test harness: a test that seems to hang for minutes would be stopped.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Bundle, Pins};
use crate::{Error, Scratch, Server, Stop};

const REPORT_EVERY: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(100);

/// Builds each bundle that is not complete in `cache`.
pub(super) fn build_missing(bundles: &[Bundle], cache: &Path) -> Result<(), Error> {
    if bundles.iter().all(|bundle| bundle.is_complete(cache)) {
        return Ok(());
    }
    for bundle in bundles {
        check_go(OsStr::new("go"), bundle.pins)?;
    }
    fs::create_dir_all(cache).map_err(Error::io(format!("create {}", cache.display())))?;
    let _lock = lock(&cache.join("lock"))?;
    for bundle in bundles {
        if !bundle.is_complete(cache) {
            build(*bundle, cache)?;
        }
    }
    Ok(())
}

/// Waits for the lock; it is given back when the file is dropped, or when this process ends.
fn lock(path: &Path) -> Result<File, Error> {
    let action = || format!("lock {}", path.display());
    let file = File::create(path).map_err(Error::io(action()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => report("waiting for another process that builds"),
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
    // Asked inside the module, so that a Go which fetches newer toolchains by itself counts as new.
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

/// Compares major and minor; a version that cannot be read is left for `go build` to judge.
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
    // What an earlier build left when it was killed.
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
        .arg(format!("-ldflags={}", linker_flags(bundle)))
        .arg("-o");
    match bundle.programs {
        // Alone, a program is named by us: etcd's package is called "server".
        [(file, _)] => command.arg(staging.join(file)),
        // With the final slash Go takes it for a directory.
        _ => command.arg(staging.join("")),
    };
    command
        .args(bundle.programs.iter().map(|(_, package)| package))
        .current_dir(bundle.pins.directory)
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off");
    command
}

/// Kubernetes takes its version from the linker; without it kubectl refuses to work.
fn linker_flags(bundle: Bundle) -> String {
    const STAMP: &str = "k8s.io/component-base/version";
    let version = bundle.version();
    let mut numbers = version.trim_start_matches('v').split('.');
    let major = numbers.next().unwrap_or_default();
    let minor = numbers.next().unwrap_or_default();
    // The stamps name a package that etcd does not link, where they have no effect.
    format!(
        "-s -w -X {STAMP}.gitVersion={version} -X {STAMP}.gitMajor={major} \
         -X {STAMP}.gitMinor={minor}"
    )
}

fn run(name: &str, mut command: Command) -> Result<(), Error> {
    let scratch = Scratch::new()?;
    // Go does not remove its own temporary files when it is killed.
    command.env("GOTMPDIR", scratch.path());
    let mut build = Server::start(&scratch, name, Stop::Kill, &command)?;
    let started = Instant::now();
    let mut next_report = REPORT_EVERY;
    while build.running()? {
        if started.elapsed() >= next_report {
            report(&format!("{name}: {} s", next_report.as_secs()));
            next_report += REPORT_EVERY;
        }
        sleep(POLL);
    }
    report(&format!("{name}: done after {} s", started.elapsed().as_secs()));
    Ok(())
}

fn report(line: &str) {
    // Nobody to tell if standard error is closed.
    writeln!(io::stderr(), "kollect-testbed: {line}").ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_go_says_what_to_install() {
        let error =
            check_go(OsStr::new("/nonexistent/go"), super::super::CONTROL_PLANE).unwrap_err().to_string();
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
    fn kubernetes_is_stamped_with_its_version() {
        let flags = linker_flags(super::super::KUBERNETES);
        let version = super::super::KUBERNETES.version();
        assert!(flags.contains(&format!("version.gitVersion={version} ")), "{flags}");
    }
}
