//! IP addresses and networks: `ip()`, `cidr()` and what can be asked about them, as in Kubernetes.

use std::{
    any::Any,
    net::{IpAddr, Ipv4Addr},
};

use cel::{
    ExecutionError,
    common::{
        types::{CelInt, Type},
        value::{CowVal, StaticVal, Val},
    },
};
use ipnet::IpNet;

use super::operators::{Operands, OperatorResult, boolean, charged_text, mismatch};

pub(super) static IP: Type = Type::new_unspecified_type("net.IP");
pub(super) static CIDR: Type = Type::new_unspecified_type("net.CIDR");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpAddress(pub(super) IpAddr);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IpNetwork(pub(super) IpNet);

/// A value of a type of Kubernetes that is compared by `==` only.
macro_rules! opaque_value {
    ($value:ty, $type:path) => {
        impl Val for $value {
            fn get_type(&self) -> &Type {
                &$type
            }

            fn cel_type() -> &'static Type {
                &$type
            }

            fn equals(&self, other: &dyn Val) -> bool {
                other.downcast_ref::<Self>().is_some_and(|other| self == other)
            }

            fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
                Box::new(self.clone())
            }

            fn as_any(&self) -> Option<&dyn Any> {
                Some(self)
            }
        }

        impl StaticVal for $value {}
    };
}
pub(super) use opaque_value;

opaque_value!(IpAddress, IP);
opaque_value!(IpNetwork, CIDR);

/// An address without a zone that is no IPv4 address written as IPv6.
fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    let address: IpAddr = text.parse().map_err(|_| "this is not an IP address")?;
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Err("an IPv4 address that is written as IPv6 is not allowed")
        }
        address => Ok(address),
    }
}

fn parse_network(text: &str) -> Result<IpNet, &'static str> {
    const PROBLEM: &str = "this is not a network, such as 10.0.0.0/8";
    let (address, length) = text.split_once('/').ok_or(PROBLEM)?;
    let address = parse_address(address)?;
    // A length has no sign and no leading zero.
    let is_plain = length.bytes().all(|b| b.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    let length = length.parse().ok().filter(|_| is_plain).ok_or(PROBLEM)?;
    IpNet::new(address, length).map_err(|_| PROBLEM)
}

fn failed(function: &str, problem: &str) -> ExecutionError {
    ExecutionError::function_error(function, problem)
}

/// `ip('10.0.0.1')`, and the address of a network.
pub(super) fn ip<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    if let Some(network) = args.first().and_then(|value| value.downcast_ref::<IpNetwork>()) {
        return Ok(CowVal::owned(IpAddress(network.0.addr())));
    }
    let Some(text) = charged_text(&args, 0)? else { return Err(mismatch("ip", &args)) };
    parse_address(text)
        .map(|address| CowVal::owned(IpAddress(address)))
        .map_err(|problem| failed("ip", problem))
}

pub(super) fn is_ip<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = charged_text(&args, 0)? else { return Err(mismatch("isIP", &args)) };
    Ok(boolean(parse_address(text).is_ok()))
}

/// Whether an address is written as it would be printed.
pub(super) fn is_canonical<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = charged_text(&args, 0)? else { return Err(mismatch("ip.isCanonical", &args)) };
    let address = parse_address(text).map_err(|problem| failed("ip.isCanonical", problem))?;
    Ok(boolean(address.to_string() == text))
}

fn address<'a>(function: &str, args: &'a [CowVal<'_, '_>]) -> Result<&'a IpAddr, ExecutionError> {
    let address = args.first().and_then(|value| value.downcast_ref::<IpAddress>());
    address.map(|address| &address.0).ok_or_else(|| mismatch(function, args))
}

pub(super) fn family<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let family = if address("family", &args)?.is_ipv4() { 4 } else { 6 };
    Ok(CowVal::owned(CelInt::from(family)))
}

pub(super) fn is_unspecified<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(address("isUnspecified", &args)?.is_unspecified()))
}

pub(super) fn is_loopback<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(address("isLoopback", &args)?.is_loopback()))
}

pub(super) fn is_link_local_multicast<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(match address("isLinkLocalMulticast", &args)? {
        IpAddr::V4(address) => address.octets().starts_with(&[224, 0, 0]),
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }))
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

pub(super) fn is_link_local_unicast<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(is_link_local(address("isLinkLocalUnicast", &args)?)))
}

pub(super) fn is_global_unicast<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let address = address("isGlobalUnicast", &args)?;
    let is_special = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    Ok(boolean(!is_special && !is_link_local(address) && *address != IpAddr::V4(Ipv4Addr::BROADCAST)))
}

pub(super) fn cidr<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = charged_text(&args, 0)? else { return Err(mismatch("cidr", &args)) };
    parse_network(text)
        .map(|network| CowVal::owned(IpNetwork(network)))
        .map_err(|problem| failed("cidr", problem))
}

pub(super) fn is_cidr<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = charged_text(&args, 0)? else { return Err(mismatch("isCIDR", &args)) };
    Ok(boolean(parse_network(text).is_ok()))
}

fn network<'a>(function: &str, args: &'a [CowVal<'_, '_>]) -> Result<&'a IpNet, ExecutionError> {
    let network = args.first().and_then(|value| value.downcast_ref::<IpNetwork>());
    network.map(|network| &network.0).ok_or_else(|| mismatch(function, args))
}

/// The other operand: a text, or a value that was made of one.
fn operand<T: Copy>(
    function: &str,
    args: &[CowVal<'_, '_>],
    parse: fn(&str) -> Result<T, &'static str>,
    value: impl Fn(&CowVal<'_, '_>) -> Option<T>,
) -> Result<T, ExecutionError> {
    match charged_text(args, 1)? {
        Some(text) => parse(text).map_err(|problem| failed(function, problem)),
        None => args.get(1).and_then(value).ok_or_else(|| mismatch(function, args)),
    }
}

pub(super) fn contains_ip<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let network = network("containsIP", &args)?;
    let address = operand("containsIP", &args, parse_address, |value| {
        value.downcast_ref::<IpAddress>().map(|address| address.0)
    })?;
    Ok(boolean(network.contains(&address)))
}

pub(super) fn contains_cidr<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let network = network("containsCIDR", &args)?;
    let other = operand("containsCIDR", &args, parse_network, |value| {
        value.downcast_ref::<IpNetwork>().map(|network| network.0)
    })?;
    Ok(boolean(network.prefix_len() <= other.prefix_len() && network.contains(&other.addr())))
}

pub(super) fn prefix_length<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(CelInt::from(i64::from(network("prefixLength", &args)?.prefix_len()))))
}

pub(super) fn masked<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(IpNetwork(network("masked", &args)?.trunc())))
}
