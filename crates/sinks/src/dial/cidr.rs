//! Ranges of addresses, as flags name them.

use std::{fmt, net::IpAddr, str::FromStr};

/// A range of addresses, such as `10.0.0.0/8` or `fd12::/16`. An address alone is a range of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    first: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Whether an address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                first.to_bits() == address.to_bits() & mask
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                first.to_bits() == address.to_bits() & mask
            }
            _ => false,
        }
    }

    fn first_of(address: IpAddr, bits: u8) -> IpAddr {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                std::net::Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        }
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        let wrong = || format!("{text:?} is not a range of addresses; write 10.0.0.0/8 or fd12::/16");
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        // Numbers with a sign parse as well.
        let number =
            |bits: &str| bits.bytes().all(|byte| byte.is_ascii_digit()).then(|| bits.parse().ok()).flatten();
        let bits = bits.map_or(Some(longest), number).filter(|bits| *bits <= longest).ok_or_else(wrong)?;
        let begin = Self::first_of(first, bits);
        if begin != first {
            return Err(format!("{text} does not begin at its first address; write {begin}/{bits}"));
        }
        Ok(Self { first, bits })
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_begin_and_end_where_they_say() {
        for (range, inside, outside) in [
            ("10.0.0.0/8", ["10.0.0.0", "10.255.255.255"], ["9.255.255.255", "11.0.0.0"]),
            ("192.0.2.7", ["192.0.2.7", "192.0.2.7"], ["192.0.2.6", "192.0.2.8"]),
            ("0.0.0.0/0", ["0.0.0.0", "255.255.255.255"], ["::", "::ffff:10.0.0.1"]),
            ("fd12::/16", ["fd12::", "fd12:ffff::1"], ["fd11:ffff::", "fd13::"]),
            ("::/0", ["::", "ffff::"], ["0.0.0.0", "10.0.0.1"]),
            ("::1/128", ["::1", "::1"], ["::", "::2"]),
        ] {
            let parsed: Cidr = range.parse().unwrap();
            for address in inside {
                assert!(parsed.contains(address.parse().unwrap()), "{range} {address}");
            }
            for address in outside {
                assert!(!parsed.contains(address.parse().unwrap()), "{range} {address}");
            }
            assert_eq!(parsed.to_string().parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_is_no_range_is_refused_with_advice() {
        for text in
            ["", "10", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "10.0.0.0/8/8", "::/129", "db/8", "127.1/8"]
        {
            assert!(text.parse::<Cidr>().unwrap_err().contains("write 10.0.0.0/8"), "{text}");
        }
        let problem = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
        assert_eq!(problem, "10.1.2.3/8 does not begin at its first address; write 10.0.0.0/8");
    }
}
