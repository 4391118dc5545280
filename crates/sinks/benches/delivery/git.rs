//! A branch with many files behind a web server, compared with the `git` program and the same tree.

use std::{
    fs,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kollect_model::{
    batch::{Batch, ChangedRow, Delta, InventoryId},
    claim::Claimant,
    row::{Row, RowKey},
    sink::{Sink, SinkSpec},
};
use kollect_sinks::{Plan, SinkPolicy, SinkSettings, Sinks, plan};
use kollect_testbed::{GitHttp, git::Repository};
use serde_json::{json, value::RawValue};

use crate::{rows, running};

/// What was measured.
pub(crate) struct Measured {
    /// `git add -A`, `git commit` and `git push` of the same tree, on an unpacked work tree.
    pub(crate) program: Duration,
    pub(crate) first: Duration,
    /// The time of each change of one file.
    pub(crate) changes: Vec<Duration>,
    /// The same with a repository in a directory.
    pub(crate) in_directory: Vec<Duration>,
    /// The most objects that one change has sent.
    pub(crate) objects: usize,
    /// Bytes of the mirror after the first export, and its maximum later.
    pub(crate) mirror: (u64, u64),
    /// Maximum of additional bytes in memory during the export.
    pub(crate) memory: u64,
}

pub(crate) async fn measure(files: usize, changes: usize) -> Result<Measured> {
    let server = GitHttp::start()?;
    let directory = tempfile::tempdir()?;
    let mirrors = directory.path().join("mirrors");
    let sinks = Sinks::new(&SinkSettings { mirrors: Some(mirrors.clone()), ..SinkSettings::default() });
    let (ours, theirs) = (server.create("ours")?, server.create("theirs")?);
    // Objects are counted, so they must not be packed.
    ours.git(&["config", "receive.autogc", "false"])?;
    let spec = json!({
        "type": "git",
        "endpoint": server.open_url("ours"),
        "tls": { "caBundle": STANDARD.encode(&server.certificates().ca) },
        "layout": { "mode": "perResource" },
    });
    let sink = sinks.open(&planned(spec)?, &SinkPolicy::default()).await?;
    let inventory = running::inventory();
    let claim = sink.claim(&inventory, &Claimant::default()).await?;
    let delta = Delta { added: (0..files).map(|index| row(index, 0)).collect(), ..Delta::default() };
    fs::write("/proc/self/clear_refs", "5").ok();
    let before = status("VmRSS:")?;
    let began = Instant::now();
    sink.write(&Batch::new(&inventory, &claim, &delta)).await?;
    let first = began.elapsed();
    let program = program(&ours, &theirs, directory.path())?;
    let first_size = size(&mirrors)?;
    let (mut times, mut max_size) = (Vec::new(), first_size);
    let mut sent = 0;
    for number in 0..changes {
        let delta = change(number % files, number);
        let objects = objects(&ours)?;
        let began = Instant::now();
        write(&*sink, &inventory, &claim, &delta).await?;
        times.push(began.elapsed());
        sent = sent.max(self::objects(&ours)?.saturating_sub(objects));
        max_size = max_size.max(size(&mirrors)?);
    }
    let memory = status("VmHWM:")?.saturating_sub(before);
    let in_directory = in_a_directory(&sinks, &delta, directory.path(), changes / 10).await?;
    ours.fsck()?;
    Ok(Measured {
        program,
        first,
        changes: times,
        in_directory,
        objects: sent,
        mirror: (first_size, max_size),
        memory,
    })
}

fn planned(spec: serde_json::Value) -> Result<Plan> {
    let spec = SinkSpec::Snapshot(serde_json::from_value(spec)?);
    plan(&spec).map_err(|errors| anyhow::anyhow!("{errors:?}"))
}

/// Changes one file after the other in a repository in a directory.
async fn in_a_directory(
    sinks: &Sinks,
    fill: &Delta,
    directory: &Path,
    changes: usize,
) -> Result<Vec<Duration>> {
    let endpoint = format!("file://{}", directory.join("here.git").display());
    let spec = json!({ "type": "git", "endpoint": endpoint, "layout": { "mode": "perResource" } });
    let sink = sinks.open(&planned(spec)?, &SinkPolicy::default()).await?;
    let inventory = running::inventory();
    let claim = sink.claim(&inventory, &Claimant::default()).await?;
    write(&*sink, &inventory, &claim, fill).await?;
    let mut times = Vec::new();
    for number in 0..changes {
        let delta = change(number, number);
        let began = Instant::now();
        write(&*sink, &inventory, &claim, &delta).await?;
        times.push(began.elapsed());
    }
    Ok(times)
}

async fn write(
    sink: &dyn Sink,
    inventory: &InventoryId,
    claim: &kollect_model::claim::Claim,
    delta: &Delta,
) -> Result<()> {
    sink.write(&Batch::new(inventory, claim, delta)).await?;
    Ok(())
}

fn change(index: usize, number: usize) -> Delta {
    let changed = ChangedRow { before: Some(row(index, number)), after: row(index, number + 1) };
    Delta { changed: vec![changed], ..Delta::default() }
}

/// A Deployment in one of a hundred namespaces.
fn row(index: usize, edition: usize) -> Arc<Row> {
    let key = RowKey {
        target: rows::target(),
        group: "apps".into(),
        kind: "Deployment".into(),
        namespace: format!("shop-{:02}", index % 100).into(),
        uid: rows::uid(index).into(),
    };
    let attributes = json!({
        "image": format!("registry.example.com/shop/cart-{index}:1.{edition}"),
        "replicas": index % 7,
        "labels": { "app": format!("cart-{index}"), "team": "shop", "tier": "web" },
        "strategy": "RollingUpdate",
    });
    let attributes = RawValue::from_string(attributes.to_string()).expect("JSON is JSON");
    Arc::new(Row::new(key, "v1".into(), format!("cart-{index}").into(), attributes.into()))
}

/// Commits and pushes the same tree with the `git` program.
fn program(ours: &Repository, theirs: &Repository, directory: &Path) -> Result<Duration> {
    let work = directory.join("work");
    let shown = work.to_str().context("a directory without a name")?;
    git(directory, &["clone", "--quiet", ours.path().to_str().context("no name")?, shown])?;
    fs::remove_dir_all(work.join(".git"))?;
    git(&work, &["init", "--quiet", "--initial-branch=main"])?;
    let began = Instant::now();
    git(&work, &["add", "-A"])?;
    git(&work, &["commit", "--quiet", "--message", "all of them"])?;
    git(&work, &["push", "--quiet", theirs.path().to_str().context("no name")?, "main"])?;
    let took = began.elapsed();
    let tree = |repository: &Repository| repository.git(&["rev-parse", "main^{tree}"]);
    ensure!(tree(ours)? == tree(theirs)?, "the trees differ");
    Ok(took)
}

fn git(directory: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.current_dir(directory).args(["-c", "user.name=x", "-c", "user.email=x@example.com"]);
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
    let output = command.args(arguments).output()?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn objects(repository: &Repository) -> Result<usize> {
    let counts = repository.git(&["count-objects", "-v"])?;
    let count = |name: &str| -> Result<usize> {
        let line = counts.lines().find_map(|line| line.strip_prefix(name)).context("no count")?;
        Ok(line.trim().parse()?)
    };
    Ok(count("count:")? + count("in-pack:")?)
}

fn size(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

fn status(name: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}
