//! Declared types of attributes: what converts without loss, and what does not.

use std::borrow::Cow;

use kollect_model::schema::AttributeType;

use crate::{extract::cel::is_quantity, json::Json};

/// The value in a declared type, or the value itself if something would be lost. Null and a redacted value have every type. A path
/// that yields a list stands for its only item.
pub(crate) fn convert(
    declared: AttributeType,
    value: Json<'_>,
    from_list_path: bool,
) -> Result<Json<'_>, Json<'_>> {
    match value {
        Json::Null | Json::Redacted => Ok(value),
        Json::List(mut items) if from_list_path && declared != AttributeType::List => match items.len() {
            0 => Ok(Json::Null),
            1 => convert(declared, items.remove(0), false),
            // It may not be known how many there are.
            _ if items.contains(&Json::Redacted) => Ok(Json::Redacted),
            _ => Err(Json::List(items)),
        },
        value => convert_one(declared, value),
    }
}

fn convert_one(declared: AttributeType, value: Json<'_>) -> Result<Json<'_>, Json<'_>> {
    use AttributeType as D;
    let text_if = |fits: bool, text| if fits { Ok(Json::String(text)) } else { Err(Json::String(text)) };
    match (declared, value) {
        (D::String, value @ Json::String(_))
        | (D::Number, value @ Json::Number(_))
        | (D::Bool, value @ Json::Bool(_))
        | (D::List, value @ Json::List(_))
        | (D::Map, value @ Json::Map(_)) => Ok(value),
        (D::String | D::Quantity, Json::Number(text)) => Ok(Json::String(text)),
        (D::String, Json::Bool(b)) => Ok(Json::String(if b { "true" } else { "false" }.into())),
        (D::Int, Json::Number(text)) => integer(text).map(Json::Number).map_err(Json::Number),
        (D::Int, Json::String(text)) => integer(text).map(Json::Number).map_err(Json::String),
        (D::Number, Json::String(text)) if is_number(&text) => Ok(Json::Number(text)),
        (D::Bool, Json::String(text)) => boolean(&text).map(Json::Bool).ok_or(Json::String(text)),
        (D::Timestamp, Json::String(text)) => text_if(is_timestamp(&text), text),
        (D::Quantity, Json::String(text)) => text_if(is_quantity(&text), text),
        (_, value) => Err(value),
    }
}

/// Conditions of Kubernetes have `True` and `False`.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "true" | "True" => Some(true),
        "false" | "False" => Some(false),
        _ => None,
    }
}

/// The longest integer that is written out of an exponent.
const MAX_DIGITS: usize = 400;

/// The text of an integer of any size: `2.0`, `1E5` and `-0` are written as 2, 100000 and 0. Any other text comes back.
fn integer(text: Cow<'_, str>) -> Result<Cow<'_, str>, Cow<'_, str>> {
    if is_plain_integer(&text) {
        return Ok(text);
    }
    match written_out(&text) {
        Some(integer) => Ok(integer),
        None => Err(text),
    }
}

fn is_plain_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0')
}

fn written_out(text: &str) -> Option<Cow<'static, str>> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || has_leading_zero(digits) {
        return None;
    }
    if digits == "0" {
        return Some(Cow::Borrowed("0"));
    }
    let (number, exponent) = match digits.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i64>().ok()?),
        None => (digits, 0),
    };
    let (integer, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_plain(integer) || !is_plain(fraction) {
        return None;
    }
    // All digits, without zeros at the end, and how many more there are before the point.
    let all = format!("{integer}{fraction}");
    let significant = all.trim_end_matches('0');
    let before_point = i64::try_from(integer.len()).ok()?.checked_add(exponent)?;
    let zeros = before_point.checked_sub(i64::try_from(significant.len()).ok()?)?;
    let significant = significant.trim_start_matches('0');
    if significant.is_empty() {
        return Some(Cow::Borrowed("0"));
    }
    // Negative: there are digits behind the point.
    let zeros = usize::try_from(zeros).ok().filter(|zeros| significant.len() + zeros <= MAX_DIGITS)?;
    let sign = if text.starts_with('-') { "-" } else { "" };
    Some(Cow::Owned(format!("{sign}{significant}{}", "0".repeat(zeros))))
}

