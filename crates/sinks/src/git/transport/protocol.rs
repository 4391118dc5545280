//! Version 0 of the Git protocol, independent of the transport.
//!
//! Each conversation is one request and one answer without negotiation, so that HTTP needs one round trip and
//! SSH cannot deadlock. All data that is read is bounded, except packs: these are passed on as they arrive.

use std::{collections::BTreeMap, fmt, io::Write};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use git2::Oid;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    AdvertisedRefs, RejectedPush,
    failure::{RefusalMeaning, TransportError},
};

/// Maximum size of an advertisement.
const ADVERTISEMENT_LIMIT: usize = 64 << 20;
/// Maximum size of a server's report about a push.
const REPORT_LIMIT: usize = 256 << 10;
/// Maximum size of a server's messages for people.
const MESSAGES_LIMIT: usize = 8 << 10;
/// Maximum length of a line, including its length field; defined by the protocol.
const LINE_LIMIT: usize = 65520;
/// Maximum number of known commits in a request: more make packs hardly smaller, and requests larger.
const HAVE_LIMIT: usize = 256;
/// Maximum number of pieces of a pack that wait to be written.
const MAX_WAITING_PIECES: usize = 16;
/// The size of a piece. Packs are sent in pieces, so that none is copied as a whole.
pub(super) const PIECE_BYTES: usize = 64 << 10;
pub(super) const AGENT: &str = "git/kollect";

/// A service of a Git server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    Fetch,
    Push,
}

impl Service {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Fetch => "git-upload-pack",
            Self::Push => "git-receive-pack",
        }
    }
}

/// A request to a service: lines, then a pack.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceRequest {
    pub(super) head: Bytes,
    pub(super) pack: Bytes,
}

/// A server of the protocol, over any transport.
#[async_trait]
pub(super) trait GitServer: fmt::Display + Send + Sync {
    /// Begins a conversation. The answer starts with the advertisement.
    async fn begin(
        &self,
        service: Service,
    ) -> Result<(Box<dyn Conversation + '_>, ServiceAnswer), TransportError>;
}

/// A conversation whose advertisement has been read.
#[async_trait]
pub(super) trait Conversation: Send {
    /// Sends the request, and returns the answer to it.
    async fn send(
        self: Box<Self>,
        service: Service,
        request: ServiceRequest,
        advertisement: ServiceAnswer,
    ) -> Result<ServiceAnswer, TransportError>;
}

/// Bytes of a server, as they arrive; `None` at the end.
#[async_trait]
pub(super) trait Chunks: Send {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError>;
}

/// An answer, line by line.
pub(super) struct ServiceAnswer {
    chunks: Box<dyn Chunks>,
    buffer: BytesMut,
}

/// A line, or a flush packet between lines.
#[derive(Debug, PartialEq, Eq)]
enum PacketLine {
    Flush,
    Data(Bytes),
}

impl ServiceAnswer {
    pub(super) fn new(chunks: impl Chunks + 'static) -> Self {
        Self { chunks: Box::new(chunks), buffer: BytesMut::new() }
    }

    /// The refs of a repository, and the capabilities of the server.
    pub(super) async fn advertisement(&mut self) -> Result<AdvertisedRefs, TransportError> {
        let mut lines = self.lines_until_flush().await?;
        // Over HTTP the first lines name the service.
        if lines.first().is_some_and(|line| line.starts_with(b"# service=")) {
            lines = self.lines_until_flush().await?;
        }
        let mut found = AdvertisedRefs { refs: BTreeMap::new(), head: None, capabilities: Vec::new() };
        for line in lines {
            if line.starts_with(b"version ") || line.starts_with(b"shallow ") {
                continue;
            }
            let text = str::from_utf8(&line).map_err(|_| NOT_GIT)?;
            let (reference, capabilities) = text.split_once('\0').unwrap_or((text, ""));
            found.capabilities.extend(capabilities.split_whitespace().map(str::to_owned));
            let (id, name) = reference.split_once(' ').ok_or(NOT_GIT)?;
            // Skip the targets of tags, objects that other repositories have, HEAD itself, and the placeholder line for
            // capabilities if there is no ref.
            if name.ends_with("^{}") || name == ".have" || name == "HEAD" {
                continue;
            }
            if id.len() == 64 {
                return Err(SHA256);
            }
            found.refs.insert(name.to_owned(), Oid::from_str(id).map_err(|_| NOT_GIT)?);
        }
        found.head = found.capability("symref=HEAD:").map(str::to_owned);
        if found.capability("object-format=").is_some_and(|format| format != "sha1") {
            return Err(SHA256);
        }
        Ok(found)
    }

