//! Rules and patterns of a schema, compiled once for all objects that are checked against it.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{Context, Env, Program};
use regex::Regex;
use serde_json::Value;

/// Shared by all rules: building it costs more than evaluating most rules.
static FUNCTIONS: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// Words that CEL reserves; in schemas they are written with underscores around them.
const RESERVED: [&str; 4] = ["as", "in", "namespace", "package"];

/// Everything in a schema that has to be compiled, by its text.
#[derive(Default)]
pub(super) struct CompiledSchema {
    rules: HashMap<String, Program>,
    patterns: HashMap<String, Regex>,
}

impl CompiledSchema {
    /// Compiles what a schema holds at any depth.
    pub(super) fn of(schema: &Value) -> Self {
        let mut compiled = Self::default();
        compiled.add(schema);
        compiled
    }

    fn add(&mut self, schema: &Value) {
        for text in rules(schema).map(|(text, _)| text) {
            if !self.rules.contains_key(text) {
                let program = Program::compile(text).expect("rules of generated schemas compile");
                self.rules.insert(text.to_owned(), program);
            }
        }
        if let Some(pattern) = schema["pattern"].as_str() {
            let compile = || Regex::new(pattern).expect("patterns of generated schemas compile");
            self.patterns.entry(pattern.to_owned()).or_insert_with(compile);
        }
        let properties = schema["properties"].as_object().into_iter().flat_map(|fields| fields.values());
        for below in properties.chain([&schema["items"], &schema["additionalProperties"]]) {
            if below.is_object() {
                self.add(below);
            }
        }
    }

    /// Whether a text matches a pattern of the schema.
    pub(super) fn matches(&self, pattern: &str, text: &str) -> bool {
        self.patterns.get(pattern).is_some_and(|pattern| pattern.is_match(text))
    }

    /// Evaluates `x-kubernetes-validations` and returns the messages of rules that a value breaks.
    pub(super) fn broken_rules<'s>(&self, schema: &'s Value, value: &Value) -> Vec<&'s str> {
        let mut rules = rules(schema).peekable();
        if rules.peek().is_none() {
            return Vec::new();
        }
        let mut context = Context::with_env(Arc::clone(&FUNCTIONS));
        context.add_variable_from_value("self", to_cel(value));
        let holds = |text: &str| {
            let program = self.rules.get(text);
            program.is_some_and(|program| matches!(program.execute(&context), Ok(cel::Value::Bool(true))))
        };
        rules.filter(|(text, _)| !holds(text)).map(|(_, message)| message).collect()
    }
}

/// Rules of this level of a schema, with their messages. Transition rules are left out: a file has no old object.
fn rules(schema: &Value) -> impl Iterator<Item = (&str, &str)> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let rules = rules.map(|rule| {
        let text = rule["rule"].as_str().unwrap_or_default();
        (text, rule["message"].as_str().unwrap_or(text))
    });
    rules.filter(|(text, _)| !text.contains("oldSelf"))
}

fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(boolean) => cel::Value::Bool(*boolean),
        Value::Number(number) => number
            .as_i64()
            .map(cel::Value::Int)
            .or_else(|| number.as_f64().map(cel::Value::Float))
            .unwrap_or(cel::Value::Null),
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let escaped = |key: &String| match key.as_str() {
                word if RESERVED.contains(&word) => format!("__{word}__"),
                _ => key.clone(),
            };
            let map: HashMap<String, cel::Value> =
                fields.iter().map(|(key, value)| (escaped(key), to_cel(value))).collect();
            cel::Value::Map(map.into())
        }
    }
}