fn has_leading_zero(digits: &str) -> bool {
    digits.strip_prefix('0').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether a text is a number as JSON writes it.
fn is_number(text: &str) -> bool {
    let first = text.strip_prefix('-').unwrap_or(text).bytes().next();
    first.is_some_and(|b| b.is_ascii_digit()) && serde_json::from_str::<serde_json::Number>(text).is_ok()
}

/// Whether a text is a point in time as RFC 3339 writes it.
fn is_timestamp(text: &str) -> bool {
    // Kubernetes writes a T and an offset; other notations of the same parser are not RFC 3339.
    text.as_bytes().get(10) == Some(&b'T') && !text.contains('[') && text.parse::<jiff::Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Projection;

    fn convert(type_: &str, text: &str, from_list_path: bool) -> Option<String> {
        let value = Json::read(text, &Projection::everything()).unwrap();
        let converted = super::convert(AttributeType::named(type_).unwrap(), value, from_list_path).ok()?;
        let mut out = String::new();
        converted.write(&mut out);
        Some(out)
    }

    #[test]
    fn values_that_lose_nothing_are_converted() {
        for (type_, from, to) in [
            ("string", "7", r#""7""#),
            ("string", "1.10", r#""1.10""#),
            ("string", "true", r#""true""#),
            ("int", "9223372036854775808", "9223372036854775808"),
            ("int", r#""12""#, "12"),
            ("int", "2.0", "2"),
            ("int", "-0", "0"),
            ("int", "-0.0", "0"),
            ("int", "1E5", "100000"),
            ("int", "2.0e0", "2"),
            ("int", "-12.50e2", "-1250"),
            ("int", "100e-2", "1"),
            ("int", "0e9", "0"),
            ("number", "12345678901234567890.5", "12345678901234567890.5"),
            ("number", r#""1e3""#, "1e3"),
            ("bool", r#""false""#, "false"),
            ("bool", r#""True""#, "true"),
            ("bool", r#""False""#, "false"),
            ("list", "[1]", "[1]"),
            ("map", "{}", "{}"),
            ("timestamp", r#""2026-11-15T10:00:00Z""#, r#""2026-11-15T10:00:00Z""#),
            ("timestamp", r#""2026-11-15T10:00:00.123456+02:00""#, r#""2026-11-15T10:00:00.123456+02:00""#),
            ("quantity", r#""100m""#, r#""100m""#),
            ("quantity", r#""1.5Gi""#, r#""1.5Gi""#),
            ("quantity", "2", r#""2""#),
            ("int", "null", "null"),
        ] {
            assert_eq!(convert(type_, from, false).as_deref(), Some(to), "{from} as {type_}");
        }
    }

    #[test]
    fn values_that_would_lose_something_are_not_converted() {
        for (type_, from) in [
            ("string", "[]"),
            ("string", "{}"),
            ("int", "1.5"),
            ("int", "15e-1"),
            ("int", "1e999"),
            ("int", r#""1e""#),
            ("int", r#"".5""#),
            ("int", r#""0x10""#),
            ("int", r#""007""#),
            ("int", "true"),
            ("number", r#""NaN""#),
            ("number", r#"" 1""#),
            ("bool", r#""yes""#),
            ("bool", r#""TRUE""#),
            ("bool", r#""Unknown""#),
            ("map", r#""{}""#),
            ("bool", "1"),
            ("list", r#""a""#),
            ("map", "[]"),
            ("timestamp", r#""2026-11-15""#),
            ("timestamp", r#""2026-13-15T10:00:00Z""#),
            ("timestamp", "7"),
            ("quantity", r#""100 m""#),
            ("quantity", r#""ten""#),
        ] {
            assert_eq!(convert(type_, from, false), None, "{from} as {type_}");
        }
    }

    #[test]
    fn a_list_path_stands_for_its_only_item() {
        assert_eq!(convert("string", r#"["a"]"#, true).as_deref(), Some(r#""a""#));
        assert_eq!(convert("string", "[]", true).as_deref(), Some("null"));
        assert_eq!(convert("string", r#"["a","b"]"#, true), None);
        assert_eq!(convert("list", r#"["a"]"#, true).as_deref(), Some(r#"["a"]"#));
        assert_eq!(convert("string", r#"["a"]"#, false), None, "a list is not its item");
    }

    #[test]
    fn a_redacted_value_has_every_type() {
        for type_ in ["string", "int", "number", "bool", "list", "map", "timestamp", "quantity"] {
            let type_ = AttributeType::named(type_).unwrap();
            assert_eq!(super::convert(type_, Json::Redacted, false), Ok(Json::Redacted));
            if type_ != AttributeType::List {
                let list = Json::List(vec![Json::Bool(true), Json::Redacted]);
                assert_eq!(
                    super::convert(type_, list, true),
                    Ok(Json::Redacted),
                    "it is not known how many there are"
                );
            }
        }
        let looks_like_it =
            Json::read(r#"{"reason":"sensitive-key","redacted":true}"#, &Projection::everything());
        let converted = super::convert(AttributeType::Int, looks_like_it.unwrap(), false);
        assert!(converted.is_err(), "a map of an object is a map");
    }
}
