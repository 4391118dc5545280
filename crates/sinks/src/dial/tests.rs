//! Both ends of every range, every spelling of an address, and a comparison with the resolver of this machine.

use std::{
    net::{IpAddr, Ipv4Addr, ToSocketAddrs as _},
    time::Duration,
};

use super::{
    address::{AddressKind, class},
    *,
};

fn ranges(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|range| range.parse().unwrap()).collect()
}

fn guarded(allow_private: bool, allowed: &[&str]) -> Network {
    Network::Guarded(AddressGuard { allow_private, allowed: ranges(allowed), ..AddressGuard::default() })
}

fn check(network: &Network, host: &str) -> Result<(), String> {
    network.check_server(host, 5432).map_err(|refusal| refusal.to_string())
}

/// Checks the answer of a resolver.
async fn resolve_answer(network: &Network, answer: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, SinkError> {
    let lookup = move |_, _| std::future::ready(Ok(answer.clone()));
    let resolved = network.resolve_with("db.example", 5432, &lookup).await;
    resolved.map_err(|error| error.into_sink_error("db.example", None))
}

/// First and last addresses of closed ranges, and their neighbours outside.
const CLOSED: &[(&str, &str)] = &[
    ("127.0.0.0", "126.255.255.255"),
    ("127.255.255.255", "128.0.0.0"),
    ("169.254.0.0", "169.253.255.255"),
    ("169.254.169.254", "169.255.0.0"),
    ("100.64.0.0", "100.63.255.255"),
    ("100.127.255.255", "100.128.0.0"),
    ("198.18.0.0", "198.17.255.255"),
    ("198.19.255.255", "198.20.0.0"),
    ("192.0.0.192", "192.0.1.0"),
    ("168.63.129.16", "168.63.129.17"),
    ("::1", "2606:4700::1"),
    ("fe80::1", "fe7f:ffff::1"),
    ("febf::1", "2001:db8::1"),
    ("fec0::1", "2a00::1"),
    ("fd00:ec2::254", "2001:4860:4860::8888"),
    ("fd20:ce::254", "2001:4860:4860::8888"),
    ("64:ff9b:1::8.8.8.8", "64:ff9b::8.8.8.8"),
    // IPv4 in IPv6.
    ("::ffff:127.0.0.1", "::ffff:8.8.8.8"),
    ("::127.0.0.1", "::8.8.8.8"),
    ("::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"),
    ("64:ff9b::127.0.0.1", "64:ff9b::8.8.8.8"),
    ("64:ff9b::a9fe:a9fe", "64:ff9b::808:808"),
    ("2002:7f00:1::", "2002:808:808::"),
    ("2002:a9fe:a9fe::1", "2002:808:808::1"),
    ("2001::5601:5601", "2001::f7f7:f7f7"),
    ("2606:4700::5efe:7f00:1", "2606:4700::5efe:808:808"),
];

const PRIVATE: &[(&str, &str)] = &[
    ("10.0.0.0", "9.255.255.255"),
    ("10.255.255.255", "11.0.0.0"),
    ("172.16.0.0", "172.15.255.255"),
    ("172.31.255.255", "172.32.0.0"),
    ("192.168.0.0", "192.167.255.255"),
    ("192.168.255.255", "192.169.0.0"),
    ("fc00::1", "fbff:ffff::1"),
    ("fdff:ffff::1", "2001:db8::1"),
    ("::ffff:10.1.2.3", "::ffff:11.1.2.3"),
    ("64:ff9b::192.168.1.1", "64:ff9b::192.169.1.1"),
    ("2002:a00:1::", "2002:b00:1::"),
];

const NEVER: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "ff02::1",
    "ff0e::1",
    "::ffff:0.0.0.0",
    "64:ff9b::224.0.0.1",
];

#[test]
fn each_range_is_closed_from_its_first_to_its_last_address() {
    let strict = guarded(false, &[]);
    let private = guarded(true, &[]);
    let everything = guarded(false, &["0.0.0.0/0", "::/0"]);
    for (inside, outside) in CLOSED {
        for network in [&strict, &private] {
            let problem = check(network, inside).unwrap_err();
            assert!(problem.contains("--allow-sink-cidrs "), "{inside}: {problem}");
            assert_eq!(check(network, outside), Ok(()), "{outside}");
        }
        assert_eq!(check(&everything, inside), Ok(()), "{inside}");
        assert_eq!(check(&Network::Open, inside), Ok(()));
    }
    for (inside, outside) in PRIVATE {
        let problem = check(&strict, inside).unwrap_err();
        assert!(problem.contains("--allow-private-sinks"), "{inside}: {problem}");
        for network in [&private, &everything] {
            assert_eq!(check(network, inside), Ok(()), "{inside}");
        }
        assert_eq!(check(&strict, outside), Ok(()), "{outside}");
    }
    for address in NEVER {
        for network in [&strict, &private, &everything] {
            assert!(check(network, address).is_err(), "{address}");
        }
        assert_eq!(check(&Network::Open, address), Ok(()));
    }
}

