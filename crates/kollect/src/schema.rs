//! Checks a manifest against the schema of its kind, as the API server would, without one.
//!
//! The command line calls it for manifests in files, admission for objects. It reads the generated schemas,
//! so a rule is written once, as documentation, schema and check. It finds all problems, not only the first.

mod compiled;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{LazyLock, OnceLock},
};

use compiled::CompiledSchema;
use kollect_model::{
    SpecError,
    crd::{self, shapes::is_namespace_name},
};
use serde_json::{Map, Value};

/// A kind and its schema.
pub(crate) struct KindSchema {
    /// Name of the kind.
    pub(crate) name: String,
    /// Whether its objects live in namespaces.
    pub(crate) namespaced: bool,
    schema: Value,
    /// Made at the first check: a run of the command line checks few kinds.
    compiled: OnceLock<CompiledSchema>,
}

static KINDS: LazyLock<BTreeMap<String, KindSchema>> = LazyLock::new(|| {
    crd::all()
        .into_iter()
        .map(|mut crd| {
            let name = crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
            let namespaced = crd["spec"]["scope"] == "Namespaced";
            let schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
            (name.clone(), KindSchema { name, namespaced, schema, compiled: OnceLock::new() })
        })
        .collect()
});

/// All kinds, by name.
pub(crate) fn kinds() -> &'static BTreeMap<String, KindSchema> {
    &KINDS
}

impl KindSchema {
    /// Fills in defaults and returns everything that the schema refuses.
    pub(crate) fn check(&self, object: &mut Value) -> Vec<SpecError> {
        let mut check = SchemaCheck { compiled: self.compiled(), path: String::new(), errors: Vec::new() };
        metadata(&object["metadata"], &mut check.errors);
        check.walk(&self.schema, object);
        check.errors
    }

    fn compiled(&self) -> &CompiledSchema {
        self.compiled.get_or_init(|| CompiledSchema::of(&self.schema))
    }
}

/// Checks metadata by the rules of the API server: the schemas do not contain them.
fn metadata(metadata: &Value, errors: &mut Vec<SpecError>) {
    let name = &metadata["name"];
    let label = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    match name {
        Value::Null => errors.push(SpecError::absent("metadata.name", "is required")),
        Value::String(text) if text.len() <= 253 && text.split('.').all(label) => {}
        _ => {
            let problem = "must be a name: lower-case letters, digits, - and ., at most 253 characters";
            errors.push(SpecError::new("metadata.name", name, problem));
        }
    }
    let namespace = &metadata["namespace"];
    if !namespace.is_null() && !namespace.as_str().is_some_and(is_namespace_name) {
        let problem = "must be the name of a namespace: lower-case letters, digits and -";
        errors.push(SpecError::new("metadata.namespace", namespace, problem));
    }
    for field in ["labels", "annotations"] {
        for (key, value) in
            metadata[field].as_object().into_iter().flatten().filter(|(_, value)| !value.is_string())
        {
            let problem = "must be a string: put it in quotes";
            errors.push(SpecError::new(format!("metadata.{field}.{key}"), value, problem));
        }
    }
}

/// A check of one object.
struct SchemaCheck<'a> {
    compiled: &'a CompiledSchema,
    /// The path of the visited value in the object.
    path: String,
    errors: Vec<SpecError>,
}

