//! Values of columns: what stands in a column of a row, by the type of the column.

use std::{borrow::Cow, fmt};

use kollect_model::{
    batch::InventoryId,
    row::Row,
    schema::columns::{Column, ColumnType},
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Columns of every row that identify it, in their order. The names are those of the Go implementation.
pub(super) const IDENTITY: [&str; 11] = [
    "cluster",
    "inventory_namespace",
    "inventory_name",
    "target_namespace",
    "target_name",
    "namespace",
    "name",
    "uid",
    "api_version",
    "kind",
    "group",
];

/// The column of the attributes as JSON.
pub(super) const ATTRIBUTES: &str = "attributes";

/// The values of [`IDENTITY`].
pub(super) fn identity<'a>(inventory: &'a InventoryId, row: &'a Row) -> [Cow<'a, str>; 11] {
    let key = &row.key;
    let api_version = if key.group.is_empty() {
        Cow::Borrowed(&*row.version)
    } else {
        Cow::Owned(format!("{}/{}", key.group, row.version))
    };
    [
        inventory.cluster.as_str().into(),
        inventory.stored_namespace().into(),
        inventory.name.as_str().into(),
        row.target_namespace().into(),
        (&*key.target.name).into(),
        (&*key.namespace).into(),
        (&*row.name).into(),
        (&*key.uid).into(),
        api_version,
        (&*key.kind).into(),
        (&*key.group).into(),
    ]
}

/// What stands in a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Null,
    Text(Cow<'a, str>),
    Int(i64),
    Number(f64),
    Bool(bool),
    /// Microseconds since 1970.
    Timestamp(i64),
}

/// Calls `visit` with the number of each column that has a value, and with that value.
pub(super) fn visit_attributes<'a>(
    row: &'a Row,
    columns: &[Column],
    visit: impl FnMut(usize, Value<'a>),
) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_str(row.attributes.get());
    reader.deserialize_map(AttributeVisitor { columns, visit })
}

struct AttributeVisitor<'c, F> {
    columns: &'c [Column],
    visit: F,
}

/// A key of a map, without a copy if it has no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(usize, Value<'de>)> Visitor<'de> for AttributeVisitor<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of attributes")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Key(name), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
            // Columns are sorted by the names of their attributes.
            let first = self.columns.partition_point(|column| *column.attribute < *name);
            for (number, column) in self.columns.iter().enumerate().skip(first) {
                if *column.attribute != *name {
                    break;
                }
                (self.visit)(number, value_of(column.type_, value.get()));
            }
        }
        Ok(())
    }
}

/// A value as JSON, in a column of this type. What does not fit has no value: it is in [`ATTRIBUTES`].
fn value_of(type_: ColumnType, json: &str) -> Value<'_> {
    if json == "null" {
        return Value::Null;
    }
    let or_null = |value: Option<Value<'static>>| value.unwrap_or(Value::Null);
    match type_ {
        ColumnType::Json => Value::Text(json.into()),
        ColumnType::Text => Value::Text(text(json).unwrap_or(json.into())),
        ColumnType::Quantity => text(json).map_or(Value::Null, Value::Text),
        ColumnType::Int => or_null(json.parse().ok().map(Value::Int)),
        ColumnType::Number => {
            let number = json.parse().ok().filter(|number: &f64| number.is_finite());
            or_null(number.map(Value::Number))
        }
        ColumnType::Bool => or_null(json.parse().ok().map(Value::Bool)),
        ColumnType::Timestamp => {
            let time = text(json).and_then(|text| text.parse::<jiff::Timestamp>().ok());
            or_null(time.map(|time| Value::Timestamp(time.as_microsecond())))
        }
        ColumnType::QuantityNumber => or_null(text(json).and_then(|text| quantity(&text)).map(Value::Number)),
    }
}

/// The text of a JSON string.
fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') { serde_json::from_str(json).ok().map(Cow::Owned) } else { Some(inner.into()) }
}

/// The number of a quantity of Kubernetes in its base unit: `500m` is 0.5, `2Ki` is 2048.
fn quantity(text: &str) -> Option<f64> {
    const UNITS: &[(&str, f64)] = &[
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    // Divided, because 0.001 is no exact number: 500m is exactly 0.5.
    const PARTS: &[(&str, f64)] = &[("n", 1e9), ("u", 1e6), ("m", 1e3)];
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    if text.ends_with(|c: char| c.is_ascii_digit() || c == '.') {
        return number(text);
    }
    let of_unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let of_part = PARTS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    match (of_unit, of_part) {
        (Some((digits, factor)), _) => Some(number(digits)? * factor).filter(|number| number.is_finite()),
        (None, Some((digits, factor))) => Some(number(digits)? / factor),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fit_their_columns_or_are_null() {
        use ColumnType as C;
        let text = |text: &'static str| Value::Text(text.into());
        for (type_, json, expected) in [
            (C::Text, r#""a\"b""#, text("a\"b")),
            (C::Text, r#""""#, text("")),
            (C::Text, r#"{"a":1}"#, text(r#"{"a":1}"#)),
            (C::Text, "null", Value::Null),
            (C::Json, r#""a""#, text(r#""a""#)),
            (C::Json, "[1,2]", text("[1,2]")),
            (C::Int, "7", Value::Int(7)),
            (C::Int, "99999999999999999999", Value::Null),
            (C::Int, r#"{"reason":"sensitive-key","redacted":true}"#, Value::Null),
            (C::Number, "1.5", Value::Number(1.5)),
            (C::Number, "1e999", Value::Null),
            (C::Bool, "true", Value::Bool(true)),
            (C::Bool, r#""true""#, Value::Null),
            (C::Timestamp, r#""1970-01-01T00:00:01Z""#, Value::Timestamp(1_000_000)),
            (C::Timestamp, r#""1970-01-01T01:00:00.5+01:00""#, Value::Timestamp(500_000)),
            (C::Timestamp, r#""yesterday""#, Value::Null),
            (C::Quantity, r#""500m""#, text("500m")),
            (C::QuantityNumber, r#""500m""#, Value::Number(0.5)),
            (C::QuantityNumber, r#""2Gi""#, Value::Number(2_147_483_648.0)),
            (C::QuantityNumber, r#""1e3""#, Value::Number(1000.0)),
            (C::QuantityNumber, r#""12E""#, Value::Number(12e18)),
            (C::QuantityNumber, r#""3u""#, Value::Number(3e-6)),
            (C::QuantityNumber, r#""100k""#, Value::Number(100_000.0)),
            (C::QuantityNumber, r#""x""#, Value::Null),
        ] {
            assert_eq!(value_of(type_, json), expected, "{json} in {type_:?}");
        }
    }
}
