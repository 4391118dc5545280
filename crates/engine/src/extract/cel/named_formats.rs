//! Formats of Kubernetes: `format.dns1123Label().validate('a name')` gives the problems, if there are any.
//!
//! Which texts are valid is as in Kubernetes; the texts of the problems are ours.

use std::any::Any;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::NaiveDate;

use cel::{
    ExecutionError,
    common::{
        types::{CelList, CelOptional, CelString, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use super::{
    meter,
    network::opaque_value,
    operators::{Operands, OperatorResult, mismatch, text_at},
    urls,
};

pub(super) static FORMAT: Type = Type::new_unspecified_type("kubernetes.NamedFormat");

/// A format: its name, what a valid text is, and whether one is.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedFormat {
    name: &'static str,
    is: &'static str,
    is_valid: fn(&str) -> bool,
}

impl PartialEq for NamedFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

opaque_value!(NamedFormat, FORMAT);

const LABEL: &str = "up to 63 lower-case letters, digits and -, with a letter or digit at both ends";
const SUBDOMAIN: &str =
    "labels of lower-case letters, digits and - with dots between them, up to 253 characters";
const LABEL_1035: &str = "up to 63 lower-case letters, digits and -, with a letter first and no - last";

const FORMATS: [NamedFormat; 13] = [
    NamedFormat {
        name: "byte",
        is: "base64",
        is_valid: |text| !text.is_empty() && BASE64_STANDARD.decode(text).is_ok(),
    },
    NamedFormat { name: "date", is: "a date such as 2026-11-18", is_valid: is_date },
    NamedFormat { name: "datetime", is: "a time such as 2026-11-18T10:00:00Z", is_valid: is_date_time },
    NamedFormat { name: "dns1035Label", is: LABEL_1035, is_valid: is_dns_1035_label },
    NamedFormat {
        name: "dns1035LabelPrefix",
        is: LABEL_1035,
        is_valid: |text| is_dns_1035_label(&prefix(text)),
    },
    NamedFormat { name: "dns1123Label", is: LABEL, is_valid: is_dns_1123_label },
    NamedFormat { name: "dns1123LabelPrefix", is: LABEL, is_valid: |text| is_dns_1123_label(&prefix(text)) },
    NamedFormat { name: "dns1123Subdomain", is: SUBDOMAIN, is_valid: is_dns_1123_subdomain },
    NamedFormat {
        name: "dns1123SubdomainPrefix",
        is: SUBDOMAIN,
        is_valid: |text| is_dns_1123_subdomain(&prefix(text)),
    },
    NamedFormat {
        name: "labelValue",
        is: "up to 63 letters, digits, -, _ and ., with a letter or digit at both ends, or nothing",
        is_valid: |text| text.is_empty() || is_name(text),
    },
    NamedFormat {
        name: "qualifiedName",
        is: "a name of up to 63 letters, digits, -, _ and ., after a domain and / if there is one",
        is_valid: |text| match text.split_once('/') {
            Some((domain, name)) => is_dns_1123_subdomain(domain) && is_name(name),
            None => is_name(text),
        },
    },
    NamedFormat { name: "uri", is: "a URL or an absolute path", is_valid: |text| urls::parse(text).is_ok() },
    NamedFormat { name: "uuid", is: "a UUID", is_valid: is_uuid },
];

fn is_lower(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Whether the first and the last character fit `at_ends`, and all of them `inside`.
fn has_shape(text: &str, max: usize, at_ends: fn(u8) -> bool, inside: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let ends = bytes.first().zip(bytes.last());
    bytes.len() <= max
        && ends.is_some_and(|(first, last)| at_ends(*first) && at_ends(*last))
        && bytes.iter().all(|byte| inside(*byte))
}

fn is_dns_1123_label(text: &str) -> bool {
    has_shape(text, 63, is_lower, |byte| is_lower(byte) || byte == b'-')
}

fn is_dns_1035_label(text: &str) -> bool {
    is_dns_1123_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

fn is_dns_1123_subdomain(text: &str) -> bool {
    let is_part = |part: &str| has_shape(part, 253, is_lower, |byte| is_lower(byte) || byte == b'-');
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    has_shape(text, 63, |byte| byte.is_ascii_alphanumeric(), inside)
}

/// Names are made of a prefix by adding something: it may end with a `-`. As in Kubernetes, what is before the `-` is not looked at.
fn prefix(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next_back(), chars.next_back()) {
        (Some('-'), Some(_)) => format!("{}a", chars.as_str()),
        _ => text.to_owned(),
    }
}

/// Digits and signs in the places where `pattern` has `0` and signs.
fn fits(text: &str, pattern: &str) -> bool {
    text.len() == pattern.len()
        && text.bytes().zip(pattern.bytes()).all(|(byte, wanted)| match wanted {
            b'0' => byte.is_ascii_digit(),
            wanted => byte == wanted,
        })
}

fn is_date(text: &str) -> bool {
    let number =
        |range: std::ops::Range<usize>| text.get(range).and_then(|digits| digits.parse::<u32>().ok());
    fits(text, "0000-00-00")
        && number(0..4)
            .zip(number(5..7).zip(number(8..10)))
            .and_then(|(year, (month, day))| NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month, day))
            .is_some()
}

/// A date and a time with an offset; letters may be small, and an offset any.
fn is_date_time(text: &str) -> bool {
    let text = text.to_ascii_uppercase();
    let Some((date, time)) = text.split_once('T') else { return false };
    let (clock, zone) = time.split_at(time.find(['Z', '+', '-']).unwrap_or(time.len()));
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let is_below = |range: std::ops::Range<usize>, limit: u32| {
        clock.get(range).and_then(|digits| digits.parse::<u32>().ok()).is_some_and(|number| number < limit)
    };
    is_date(date)
        && fits(clock, "00:00:00")
        && is_below(0..2, 24)
        && is_below(3..5, 60)
        && is_below(6..8, 60)
        && !fraction.is_empty()
        && fraction.bytes().all(|byte| byte.is_ascii_digit())
        && (zone == "Z" || fits(zone, "+00:00") || fits(zone, "-00:00"))
}

fn is_uuid(text: &str) -> bool {
    // Hyphens may be left out.
    let mut rest = text;
    for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
        if index > 0 {
            rest = rest.strip_prefix('-').unwrap_or(rest);
        }
        let Some(part) = rest.get(..length).filter(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
        else {
            return false;
        };
        rest = rest.get(part.len()..).unwrap_or_default();
    }
    rest.is_empty()
}

/// Names of all formats.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// `format.named('uuid')`, which is also what `format.uuid()` is.
pub(super) fn named<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(name) = text_at(&args, 0) else { return Err(mismatch("format.named", &args)) };
    Ok(CowVal::owned(match FORMATS.iter().find(|format| format.name == name) {
        Some(format) => CelOptional::of(Box::new(*format)),
        None => CelOptional::none(),
    }))
}

pub(super) fn of_name<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let name = text_at(&args, 0).unwrap_or_default();
    match FORMATS.iter().find(|format| format.name == name) {
        Some(format) => Ok(CowVal::owned(*format)),
        None => Err(ExecutionError::function_error("format", "there is no format of this name")),
    }
}

/// The problems of a text, if it has some.
pub(super) fn validate<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let format = args.first().and_then(|value| value.downcast_ref::<NamedFormat>());
    let (Some(format), Some(text)) = (format, text_at(&args, 1)) else {
        return Err(mismatch("validate", &args));
    };
    meter::build_text(text.len())?;
    if (format.is_valid)(text) {
        return Ok(CowVal::owned(CelOptional::none()));
    }
    let problem = CelString::from(format!("it must be {}", format.is));
    let problems: Vec<Box<dyn Val + 'v>> = vec![Box::new(problem)];
    Ok(CowVal::owned(CelOptional::of(Box::new(CelList::from(problems)))))
}
