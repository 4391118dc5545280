//! Every range from both sides, every spelling, and the resolver of this machine as the judge.

use std::{net::ToSocketAddrs as _, time::Duration};

use super::*;

fn guarded(allow_private: bool, allowed: &[&str]) -> Network {
    let allowed = allowed.iter().map(|range| range.parse().unwrap()).collect();
    Network::Guarded { allow_private, allowed }
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
            let problem = network.check_host(inside).unwrap_err();
            assert!(problem.contains("--allow-sink-cidrs="), "{inside}: {problem}");
            assert_eq!(network.check_host(outside), Ok(()), "{outside}");
        }
        assert_eq!(everything.check_host(inside), Ok(()), "{inside}");
        assert_eq!(Network::Open.check_host(inside), Ok(()));
    }
    for (inside, outside) in PRIVATE {
        let problem = strict.check_host(inside).unwrap_err();
        assert!(problem.contains("--allow-private-sinks"), "{inside}: {problem}");
        for network in [&private, &everything] {
            assert_eq!(network.check_host(inside), Ok(()), "{inside}");
        }
        assert_eq!(strict.check_host(outside), Ok(()), "{outside}");
    }
    for address in NEVER {
        for network in [&strict, &private, &everything] {
            assert!(network.check_host(address).is_err(), "{address}");
        }
        assert_eq!(Network::Open.check_host(address), Ok(()));
    }
}

#[test]
fn a_range_opens_its_addresses_and_no_others() {
    let network = guarded(false, &["127.0.0.1/32", "169.254.169.254", "fd12::/16"]);
    for host in
        ["127.0.0.1", "127.1", "::ffff:127.0.0.1", "fd12::1", "169.254.169.254", "localhost", "metadata"]
    {
        assert_eq!(network.check_host(host), Ok(()), "{host}");
    }
    for host in ["127.0.0.2", "169.254.169.253", "fd13::1", "::1", "10.0.0.1"] {
        assert!(network.check_host(host).is_err(), "{host}");
    }
    // Advice that is followed helps.
    let problem = guarded(true, &[]).check_host("64:ff9b::127.0.0.5").unwrap_err();
    let range = problem.split_once("--allow-sink-cidrs=").unwrap().1.split_once(' ').unwrap().0;
    assert_eq!(guarded(false, &[range]).check_host("64:ff9b::127.0.0.5"), Ok(()));
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
        let problem = network.check_host(host).unwrap_err();
        assert!(problem.contains("--allow-sink-cidrs="), "{host}: {problem}");
    }
    for host in ["", ".", "a b", "a\0b", "/var/run/postgresql", "[]"] {
        assert!(network.check_host(host).unwrap_err().contains("is not the name of a host"), "{host:?}");
    }
    for host in ["db.example", "mylocalhost", "localhost.example", "metadata.example", "8.8.8.8.example"] {
        assert_eq!(network.check_host(host), Ok(()), "{host}");
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
        assert!(network.check_host(host).is_err(), "{host}");
    }
    for host in ["8.8.8.8", "134744072", "256.1", "4294967296", "1.2.3.4.5", "08.1", "+127.1", "1..1"] {
        assert_eq!(network.check_host(host), Ok(()), "{host}: public, or a name like any other");
    }
}

/// Whatever this machine's resolver takes for a closed address is closed before anybody asks it.
#[test]
fn the_resolver_knows_no_spelling_that_the_check_does_not() {
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
                let left = if last { 8 * (5 - parts) } else { 8 };
                let value = (address >> shift) & ((1 << left) - 1);
                match random(4) {
                    0 => format!("{value:#x}"),
                    1 => format!("0{value:o}"),
                    2 => format!("0X{value:X}"),
                    _ => value.to_string(),
                }
            })
            .collect();
        let text = text.join(".");
        let resolved: Vec<IpAddr> = (text.as_str(), 1).to_socket_addrs().unwrap().map(|a| a.ip()).collect();
        assert_eq!(resolved, [IpAddr::from(Ipv4Addr::from_bits(u32::try_from(address).unwrap()))], "{text}");
        let bad = class(resolved[0]).0 != Class::Public;
        assert_eq!(network.check_host(&text).is_err(), bad, "{text} is {resolved:?}");
        refused += usize::from(bad);
    }
    assert!(refused > 1_000, "{refused}");
}

#[tokio::test]
async fn nothing_that_is_refused_at_admission_is_dialled() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let limit = Duration::from_secs(10);
    let hosts = ["127.0.0.1", "127.1", "2130706433", "localhost", "::ffff:127.0.0.1", "[::ffff:7f00:1]"];
    for host in hosts {
        let network = guarded(true, &[]);
        assert!(network.check_host(host).is_err());
        let error = network.connect(host, port, limit).await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Forbidden);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("connect to {host}: ")) && text.contains("--allow-sink-cidrs="),
            "{text}"
        );
        for network in [Network::Open, guarded(false, &["127.0.0.0/8", "::1"])] {
            let stream = network.connect(unbracketed(host), port, limit).await.unwrap();
            let (_, peer) = listener.accept().await.unwrap();
            assert_eq!(stream.local_addr().unwrap().port(), peer.port(), "{host}");
        }
    }
}

#[test]
fn one_bad_address_refuses_the_whole_answer() {
    let network = guarded(false, &[]);
    let answer =
        |texts: &[&str]| texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 5432)).collect();
    let good: Vec<SocketAddr> = answer(&["8.8.8.8", "2606:4700::1"]);
    assert_eq!(network.checked("db.example", good.clone()).unwrap(), good);
    for bad in ["127.0.0.1", "169.254.169.254", "10.0.0.1", "224.0.0.1", "0.0.0.0", "::", "ff02::1", "::1"] {
        let error = network.checked("db.example", answer(&["8.8.8.8", bad])).unwrap_err();
        assert_eq!(error.reason, SinkReason::Forbidden);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("connect to db.example: db.example is {bad}, and that is ")),
            "{text}"
        );
    }
    assert_eq!(network.checked("db.example", Vec::new()).unwrap_err().reason, SinkReason::Unreachable);
}

#[tokio::test]
async fn a_host_that_nobody_knows_is_unreachable() {
    for network in [Network::Open, guarded(false, &[])] {
        let error = network.resolve("no.such.host.invalid", 1).await.unwrap_err();
        assert_eq!(error.reason, SinkReason::Unreachable);
    }
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_unreachable() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = Network::Open.connect("127.0.0.1", port, Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(error.reason, SinkReason::Unreachable, "{error}");
}