#[test]
fn an_allowed_range_opens_its_addresses_and_no_others() {
    let network = guarded(false, &["127.0.0.1/32", "169.254.169.254", "fd12::/16"]);
    for host in
        ["127.0.0.1", "127.1", "::ffff:127.0.0.1", "fd12::1", "169.254.169.254", "localhost", "metadata"]
    {
        assert_eq!(check(&network, host), Ok(()), "{host}");
    }
    for host in ["127.0.0.2", "169.254.169.253", "fd13::1", "::1", "10.0.0.1"] {
        assert!(check(&network, host).is_err(), "{host}");
    }
    // The range in the advice allows the address.
    let problem = check(&guarded(true, &[]), "64:ff9b::127.0.0.5").unwrap_err();
    let range = problem.split_once("--allow-sink-cidrs ").unwrap().1.split_once(' ').unwrap().0;
    assert_eq!(check(&guarded(false, &[range]), "64:ff9b::127.0.0.5"), Ok(()));
}

#[test]
fn names_of_this_machine_and_of_metadata_services_are_closed() {
    let network = guarded(true, &[]);
    for host in [
        "localhost",
        "LocalHost",
        "localhost.",
        "a.b.localhost",
        "localhost.localdomain",
        "metadata",
        "Metadata.Google.Internal.",
        "instance-data",
        "instance-data.ec2.internal",
    ] {
        let problem = check(&network, host).unwrap_err();
        assert!(problem.contains("--allow-sink-cidrs "), "{host}: {problem}");
    }
    for host in ["", ".", "a b", "a\0b", "/var/run/postgresql", "[]"] {
        assert!(check(&network, host).unwrap_err().contains("is not the name of a host"), "{host:?}");
    }
    for host in ["db.example", "mylocalhost", "localhost.example", "metadata.example", "8.8.8.8.example"] {
        assert_eq!(check(&network, host), Ok(()), "{host}");
    }
}

#[test]
fn addresses_are_recognised_in_every_spelling() {
    let network = guarded(true, &[]);
    for host in [
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0X7F.0.0.1",
        "0177.0.0.1",
        "017700000001",
        "2130706433",
        "0x7f000001",
        "127.0.0.1.",
        "[::1]",
        "0:0:0:0:0:0:0:1",
        "::FFFF:7f00:1",
        "[::ffff:127.0.0.1]",
        "fe80::1%eth0",
        "::1%lo",
        "0xa9fea9fe",
        "169.16689662",
        "0",
        "00",
        "0x",
    ] {
        assert!(check(&network, host).is_err(), "{host}");
    }
    for host in ["8.8.8.8", "134744072", "256.1", "4294967296", "1.2.3.4.5", "08.1", "+127.1", "1..1"] {
        assert_eq!(check(&network, host), Ok(()), "{host}: public, or a name like any other");
    }
}

/// Every text that this machine's resolver reads as a closed address is refused before the resolver is asked.
#[test]
fn the_check_recognises_every_spelling_that_the_resolver_accepts() {
    let network = guarded(false, &[]);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut refused = 0;
    for _ in 0..4_000 {
        let first = [127, 10, 169, 100, 192, 198, 172, 0, 224, 8][usize::try_from(random(10)).unwrap()];
        let address = first << 24 | random(1 << 24);
        let parts = 1 + random(4);
        let text: Vec<String> = (0..parts)
            .map(|part| {
                let last = part == parts - 1;
                let shift = if last { 0 } else { 24 - 8 * part };
                let bits = if last { 8 * (5 - parts) } else { 8 };
                let value = (address >> shift) & ((1 << bits) - 1);
                match random(4) {
                    0 => format!("{value:#x}"),
                    1 => format!("0{value:o}"),
                    2 => format!("0X{value:X}"),
                    _ => value.to_string(),
                }
            })
            .collect();
        let text = text.join(".");
        let resolved: Vec<IpAddr> =
            (text.as_str(), 1).to_socket_addrs().unwrap().map(|address| address.ip()).collect();
        assert_eq!(resolved, [IpAddr::from(Ipv4Addr::from_bits(u32::try_from(address).unwrap()))], "{text}");
        let is_closed = class(resolved[0]).0 != AddressKind::Public;
        assert_eq!(check(&network, &text).is_err(), is_closed, "{text} is {resolved:?}");
        refused += usize::from(is_closed);
    }
    assert!(refused > 1_000, "{refused}");
}

