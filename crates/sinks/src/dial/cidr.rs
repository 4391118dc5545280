//! Address ranges, as flags name them.

use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

/// An address range, such as `10.0.0.0/8` or `fd12::/16`. An address alone is a range of one.
///
/// A separate type, because a range that does not begin at its first address is refused: it is more often a
/// mistake than intended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

impl Cidr {
    /// Whether an address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let wrong = || format!("{text:?} is not a range of addresses; write 10.0.0.0/8 or fd12::/16");
        // The standard library reads addresses and refuses 010.0.0.0, which is 8.0.0.0 for some resolvers.
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let Some(prefix) = prefix else { return Ok(Self(address.into())) };
        // `parse` also accepts a sign, so check the digits first.
        let digits = prefix.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = digits.then(|| prefix.parse().ok()).flatten().ok_or_else(wrong)?;
        let range = IpNet::new(address, prefix).map_err(|_| wrong())?;
        if range.trunc() != range {
            return Err(format!("{text} does not begin at its first address; write {}", range.trunc()));
        }
        Ok(Self(range))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_its_first_and_last_address_and_no_neighbour() {
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
    fn a_text_that_is_not_a_range_is_refused_with_advice() {
        for text in [
            "",
            "10",
            "10.0.0.0/",
            "10.0.0.0/33",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "::/129",
            "db/8",
            "127.1/8",
            "010.0.0.0/8",
        ] {
            assert!(text.parse::<Cidr>().unwrap_err().contains("write 10.0.0.0/8"), "{text}");
        }
        let problem = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
        assert_eq!(problem, "10.1.2.3/8 does not begin at its first address; write 10.0.0.0/8");
    }
}
