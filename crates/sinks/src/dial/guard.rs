//! What the operator's flags allow and deny for the sinks of one namespace, and the text of a refusal.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::{
    Cidr,
    address::{self, AddressKind, embedded, parse_spelling},
    normalized,
};

/// Names of this machine.
const LOCAL_NAMES: &[&str] =
    &["localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback"];
/// Names of metadata services: a client that reaches them can get the credentials of the node.
const METADATA_NAMES: &[&str] = &[
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "instance-data",
    "instance-data.ec2.internal",
];
const METADATA: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254));

/// What sinks of one namespace may connect to: public addresses, and those that the operator's flags allow.
#[derive(Clone, Debug, Default)]
pub struct AddressGuard {
    /// The namespace of the sinks. It is used in advice only and has no effect on decisions.
    pub namespace: String,
    /// RFC 1918 and unique local addresses, by `--allow-private-sinks`.
    pub allow_private: bool,
    /// Ranges that are always allowed, by `--allow-sink-cidrs`: those of all namespaces and those of this one.
    pub allowed: Vec<Cidr>,
    /// Ranges that are denied even if another flag allows them, by `--deny-sink-cidrs`.
    pub denied: Vec<Cidr>,
    /// The API server: always denied, at this port only.
    pub api_servers: Vec<ApiServer>,
}

/// Guards that allow the same servers are equal, also those of two namespaces: their sinks may share
/// connections.
impl PartialEq for AddressGuard {
    fn eq(&self, other: &Self) -> bool {
        let rules = |guard: &Self| {
            let Self { namespace: _, allow_private, allowed, denied, api_servers } = guard.clone();
            (allow_private, allowed, denied, api_servers)
        };
        rules(self) == rules(other)
    }
}

impl Eq for AddressGuard {}

/// A name or an address of the API server, and its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Why sinks may not connect to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedAddress {
    /// The server, with its address if that has been resolved.
    server: String,
    /// What kind of address or name the server is.
    what: String,
    /// Which flag allows it; empty if there is no advice.
    advice: String,
    /// The same advice without the address.
    general_advice: String,
}

impl RefusedAddress {
    fn new(server: impl Into<String>, what: impl Into<String>, advice: impl Into<String>) -> Self {
        let advice = advice.into();
        Self { server: server.into(), what: what.into(), general_advice: advice.clone(), advice }
    }

    /// The refusal for users who may not learn the address.
    pub fn without_address(&self) -> String {
        sentence("the server", &self.what, &self.general_advice)
    }
}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&sentence(&self.server, &self.what, &self.advice))
    }
}

fn sentence(server: &str, what: &str, advice: &str) -> String {
    if advice.is_empty() { format!("{server} {what}") } else { format!("{server} {what}; {advice}") }
}

