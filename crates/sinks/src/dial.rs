//! Which addresses a sink may connect to.
//!
//! The command line runs as its user and connects wherever that user may. The operator connects on behalf of
//! every user who may write a sink, so it refuses its own addresses, those of its node and metadata services.
//! Names are resolved for every connection, and the connection goes to an address that was checked: a DNS
//! answer that changes afterwards has no effect.

use std::{io, net::SocketAddr, time::Duration};

use kollect_model::sink::{SinkError, SinkReason};
use tokio::{net::TcpStream, time::timeout};

mod address;
mod cidr;
mod guard;
#[cfg(test)]
mod tests;

use address::parse_spelling;
pub use cidr::Cidr;
pub use guard::{AddressGuard, ApiServer, RefusedAddress};

/// Where sinks may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Anywhere.
    #[default]
    Open,
    /// Public addresses, and those that the operator's flags allow.
    Guarded(AddressGuard),
}

/// An answer of a resolver.
type ResolvedAddresses = io::Result<Vec<SocketAddr>>;

impl Network {
    /// Checks a server without asking a resolver.
    pub fn check_server(&self, host: &str, port: u16) -> Result<(), RefusedAddress> {
        match self {
            Self::Open => Ok(()),
            Self::Guarded(guard) => guard.check_server(host, port),
        }
    }

    /// The addresses of a host, all of them checked: one closed address refuses all of them.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        self.resolve_with(host, port, &lookup).await
    }

    async fn resolve_with<F: Future<Output = ResolvedAddresses>>(
        &self,
        host: &str,
        port: u16,
        lookup: &impl Fn(String, u16) -> F,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let found = |answer: ResolvedAddresses| answer.map_err(ResolveError::Lookup);
        let Self::Guarded(guard) = self else {
            return not_empty(found(lookup(without_brackets(host).to_owned(), port).await)?);
        };
        guard.check_server(host, port)?;
        // Parsed as in the check above, so that the connection goes to the address that was checked.
        let answer = match parse_spelling(&normalized(host)) {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => found(lookup(without_brackets(host).to_owned(), port).await)?,
        };
        let mut api_server = Vec::new();
        for server in guard.api_servers.iter().filter(|server| server.port == port) {
            match parse_spelling(&normalized(&server.host)) {
                Some(address) => api_server.push(address),
                // Resolved every time: the addresses of the API server may change while the operator runs.
                None => {
                    let answer = lookup(server.host.clone(), port).await;
                    let answer = answer.map_err(ResolveError::ApiServer)?;
                    api_server.extend(answer.iter().map(SocketAddr::ip));
                }
            }
        }
        for address in &answer {
            guard.check_answer(host, *address, &api_server)?;
        }
        not_empty(answer)
    }

    /// A connection to the first address of a host that answers.
    pub async fn connect(&self, host: &str, port: u16, limit: Duration) -> Result<TcpStream, SinkError> {
        self.connect_with(None, host, port, limit, &lookup).await
    }

    /// Like [`connect`](Self::connect); errors name the server `shown` instead of its host name.
    pub async fn connect_as(
        &self,
        shown: Option<&str>,
        host: &str,
        port: u16,
        limit: Duration,
    ) -> Result<TcpStream, SinkError> {
        self.connect_with(shown, host, port, limit, &lookup).await
    }

    async fn connect_with<F: Future<Output = ResolvedAddresses>>(
        &self,
        shown: Option<&str>,
        host: &str,
        port: u16,
        limit: Duration,
        lookup: &impl Fn(String, u16) -> F,
    ) -> Result<TcpStream, SinkError> {
        let attempt = match shown {
            Some(shown) => format!("connect to {shown}"),
            None => format!("connect to {host} port {port}"),
        };
        let connect = async {
            let mut last = None;
            let addresses = self.resolve_with(host, port, lookup).await;
            for address in addresses.map_err(|error| error.into_sink_error(host, shown))? {
                #[expect(clippy::disallowed_methods, reason = "this is where servers are dialled")]
                let connected = TcpStream::connect(address).await;
                match connected {
                    Ok(stream) => {
                        stream.set_nodelay(true).ok();
                        return Ok(stream);
                    }
                    Err(error) => last = Some(error),
                }
            }
            let last = last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into());
            Err(SinkError::because(SinkReason::Unreachable, attempt.clone(), last))
        };
        timeout(limit, connect).await.unwrap_or_else(|_| {
            let attempt = format!("{attempt}: no answer within {} s", limit.as_secs_f32());
            Err(SinkError::new(SinkReason::Unreachable, attempt))
        })
    }
}

/// Why a host has no address that may be connected to.
#[derive(Debug)]
pub enum ResolveError {
    /// The server is closed.
    Refused(RefusedAddress),
    /// The resolver does not know it.
    Lookup(io::Error),
    /// The resolver knows no address of it.
    NoAddress,
    /// The API server cannot be resolved, so this server could be the API server.
    ApiServer(io::Error),
}

impl From<RefusedAddress> for ResolveError {
    fn from(refusal: RefusedAddress) -> Self {
        Self::Refused(refusal)
    }
}

impl ResolveError {
    /// The error of a sink that connects to a host. If `shown` is given, the error names the host `shown`.
    pub(crate) fn into_sink_error(self, host: &str, shown: Option<&str>) -> SinkError {
        let name = shown.unwrap_or(host);
        match self {
            Self::Refused(refusal) => {
                let why = if shown.is_some() { refusal.without_address() } else { refusal.to_string() };
                SinkError::new(SinkReason::Forbidden, format!("connect to {name}: {why}"))
            }
            Self::Lookup(error) => {
                SinkError::because(SinkReason::Unreachable, format!("resolve the host {name}"), error)
            }
            Self::NoAddress => {
                SinkError::new(SinkReason::Unreachable, format!("resolve the host {name}: no address"))
            }
            Self::ApiServer(error) => {
                let attempt = "resolve the host of the API server, which sinks may not reach";
                SinkError::because(SinkReason::Unreachable, attempt, error)
            }
        }
    }
}

fn not_empty(answer: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ResolveError> {
    if answer.is_empty() { Err(ResolveError::NoAddress) } else { Ok(answer) }
}

async fn lookup(host: String, port: u16) -> ResolvedAddresses {
    #[expect(clippy::disallowed_methods, reason = "this is where names of servers are resolved")]
    let found = tokio::net::lookup_host((host.as_str(), port)).await;
    Ok(found?.collect())
}

/// A host in the form that is compared: without brackets, in lower case and without the dot of the root.
fn normalized(host: &str) -> String {
    without_brackets(host).trim_end_matches('.').to_ascii_lowercase()
}

fn without_brackets(host: &str) -> &str {
    host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host)
}
