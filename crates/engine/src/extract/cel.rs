//! CEL expressions over Kubernetes objects, on the `cel` crate.
//!
//! Extraction (`cel:` attributes) and selection (`matchPolicy`) compile an [`Expression`] once, ask it
//! which parts of an object it reads, and evaluate it with [`CelVariables`] per object. An expression sees
//! `object` and `namespaceObject` (null for objects without a namespace).
//!
//! `cel` has no limits, so this must hold: its parser runs only on a thread with enough stack (`parse`), and its
//! interpreter runs only what `rewrite` has guarded. Then an evaluation ends after bounded work with bounded memory,
//! whatever the expression and the object are, and equal objects give equal results.

mod check;
mod convert;
mod entries;
mod exact;
mod failure;
mod functions;
mod infer;
mod lists;
mod lower;
mod meter;
mod named_formats;
mod names;
mod network;
mod operators;
mod optionals;
mod parse;
mod patterns;
mod project;
mod quantity;
mod redacted;
mod rewrite;
#[cfg(test)]
mod tests;
mod texts;
mod times;
mod urls;
mod value;
mod versions;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use cel::{
    Context, IdedExpr, Value,
    common::{
        types::{CelBool, CelNull},
        value::{CowVal, Val},
    },
    context::VariableResolver,
};

pub(crate) use failure::EvalError;
use failure::{repeats_numbers, without_numbers};
pub(crate) use infer::schema_warnings;
pub(crate) use names::nearest;
pub(crate) use quantity::is_valid as is_quantity;

use crate::json::{Json, Projection};

/// An expression that is ready to be evaluated, by any thread.
#[derive(Debug)]
pub(crate) struct Expression {
    text: Box<str>,
    guarded: IdedExpr,
    /// Cost of one evaluation without its loops.
    cost: u64,
    reads: project::Reads,
}

/// What is wrong with the text of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CelError {
    /// Offset in characters.
    pub(crate) at: Option<usize>,
    /// What is wrong, and what to do about it.
    pub(crate) problem: String,
}

/// What expressions see of one object; it can serve many expressions.
pub(crate) struct CelVariables<'a> {
    object: Box<dyn Val + 'a>,
    namespace: Box<dyn Val + 'a>,
}

impl<'a> CelVariables<'a> {
    /// The variables of expressions that read no more of the object than the projection. Fails if that is too much.
    pub(crate) fn new(
        object: &'a Json<'_>,
        projection: &Projection,
        namespace: Option<&'a Json<'_>>,
    ) -> Result<Self, EvalError> {
        let mut remaining = meter::MAX_WORK;
        let namespace = match namespace {
            Some(namespace) => value::from_json(namespace, &Projection::everything(), &mut remaining)?,
            None => Box::new(CelNull),
        };
        Ok(Self { object: value::from_json(object, projection, &mut remaining)?, namespace })
    }

    fn context(&self) -> Context<'_, '_> {
        let mut context = Context::with_env(Arc::clone(functions::env()));
        context.set_variable_resolver(self);
        context
    }
}

impl VariableResolver for CelVariables<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        match variable {
            names::OBJECT => Some(CowVal::Borrowed(self.object.as_ref())),
            names::NAMESPACE => Some(CowVal::Borrowed(self.namespace.as_ref())),
            _ => None,
        }
    }
}

impl Expression {
    pub(crate) fn compile(text: &str) -> Result<Self, CelError> {
        let parsed = parse::parse(text)?;
        check::check(&parsed)?;
        let reads = project::Reads::of(&parsed.root);
        let lowered = lower::lower(parsed.root);
        let cost = rewrite::cost(&lowered, 0);
        Ok(Self { text: text.into(), guarded: rewrite::rewrite(lowered), cost, reads })
    }

    /// Adds what the expression reads of an object.
    ///
    /// Evaluating on an object that was read with the projection gives the same value or the same error
    /// as evaluating on the whole object; only the cost can be lower.
    pub(crate) fn add_reads_to(&self, object: &mut Projection) {
        self.reads.add_to(object);
    }

    /// As it is written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression mentions `namespaceObject`.
    pub(crate) fn reads_namespace(&self) -> bool {
        self.reads.namespace
    }

    /// The value of the expression as plain JSON of at most this many bytes.
    pub(crate) fn evaluate(
        &self,
        variables: &CelVariables<'_>,
        max_bytes: usize,
    ) -> Result<Json<'static>, EvalError> {
        self.run(variables, |value| value::to_json(value, max_bytes))?
    }

    /// Whether the value is `true`; an error counts as false. `None`: that depends on a redacted value.
    pub(crate) fn is_true(&self, variables: &CelVariables<'_>) -> Option<bool> {
        let is_true = |value: &dyn Val| match value.downcast_ref::<CelBool>() {
            _ if redacted::is_redacted(value) => None,
            value => Some(value == Some(&CelBool::TRUE)),
        };
        match self.run(variables, is_true) {
            Ok(is_true) => is_true,
            Err(EvalError::Redacted) => None,
            Err(_) => Some(false),
        }
    }

    /// Removes values of the object from an error: keys and numbers that are not written in the expression.
    fn without_values(&self, error: EvalError) -> EvalError {
        match error {
            EvalError::NoSuchKey(key) if !self.text.contains(&key) => EvalError::NoSuchKey("…".into()),
            EvalError::NoSuchIndex(index) => EvalError::NoSuchIndex(without_numbers(&index, &self.text)),
            EvalError::Failed(problem) if repeats_numbers(&problem) => {
                EvalError::Failed(without_numbers(&problem, &self.text))
            }
            error => error,
        }
    }

    /// Evaluates the expression and uses its value, which borrows from the variables.
    fn run<T>(
        &self,
        variables: &CelVariables<'_>,
        result: impl FnOnce(&dyn Val) -> T,
    ) -> Result<T, EvalError> {
        let context = variables.context();
        meter::start(self.cost);
        // The interpreter may panic on an expression: that must not end the process.
        let run = AssertUnwindSafe(|| Value::resolve_val(&self.guarded, &context));
        let value = panic::catch_unwind(run);
        match (meter::exceeded(), value) {
            (Some(limit), _) => Err(limit.into()),
            (None, Ok(Ok(value))) => Ok(result(value.as_ref())),
            (None, Ok(Err(error))) => Err(self.without_values(error.into())),
            (None, Err(_)) => Err(EvalError::Failed("the interpreter failed on this expression".into())),
        }
    }
}
