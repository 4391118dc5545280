//! An HTTP/1.1 proxy in front of the API server that simulates network faults.
//!
//! Called by tests of what clients do when connections end, hang or are answered with errors. Clients
//! speak plain HTTP to it, so their kubeconfig names an `http://` server; it speaks TLS to the API
//! server. A connection carries one request, and the response is passed on as it arrives, because
//! watches are streams. One thread per connection relays, and another one notices that the client has
//! disconnected; all have ended when the proxy is dropped.
//!
//! kubectl does not send its token over plain HTTP, so it is anonymous through the proxy. The Rust
//! client sends its token.

mod connections;
mod lag;
mod request;
mod rules;
mod upstream;

use std::fmt;
use std::fs;
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use serde_json::{Value, json};

use crate::{ControlPlane, Error, Scratch};
use connections::{ProxyConnection, ProxyConnections};
pub use lag::RecordedList;
use request::Request;
pub use rules::FailureMoment;
use rules::{Answer, PlannedFailure, RequestHandling, Rules};
use upstream::Upstream;

/// Pause after a connection could not be accepted, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A running proxy; dropping it closes its port and all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    scratch: Scratch,
    /// Taken when the proxy is dropped.
    acceptor: Option<JoinHandle<()>>,
}

/// State that the threads share.
struct Shared {
    connections: ProxyConnections,
    rules: Rules,
    upstream: Upstream,
}

impl Proxy {
    /// Starts a proxy that passes everything on, on a free loopback port. It survives restarts of the
    /// API server, whose address stays the same.
    pub fn start(plane: &ControlPlane) -> Result<Self, Error> {
        let upstream = Upstream::new(plane).map_err(Error::io("trust the API server"))?;
        let shared =
            Arc::new(Shared { connections: ProxyConnections::default(), rules: Rules::default(), upstream });
        let scratch = Scratch::new()?;
        let action = "start a proxy";
        let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(Error::io(action))?;
        let address = listener.local_addr().map_err(Error::io(action))?;
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new().spawn(move || shared.accept(&listener)).map_err(Error::io(action))?
        };
        Ok(Self { shared, address, scratch, acceptor: Some(acceptor) })
    }

    /// The address for clients, with the scheme `http`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A copy of a kubeconfig of the control plane, with this proxy as the server.
    pub fn kubeconfig(&self, original: &Path) -> Result<PathBuf, Error> {
        let action = || format!("read the kubeconfig {}", original.display());
        let text = fs::read_to_string(original).map_err(Error::io(action()))?;
        let mut config: Value =
            serde_json::from_str(&text).map_err(io::Error::from).map_err(Error::io(action()))?;
        let no_cluster = || io::Error::new(io::ErrorKind::InvalidData, "it names no cluster");
        let cluster = config.pointer_mut("/clusters/0/cluster").ok_or_else(no_cluster);
        *cluster.map_err(Error::io(action()))? = json!({ "server": self.url() });
        let name = original.file_name().unwrap_or_default().to_string_lossy();
        self.scratch.write(&name, format!("{config:#}\n"))
    }

    /// Closes all connections that are open now. New ones work.
    pub fn cut(&self) {
        self.shared.connections.cut();
    }

    /// While true, new connections are closed at once; those that are open are closed now.
    pub fn refuse(&self, enabled: bool) {
        self.shared.connections.refuse(enabled);
    }

    /// While true, connections stay open, also those that the API server ends, but no byte passes on
    /// any of them. Afterwards all continue. A client that disconnects meanwhile is noticed.
    ///
    /// Requests are still logged when they reach the proxy.
    pub fn stall(&self, enabled: bool) {
        self.shared.connections.stall(enabled);
    }

    /// Holds back requests whose request line satisfies `when`, as [`Self::stall`] does with all of them,
    /// until [`Self::release`]. Those that came before are not held.
    pub fn hold(&self, when: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.shared.connections.hold(Box::new(when));
    }

    /// Lets all requests that are held go on.
    pub fn release(&self) {
        self.shared.connections.release();
    }

    /// Answers the next `times` requests whose request line satisfies `when`, instead of forwarding
    /// them. A request line is like `GET /apis/apps/v1/deployments?watch=true HTTP/1.1`. If several
    /// answers match, the one that was added first is used. `Content-Length` is added to `headers`.
    pub fn answer(
        &self,
        times: usize,
        when: impl Fn(&str) -> bool + Send + Sync + 'static,
        status: u16,
        headers: &[(&str, &str)],
        body: &str,
    ) {
        let answer = Answer::Response(request::response(status, headers, body));
        self.shared.rules.add(times, Box::new(when), answer);
    }

    /// Lets the next `times` requests whose request line satisfies `when` wait for an answer that never
    /// comes; [`Proxy::cut`] ends that.
    pub fn ignore(&self, times: usize, when: impl Fn(&str) -> bool + Send + Sync + 'static) {
        self.shared.rules.add(times, Box::new(when), Answer::NoResponse);
    }

    /// Makes one request fail: the `number`th, from 1, of those from now on whose request line satisfies
    /// `when`. Its connection is closed without an answer. `on_failure` is called at `moment`, and has
    /// returned before the connection is closed: it may end the client.
    pub fn fail_nth(
        &self,
        number: usize,
        when: impl Fn(&str) -> bool + Send + Sync + 'static,
        moment: FailureMoment,
        on_failure: impl FnOnce() + Send + 'static,
    ) {
        self.shared.rules.plan_failure(
            number,
            Box::new(when),
            PlannedFailure { moment, on_failure: Box::new(on_failure) },
        );
    }

    /// The request lines of all requests so far, in the order in which they arrived.
    pub fn requests(&self) -> Vec<String> {
        self.shared.rules.requests()
    }

    /// How many requests are being relayed now. A watch counts until one side ends it; any other
    /// request counts for a moment longer than its client waits for the response.
    pub fn open(&self) -> usize {
        self.shared.connections.relayed_count()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("url", &self.url()).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.connections.stop();
        // Wakes the acceptor, which then sees that the proxy has stopped.
        if TcpStream::connect(self.address).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            // A failure means that a condition of a rule has panicked, which has been reported.
            acceptor.join().ok();
        }
    }
}