#[tokio::test]
async fn a_host_that_is_refused_at_admission_is_not_dialled() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let limit = Duration::from_secs(10);
    let hosts = ["127.0.0.1", "127.1", "2130706433", "localhost", "::ffff:127.0.0.1", "[::ffff:7f00:1]"];
    for host in hosts {
        let network = guarded(true, &[]);
        assert!(check(&network, host).is_err());
        let error = network.connect(host, port, limit).await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Forbidden);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("connect to {host}: ")) && text.contains("--allow-sink-cidrs "),
            "{text}"
        );
        for network in [Network::Open, guarded(false, &["127.0.0.0/8", "::1"])] {
            let stream = network.connect(without_brackets(host), port, limit).await.unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(stream.local_addr().unwrap().port(), peer.port(), "{host}");
        }
    }
}

#[tokio::test]
async fn one_closed_address_refuses_all_addresses_of_the_host() {
    let network = guarded(false, &[]);
    let answer =
        |texts: &[&str]| texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 5432)).collect();
    let public: Vec<SocketAddr> = answer(&["8.8.8.8", "2606:4700::1"]);
    assert_eq!(resolve_answer(&network, public.clone()).await.unwrap(), public);
    for closed in ["127.0.0.1", "169.254.169.254", "10.0.0.1", "224.0.0.1", "0.0.0.0", "::", "ff02::1", "::1"]
    {
        let error = resolve_answer(&network, answer(&["8.8.8.8", closed])).await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Forbidden);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("connect to db.example: db.example is {closed}, and that is ")),
            "{text}"
        );
    }
    assert_eq!(resolve_answer(&network, Vec::new()).await.unwrap_err().reason, SinkReason::Unreachable);
}

#[tokio::test]
async fn an_unknown_host_is_unreachable() {
    for network in [Network::Open, guarded(false, &[])] {
        let error = network.resolve("no.such.host.invalid", 1).await.unwrap_err();
        assert!(matches!(error, ResolveError::Lookup(_)), "{error:?}");
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = Network::Open.connect("127.0.0.1", port, Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Unreachable, "{error}");
}

#[test]
fn refusals_name_the_flag_and_what_to_write() {
    let guard = AddressGuard { namespace: "team-a".into(), ..AddressGuard::default() };
    let network = Network::Guarded(guard.clone());
    for (host, text, without_address) in [
        (
            "127.0.0.1",
            "127.0.0.1 is a loopback address, which sinks may not reach; the operator's flag \
             --allow-sink-cidrs team-a=127.0.0.1/32 allows it",
            "the server is a loopback address, which sinks may not reach; the operator's flag \
             --allow-sink-cidrs team-a=CIDR allows it",
        ),
        (
            "localhost",
            "localhost is this machine, which sinks may not reach; the operator's flag \
             --allow-sink-cidrs team-a=127.0.0.0/8,team-a=::1/128 allows it",
            "the server is this machine, which sinks may not reach; the operator's flag \
             --allow-sink-cidrs team-a=CIDR allows it",
        ),
        (
            "10.1.2.3",
            "10.1.2.3 is a private address, which sinks may not reach; the operator's flag \
             --allow-private-sinks opens private addresses, and --allow-sink-cidrs team-a=10.1.2.3/32 this one",
            "the server is a private address, which sinks may not reach; the operator's flag \
             --allow-private-sinks opens private addresses, and --allow-sink-cidrs team-a=CIDR this one",
        ),
    ] {
        let refusal = network.check_server(host, 5432).unwrap_err();
        assert_eq!(refusal.to_string(), text);
        assert_eq!(refusal.without_address(), without_address);
    }
    let denied = Network::Guarded(AddressGuard { denied: ranges(&["8.8.0.0/16"]), ..guard });
    let refusal = denied.check_server("8.8.8.8", 5432).unwrap_err();
    let flag = "is denied to sinks by the operator's flag --deny-sink-cidrs";
    assert_eq!(refusal.to_string(), format!("8.8.8.8 {flag}; it is in 8.8.0.0/16"));
    assert_eq!(refusal.without_address(), format!("the server {flag}"));
}

#[tokio::test]
async fn a_denied_range_is_closed_even_if_another_flag_allows_it() {
    let guard = AddressGuard {
        allow_private: true,
        allowed: ranges(&["127.0.0.0/8", "10.1.0.0/16"]),
        denied: ranges(&["127.0.0.0/8", "10.1.2.0/24", "8.8.8.8"]),
        ..AddressGuard::default()
    };
    let network = Network::Guarded(guard);
    for host in
        ["127.0.0.1", "127.1", "localhost", "10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "8.8.8.8"]
    {
        assert!(check(&network, host).is_err(), "{host}");
    }
    for host in ["10.1.3.1", "10.2.2.3", "8.8.4.4"] {
        assert_eq!(check(&network, host), Ok(()), "{host}");
    }
    let answer = vec![SocketAddr::from(([8, 8, 4, 4], 5432)), SocketAddr::from(([8, 8, 8, 8], 5432))];
    let error = resolve_answer(&network, answer).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Forbidden);
    assert!(error.to_string().contains("--deny-sink-cidrs"), "{error}");
}

/// Asserts that no connection waits to be accepted.
fn assert_not_dialled(listener: tokio::net::TcpListener) {
    let waiting = listener.into_std().unwrap().accept();
    assert_eq!(waiting.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// Two listeners on loopback stand for the API server and for another server of the same host.
#[tokio::test]
async fn the_api_server_is_closed_at_its_port_only() {
    let api = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let other = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (api_port, other_port) = (api.local_addr().unwrap().port(), other.local_addr().unwrap().port());
    let limit = Duration::from_secs(10);
    // A resolver for which every name is this machine.
    let lookup = |_, port| std::future::ready(Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]));
    for known in ["127.0.0.1", "localhost", "Kubernetes.Default.svc."] {
        let network = Network::Guarded(AddressGuard {
            allowed: ranges(&["127.0.0.0/8", "::1/128"]),
            api_servers: vec![ApiServer { host: known.into(), port: api_port }],
            ..AddressGuard::default()
        });
        for host in ["127.0.0.1", "127.1", "127.0.0.2", "::1", "::ffff:127.0.0.1", "db.example", known] {
            let error = network.connect_with(None, host, api_port, limit, &lookup).await.unwrap_err();
            assert_eq!(error.reason, SinkReason::Forbidden, "{host}: {error}");
            assert!(error.to_string().contains("the API server at this port"), "{error}");
        }
        for host in ["127.0.0.1", "db.example", known] {
            network.check_server(host, other_port).unwrap();
            network.connect_with(None, host, other_port, limit, &lookup).await.unwrap();
            other.accept().await.unwrap();
        }
        assert!(network.check_server(known, api_port).is_err(), "its own name is refused at admission");
    }
    // The API server cannot be resolved: then any server could be the API server.
    let network = Network::Guarded(AddressGuard {
        allowed: ranges(&["127.0.0.0/8"]),
        api_servers: vec![ApiServer { host: "api.example".into(), port: other_port }],
        ..AddressGuard::default()
    });
    let lookup = |host: String, port| {
        let known = (host != "api.example").then(|| vec![SocketAddr::from(([127, 0, 0, 1], port))]);
        std::future::ready(known.ok_or_else(|| io::ErrorKind::NotFound.into()))
    };
    let error = network.connect_with(None, "db.example", other_port, limit, &lookup).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Unreachable);
    assert!(error.to_string().contains("the API server"), "{error}");
    assert_not_dialled(api);
    assert_not_dialled(other);
}

