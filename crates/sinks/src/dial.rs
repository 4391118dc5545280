//! Which addresses a sink may connect to.
//!
//! The command line runs as its user and connects wherever that user may. The operator connects for
//! whoever may write a sink, so it keeps away from itself, from its node and from metadata services.
//! Names are resolved for every connection, and the connection goes to an address that was checked:
//! a name that changes its meaning in between wins nothing.

use std::{io, net::SocketAddr, time::Duration};

use kollect_model::sink::{SinkError, SinkReason};
use tokio::{net::TcpStream, time::timeout};

mod address;
mod cidr;
mod guard;
#[cfg(test)]
mod tests;

use address::spelled;
pub use cidr::Cidr;
pub use guard::{ApiServer, Guard, Refusal};

/// Where sinks may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Anywhere.
    #[default]
    Open,
    /// Public addresses, and what the operator's flags open.
    Guarded(Guard),
}

/// An answer of a resolver.
type Lookup = io::Result<Vec<SocketAddr>>;

impl Network {
    /// Checks a server as far as that goes without asking a resolver.
    pub fn check_server(&self, host: &str, port: u16) -> Result<(), Refusal> {
        match self {
            Self::Open => Ok(()),
            Self::Guarded(guard) => guard.check_server(host, port),
        }
    }

    /// The addresses of a host, all of them checked: one that is closed refuses the whole answer.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, ResolveError> {
        self.resolve_with(host, port, &lookup).await
    }

    async fn resolve_with<F: Future<Output = Lookup>>(
        &self,
        host: &str,
        port: u16,
        lookup: &impl Fn(String, u16) -> F,
    ) -> Result<Vec<SocketAddr>, ResolveError> {
        let found = |answer: Lookup| answer.map_err(ResolveError::Lookup);
        let Self::Guarded(guard) = self else {
            return some(found(lookup(unbracketed(host).to_owned(), port).await)?);
        };
        guard.check_server(host, port)?;
        // What is an address for the check is the same address for the connection.
        let answer = match spelled(&plain(host)) {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => found(lookup(unbracketed(host).to_owned(), port).await)?,
        };
        let mut api_server = Vec::new();
        for server in guard.api_servers.iter().filter(|server| server.port == port) {
            match spelled(&plain(&server.host)) {
                Some(address) => api_server.push(address),
                // Its addresses may change while the operator runs.
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
        some(answer)
    }

    /// A connection to the first address of a host that answers.
    pub async fn connect(&self, host: &str, port: u16, limit: Duration) -> Result<TcpStream, SinkError> {
        self.connect_with(None, host, port, limit, &lookup).await
    }

    /// The same for a server that errors call `shown` instead of by its name.
    pub async fn connect_as(
        &self,
        shown: Option<&str>,
        host: &str,
        port: u16,
        limit: Duration,
    ) -> Result<TcpStream, SinkError> {
        self.connect_with(shown, host, port, limit, &lookup).await
    }

    async fn connect_with<F: Future<Output = Lookup>>(
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
    Refused(Refusal),
    /// The resolver does not know it.
    Lookup(io::Error),
    /// The resolver knows no address of it.
    NoAddress,
    /// Where the API server is cannot be told, so that it could be this server.
    ApiServer(io::Error),
}

impl From<Refusal> for ResolveError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl ResolveError {
    /// The error of a sink that connects to a host, which is called `shown` instead if that is given.
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

fn some(answer: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, ResolveError> {
    if answer.is_empty() { Err(ResolveError::NoAddress) } else { Ok(answer) }
}

async fn lookup(host: String, port: u16) -> Lookup {
    #[expect(clippy::disallowed_methods, reason = "this is where names of servers are resolved")]
    let found = tokio::net::lookup_host((host.as_str(), port)).await;
    Ok(found?.collect())
}

/// A host as people compare them: without brackets, in lower case and without the dot of the root.
fn plain(host: &str) -> String {
    unbracketed(host).trim_end_matches('.').to_ascii_lowercase()
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}
