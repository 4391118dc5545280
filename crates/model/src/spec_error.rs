//! Errors in a spec: each is one problem, with the field, the value and the fix.
//!
//! The command line prints these errors and admission denies with them. Both use the same checks.

use std::fmt;

use serde_json::Value;

/// One problem in one field of a manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct SpecError {
    /// Path of the field from the root of the object, such as `spec.attributes[2].path`.
    pub field: String,
    /// The invalid value as JSON, shortened if it is long; empty when the field is absent.
    pub value: String,
    /// What is wrong and what to write instead.
    pub problem: String,
}

impl SpecError {
    /// A problem with a value that is present.
    pub fn new(field: impl Into<String>, value: &Value, problem: impl Into<String>) -> Self {
        Self { field: field.into(), value: excerpt(value), problem: problem.into() }
    }

    /// A problem with a field that is absent, or whose value is not worth showing.
    pub fn absent(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), value: String::new(), problem: problem.into() }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if !self.value.is_empty() {
            write!(f, " = {}", self.value)?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// Longer values are cut, so that the problem after them stays visible.
const EXCERPT_CHARS: usize = 80;

fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= EXCERPT_CHARS {
        return text;
    }
    text.chars().take(EXCERPT_CHARS).chain("…".chars()).collect()
}
