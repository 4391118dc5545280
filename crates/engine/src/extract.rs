//! From an object to the attributes of its row: a profile, compiled once.
//!
//! The command line compiles the profiles of its manifests here, admission will ask the same function.

mod jsonpath;

use kollect_model::{
    SpecError,
    crd::{
        profile::{Attribute, ExportMode, KollectProfileSpec},
        shapes::Gvk,
    },
};
use serde_json::{Map, Value, value::RawValue};

use self::jsonpath::Path;
use crate::scrub::{self, Scrubber};

/// A profile whose expressions are known to be right.
pub struct CompiledProfile {
    /// The profile's kind.
    pub gvk: Gvk,
    attributes: Vec<CompiledAttribute>,
    scrubber: Scrubber,
}

struct CompiledAttribute {
    name: String,
    path: Path,
    type_: Option<Type>,
    optional: bool,
}

/// Types that attributes can be declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    String,
    Int,
    Number,
    Bool,
    List,
    Map,
}

/// What came out of one object.
#[derive(Debug)]
pub struct Extracted {
    /// The attributes as canonical JSON.
    pub attributes: Box<RawValue>,
    /// Attributes that have another type than declared; they are null.
    pub mismatches: Vec<String>,
}

/// An object that is not JSON.
#[derive(Debug, thiserror::Error)]
#[error("read the object")]
pub struct ExtractError(#[from] serde_json::Error);

impl CompiledProfile {
    /// Compiles a profile, or says everything that is wrong with it.
    pub fn compile(spec: &KollectProfileSpec) -> Result<Self, Vec<SpecError>> {
        let mut errors = Vec::new();
        let mut attributes = Vec::with_capacity(spec.attributes.len());
        for (index, attribute) in spec.attributes.iter().enumerate() {
            match compile(attribute, &format!("spec.attributes[{index}]")) {
                Ok(compiled) => attributes.push(compiled),
                Err(error) => errors.push(error),
            }
        }
        let export = spec.export.as_ref();
        if export.is_some_and(|export| export.mode == ExportMode::Resource) {
            let problem = "Resource is not available in this build: list the attributes you need";
            errors.push(SpecError::new("spec.export.mode", &"Resource".into(), problem));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let extra = export.and_then(|export| export.prune.as_ref()).map(|prune| &*prune.scrub_keys);
        let scrubber = Scrubber::new(extra.unwrap_or_default());
        Ok(Self { gvk: spec.target_gvk.clone(), attributes, scrubber })
    }

    /// The attributes of an object of the kind.
    pub fn extract(&self, gvk: &Gvk, raw: &RawValue) -> Result<Extracted, ExtractError> {
        let mut fields: Map<String, Value> = serde_json::from_str(raw.get())?;
        // Items of a list do not repeat what the list says; a row must not depend on that.
        fields.insert("apiVersion".into(), gvk.api_version().into());
        fields.insert("kind".into(), gvk.kind.clone().into());
        scrub::strip(gvk, &mut fields);
        let object = Value::Object(fields);
        let mut attributes = Map::new();
        let mut mismatches = Vec::new();
        for attribute in &self.attributes {
            let mut value = attribute.path.find(&object).cloned().unwrap_or(Value::Null);
            if let Some(type_) = attribute.type_ {
                value = type_.convert(value).unwrap_or_else(|| {
                    mismatches.push(attribute.name.clone());
                    Value::Null
                });
            }
            if !(attribute.optional && value.is_null()) {
                attributes.insert(attribute.name.clone(), value);
            }
        }
        self.scrubber.scrub(&mut attributes);
        // serde_json keeps the keys of its maps sorted: equal attributes are equal bytes.
        let attributes = serde_json::value::to_raw_value(&attributes)?;
        Ok(Extracted { attributes, mismatches })
    }
}

fn compile(attribute: &Attribute, field: &str) -> Result<CompiledAttribute, SpecError> {
    let text = attribute.path.trim();
    let refuse =
        |problem: &str| SpecError::new(format!("{field}.path"), &attribute.path.clone().into(), problem);
    if text.starts_with("cel:") {
        return Err(refuse("CEL expressions are not available in this build: write a path"));
    }
    if text.starts_with("helm:") {
        return Err(refuse("Helm releases are not available in this build: write a path"));
    }
    let path = Path::parse(text).map_err(|error| {
        let caret = format!("{}^", " ".repeat(error.at));
        refuse(&format!("{}\n    {text}\n    {caret}", error.problem))
    })?;
    Ok(CompiledAttribute {
        name: attribute.name.clone(),
        path,
        type_: Type::named(&attribute.type_, field)?,
        optional: attribute.optional,
    })
}

impl Type {
    /// An unknown text is documentation and not enforced.
    fn named(text: &str, field: &str) -> Result<Option<Self>, SpecError> {
        Ok(match text {
            "string" => Some(Self::String),
            "int" => Some(Self::Int),
            "number" => Some(Self::Number),
            "bool" => Some(Self::Bool),
            "list" => Some(Self::List),
            "map" => Some(Self::Map),
            "timestamp" | "quantity" => {
                let problem = "is not available in this build: leave it out";
                return Err(SpecError::new(format!("{field}.type"), &text.into(), problem));
            }
            _ => None,
        })
    }

    /// The value in this type if nothing is lost; null stays null.
    fn convert(self, value: Value) -> Option<Value> {
        match (self, value) {
            (_, Value::Null) => Some(Value::Null),
            (Self::String, value @ Value::String(_))
            | (Self::Number, value @ Value::Number(_))
            | (Self::Bool, value @ Value::Bool(_))
            | (Self::List, value @ Value::Array(_))
            | (Self::Map, value @ Value::Object(_)) => Some(value),
            (Self::String, value @ (Value::Number(_) | Value::Bool(_))) => Some(value.to_string().into()),
            (Self::Int, Value::Number(n)) if !n.is_f64() => Some(n.into()),
            (Self::Int, Value::String(s)) => s.parse::<i64>().ok().map(Into::into),
            (Self::Number, Value::String(s)) => {
                let number: serde_json::Number = s.parse().ok()?;
                Some(number.into())
            }
            (Self::Bool, Value::String(s)) => s.parse::<bool>().ok().map(Into::into),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn gvk() -> Gvk {
        Gvk { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() }
    }

    fn profile(attributes: Value) -> Result<CompiledProfile, Vec<SpecError>> {
        let spec = json!({ "targetGVK": { "group": "apps", "version": "v1", "kind": "Deployment" }, "attributes": attributes });
        CompiledProfile::compile(&serde_json::from_value(spec).unwrap())
    }

    fn extract(attributes: Value, object: Value) -> Extracted {
        let raw = serde_json::value::to_raw_value(&object).unwrap();
        profile(attributes).unwrap_or_else(|e| unreachable!("{e:?}")).extract(&gvk(), &raw).unwrap()
    }

    #[test]
    fn missing_is_null_unless_optional() {
        let extracted = extract(
            json!([
                { "name": "replicas", "path": "$.spec.replicas" },
                { "name": "gone", "path": "$.spec.gone" },
                { "name": "maybe", "path": "$.spec.maybe", "optional": true },
            ]),
            json!({ "spec": { "replicas": 9_223_372_036_854_775_807_i64 } }),
        );
        assert_eq!(extracted.attributes.get(), r#"{"gone":null,"replicas":9223372036854775807}"#);
    }

    #[test]
    fn types_convert_what_loses_nothing() {
        let extracted = extract(
            json!([
                { "name": "a", "path": "$.n", "type": "string" },
                { "name": "b", "path": "$.s", "type": "int" },
                { "name": "c", "path": "$.f", "type": "int" },
                { "name": "d", "path": "$.s", "type": "list" },
                { "name": "e", "path": "$.gone", "type": "int" },
                { "name": "f", "path": "$.s", "type": "whatever" },
            ]),
            json!({ "n": 7, "s": "12", "f": 1.5 }),
        );
        assert_eq!(extracted.attributes.get(), r#"{"a":"7","b":12,"c":null,"d":null,"e":null,"f":"12"}"#);
        assert_eq!(extracted.mismatches, ["c", "d"]);
    }

    #[test]
    fn key_order_of_the_input_does_not_matter() {
        let attributes = json!([{ "name": "l", "path": "$.l" }]);
        let one = RawValue::from_string(r#"{"l":{"a":1,"b":{"x":1,"y":2}}}"#.into()).unwrap();
        let two = RawValue::from_string(r#"{"l":{"b":{"y":2,"x":1},"a":1}}"#.into()).unwrap();
        let profile = profile(attributes).unwrap_or_else(|e| unreachable!("{e:?}"));
        assert_eq!(
            profile.extract(&gvk(), &one).unwrap().attributes.get(),
            profile.extract(&gvk(), &two).unwrap().attributes.get()
        );
    }

    #[test]
    fn every_bad_expression_is_named_with_a_caret() {
        let Err(errors) = profile(json!([
            { "name": "a", "path": "cel:object.spec" },
            { "name": "b", "path": "{.spec.containers[*].image}" },
            { "name": "c", "path": "$.ok" },
        ])) else {
            unreachable!("must not compile")
        };
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert_eq!(errors[0].field, "spec.attributes[0].path");
        assert!(
            errors[1].problem.ends_with("{.spec.containers[*].image}\n                      ^"),
            "{}",
            errors[1]
        );
    }
}
