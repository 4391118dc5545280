//! Why an evaluation gave no value, in one line.
//!
//! The interpreter's errors print values, which can be large and come in random order: only their
//! types are named here. Numbers that functions repeat are left out unless the expression has them too.

use cel::ExecutionError;

use super::{
    meter::{ExceededLimit, MAX_STEPS, MAX_TEXT, MAX_WORK},
    redacted,
};

/// The longest message of a function that is repeated.
const MAX_MESSAGE: usize = 200;

/// Why an evaluation gave no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EvalError {
    /// A field or key is missing.
    #[error("no such key: {0}")]
    NoSuchKey(String),
    /// A list is shorter.
    #[error("index out of bounds: {0}")]
    NoSuchIndex(String),
    /// Too many rounds of loops.
    #[error("budget exceeded: the loops of the expression take more than {MAX_STEPS} steps")]
    BudgetExceeded,
    /// Too much is visited, copied, compared or built.
    #[error("work exceeded: the expression does more than {MAX_WORK} units of work")]
    WorkExceeded,
    /// A text grew too long on the way.
    #[error("text too long: the expression builds a text of more than {MAX_TEXT} bytes")]
    TextTooLong,
    /// What the expression reads is too large.
    #[error("work exceeded: the expression reads more than {MAX_WORK} values of the object")]
    ObjectTooLarge,
    /// The result is too large.
    #[error("the result is larger than an attribute may be")]
    ResultTooLarge,
    /// The result depends on a redacted value.
    #[error("the result depends on a redacted value")]
    Redacted,
    /// The result has no JSON.
    #[error("the result is not JSON: {0}")]
    NotJson(String),
    /// Anything else, such as a type that an operator does not take.
    #[error("{0}")]
    Failed(String),
}

impl From<ExceededLimit> for EvalError {
    fn from(limit: ExceededLimit) -> Self {
        match limit {
            ExceededLimit::Steps => Self::BudgetExceeded,
            ExceededLimit::Work => Self::WorkExceeded,
            ExceededLimit::Text => Self::TextTooLong,
            ExceededLimit::Redacted => Self::Redacted,
        }
    }
}

impl From<ExecutionError> for EvalError {
    fn from(error: ExecutionError) -> Self {
        let is_redacted = match &error {
            ExecutionError::NoSuchOverload(overload) => {
                overload.argument_types().iter().any(|name| name == redacted::TYPE_NAME)
            }
            ExecutionError::UnexpectedType { got, .. } => got == redacted::TYPE_NAME,
            _ => false,
        };
        match error {
            _ if is_redacted => Self::Redacted,
            ExecutionError::NoSuchKey(key) => Self::NoSuchKey(one_line(&key)),
            ExecutionError::IndexOutOfBounds(index) => Self::NoSuchIndex(match index {
                cel::Value::Int(index) => index.to_string(),
                cel::Value::UInt(index) => index.to_string(),
                _ => "index".into(),
            }),
            ExecutionError::NoSuchOverload(overload) => {
                // `x.field` and `x['field']` give the same error.
                let name = plain_name(overload.function());
                if let ([of, key], "[]" | ".") = (overload.argument_types(), name)
                    && key == "string"
                {
                    return Self::Failed(format!("a value of type {of} has no fields"));
                }
                let types = overload.argument_types().join(", ");
                Self::Failed(format!("no overload of {name} for ({types})"))
            }
            ExecutionError::UnexpectedType { got, want } => {
                Self::Failed(format!("expected {want}, got {got}"))
            }
            // Their messages repeat their arguments.
            ExecutionError::FunctionError { function, .. }
                if matches!(&*function, "duration" | "timestamp") =>
            {
                Self::Failed(format!("{function}: this is not a {function}"))
            }
            ExecutionError::FunctionError { function, .. } if &*function == "timezone" => {
                Self::Failed("this is not a time zone, such as Europe/Berlin or +02:00".into())
            }
            ExecutionError::FunctionError { function, message } => {
                Self::Failed(format!("{}: {}", plain_name(&function), one_line(&message)))
            }
            ExecutionError::DivisionByZero(_) => Self::Failed("division by zero".into()),
            ExecutionError::RemainderByZero(_) => Self::Failed("modulo by zero".into()),
            ExecutionError::Overflow(operator, ..) => Self::Failed(format!("overflow in {operator}")),
            ExecutionError::DuplicateKey(_) => Self::Failed("a key of a map is repeated".into()),
            ExecutionError::UndeclaredReference(name) => Self::Failed(format!("there is no {name}")),
            ExecutionError::UnsupportedKeyType(_) => Self::Failed("the value cannot be a key".into()),
            _ => Self::Failed("the operator does not accept values of these types".into()),
        }
    }
}

/// Functions whose messages repeat the numbers that they were given.
const REPEATING: [&str; 7] =
    ["charAt: ", "indexOf: ", "lastIndexOf: ", "lists.range: ", "math.bitShift", "slice: ", "substring: "];

/// Whether the message is of such a function.
pub(super) fn repeats_numbers(problem: &str) -> bool {
    REPEATING.iter().any(|function| problem.starts_with(function))
}

/// The message with a `…` for each number that is not written in the expression.
pub(super) fn without_numbers(problem: &str, expression: &str) -> String {
    let mut out = String::with_capacity(problem.len());
    let mut rest = problem;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c: char| !c.is_ascii_digit()).unwrap_or(from.len());
        let (number, after) = from.split_at(end);
        out.push_str(before);
        out.push_str(if expression.contains(number) { number } else { "…" });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `_+_` is how the interpreter calls `+`.
fn plain_name(name: &str) -> &str {
    match name {
        "_[_]" | "_[?_]" => "[]",
        "_._" | "_?._" => ".",
        "_?_:_" => "?:",
        name => name.trim_start_matches(['@', '_']).trim_end_matches('_'),
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_MESSAGE).collect()
}