impl AddressGuard {
    /// Checks a server without asking a resolver: names that stand for closed addresses, and addresses in every
    /// spelling that resolvers accept.
    pub(super) fn check_server(&self, host: &str, port: u16) -> Result<(), RefusedAddress> {
        let name = normalized(host);
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/') {
            return Err(RefusedAddress::new(format!("{host:?}"), "is not the name of a host", ""));
        }
        if let Some(address) = parse_spelling(&name) {
            self.check_address(&name, address)?;
        }
        let is_api_server = |server: &ApiServer| {
            let same = match (parse_spelling(&normalized(&server.host)), parse_spelling(&name)) {
                (Some(server), Some(address)) => is_same_host(server, address),
                _ => normalized(&server.host) == name,
            };
            same && server.port == port
        };
        if self.api_servers.iter().any(is_api_server) {
            return Err(api_server_refusal(&name));
        }
        let all_closed = |addresses: &[IpAddr]| !addresses.iter().any(|address| self.allows(*address, None));
        let is_local = LOCAL_NAMES.contains(&&*name) || name.ends_with(".localhost");
        if is_local && all_closed(&[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]) {
            let flag = self.flag(&["127.0.0.0/8", "::1/128"]);
            return Err(RefusedAddress {
                general_advice: self.general_advice(),
                ..RefusedAddress::new(name, "is this machine, which sinks may not reach", flag_advice(&flag))
            });
        }
        if METADATA_NAMES.contains(&&*name) && all_closed(&[METADATA]) {
            let flag = self.flag(&[&format!("{METADATA}/32")]);
            return Err(RefusedAddress {
                general_advice: self.general_advice(),
                ..RefusedAddress::new(
                    name,
                    "is a metadata service, which sinks may not reach",
                    flag_advice(&flag),
                )
            });
        }
        Ok(())
    }

    /// Checks a resolved address of a host. `api_server` are the addresses of the API server at this port.
    pub(super) fn check_answer(
        &self,
        host: &str,
        address: SocketAddr,
        api_server: &[IpAddr],
    ) -> Result<(), RefusedAddress> {
        self.check_address(host, address.ip())?;
        if api_server.iter().any(|known| is_same_host(*known, address.ip())) {
            return Err(api_server_refusal(host));
        }
        Ok(())
    }

    fn check_address(&self, host: &str, address: IpAddr) -> Result<(), RefusedAddress> {
        let shown = address.to_string();
        let server = if shown == host { shown } else { format!("{host} is {shown}, and that") };
        // Some IPv6 addresses embed an IPv4 address: both addresses are checked.
        let inner = embedded(address);
        if let Some(range) = self.denied.iter().find(|range| covers(range, address, inner)) {
            return Err(RefusedAddress {
                general_advice: String::new(),
                ..RefusedAddress::new(
                    server,
                    "is denied to sinks by the operator's flag --deny-sink-cidrs",
                    format!("it is in {range}"),
                )
            });
        }
        let (class, what) = address::class(address);
        let (class, what) =
            inner.map(IpAddr::V4).map_or((class, what), |inner| address::class(inner).max((class, what)));
        let advised = inner.map_or(address, IpAddr::V4);
        let advised_range = format!("{advised}/{}", if advised.is_ipv4() { 32 } else { 128 });
        let private = "the operator's flag --allow-private-sinks opens private addresses";
        let (advice, general_advice) = match class {
            AddressKind::Public => return Ok(()),
            AddressKind::Private if self.allow_private => return Ok(()),
            AddressKind::Private | AddressKind::Closed if self.allows(address, inner) => return Ok(()),
            AddressKind::Private => (
                format!("{private}, and {} this one", self.flag(&[&advised_range])),
                format!("{private}, and {} this one", self.flag(&["CIDR"])),
            ),
            AddressKind::Closed => (flag_advice(&self.flag(&[&advised_range])), self.general_advice()),
            AddressKind::Never => ("no flag allows it".to_owned(), "no flag allows it".to_owned()),
        };
        let what = format!("is {what}, which sinks may not reach");
        Err(RefusedAddress { server, what, advice, general_advice })
    }

    /// Whether a range allows an address and no range denies it.
    fn allows(&self, address: IpAddr, inner: Option<Ipv4Addr>) -> bool {
        let any_covers = |ranges: &[Cidr]| ranges.iter().any(|range| covers(range, address, inner));
        any_covers(&self.allowed) && !any_covers(&self.denied)
    }

    /// The flag that allows these ranges for the namespace.
    fn flag(&self, ranges: &[&str]) -> String {
        let entry = |range: &&str| match self.namespace.as_str() {
            "" => (*range).to_owned(),
            namespace => format!("{namespace}={range}"),
        };
        let entries: Vec<String> = ranges.iter().map(entry).collect();
        format!("--allow-sink-cidrs {}", entries.join(","))
    }

    fn general_advice(&self) -> String {
        flag_advice(&self.flag(&["CIDR"]))
    }
}

fn flag_advice(flag: &str) -> String {
    format!("the operator's flag {flag} allows it")
}

fn covers(range: &Cidr, address: IpAddr, inner: Option<Ipv4Addr>) -> bool {
    range.contains(address) || inner.is_some_and(|inner| range.contains(inner.into()))
}

fn api_server_refusal(host: &str) -> RefusedAddress {
    RefusedAddress::new(host, "is the API server at this port, which sinks may never reach", "")
}

/// Whether two addresses belong to one host. All loopback addresses do.
fn is_same_host(one: IpAddr, other: IpAddr) -> bool {
    let unembedded = |address: IpAddr| embedded(address).map_or(address, IpAddr::V4);
    let (one, other) = (unembedded(one), unembedded(other));
    one == other || one.is_loopback() && other.is_loopback()
}
