//! What the API server says about the fields of a kind, and mistakes that follow from it.
//!
//! [`ObjectSchema::of`] reads the OpenAPI document of a group and version, which has built-in and custom kinds; [`check`] compares a
//! profile with it. Findings are warnings: another version of the schema must not invalidate a stored profile.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use kollect_model::{
    SpecError,
    crd::{
        profile::{ExportMode, ExportSections, KollectProfileSpec},
        shapes::Gvk,
    },
    schema::AttributeType,
};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

use super::{
    cel::{self, nearest},
    jsonpath::Path,
    with_caret,
};

/// The schema of a kind and those that it refers to.
#[derive(Debug)]
pub struct ObjectSchema {
    schemas: Map<String, Value>,
    root: String,
}

/// Which kinds a schema is of.
const KINDS: &str = "x-kubernetes-group-version-kind";

/// As much of a document as is needed.
#[derive(Deserialize)]
struct OpenApiDocument<'a> {
    #[serde(borrow)]
    components: OpenApiComponents<'a>,
}

#[derive(Deserialize)]
struct OpenApiComponents<'a> {
    #[serde(borrow)]
    schemas: BTreeMap<Cow<'a, str>, &'a RawValue>,
}

const REFERENCE: &str = "#/components/schemas/";

impl ObjectSchema {
    /// The schema of a kind in an OpenAPI document of version 3; none if it is not there. Of the document, which has all kinds of a
    /// group, only what this one refers to is read.
    pub fn of(document: &str, gvk: &Gvk) -> Option<Self> {
        let document: OpenApiDocument<'_> = serde_json::from_str(document).ok()?;
        let all = document.components.schemas;
        let quoted = format!("\"{}\"", gvk.kind);
        let is_kind = |schema: &RawValue| {
            let text = schema.get();
            let schema: Value = if text.contains(&quoted) && text.contains(KINDS) {
                serde_json::from_str(text).unwrap_or_default()
            } else {
                Value::Null
            };
            schema[KINDS].as_array().into_iter().flatten().any(|kind| {
                kind["group"] == *gvk.group && kind["version"] == *gvk.version && kind["kind"] == *gvk.kind
            })
        };
        let root = all.iter().find(|(_, schema)| is_kind(schema)).map(|(name, _)| name.to_string())?;
        let (mut schemas, mut waiting) = (Map::new(), vec![root.clone()]);
        while let Some(name) = waiting.pop() {
            let Some(schema) = all.get(&*name).filter(|_| !schemas.contains_key(&name)) else { continue };
            let schema: Value = serde_json::from_str(schema.get()).ok()?;
            let mut found = BTreeSet::new();
            collect_references(&schema, &mut found);
            waiting.extend(found);
            schemas.insert(name, schema);
        }
        Some(Self { schemas, root })
    }

    pub(super) fn shape(&self) -> Shape<'_> {
        let schema = self.schemas.get(&self.root).unwrap_or(&Value::Null);
        Shape { schemas: &self.schemas, schema }.resolved()
    }
}

fn collect_references(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                found.extend(name.strip_prefix(REFERENCE).map(ToOwned::to_owned));
            }
            fields.values().for_each(|field| collect_references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, found)),
        _ => {}
    }
}

/// A part of a schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<'s> {
    schemas: &'s Map<String, Value>,
    schema: &'s Value,
}

