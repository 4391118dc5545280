//! `kollect` as a process of its own, and what the kernel knows about it.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

/// Many times longer than any step takes.
const TIMEOUT: Duration = Duration::from_mins(10);
/// The unit of CPU times in `/proc`: hundredths of a second on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// A running `kollect`; dropping it ends it.
pub(crate) struct KollectProcess {
    child: Child,
    began: Instant,
    stderr: Receiver<(Instant, String)>,
    stdout: Receiver<(Instant, String)>,
}

/// Resident memory in bytes.
pub(crate) struct Memory {
    pub(crate) now: usize,
    pub(crate) peak: usize,
}

/// A line that was waited for.
pub(crate) struct Printed {
    pub(crate) at: Instant,
    /// How many lines there were, up to this one.
    pub(crate) lines: usize,
}

impl KollectProcess {
    /// Starts `kollect watch` with manifests.
    pub(crate) fn start(manifests: &Path, kubeconfig: &Path) -> Result<Self> {
        Self::spawn(&["watch".as_ref(), "-f".as_ref(), manifests, "--kubeconfig".as_ref(), kubeconfig])
    }

    /// Starts the program with arguments.
    pub(crate) fn spawn(arguments: &[&Path]) -> Result<Self> {
        Self::spawn_with(arguments, &[])
    }

    /// Like [`Self::spawn`], with variables of the environment. `KOLLECT` may name another build of the program to
    /// compare with.
    pub(crate) fn spawn_with(arguments: &[&Path], variables: &[(&str, &str)]) -> Result<Self> {
        let began = Instant::now();
        let program = std::env::var_os("KOLLECT").unwrap_or_else(|| env!("CARGO_BIN_EXE_kollect").into());
        let mut child = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kollect")?;
        let stderr = read_lines(child.stderr.take().context("no standard error")?);
        let stdout = read_lines(child.stdout.take().context("no standard output")?);
        Ok(Self { child, began, stderr, stdout })
    }

    /// Waits until the program has listed all objects, which must be so many rows. Returns how long it took.
    pub(crate) fn wait_until_synced(&mut self, rows: usize) -> Result<Duration> {
        let (at, line) = wait_for_line(&self.stderr, |line| line.starts_with("watching "))?;
        let expected = format!("watching {rows} row");
        anyhow::ensure!(line.starts_with(&expected), "expected {rows} rows, but: {line}");
        Ok(at.duration_since(self.began))
    }

    /// Waits until it has printed a line with the text.
    pub(crate) fn wait_for_printed(&mut self, text: &str) -> Result<Printed> {
        let mut lines = 0;
        let (at, _) = wait_for_line(&self.stdout, |line| {
            lines += 1;
            line.contains(text)
        })?;
        Ok(Printed { at, lines })
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        let status = self.read_proc("status")?;
        let kilobytes = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().strip_suffix(" kB")?.parse::<usize>().ok()
        };
        let bytes = |name| kilobytes(name).map(|value| value * 1024).with_context(|| format!("no {name}"));
        Ok(Memory { now: bytes("VmRSS:")?, peak: bytes("VmHWM:")? })
    }

    /// CPU time until now.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        let stat = self.read_proc("stat")?;
        // The name of the program may contain anything; after it come numbers.
        let (_, numbers) = stat.rsplit_once(')').context("no end of the name")?;
        let ticks = numbers.split_whitespace().skip(11).take(2).map(str::parse::<u32>);
        Ok(TICK * ticks.sum::<Result<u32, _>>()?)
    }

    /// Id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn read_proc(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/{name}", self.id());
        fs::read_to_string(&path).with_context(|| format!("read {path}; kollect has ended?"))
    }
}

impl Drop for KollectProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill().and_then(|()| self.child.wait()));
    }
}

/// Lines with the time at which they came, read by a thread so that the program never waits.
fn read_lines(stream: impl Read + Send + 'static) -> Receiver<(Instant, String)> {
    let (sender, receiver) = channel();
    let forward_lines = |sender: Sender<_>| {
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        drop(lines.try_for_each(|line| sender.send((Instant::now(), line))));
    };
    thread::spawn(|| forward_lines(sender));
    receiver
}

fn wait_for_line(
    lines: &Receiver<(Instant, String)>,
    mut matches: impl FnMut(&str) -> bool,
) -> Result<(Instant, String)> {
    let (deadline, mut last) = (Instant::now() + TIMEOUT, String::new());
    loop {
        let remaining = deadline.saturating_duration_since(Instant::now());
        let (at, line) = lines.recv_timeout(remaining).map_err(|error| anyhow!("{error}; last: {last}"))?;
        if matches(&line) {
            return Ok((at, line));
        }
        last = line;
    }
}
