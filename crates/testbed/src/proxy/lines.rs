//! The open connections of a proxy, and whether bytes may pass.
//!
//! Called by the threads that relay, and by the test that breaks the network under them. A [`Line`]
//! is a client's connection together with the one to the API server, if there is one yet. Invariant:
//! bytes are written through [`Socket`] only, which waits for a [`Passage`] each time. A write lasts no
//! longer than [`WRITE_LIMIT`] even if the other side does not read, so a stall can wait for running writes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::rules::Condition;

const WRITE_LIMIT: Duration = Duration::from_millis(20);

/// All lines of a proxy.
#[derive(Default)]
pub(super) struct Lines {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Sockets>,
    /// Numbers the lines.
    admitted: u64,
    refused: bool,
    stalled: bool,
    /// Which requests are held back.
    held: Option<Condition>,
    stopped: bool,
    /// Writes under way.
    writing: usize,
}

#[derive(Debug)]
struct Sockets {
    client: Arc<TcpStream>,
    server: Option<Arc<TcpStream>>,
    relayed: bool,
    held: bool,
}

/// One connection of a client; dropping it closes it.
pub(super) struct Line<'a> {
    lines: &'a Lines,
    number: u64,
    client: Arc<TcpStream>,
}

/// One end of a line. Reads what has arrived; writes only when bytes may pass.
pub(super) struct Socket<'a> {
    line: &'a Line<'a>,
    stream: Arc<TcpStream>,
}

/// Permission to write. A stall begins when all of them are dropped.
struct Passage<'a>(&'a Lines);

impl Lines {
    /// A line for a new client, unless clients are refused.
    pub(super) fn admit(&self, client: TcpStream) -> io::Result<Option<Line<'_>>> {
        let client = prepared(client)?;
        let mut state = self.state();
        if state.refused || state.stopped {
            return Ok(None);
        }
        state.admitted += 1;
        let number = state.admitted;
        let sockets = Sockets { client: Arc::clone(&client), server: None, relayed: false, held: false };
        state.open.insert(number, sockets);
        Ok(Some(Line { lines: self, number, client }))
    }

    pub(super) fn cut(&self) {
        self.change(State::cut);
    }

    pub(super) fn refuse(&self, on: bool) {
        self.change(|state| {
            state.refused = on;
            if on {
                state.cut();
            }
        });
    }

    pub(super) fn stall(&self, on: bool) {
        self.change(|state| state.stalled = on);
        let under_way = |state: &mut State| state.stalled && state.writing > 0;
        drop(self.changed.wait_while(self.state(), under_way));
    }

    pub(super) fn hold(&self, when: Condition) {
        self.change(|state| state.held = Some(when));
    }

    pub(super) fn release(&self) {
        self.change(|state| {
            state.held = None;
            state.open.values_mut().for_each(|sockets| sockets.held = false);
        });
    }

    pub(super) fn stop(&self) {
        self.change(|state| {
            state.stopped = true;
            state.cut();
        });
    }

    pub(super) fn stopped(&self) -> bool {
        self.state().stopped
    }

    pub(super) fn relayed(&self) -> usize {
        self.state().open.values().filter(|sockets| sockets.relayed).count()
    }

    #[cfg(test)]
    pub(super) fn admitted(&self) -> u64 {
        self.state().admitted
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state());
        self.changed.notify_all();
        outcome
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cut(&mut self) {
        self.open.drain().for_each(|(_, sockets)| sockets.close());
    }
}

impl Sockets {
    /// Closes both sockets at once, also while another thread reads or writes.
    fn close(self) {
        for stream in [Some(self.client), self.server].into_iter().flatten() {
            // A failure means that the other side has closed it already.
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Line<'_> {
    /// The client's end.
    pub(super) fn client(&self) -> Socket<'_> {
        Socket { line: self, stream: Arc::clone(&self.client) }
    }

    /// Connects to the API server. Waits for the end of a stall first, so that the client sees no refusal meanwhile.
    pub(super) fn connect(&self, server: SocketAddr) -> io::Result<Socket<'_>> {
        let _passage = self.passage()?;
        let stream = prepared(TcpStream::connect(server)?)?;
        match self.lines.state().open.get_mut(&self.number) {
            Some(sockets) => sockets.server = Some(Arc::clone(&stream)),
            None => return Err(cut_off()),
        }
        Ok(Socket { line: self, stream })
    }

    pub(super) fn count_as_relayed(&self) {
        if let Some(sockets) = self.lines.state().open.get_mut(&self.number) {
            sockets.relayed = true;
        }
    }

    /// Holds the request back if [`Lines::hold`] asks for it: then no byte of it passes.
    pub(super) fn hold_if_meant(&self, request: &str) {
        let mut state = self.lines.state();
        let held = state.held.as_ref().is_some_and(|when| when(request));
        if let Some(sockets) = state.open.get_mut(&self.number) {
            sockets.held = held;
        }
    }

    /// Waits until the client has closed its connection, and closes the line.
    pub(super) fn until_client_leaves(&self) {
        // There is nothing to read: a connection has one request.
        io::copy(&mut self.client(), &mut io::sink()).ok();
        self.close();
    }

    /// Closes the line, but not during a stall.
    pub(super) fn finish(&self) {
        let _passage = self.passage();
        self.close();
    }

    fn close(&self) {
        let sockets = self.lines.change(|state| state.open.remove(&self.number));
        sockets.into_iter().for_each(Sockets::close);
    }

    /// Waits until bytes may pass; fails if the line is closed.
    fn passage(&self) -> io::Result<Passage<'_>> {
        let held = |state: &mut State| {
            state.open.get(&self.number).is_some_and(|sockets| state.stalled || sockets.held)
        };
        let state = self.lines.changed.wait_while(self.lines.state(), held);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if !state.open.contains_key(&self.number) {
            return Err(cut_off());
        }
        state.writing += 1;
        Ok(Passage(self.lines))
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.writing -= 1);
    }
}

impl Read for Socket<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self.stream).read(buffer)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let passage = self.line.passage()?;
            let outcome = (&*self.stream).write(bytes);
            drop(passage);
            // On a timeout the other side does not read. A stall can begin between two attempts.
            if !outcome.as_ref().is_err_and(is_timeout) {
                return outcome;
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Disables Nagle's algorithm, and limits the time of a write.
fn prepared(stream: TcpStream) -> io::Result<Arc<TcpStream>> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    Ok(Arc::new(stream))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn cut_off() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