impl Shared {
    /// Returns when all threads that it has started have ended.
    fn accept(&self, listener: &TcpListener) {
        thread::scope(|spawner| {
            for client in listener.incoming() {
                if self.connections.stopped() {
                    break;
                }
                match client.and_then(|client| self.connections.admit(client)) {
                    // A failure is not reported here: the client sees that its connection is closed.
                    Ok(Some(connection)) => drop(spawner.spawn(move || self.serve(&connection).ok())),
                    Ok(None) => {}
                    Err(_) => sleep(ACCEPT_PAUSE),
                }
            }
        });
    }

    fn serve(&self, connection: &ProxyConnection<'_>) -> io::Result<()> {
        let request = Request::read(&mut BufReader::new(connection.client()))?;
        let handling = self.rules.handling_of(&request.line);
        connection.hold_if_matched(&request.line);
        thread::scope(|spawner| {
            spawner.spawn(|| connection.wait_for_disconnect());
            let outcome = match handling {
                RequestHandling::Answer(Answer::Response(answer)) => connection.client().write_all(&answer),
                // The thread of the scope waits until the client disconnects.
                RequestHandling::Answer(Answer::NoResponse) => return Ok(()),
                RequestHandling::Forward => self.relay(connection, &request, &mut connection.client()),
                RequestHandling::Fail(failure) => self.fail_request(connection, &request, failure),
            };
            connection.finish();
            outcome
        })
    }

    fn fail_request(
        &self,
        connection: &ProxyConnection<'_>,
        request: &Request,
        failure: PlannedFailure,
    ) -> io::Result<()> {
        let served = match failure.moment {
            FailureMoment::BeforeServer => Ok(()),
            FailureMoment::AfterServer => self.relay(connection, request, &mut io::sink()),
        };
        (failure.on_failure)();
        served
    }

    /// Writes what the API server answers to `client`.
    fn relay(
        &self,
        connection: &ProxyConnection<'_>,
        request: &Request,
        client: &mut impl Write,
    ) -> io::Result<()> {
        connection.count_as_relayed();
        let mut server = self.upstream.connect(connection)?;
        server.write_all(&request.bytes)?;
        server.flush()?;
        // Writes what one read has returned before it reads again.
        io::copy(&mut server, client).map(drop)
    }
}

#[cfg(test)]
mod tests;
