//! The open connections of a proxy, and whether bytes may pass.
//!
//! Called by the threads that relay, and by the test that simulates network faults. A [`ProxyConnection`] is a client's
//! connection together with the one to the API server, if there is one yet. Invariant: bytes are written through
//! [`Socket`] only, which waits for a [`WritePermit`] each time. A write lasts no longer than [`WRITE_LIMIT`] even if
//! the other side does not read, so a stall can wait for running writes.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::rules::RequestMatch;

const WRITE_LIMIT: Duration = Duration::from_millis(20);

/// All connections of a proxy.
#[derive(Default)]
pub(super) struct ProxyConnections {
    state: Mutex<ConnectionsState>,
    changed: Condvar,
}

#[derive(Default)]
struct ConnectionsState {
    open: HashMap<u64, Sockets>,
    /// Number of connections so far.
    admitted: u64,
    refused: bool,
    stalled: bool,
    /// Which requests are held back.
    held: Option<RequestMatch>,
    stopped: bool,
    /// Number of running writes.
    writing: usize,
}

#[derive(Debug)]
struct Sockets {
    client: Arc<TcpStream>,
    server: Option<Arc<TcpStream>>,
    is_relayed: bool,
    is_held: bool,
}

/// One connection of a client; dropping it closes it.
pub(super) struct ProxyConnection<'a> {
    connections: &'a ProxyConnections,
    number: u64,
    client: Arc<TcpStream>,
}

/// The client's or the server's end of a connection. Reads what has arrived; writes only when bytes may pass.
pub(super) struct Socket<'a> {
    connection: &'a ProxyConnection<'a>,
    stream: Arc<TcpStream>,
}

/// Permission to write. A stall begins when all of them are dropped.
struct WritePermit<'a>(&'a ProxyConnections);

impl ProxyConnections {
    /// Adds the connection of a new client, unless clients are refused.
    pub(super) fn admit(&self, client: TcpStream) -> io::Result<Option<ProxyConnection<'_>>> {
        let client = configure(client)?;
        let mut state = self.state();
        if state.refused || state.stopped {
            return Ok(None);
        }
        state.admitted += 1;
        let number = state.admitted;
        let sockets =
            Sockets { client: Arc::clone(&client), server: None, is_relayed: false, is_held: false };
        state.open.insert(number, sockets);
        Ok(Some(ProxyConnection { connections: self, number, client }))
    }

    pub(super) fn cut(&self) {
        self.change(ConnectionsState::cut);
    }

    pub(super) fn refuse(&self, enabled: bool) {
        self.change(|state| {
            state.refused = enabled;
            if enabled {
                state.cut();
            }
        });
    }

    pub(super) fn stall(&self, enabled: bool) {
        self.change(|state| state.stalled = enabled);
        let is_writing = |state: &mut ConnectionsState| state.stalled && state.writing > 0;
        drop(self.changed.wait_while(self.state(), is_writing));
    }

    pub(super) fn hold(&self, when: RequestMatch) {
        self.change(|state| state.held = Some(when));
    }

    pub(super) fn release(&self) {
        self.change(|state| {
            state.held = None;
            state.open.values_mut().for_each(|sockets| sockets.is_held = false);
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

    pub(super) fn relayed_count(&self) -> usize {
        self.state().open.values().filter(|sockets| sockets.is_relayed).count()
    }

    #[cfg(test)]
    pub(super) fn admitted(&self) -> u64 {
        self.state().admitted
    }

    fn change<T>(&self, change: impl FnOnce(&mut ConnectionsState) -> T) -> T {
        let outcome = change(&mut self.state());
        self.changed.notify_all();
        outcome
    }

    fn state(&self) -> MutexGuard<'_, ConnectionsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionsState {
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

impl ProxyConnection<'_> {
    /// The client's end.
    pub(super) fn client(&self) -> Socket<'_> {
        Socket { connection: self, stream: Arc::clone(&self.client) }
    }

    /// Connects to the API server. Waits for the end of a stall first, so that the client sees no refusal meanwhile.
    pub(super) fn connect(&self, server: SocketAddr) -> io::Result<Socket<'_>> {
        let _permit = self.wait_for_permit()?;
        let stream = configure(TcpStream::connect(server)?)?;
        match self.connections.state().open.get_mut(&self.number) {
            Some(sockets) => sockets.server = Some(Arc::clone(&stream)),
            None => return Err(connection_cut()),
        }
        Ok(Socket { connection: self, stream })
    }

    pub(super) fn count_as_relayed(&self) {
        if let Some(sockets) = self.connections.state().open.get_mut(&self.number) {
            sockets.is_relayed = true;
        }
    }

    /// Holds the request back if it matches the condition of [`ProxyConnections::hold`]: then no byte of it passes.
    pub(super) fn hold_if_matched(&self, request: &str) {
        let mut state = self.connections.state();
        let held = state.held.as_ref().is_some_and(|when| when(request));
        if let Some(sockets) = state.open.get_mut(&self.number) {
            sockets.is_held = held;
        }
    }

    /// Waits until the client has closed its connection, and closes both ends.
    pub(super) fn wait_for_disconnect(&self) {
        // There is nothing to read: a connection has one request.
        io::copy(&mut self.client(), &mut io::sink()).ok();
        self.close();
    }

    /// Closes both ends, but not during a stall.
    pub(super) fn finish(&self) {
        let _permit = self.wait_for_permit();
        self.close();
    }

    fn close(&self) {
        let sockets = self.connections.change(|state| state.open.remove(&self.number));
        sockets.into_iter().for_each(Sockets::close);
    }

    /// Waits until bytes may pass; fails if the connection is closed.
    fn wait_for_permit(&self) -> io::Result<WritePermit<'_>> {
        let held = |state: &mut ConnectionsState| {
            state.open.get(&self.number).is_some_and(|sockets| state.stalled || sockets.is_held)
        };
        let state = self.connections.changed.wait_while(self.connections.state(), held);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if !state.open.contains_key(&self.number) {
            return Err(connection_cut());
        }
        state.writing += 1;
        Ok(WritePermit(self.connections))
    }
}

impl Drop for ProxyConnection<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

impl Drop for WritePermit<'_> {
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
            let permit = self.connection.wait_for_permit()?;
            let outcome = (&*self.stream).write(bytes);
            drop(permit);
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
fn configure(stream: TcpStream) -> io::Result<Arc<TcpStream>> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    Ok(Arc::new(stream))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn connection_cut() -> io::Error {
    io::ErrorKind::ConnectionAborted.into()
}
