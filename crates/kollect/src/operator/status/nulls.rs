//! Attributes without a value: how many rows, the cause, and an example. Attributes with redacted values.

use kollect_engine::store::{NullCause, NullCount, RedactionCount};
use kollect_model::crd::target::{NullAttributeStatus, RedactionStatus};

use super::counted;
use crate::{operator::conditions::Conditions, reason::Reason};

/// Limit of the CRD schema.
const MAX_LINES: usize = 100;
/// Limit of attributes that a message names.
const NAMED_ATTRIBUTES: usize = 2;

/// The lines of the status; type mismatches come first.
pub(super) fn lines(nulls: &[NullCount]) -> Vec<NullAttributeStatus> {
    sorted(nulls).into_iter().take(MAX_LINES).map(line).collect()
}

fn sorted(nulls: &[NullCount]) -> Vec<&NullCount> {
    let mut nulls: Vec<&NullCount> = nulls.iter().collect();
    nulls.sort_by(|a, b| (a.cause, &a.attribute).cmp(&(b.cause, &b.attribute)));
    nulls
}

fn line(null: &NullCount) -> NullAttributeStatus {
    NullAttributeStatus {
        name: null.attribute.to_string(),
        cause: null.cause.as_str().to_owned(),
        rows: null.rows.try_into().unwrap_or(i64::MAX),
        example: example(null),
    }
}

/// The lines of the status about redacted values; attributes with most of them come first.
pub(super) fn redactions(redactions: &[RedactionCount]) -> Vec<RedactionStatus> {
    let mut redactions: Vec<&RedactionCount> = redactions.iter().collect();
    redactions.sort_by(|a, b| (b.values, &a.attribute).cmp(&(a.values, &b.attribute)));
    let count = |number: usize| number.try_into().unwrap_or(i64::MAX);
    let line = |redacted: &RedactionCount| RedactionStatus {
        name: redacted.attribute.to_string(),
        values: count(redacted.values),
        rows: count(redacted.rows),
        example: redacted.object.clone(),
    };
    redactions.into_iter().take(MAX_LINES).map(line).collect()
}

fn example(NullCount { cause, object, found, types, .. }: &NullCount) -> String {
    match (cause, types) {
        (NullCause::TypeMismatch, Some((declared, kind))) => {
            let value = if found.is_empty() { String::new() } else { format!(", {found}") };
            format!("{object} has {kind}{value}, declared {declared}")
        }
        (NullCause::Failed, _) if !found.is_empty() => format!("{object}: {found}"),
        _ => object.clone(),
    }
}

/// The message about an attribute.
fn sentence(null: &NullCount) -> String {
    let NullCount { attribute, cause, rows, .. } = null;
    let (rows, example) = (counted(*rows, "row", "rows"), example(null));
    match cause {
        NullCause::TypeMismatch => {
            format!("{attribute} is null in {rows}: not of the declared type ({example})")
        }
        NullCause::Missing => format!("{attribute} has no value in {rows} ({example})"),
        NullCause::Failed => format!("the expression of {attribute} fails for {rows} ({example})"),
    }
}

/// The first attribute that is not of its declared type, as an error.
pub(super) fn first_mismatch(nulls: &[NullCount]) -> Option<String> {
    let mismatch = sorted(nulls).into_iter().find(|null| null.cause == NullCause::TypeMismatch)?;
    Some(format!("attribute {}", sentence(mismatch)))
}

/// Sets AttributesNull if attributes have no value.
pub(super) fn set_attributes_null(nulls: &[NullCount], conditions: &mut Conditions<'_>) {
    let sorted = sorted(nulls);
    let Some(first) = sorted.first() else { return };
    let reason = match first.cause {
        NullCause::TypeMismatch => Reason::TypeMismatch,
        NullCause::Missing | NullCause::Failed => Reason::ValueMissing,
    };
    let mut message: Vec<String> = sorted.iter().take(NAMED_ATTRIBUTES).map(|null| sentence(null)).collect();
    let more = sorted.len().saturating_sub(NAMED_ATTRIBUTES);
    if more > 0 {
        message.push(format!("{} in status.nullAttributes", counted(more, "more", "more")));
    }
    message.push("if that is not expected, correct path or type in the profile".to_owned());
    conditions.set("AttributesNull", true, reason, message.join("; "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_mismatches_come_first_and_the_attributes_that_are_not_named_are_counted() {
        let null = |attribute: &str, cause, rows| {
            let (found, types) = match cause {
                NullCause::TypeMismatch => ("\"x\"".to_owned(), Some(("map", "a string"))),
                _ => (String::new(), None),
            };
            NullCount {
                attribute: attribute.into(),
                cause,
                rows,
                object: "shop/cart".to_owned(),
                found,
                types,
            }
        };
        let nulls = [
            null("owner", NullCause::Missing, 1),
            null("port", NullCause::Failed, 4),
            null("team", NullCause::TypeMismatch, 3000),
        ];
        let mut conditions = Conditions::after(&[], Some(1), k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        set_attributes_null(&nulls, &mut conditions);
        let condition = conditions.done().remove(0);
        assert_eq!(
            (&*condition.reason, &*condition.message),
            (
                "TypeMismatch",
                "team is null in 3000 rows: not of the declared type (shop/cart has a string, \"x\", declared map); owner has no value in \
                 1 row (shop/cart); 1 more in status.nullAttributes; if that is not expected, correct path or type in \
                 the profile"
            )
        );
        assert_eq!(
            first_mismatch(&nulls).unwrap(),
            "attribute team is null in 3000 rows: not of the declared type (shop/cart has a string, \"x\", declared map)"
        );
        let lines = lines(&nulls);
        assert_eq!((&*lines[0].name, lines[0].rows, lines.len()), ("team", 3000, 3));
    }
}
