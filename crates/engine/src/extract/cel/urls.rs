//! URLs: `url('https://example.com/')`, `isURL()` and their parts, as Kubernetes reads them.
//!
//! It reads them with Go, which keeps hosts and paths as they are written. The crate `url` follows browsers: it changes the case of
//! hosts, leaves out default ports and refuses paths without a host, so it is not used.

use std::{any::Any, collections::HashMap};

use cel::{
    ExecutionError,
    common::{
        types::{CelList, CelMap, CelMapKey, CelString, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use super::{
    meter,
    network::opaque_value,
    operators::{Operands, OperatorResult, boolean, mismatch, text_at},
};

pub(super) static URL: Type = Type::new_unspecified_type("kubernetes.URL");

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Url {
    /// As it was written.
    pub(super) text: String,
    scheme: String,
    /// With the port, percent-decoded.
    host: String,
    escaped_path: String,
    query: String,
}

opaque_value!(Url, URL);

const PROBLEM: &str = "this is not a URL, such as https://example.com/path or /path";

/// Characters of a path that need no escape, besides letters, digits and `-_.~`.
const PLAIN_IN_PATHS: &[u8] = b"$&+,/:;=@";
/// Characters that a path may have, though an escaped path would not.
const ALLOWED_IN_PATHS: &[u8] = b"!'()*[]%";
const PLAIN_IN_HOSTS: &[u8] = b"!$&'()*+,;=:[]<>\"";
const PLAIN_IN_USERS: &[u8] = b"!$&'()*+,;=:%@";

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

pub(super) fn parse(text: &str) -> Result<Url, &'static str> {
    if text.is_empty() || text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(PROBLEM);
    }
    let mut url = Url { text: text.to_owned(), ..Url::default() };
    if text == "*" {
        url.escaped_path.push('*');
        return Ok(url);
    }
    // A fragment is no part of what is asked for; it must only be well formed.
    let (text, fragment) = text.split_once('#').unwrap_or((text, ""));
    unescape(fragment, Escapes::Path).ok_or(PROBLEM)?;
    let (scheme, rest) = split_scheme(text)?;
    url.scheme = scheme.to_ascii_lowercase();
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    url.query.push_str(query);
    if !rest.starts_with('/') {
        // `mailto:a@b` has neither a host nor a path.
        return if url.scheme.is_empty() { Err(PROBLEM) } else { Ok(url) };
    }
    let path = match rest.strip_prefix("//").filter(|_| !url.scheme.is_empty()) {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            url.host = parse_authority(authority)?;
            path
        }
        None => rest,
    };
    url.escaped_path = escaped_path(path).ok_or(PROBLEM)?;
    Ok(url)
}

/// The scheme, if there is one, and what follows it.
fn split_scheme(text: &str) -> Result<(&str, &str), &'static str> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("the scheme is missing before the colon"),
            b':' => return Ok((text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default())),
            _ => break,
        }
    }
    Ok(("", text))
}

/// The host of an authority, with its port.
fn parse_authority(authority: &str) -> Result<String, &'static str> {
    let host = match authority.rsplit_once('@') {
        Some((user, host)) => {
            let is_plain = |byte| is_unreserved(byte) || PLAIN_IN_USERS.contains(&byte);
            if !user.bytes().all(is_plain) || unescape(user, Escapes::Path).is_none() {
                return Err("the user of the URL has characters that need an escape");
            }
            host
        }
        None => authority,
    };
    let port = if host.starts_with('[') {
        host.rsplit_once(']').ok_or("the closing ] of the host is missing")?.1
    } else {
        host.rfind(':').and_then(|at| host.get(at..)).unwrap_or_default()
    };
    if !is_port(port) {
        return Err("the port of the URL is not a number");
    }
    unescape(host, Escapes::Host).ok_or("the host of the URL has characters that are not allowed")
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
}

#[derive(Clone, Copy, PartialEq)]
enum Escapes {
    Path,
    /// Only bytes beyond ASCII may be escaped, and only some signs may stand there.
    Host,
    /// A `+` is a blank.
    Query,
}