impl SchemaCheck<'_> {
    /// Visits a value with its schema.
    fn walk(&mut self, schema: &Value, value: &mut Value) {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return;
        }
        let before = self.errors.len();
        let problem = wrong_type(schema, value).or_else(|| outside_bounds(schema, value, self.compiled));
        if let Some(problem) = problem {
            self.errors.push(SpecError::new(self.path.clone(), value, problem));
            return;
        }
        match value {
            Value::Object(fields) => self.walk_fields(schema, fields),
            Value::Array(items) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.below(&format!("[{index}]"), |check| check.walk(&schema["items"], item));
                }
                repeated(schema, items, &self.path, &mut self.errors);
            }
            _ => {}
        }
        // Rules may assume that the value matches the other parts of the schema: evaluate them only if it does.
        if self.errors.len() == before {
            for message in self.compiled.broken_rules(schema, value) {
                // An object is named by its path only: its text would not help.
                self.errors.push(match value {
                    Value::Object(_) => SpecError::absent(self.path.clone(), message),
                    _ => SpecError::new(self.path.clone(), value, message),
                });
            }
        }
    }

    fn below(&mut self, segment: &str, visit: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if !self.path.is_empty() && !segment.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(segment);
        visit(self);
        self.path.truncate(length);
    }

    fn walk_fields(&mut self, schema: &Value, fields: &mut Map<String, Value>) {
        fields.retain(|_, value| !value.is_null());
        let Some(properties) = schema["properties"].as_object() else {
            // A map, or an open object such as metadata.
            let values = &schema["additionalProperties"];
            for (name, value) in fields {
                self.below(name, |check| check.walk(values, value));
            }
            return;
        };
        for (name, property) in properties {
            if let Some(default) = property.get("default")
                && !fields.contains_key(name)
            {
                fields.insert(name.clone(), default.clone());
            }
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                self.below(name, |check| {
                    check.errors.push(SpecError::absent(check.path.clone(), "is required"));
                });
            }
        }
        for (name, value) in fields {
            self.below(name, |check| match properties.get(name) {
                Some(property) => check.walk(property, value),
                None => {
                    let known: Vec<_> = properties.keys().map(String::as_str).collect();
                    let problem = format!("is not a known field; known here: {}", known.join(", "));
                    // The value is not printed: it may be a password.
                    check.errors.push(SpecError::absent(check.path.clone(), problem));
                }
            });
        }
    }
}

fn wrong_type(schema: &Value, value: &Value) -> Option<String> {
    let expected = schema["type"].as_str()?;
    let matches = match expected {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if matches {
        return None;
    }
    Some(match expected {
        "string" if value.is_number() || value.is_boolean() => "must be a string: put it in quotes".into(),
        "array" => "must be a list".into(),
        "boolean" => "must be true or false".into(),
        "integer" => "must be a whole number".into(),
        "object" => "must be a map of fields".into(),
        other => format!("must be a {other}"),
    })
}

fn outside_bounds(schema: &Value, value: &Value, compiled: &CompiledSchema) -> Option<String> {
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        let names: Vec<_> = allowed.iter().filter_map(Value::as_str).collect();
        return Some(format!("must be one of {}", names.join(", ")));
    }
    let length = match value {
        Value::String(text) => Some((text.chars().count(), "minLength", "maxLength", "characters")),
        Value::Array(items) => Some((items.len(), "minItems", "maxItems", "items")),
        _ => None,
    };
    if let Some((length, min, max, unit)) = length {
        let limit = |key: &str| schema[key].as_u64().and_then(|limit| usize::try_from(limit).ok());
        if limit(min).is_some_and(|min| length < min) {
            return Some("must not be empty".into());
        }
        if let Some(max) = limit(max).filter(|max| length > *max) {
            return Some(format!("has {length} {unit}, at most {max} are allowed"));
        }
    }
    if let (Some(pattern), Value::String(text)) = (schema["pattern"].as_str(), value)
        && !compiled.matches(pattern, text)
    {
        return Some(format!("must match {pattern}"));
    }
    let number = value.as_f64()?;
    if let Some(min) = schema["minimum"].as_f64().filter(|min| number < *min) {
        return Some(format!("must be at least {min}"));
    }
    let int32 = (schema["format"] == "int32").then_some(f64::from(i32::MAX));
    let max = schema["maximum"].as_f64().or(int32).filter(|max| number > *max)?;
    Some(format!("must be at most {max}"))
}

/// Items of sets, and keys of list-maps, are unique.
fn repeated(schema: &Value, items: &[Value], path: &str, errors: &mut Vec<SpecError>) {
    let keys: Option<Vec<&str>> = match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => None,
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array();
            Some(keys.into_iter().flatten().filter_map(Value::as_str).collect())
        }
        _ => return,
    };
    let mut seen = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let identity = match &keys {
            None => item.to_string(),
            Some(keys) => keys.iter().map(|key| item[key].to_string()).collect(),
        };
        if let Some(first) = seen.insert(identity, index) {
            let problem = format!("repeats item {first}: remove or rename one of them");
            errors.push(SpecError::new(format!("{path}[{index}]"), item, problem));
        }
    }
}

#[cfg(test)]
mod tests;
