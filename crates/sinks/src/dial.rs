//! Which addresses a sink may connect to.
//!
//! The command line runs as its user and connects wherever that user may. The operator connects for
//! whoever may write a sink, so it keeps away from itself, from its node and from metadata services.
//! Names are resolved for every connection, and the connection goes to an address that was checked:
//! a name that changes its meaning in between wins nothing.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use kollect_model::sink::{SinkError, SinkReason};
use tokio::{net::TcpStream, time::timeout};

mod address;
mod cidr;
#[cfg(test)]
mod tests;

use address::{Class, class, embedded, spelled};
pub use cidr::Cidr;

/// Names of this machine.
const LOCAL_NAMES: &[&str] =
    &["localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"];
/// Names of metadata services: whoever reaches them has the credentials of the node.
const METADATA_NAMES: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// Where sinks may connect to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Anywhere.
    #[default]
    Open,
    /// Public addresses, and what the operator's flags open.
    Guarded {
        /// RFC 1918 and unique local addresses, by `--allow-private-sinks`.
        allow_private: bool,
        /// Ranges that are open whatever they are, by `--allow-sink-cidrs`.
        allowed: Vec<Cidr>,
    },
}

impl Network {
    /// Checks a host as far as that goes without asking anybody: names that stand for closed addresses,
    /// and addresses in every spelling that resolvers take.
    pub fn check_host(&self, host: &str) -> Result<(), String> {
        let Self::Guarded { allowed, .. } = self else { return Ok(()) };
        let name = plain(host);
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(format!("{host:?} is not the name of a host"));
        }
        if let Some(address) = spelled(&name) {
            return self.check_address(&name, address);
        }
        let opens = |addresses: &[IpAddr]| {
            allowed.iter().any(|range| addresses.iter().any(|address| range.contains(*address)))
        };
        let is_local = LOCAL_NAMES.contains(&&*name) || name.ends_with(".localhost");
        if is_local && !opens(&[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]) {
            return Err(format!(
                "{name} is this machine, which sinks may not reach; the operator's flag \
                 --allow-sink-cidrs=127.0.0.0/8,::1/128 opens it"
            ));
        }
        if METADATA_NAMES.contains(&&*name) && !opens(&[METADATA]) {
            return Err(format!(
                "{name} is a metadata service, which sinks may not reach; the operator's flag \
                 --allow-sink-cidrs={METADATA}/32 opens it"
            ));
        }
        Ok(())
    }

    /// The addresses of a host, all of them checked: one that is closed refuses the whole answer.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, SinkError> {
        self.check_host(host)
            .map_err(|why| SinkError::new(SinkReason::Forbidden, format!("connect to {host}: {why}")))?;
        let name = plain(host);
        // What is an address for the check is the same address for the connection.
        let guarded = matches!(self, Self::Guarded { .. });
        let answer = match spelled(&name).filter(|_| guarded) {
            Some(address) => vec![SocketAddr::new(address, port)],
            None => {
                #[expect(clippy::disallowed_methods, reason = "this is where names of servers are resolved")]
                let found = tokio::net::lookup_host((unbracketed(host), port)).await;
                let failed = |error| {
                    SinkError::because(SinkReason::Unreachable, format!("resolve the host {host}"), error)
                };
                found.map_err(failed)?.collect()
            }
        };
        self.checked(host, answer)
    }

    /// A connection to the first address of a host that answers.
    pub async fn connect(&self, host: &str, port: u16, limit: Duration) -> Result<TcpStream, SinkError> {
        let attempt = format!("connect to {host} port {port}");
        let connect = async {
            let mut last = None;
            for address in self.resolve(host, port).await? {
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
            let last = last.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
            Err(SinkError::because(SinkReason::Unreachable, attempt.clone(), last))
        };
        timeout(limit, connect).await.unwrap_or_else(|_| {
            let attempt = format!("{attempt}: no answer within {} s", limit.as_secs_f32());
            Err(SinkError::new(SinkReason::Unreachable, attempt))
        })
    }

    /// A resolver's answer, if it is good as a whole.
    fn checked(&self, host: &str, answer: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, SinkError> {
        for address in &answer {
            self.check_address(host, address.ip())
                .map_err(|why| SinkError::new(SinkReason::Forbidden, format!("connect to {host}: {why}")))?;
        }
        if answer.is_empty() {
            return Err(SinkError::new(
                SinkReason::Unreachable,
                format!("resolve the host {host}: no address"),
            ));
        }
        Ok(answer)
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), String> {
        let Self::Guarded { allow_private, allowed } = self else { return Ok(()) };
        // Several families of IPv6 addresses lead to an IPv4 address: both ends count.
        let inner = embedded(address);
        let (class, what) = class(address);
        let (class, what) =
            inner.map(IpAddr::V4).map_or((class, what), |inner| address::class(inner).max((class, what)));
        let opened = || {
            allowed.iter().any(|range| {
                range.contains(address) || inner.is_some_and(|inner| range.contains(inner.into()))
            })
        };
        let advice = match class {
            Class::Public => return Ok(()),
            Class::Private if *allow_private || opened() => return Ok(()),
            Class::Closed if opened() => return Ok(()),
            Class::Private => "the operator's flag --allow-private-sinks opens private addresses".to_owned(),
            Class::Closed => {
                let one = inner.map_or(address, IpAddr::V4);
                let bits = if one.is_ipv4() { 32 } else { 128 };
                format!("the operator's flag --allow-sink-cidrs={one}/{bits} opens it")
            }
            Class::Never => "nothing opens it".to_owned(),
        };
        let shown = address.to_string();
        let place = if shown == host { shown } else { format!("{host} is {shown}, and that") };
        Err(format!("{place} is {what}, which sinks may not reach; {advice}"))
    }
}

/// A host as people compare them: without brackets, in lower case and without the dot of the root.
fn plain(host: &str) -> String {
    unbracketed(host).trim_end_matches('.').to_ascii_lowercase()
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}