/// The text with its escapes replaced; `None` if one is not valid.
fn unescape(text: &str, escapes: Escapes) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let plain = match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                if escapes == Escapes::Host && high < 8 && (high, low) != (2, 5) {
                    return None;
                }
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' if escapes == Escapes::Query => b' ',
            _ if escapes == Escapes::Host
                && byte < 0x80
                && !is_unreserved(byte)
                && !PLAIN_IN_HOSTS.contains(&byte) =>
            {
                return None;
            }
            _ => byte,
        };
        out.push(plain);
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

/// The path as it is written if that is a valid way to escape it, else escaped.
fn escaped_path(path: &str) -> Option<String> {
    let is_plain = |byte: u8| is_unreserved(byte) || PLAIN_IN_PATHS.contains(&byte);
    unescape(path, Escapes::Path)?;
    if path.bytes().all(|byte| is_plain(byte) || ALLOWED_IN_PATHS.contains(&byte)) {
        return Some(path.to_owned());
    }
    // What is escaped already is decoded first, byte by byte.
    let mut bytes = path.bytes();
    let mut out = String::with_capacity(path.len());
    while let Some(byte) = bytes.next() {
        let byte = if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            u8::try_from(digit()? * 16 + digit()?).ok()?
        } else {
            byte
        };
        if is_plain(byte) { out.push(char::from(byte)) } else { push_escape(&mut out, byte) }
    }
    Some(out)
}

fn push_escape(out: &mut String, byte: u8) {
    let digits = [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or_default());
    out.push('%');
    out.extend(digits.map(|digit| digit.to_ascii_uppercase()));
}

pub(super) fn url<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = text_at(&args, 0) else { return Err(mismatch("url", &args)) };
    meter::build_text(text.len())?;
    parse(text).map(CowVal::owned).map_err(|problem| ExecutionError::function_error("url", problem))
}

pub(super) fn is_url<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = text_at(&args, 0) else { return Err(mismatch("isURL", &args)) };
    meter::build_text(text.len())?;
    Ok(boolean(parse(text).is_ok()))
}

fn part<'b, 'v>(
    function: &str,
    args: &[CowVal<'b, 'v>],
    part: impl FnOnce(&Url) -> String,
) -> OperatorResult<'b, 'v> {
    let Some(url) = args.first().and_then(|value| value.downcast_ref::<Url>()) else {
        return Err(mismatch(function, args));
    };
    meter::build_text(url.text.len())?;
    Ok(CowVal::owned(CelString::from(part(url))))
}

/// The host without its port, and the port.
fn host_and_port(host: &str) -> (&str, &str) {
    let (name, port) = match host.rfind(':').map(|at| host.split_at(at)) {
        Some((name, port)) if is_port(port) => (name, port.trim_start_matches(':')),
        _ => (host, ""),
    };
    (name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name), port)
}

pub(super) fn get_scheme<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    part("getScheme", &args, |url| url.scheme.clone())
}

pub(super) fn get_host<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    part("getHost", &args, |url| url.host.clone())
}

pub(super) fn get_hostname<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    part("getHostname", &args, |url| host_and_port(&url.host).0.to_owned())
}

pub(super) fn get_port<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    part("getPort", &args, |url| host_and_port(&url.host).1.to_owned())
}

pub(super) fn get_escaped_path<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    part("getEscapedPath", &args, |url| url.escaped_path.clone())
}

/// The values of each parameter. Parameters that cannot be read are left out.
pub(super) fn get_query<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(url) = args.first().and_then(|value| value.downcast_ref::<Url>()) else {
        return Err(mismatch("getQuery", &args));
    };
    meter::build_text(url.query.len())?;
    let mut values: HashMap<String, Vec<Box<dyn Val + 'v>>> = HashMap::new();
    for parameter in
        url.query.split('&').filter(|parameter| !parameter.is_empty() && !parameter.contains(';'))
    {
        meter::spend(1 + meter::text_weight(parameter.len()))?;
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (Some(key), Some(value)) = (unescape(key, Escapes::Query), unescape(value, Escapes::Query))
        else {
            continue;
        };
        values.entry(key).or_default().push(Box::new(CelString::from(value)));
    }
    let entries = values.into_iter().map(|(key, values)| {
        let key = CelMapKey::String(CelString::from(key));
        (key, Box::new(CelList::from(values)) as Box<dyn Val + 'v>)
    });
    Ok(CowVal::owned(CelMap::from(entries.collect::<HashMap<_, _>>())))
}
