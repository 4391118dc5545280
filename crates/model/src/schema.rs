//! The schema of an inventory: what its targets declare about the attributes of their rows.
//!
//! It travels to sinks with every batch. Sinks that need columns get them from [`columns`] and from nothing else. A changed
//! schema changes no row, and no digest of one.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::row::TargetId;

pub mod columns;

/// Types that an attribute can be declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttributeType {
    /// A text.
    String,
    /// An integer of any size.
    Int,
    /// A number.
    Number,
    /// True or false.
    Bool,
    /// A list.
    List,
    /// A map.
    Map,
    /// A text with a date and a time, as RFC 3339.
    Timestamp,
    /// A text such as `500m` or `2Gi`.
    Quantity,
}

impl AttributeType {
    /// All types.
    pub const ALL: [Self; 8] = [
        Self::String,
        Self::Int,
        Self::Number,
        Self::Bool,
        Self::List,
        Self::Map,
        Self::Timestamp,
        Self::Quantity,
    ];

    /// The type of that name. Any other text is documentation and is not enforced.
    pub fn named(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == text)
    }

    /// Its name, as profiles write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Int => "int",
            Self::Number => "number",
            Self::Bool => "bool",
            Self::List => "list",
            Self::Map => "map",
            Self::Timestamp => "timestamp",
            Self::Quantity => "quantity",
        }
    }
}

/// What a profile declares about an attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttributeSchema {
    /// Its name.
    pub name: Arc<str>,
    /// Its type; `None`: any value.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<AttributeType>,
    /// Whether rows without a value leave it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// What a target declares about its rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TargetSchema {
    /// Its profile, as `namespace/name`.
    pub profile: String,
    /// The attributes, by name.
    pub attributes: Arc<[AttributeSchema]>,
}

/// What the targets of an inventory declare about their rows. A target whose profile is missing or invalid is not in it, although it
/// may have rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// By target.
    pub targets: BTreeMap<TargetId, TargetSchema>,
}
