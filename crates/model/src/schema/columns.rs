//! Columns for the attributes of an inventory, from its schema.
//!
//! Equal schemas give equal columns, whatever the order of targets. Attributes of several targets with one name share a column.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{AttributeSchema, AttributeType, Schema};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ColumnType {
    /// A text. Values that are none are written as JSON.
    Text,
    /// An integer of 64 bits; a larger one has no value.
    Int,
    /// A number of 64 bits.
    Number,
    /// True or false.
    Bool,
    /// A point in time, in microseconds.
    Timestamp,
    /// A quantity as it is written, with a column for its number beside it.
    Quantity,
    /// The number of a quantity in its base unit: cores, bytes.
    QuantityNumber,
    /// Any value, as JSON.
    Json,
}

impl ColumnType {
    fn of(declared: Option<AttributeType>) -> Self {
        match declared {
            None | Some(AttributeType::String) => Self::Text,
            Some(AttributeType::Int) => Self::Int,
            Some(AttributeType::Number) => Self::Number,
            Some(AttributeType::Bool) => Self::Bool,
            Some(AttributeType::Timestamp) => Self::Timestamp,
            Some(AttributeType::Quantity) => Self::Quantity,
            Some(AttributeType::List | AttributeType::Map) => Self::Json,
        }
    }
}

/// A column for an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, such as `attr_image`.
    pub name: String,
    /// The attribute.
    pub attribute: Arc<str>,
    /// What it holds.
    pub type_: ColumnType,
}

/// The columns of an inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// In the order of their attributes' names.
    pub columns: Vec<Column>,
    /// Targets that declare different types for one attribute, whose column therefore holds JSON.
    pub warnings: Vec<String>,
}

impl Columns {
    /// The columns of a schema: of all attributes, or of those with these names.
    pub fn of(schema: &Schema, only: Option<&[String]>) -> Self {
        let is_wanted = |attribute: &&AttributeSchema| {
            only.is_none_or(|names| names.iter().any(|name| **name == *attribute.name))
        };
        // By attribute and type: how the first target with it declares it.
        let mut declared: BTreeMap<&Arc<str>, BTreeMap<ColumnType, String>> = BTreeMap::new();
        for (target, known) in &schema.targets {
            for attribute in known.attributes.iter().filter(is_wanted) {
                let types = declared.entry(&attribute.name).or_default();
                types.entry(ColumnType::of(attribute.type_)).or_insert_with(|| {
                    let name = attribute.type_.map_or("no type", AttributeType::name);
                    format!("target {target} (profile {}) declares {name}", known.profile)
                });
            }
        }
        let mut columns = Self::default();
        let mut taken = BTreeSet::new();
        for (attribute, types) in declared {
            columns.warnings.extend(disagreement(attribute, &types));
            let type_ = match types.keys().next() {
                Some(only) if types.len() == 1 => *only,
                _ => ColumnType::Json,
            };
            let name = free_name(&column_name(attribute), &mut taken);
            if type_ == ColumnType::Quantity {
                let number = free_name(&format!("{name}_num"), &mut taken);
                let attribute = attribute.clone();
                columns.columns.push(Column { name, attribute: attribute.clone(), type_ });
                columns.columns.push(Column { name: number, attribute, type_: ColumnType::QuantityNumber });
            } else {
                columns.columns.push(Column { name, attribute: attribute.clone(), type_ });
            }
        }
        columns
    }
}

/// The warning about an attribute that targets declare differently.
fn disagreement(attribute: &str, types: &BTreeMap<ColumnType, String>) -> Option<String> {
    let mut all = types.values();
    let (first, second) = (all.next()?, all.next()?);
    Some(format!(
        "attribute {attribute} has several types: {first}, {second}; its column holds JSON texts: declare one type, or rename one of \
         the attributes"
    ))
}

/// The name of the column of an attribute: in lower case, with `_` for `-` and `.`, without other signs.
fn column_name(attribute: &str) -> String {
    let name: String = attribute
        .to_lowercase()
        .chars()
        .filter_map(|c| match c {
            '-' | '_' | '.' => Some('_'),
            c => c.is_ascii_alphanumeric().then_some(c),
        })
        .collect();
    format!("attr_{}", if name.is_empty() { "unknown" } else { &name })
}