    /// The answer to [`fetch_request`]: writes the pack to `into`. Returns the commits whose parents are missing.
    pub(super) async fn pack(
        mut self,
        deepened: bool,
        shallow: &[Oid],
        into: Box<dyn Write + Send>,
    ) -> Result<Vec<Oid>, TransportError> {
        let mut shallow = shallow.to_vec();
        if deepened {
            for line in self.lines_until_flush().await? {
                let text = str::from_utf8(&line).map_err(|_| NOT_GIT)?;
                let (word, id) = text.split_once(' ').ok_or(NOT_GIT)?;
                let id = Oid::from_str(id).map_err(|_| NOT_GIT)?;
                shallow.retain(|known| *known != id);
                match word {
                    "shallow" => shallow.push(id),
                    "unshallow" => {}
                    _ => return Err(NOT_GIT),
                }
            }
        }
        let writer = PackWriter::start(into);
        let received = async {
            loop {
                match self.line().await? {
                    PacketLine::Flush => return Ok(()),
                    PacketLine::Data(data) if data.starts_with(b"ACK ") || data.starts_with(b"NAK") => {}
                    PacketLine::Data(mut data) if data.first() == Some(&1) => {
                        if writer.pieces.send(data.split_off(1)).await.is_err() {
                            // The writer has failed; its error is returned below.
                            return Ok(());
                        }
                    }
                    PacketLine::Data(data) if data.first() == Some(&2) => {}
                    PacketLine::Data(data) if data.first() == Some(&3) => return Err(refusal(&data)),
                    PacketLine::Data(_) => return Err(NOT_GIT),
                }
            }
        };
        let received = received.await;
        let stored = writer.finish().await;
        received?;
        stored?;
        Ok(shallow)
    }

    /// The answer to [`push_request`].
    pub(super) async fn report(
        mut self,
        reference: &str,
    ) -> Result<Result<(), RejectedPush>, TransportError> {
        let (mut report, mut messages) = (BytesMut::new(), BytesMut::new());
        loop {
            match self.line().await {
                // A complete report counts even if the end marker is missing.
                Ok(PacketLine::Flush) | Err(TransportError::Ended) => break,
                Ok(PacketLine::Data(data)) => match data.first() {
                    Some(1) if report.len() + data.len() > REPORT_LIMIT => return Err(TOO_LONG),
                    Some(1) => report.extend_from_slice(&data[1..]),
                    // Messages for people, for example from a hook.
                    Some(2) if messages.len() + data.len() <= MESSAGES_LIMIT => {
                        messages.extend_from_slice(&data[1..]);
                    }
                    Some(2) => {}
                    Some(3) => return Err(refusal(&data)),
                    _ => return Err(NOT_GIT),
                },
                Err(failure) => return Err(failure),
            }
        }
        let mut report = Self { chunks: Box::new(EmptyStream), buffer: report };
        let mut outcome = None;
        for line in report.lines_until_flush().await? {
            let text = String::from_utf8_lossy(&line).into_owned();
            match text.split_once(' ') {
                Some(("unpack", "ok")) => {}
                Some(("unpack", why)) => {
                    return Err(TransportError::RefusedByServer(RefusalMeaning::of(why.as_bytes())));
                }
                Some(("ok", name)) if name == reference => outcome = Some(Ok(())),
                Some(("ng", status)) => {
                    let (name, why) = status.split_once(' ').unwrap_or((status, "refused"));
                    if name == reference {
                        outcome = Some(Err(rejection(why, &messages)));
                    }
                }
                // Option lines of the line above.
                _ => {}
            }
        }
        outcome.ok_or(TransportError::Ended)
    }

    /// Reads to the end of the answer, where nothing should be left: then the connection can be used again.
    pub(super) async fn end(mut self) {
        self.chunks.next().await.ok();
    }

    async fn lines_until_flush(&mut self) -> Result<Vec<Bytes>, TransportError> {
        let (mut lines, mut size) = (Vec::new(), 0);
        loop {
            match self.line().await? {
                PacketLine::Flush => return Ok(lines),
                PacketLine::Data(line) => {
                    size += line.len() + size_of::<Bytes>();
                    if size > ADVERTISEMENT_LIMIT {
                        return Err(TOO_LONG);
                    }
                    let end = line.strip_suffix(b"\n").map_or(line.len(), <[u8]>::len);
                    lines.push(line.slice(..end));
                }
            }
        }
    }

    async fn line(&mut self) -> Result<PacketLine, TransportError> {
        let length = self.take(4).await?;
        let length = str::from_utf8(&length).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        match length {
            Some(0) => Ok(PacketLine::Flush),
            Some(length @ 4..=LINE_LIMIT) => {
                let data = self.take(length - 4).await?;
                match data.strip_prefix(b"ERR ") {
                    Some(text) => Err(TransportError::RefusedByServer(RefusalMeaning::of(text))),
                    None => Ok(PacketLine::Data(data)),
                }
            }
            _ => Err(NOT_GIT),
        }
    }

    async fn take(&mut self, count: usize) -> Result<Bytes, TransportError> {
        while self.buffer.len() < count {
            match self.chunks.next().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Err(TransportError::Ended),
            }
        }
        Ok(self.buffer.split_to(count).freeze())
    }
}

const NOT_GIT: TransportError =
    TransportError::Malformed("the answer is not Git's protocol; is this the address of a repository?");