/// A name whose answer changes between two lookups is resolved once, and the connection goes to that answer.
#[tokio::test]
async fn a_name_is_resolved_once_and_the_checked_address_is_dialled() {
    use std::cell::Cell;
    let allowed = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = allowed.local_addr().unwrap().port();
    let closed = tokio::net::TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    let network = guarded(false, &["127.0.0.1/32"]);
    let lookups = Cell::new(0_u8);
    let lookup = |_, port| {
        // An allowed address, then a closed one, then the allowed one again.
        lookups.set(lookups.get() + 1);
        std::future::ready(Ok(vec![SocketAddr::from(([127, 0, 0, 2 - lookups.get() % 2], port))]))
    };
    let limit = Duration::from_secs(10);
    network.connect_with(None, "db.example", port, limit, &lookup).await.unwrap();
    assert_eq!(lookups.get(), 1);
    let (_, peer) = allowed.accept().await.unwrap();
    assert!(peer.ip().is_loopback());
    let error = network.connect_with(None, "db.example", port, limit, &lookup).await.unwrap_err();
    assert_eq!((error.reason, lookups.get()), (SinkReason::Forbidden, 2), "{error}");
    assert_not_dialled(closed);
}

#[test]
fn guards_that_allow_the_same_servers_are_equal_in_all_namespaces() {
    let guarded_in = |namespace: &str, allowed: &[&str]| {
        let guard =
            AddressGuard { namespace: namespace.into(), allowed: ranges(allowed), ..AddressGuard::default() };
        Network::Guarded(guard)
    };
    assert_eq!(guarded_in("a", &["127.0.0.1"]), guarded_in("b", &["127.0.0.1"]));
    assert_ne!(guarded_in("a", &["127.0.0.1"]), guarded_in("b", &[]));
}
