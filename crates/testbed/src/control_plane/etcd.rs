//! etcd: its start, and the compaction of its history.
//!
//! Called by the control plane at start, and by tests of clients whose resource version has expired.
//! Requests go to etcd's JSON gateway, which is on the same socket as everything else. They are HTTP/1.0,
//! so that the response ends with the connection and is never chunked.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::{ControlPlane, flag};
use crate::{Error, Programs, Scratch};

/// Enough to compact a very long history; it usually takes milliseconds.
const ANSWER_LIMIT: Duration = Duration::from_mins(1);

/// `kollect-testbed` in base64. It is no key of an object: those are all below `/registry`.
const OWN_KEY: &str = "a29sbGVjdC10ZXN0YmVk";

impl ControlPlane {
    /// Forgets every revision but the newest, on disk too. Objects stay as they are.
    ///
    /// The API server remembers some history by itself, so stop it before and start it afterwards:
    /// then watches and lists from an older resource version fail. The restart alone is enough
    /// for watches.
    pub fn compact_etcd(&self) -> Result<(), Error> {
        compact(&socket(&self.scratch)).map_err(Error::io("compact etcd"))
    }
}

pub(super) fn socket(scratch: &Scratch) -> PathBuf {
    scratch.path().join("etcd.sock")
}

pub(super) fn command(programs: &Programs, scratch: &Scratch) -> Command {
    let mut command = Command::new(&programs.etcd);
    command.arg("--unsafe-no-fsync").args([
        flag("data-dir", scratch.path().join("etcd").display()),
        flag("listen-client-urls", format_args!("unix://{}", socket(scratch).display())),
        // Neither address is used. etcd accepts no sockets here.
        flag("advertise-client-urls", "http://127.0.0.1:0"),
        flag("listen-peer-urls", "http://127.0.0.1:0"),
        flag("log-level", "warn"),
        // The default of 2 GiB is too small for a bench with 100,000 large objects and their history.
        flag("quota-backend-bytes", 8_u64 << 30),
    ]);
    command
}

fn compact(socket: &Path) -> io::Result<()> {
    // A write and not a read, because the same revision cannot be compacted twice.
    let written = request(socket, "/v3/kv/put", &json!({ "key": OWN_KEY, "value": "" }))?;
    let revision = &written["header"]["revision"];
    request(socket, "/v3/kv/compaction", &json!({ "revision": revision, "physical": true })).map(drop)
}

fn request(socket: &Path, path: &str, body: &Value) -> io::Result<Value> {
    let body = body.to_string();
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    write!(stream, "POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.split_once("\r\n\r\n") {
        Some((head, answer)) if head.starts_with("HTTP/1.0 200 ") => Ok(serde_json::from_str(answer)?),
        _ => Err(io::Error::other(response)),
    }
}