const SHA256: TransportError = TransportError::Malformed(
    "the repository names objects by SHA-256, which is not supported; make one with SHA-1",
);
const TOO_LONG: TransportError = TransportError::Malformed("the answer is larger than the limit");

/// The error of a server that has stopped with a message.
fn refusal(data: &[u8]) -> TransportError {
    TransportError::RefusedByServer(RefusalMeaning::of(data.get(1..).unwrap_or_default()))
}

/// An empty stream.
struct EmptyStream;

#[async_trait]
impl Chunks for EmptyStream {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        Ok(None)
    }
}

impl AdvertisedRefs {
    /// The value of the capability with this prefix.
    fn capability(&self, prefix: &str) -> Option<&str> {
        self.capabilities.iter().find_map(|capability| capability.strip_prefix(prefix))
    }

    fn require(&self, capability: &str) -> Result<(), TransportError> {
        if self.capabilities.iter().any(|found| found == capability) {
            return Ok(());
        }
        Err(TransportError::Malformed("the server is too old: it lacks side-band-64k or report-status"))
    }
}

/// Asks for a commit. There is no second request: the server sends everything that is not named as known.
pub(super) fn fetch_request(
    advertised: &AdvertisedRefs,
    want: Oid,
    have: &[Oid],
    depth: Option<u32>,
    shallow: &[Oid],
) -> Result<Bytes, TransportError> {
    advertised.require("side-band-64k")?;
    // Some servers require it. We accept any number of acknowledgements.
    let multi_ack = advertised.capability("multi_ack_detailed").map_or("", |_| " multi_ack_detailed");
    let mut request = Vec::new();
    write_line(
        &mut request,
        &format!("want {want}{multi_ack} side-band-64k ofs-delta no-progress agent={AGENT}\n"),
    );
    if depth.is_some() || !shallow.is_empty() {
        if advertised.capability("shallow").is_none() {
            return Err(TransportError::Malformed("the server cannot send a part of the history"));
        }
        for commit in shallow {
            write_line(&mut request, &format!("shallow {commit}\n"));
        }
        if let Some(depth) = depth {
            write_line(&mut request, &format!("deepen {depth}\n"));
        }
    }
    request.extend_from_slice(b"0000");
    for commit in have.iter().take(HAVE_LIMIT) {
        write_line(&mut request, &format!("have {commit}\n"));
    }
    write_line(&mut request, "done\n");
    Ok(request.into())
}

/// The lines before a pack.
pub(super) fn push_request(
    advertised: &AdvertisedRefs,
    reference: &str,
    old: Oid,
    new: Oid,
) -> Result<Bytes, TransportError> {
    advertised.require("report-status")?;
    advertised.require("side-band-64k")?;
    let mut request = Vec::new();
    let line = format!("{old} {new} {reference}\0 report-status side-band-64k agent={AGENT}");
    write_line(&mut request, &line);
    request.extend_from_slice(b"0000");
    Ok(request.into())
}

fn write_line(request: &mut Vec<u8>, line: &str) {
    request.extend_from_slice(format!("{:04x}{line}", line.len() + 4).as_bytes());
}

/// Why a ref has not moved, found by texts that servers are known to use. The texts of the server and of a hook
/// decide, and are not shown.
fn rejection(why: &str, messages: &[u8]) -> RejectedPush {
    let reason_text = why.to_ascii_lowercase();
    let all_texts = format!("{reason_text} {}", String::from_utf8_lossy(messages).to_ascii_lowercase());
    let has = |parts: &[&str]| parts.iter().any(|part| all_texts.contains(part));
    let concurrent_push = [
        "non-fast-forward",
        "fetch first",
        "stale info",
        "failed to lock",
        "cannot lock ref",
        "unable to lock",
        "failed to update ref",
        "reference already exists",
        "incorrect old value",
        "but expected",
    ];
    if concurrent_push.iter().any(|known| reason_text.contains(known)) {
        return RejectedPush::NonFastForward("the ref has moved meanwhile".into());
    }
    let explanation = if has(&["protected"]) {
        "the branch is protected"
    } else if reason_text.contains("hook declined") {
        "a hook of the server declined it"
    } else if has(&["prohibited", "denied", "permission", "not allowed", "forbidden", "deny updating"]) {
        "the server does not permit it"
    } else {
        "the server refused the ref"
    };
    RejectedPush::Refused(explanation.into())
}

/// Writes a pack on a thread that may block.
struct PackWriter {
    pieces: mpsc::Sender<Bytes>,
    task: JoinHandle<std::io::Result<()>>,
}

impl PackWriter {
    fn start(mut into: Box<dyn Write + Send>) -> Self {
        let (pieces, mut received) = mpsc::channel::<Bytes>(MAX_WAITING_PIECES);
        let task = tokio::task::spawn_blocking(move || {
            while let Some(piece) = received.blocking_recv() {
                into.write_all(&piece)?;
            }
            into.flush()
        });
        Self { pieces, task }
    }

    async fn finish(self) -> Result<(), TransportError> {
        drop(self.pieces);
        let stored = self.task.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        stored.map_err(TransportError::NotStored)
    }
}

#[cfg(test)]
mod tests;