/// What values of a shape are.
#[derive(Clone, Copy, Debug)]
pub(super) enum ShapeKind<'s> {
    /// Nothing is known.
    Any,
    Bool,
    Int,
    Number,
    String,
    List(Shape<'s>),
    /// A map with any keys.
    Map(Shape<'s>),
    /// Fields that have names.
    Fields,
}

/// A field of a shape.
pub(super) enum Field<'s> {
    Known(Shape<'s>),
    /// The schema does not say which fields there are.
    Open,
    /// There is none; one with a similar name.
    Missing(Option<String>),
}

impl<'s> Shape<'s> {
    fn part(self, schema: &'s Value) -> Self {
        Self { schema, ..self }.resolved()
    }

    /// Follows references.
    fn resolved(self) -> Self {
        let mut schema = self.schema;
        // References to references are few; a circle has no other fields.
        for _ in 0..8 {
            let reference =
                schema["$ref"].as_str().or_else(|| match schema["allOf"].as_array()?.as_slice() {
                    [only] => only["$ref"].as_str(),
                    _ => None,
                });
            let Some(target) = reference.and_then(|name| self.schemas.get(name.strip_prefix(REFERENCE)?))
            else {
                break;
            };
            schema = target;
        }
        Self { schema, ..self }
    }

    /// Whether both are the same part of the same document.
    pub(super) fn is_same(self, other: Self) -> bool {
        std::ptr::eq(self.schema, other.schema)
    }

    pub(super) fn kind(self) -> ShapeKind<'s> {
        let schema = self.schema;
        let is_either = schema["x-kubernetes-int-or-string"] == true
            || schema["format"] == "int-or-string"
            || ["oneOf", "anyOf", "allOf"].iter().any(|key| schema[key].is_array());
        match schema["type"].as_str() {
            _ if is_either => ShapeKind::Any,
            Some("boolean") => ShapeKind::Bool,
            Some("integer") => ShapeKind::Int,
            Some("number") => ShapeKind::Number,
            Some("string") => ShapeKind::String,
            Some("array") => ShapeKind::List(self.part(&schema["items"])),
            Some("object") if schema["properties"].is_object() => ShapeKind::Fields,
            Some("object") if schema["additionalProperties"].is_object() => {
                ShapeKind::Map(self.part(&schema["additionalProperties"]))
            }
            _ => ShapeKind::Any,
        }
    }

    pub(super) fn field(self, name: &str) -> Field<'s> {
        let schema = self.schema;
        if let Some(field) = schema["properties"].get(name) {
            return Field::Known(self.part(field));
        }
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true
            || schema["x-kubernetes-embedded-resource"] == true
            || !(schema["additionalProperties"].is_null() || schema["additionalProperties"] == false)
            || !schema["properties"].is_object();
        if is_open {
            return Field::Open;
        }
        let known = schema["properties"].as_object().into_iter().flatten().map(|(known, _)| known.as_str());
        Field::Missing(nearest(name, known).map(ToOwned::to_owned))
    }
}

/// The problem of a field that does not exist.
pub(super) fn no_field(name: &str, similar: Option<&str>) -> String {
    match similar {
        Some(similar) => format!("the schema has no field {name} here: did you mean {similar}?"),
        None => format!("the schema has no field {name} here"),
    }
}

/// Mistakes in a profile that the schema of its kind shows.
pub fn check(spec: &KollectProfileSpec, schema: &ObjectSchema) -> Vec<SpecError> {
    let mut warnings = Vec::new();
    for (index, attribute) in spec.attributes.iter().enumerate() {
        let field = format!("spec.attributes[{index}].path");
        let text = attribute.path.trim();
        let declared = AttributeType::named(&attribute.type_);
        if let Some(expression) = text.strip_prefix("cel:") {
            let found = cel::schema_warnings(expression, schema.shape(), declared);
            warnings.extend(found.into_iter().map(|w| with_caret(&*field, expression, w.at, &w.problem)));
        } else if let Ok(path) = Path::parse(text) {
            let found = path.schema_warnings(text, schema.shape(), declared);
            warnings.extend(found.into_iter().map(|w| with_caret(&*field, text, Some(w.at), &w.problem)));
        }
    }
    warnings.extend(missing_section(spec, schema));
    for (index, text) in spec.export.iter().flat_map(|e| &e.prune).flat_map(|prune| &prune.cel).enumerate() {
        let text = text.trim();
        let text = text.strip_prefix("cel:").unwrap_or(text);
        let field = format!("spec.export.prune.cel[{index}]");
        let found = cel::schema_warnings(text, schema.shape(), None);
        warnings.extend(found.into_iter().map(|w| with_caret(&*field, text, w.at, &w.problem)));
    }
    warnings
}

/// A warning about a section that whole objects of the kind do not have.
fn missing_section(spec: &KollectProfileSpec, schema: &ObjectSchema) -> Option<SpecError> {
    let export = spec.export.as_ref().filter(|export| export.mode == ExportMode::Resource)?;
    let (include, section) = match export.include {
        ExportSections::SpecOnly => ("SpecOnly", "spec"),
        ExportSections::StatusOnly => ("StatusOnly", "status"),
        // Objects without a spec are exported as a whole.
        ExportSections::SpecAndStatus | ExportSections::MetadataOnly | ExportSections::All => return None,
    };
    let is_missing = matches!(schema.shape().field(section), Field::Missing(_));
    is_missing.then(|| {
        let kind = &spec.target_gvk.kind;
        let problem = format!(
            "{kind} has no {section}: rows have apiVersion and kind only; use All, or leave include out"
        );
        SpecError::new("spec.export.include", &include.into(), problem)
    })
}

#[cfg(test)]
mod tests;
