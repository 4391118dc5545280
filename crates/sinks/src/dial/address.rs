//! Classifies IP addresses, and parses every spelling of an address that resolvers accept.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// Which setting allows connections to an address, the least restricted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AddressKind {
    /// Always allowed.
    Public,
    /// Allowed by `--allow-private-sinks`, or by its range.
    Private,
    /// Allowed only by its range.
    Closed,
    /// Never allowed: a connection makes no sense.
    Never,
}

type AddressClass = (AddressKind, &'static str);

const PUBLIC: AddressClass = (AddressKind::Public, "a public address");
const PRIVATE: AddressClass = (AddressKind::Private, "a private address");

/// Ranges and their classes. The first match counts.
const V4: &[(Ipv4Net, AddressClass)] = &[
    (v4([0, 0, 0, 0], 8), (AddressKind::Never, "no address of a host")),
    (v4([127, 0, 0, 0], 8), (AddressKind::Closed, "a loopback address")),
    (v4([169, 254, 0, 0], 16), (AddressKind::Closed, "a link-local address, where metadata services are")),
    (v4([100, 64, 0, 0], 10), (AddressKind::Closed, "a shared address of providers")),
    (v4([198, 18, 0, 0], 15), (AddressKind::Closed, "an address for benchmarks")),
    // One cloud provider has its metadata service here.
    (v4([192, 0, 0, 0], 24), (AddressKind::Closed, "an address of IETF protocols")),
    (v4([168, 63, 129, 16], 32), (AddressKind::Closed, "the service address of a cloud's nodes")),
    (v4([10, 0, 0, 0], 8), PRIVATE),
    (v4([172, 16, 0, 0], 12), PRIVATE),
    (v4([192, 168, 0, 0], 16), PRIVATE),
    (v4([224, 0, 0, 0], 4), (AddressKind::Never, "a multicast address")),
    (v4([240, 0, 0, 0], 4), (AddressKind::Never, "a reserved address")),
];

const V6: &[(Ipv6Net, AddressClass)] = &[
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), (AddressKind::Never, "no address of a host")),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), (AddressKind::Closed, "a loopback address")),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), (AddressKind::Closed, "a link-local address")),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), (AddressKind::Closed, "a site-local address")),
    // Formally private, but used by the metadata services of two cloud providers.
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32), (AddressKind::Closed, "an address of metadata services")),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0], 32), (AddressKind::Closed, "an address of metadata services")),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), PRIVATE),
    // The position of the embedded IPv4 address depends on a prefix length that we do not know.
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), (AddressKind::Closed, "an address of a local translator")),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), (AddressKind::Never, "a multicast address")),
];

const fn v4(first: [u8; 4], prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::from_octets(first), prefix)
}

const fn v6(first: [u16; 8], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::from_segments(first), prefix)
}

/// The class of an address, ignoring an IPv4 address that it embeds.
pub(super) fn class(address: IpAddr) -> AddressClass {
    let found = match address {
        IpAddr::V4(address) => V4.iter().find(|(range, _)| range.contains(&address)).map(|(_, found)| *found),
        IpAddr::V6(address) => V6.iter().find(|(range, _)| range.contains(&address)).map(|(_, found)| *found),
    };
    found.unwrap_or(PUBLIC)
}

/// The IPv4 address that an IPv6 address embeds.
pub(super) fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else { return None };
    let parts = address.segments();
    let from = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let [.., high, low] = parts;
    match parts {
        // :: and ::1 embed no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // IPv4-compatible, IPv4-mapped, IPv4-translated, NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            Some(from(high, low))
        }
        // 6to4.
        [0x2002, high, low, ..] => Some(from(high, low)),
        // Teredo stores the client's address with all bits inverted.
        [0x2001, 0, ..] => Some(from(!high, !low)),
        // ISATAP, behind any prefix.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => Some(from(high, low)),
        _ => None,
    }
}

/// The address that a text spells for a resolver: `127.1`, `0x7f.1`, `2130706433` and `017700000001` are
/// all 127.0.0.1.
pub(super) fn parse_spelling(text: &str) -> Option<IpAddr> {
    // A zone names an interface and does not change the address.
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse().ok().or_else(|| parse_numbers(text).map(IpAddr::V4))
}

/// One to four numbers, decimal, octal or hexadecimal; the last one fills the bytes that are left.
fn parse_numbers(text: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = text.split('.').map(parse_number).collect::<Option<_>>()?;
    let (last, bytes) = parts.split_last()?;
    let remaining = 4_usize.checked_sub(bytes.len()).filter(|remaining| *remaining > 0)?;
    if bytes.iter().any(|byte| *byte > 255) || last >> (8 * remaining) != 0 {
        return None;
    }
    let high = bytes.iter().fold(0, |sum, byte| sum << 8 | byte);
    u32::try_from(high << (8 * remaining) | last).ok().map(Ipv4Addr::from_bits)
}

fn parse_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // Some resolvers refuse a prefix without digits, others read it as zero.
        Some("") => ("0", 16),
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // `from_str_radix` also accepts a sign, so check the digits first.
    digits
        .chars()
        .all(|digit| digit.is_digit(radix))
        .then(|| u64::from_str_radix(digits, radix).ok())
        .flatten()
}