/// The name, or the name with the first free number.
fn free_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let mut free = name.to_owned();
    let mut number = 2;
    while !taken.insert(free.clone()) {
        free = format!("{name}_{number}");
        number += 1;
    }
    free
}

#[cfg(test)]
mod tests {
    use super::{super::TargetSchema, *};
    use crate::row::TargetId;

    type Declared<'a> = (&'a str, &'a [(&'a str, Option<AttributeType>)]);

    fn schema(targets: &[Declared<'_>]) -> Schema {
        let targets = targets.iter().map(|(name, attributes)| {
            let attribute = |(name, type_): &(&str, Option<AttributeType>)| AttributeSchema {
                name: (*name).into(),
                type_: *type_,
                optional: false,
            };
            let id = TargetId { namespace: Some("team".into()), name: (*name).into() };
            let profile = format!("team/{name}");
            (id, TargetSchema { profile, attributes: attributes.iter().map(attribute).collect() })
        });
        Schema { targets: targets.collect() }
    }

    fn described(columns: &Columns) -> Vec<String> {
        let column = |column: &Column| format!("{} {} {:?}", column.name, column.attribute, column.type_);
        columns.columns.iter().map(column).collect()
    }

    #[test]
    fn each_attribute_has_a_column_with_its_type() {
        use AttributeType::{Bool, Int, List, Quantity, Timestamp};
        let schema = schema(&[
            ("a", &[("Image-Tag", None), ("ready", Some(Bool)), ("replicas", Some(Int))]),
            (
                "b",
                &[
                    ("memory", Some(Quantity)),
                    ("ports", Some(List)),
                    ("ready", Some(Bool)),
                    ("since", Some(Timestamp)),
                ],
            ),
        ]);
        let columns = Columns::of(&schema, None);
        assert_eq!(
            described(&columns),
            [
                "attr_image_tag Image-Tag Text",
                "attr_memory memory Quantity",
                "attr_memory_num memory QuantityNumber",
                "attr_ports ports Json",
                "attr_ready ready Bool",
                "attr_replicas replicas Int",
                "attr_since since Timestamp",
            ]
        );
        assert!(columns.warnings.is_empty());
        let narrowed = Columns::of(&schema, Some(&["ports".to_owned(), "other".to_owned()]));
        assert_eq!(described(&narrowed), ["attr_ports ports Json"]);
    }

    #[test]
    fn names_that_become_equal_get_numbers() {
        use AttributeType::Quantity;
        let schema =
            schema(&[("a", &[("a.b", None), ("a-b", None), ("A_B", None), ("€", None), ("", None)])]);
        assert_eq!(
            described(&Columns::of(&schema, None)),
            [
                "attr_unknown  Text",
                "attr_a_b A_B Text",
                "attr_a_b_2 a-b Text",
                "attr_a_b_3 a.b Text",
                "attr_unknown_2 € Text",
            ]
        );
        let schema = super::tests::schema(&[("a", &[("cpu", Some(Quantity)), ("cpu_num", None)])]);
        assert_eq!(
            described(&Columns::of(&schema, None)),
            ["attr_cpu cpu Quantity", "attr_cpu_num cpu QuantityNumber", "attr_cpu_num_2 cpu_num Text"]
        );
    }

    #[test]
    fn targets_that_disagree_give_json_and_a_warning_that_names_both() {
        use AttributeType::{Int, String};
        let schema = schema(&[
            ("a", &[("port", Some(Int))]),
            ("b", &[("port", Some(String))]),
            ("c", &[("port", Some(Int))]),
        ]);
        let columns = Columns::of(&schema, None);
        assert_eq!(described(&columns), ["attr_port port Json"]);
        assert_eq!(
            columns.warnings,
            [
                "attribute port has several types: target team/b (profile team/b) declares string, target team/a (profile team/a) \
                 declares int; its column holds JSON texts: declare one type, or rename one of the attributes"
            ]
        );
    }

    #[test]
    fn types_have_the_names_that_profiles_write() {
        for known in AttributeType::ALL {
            assert_eq!(AttributeType::named(known.name()), Some(known));
            assert_eq!(serde_json::to_value(known).unwrap(), known.name());
        }
        assert_eq!(AttributeType::named("text"), None);
    }
}
