//! CEL expressions over Kubernetes objects, on the `cel` crate.
//!
//! Extraction (`cel:` attributes) and selection (`matchPolicy`) compile an [`Expression`] once, ask it
//! which parts of an object it reads, and evaluate it on a [`Scope`] per object. An expression sees
//! `object` and `namespaceObject` (null for objects without a namespace).
//!
//! `cel` has no limits, so this must hold: nothing reaches its parser but on a thread with enough stack
//! (`parse`), and nothing reaches its interpreter that `rewrite` has not guarded. Then an evaluation ends
//! after bounded work with bounded memory, whatever the expression and the object are, and equal objects
//! give equal results.

mod check;
mod failure;
mod functions;
mod lists;
mod meter;
mod names;
mod operators;
mod parse;
mod patterns;
mod project;
mod quantity;
mod rewrite;
#[cfg(test)]
mod tests;
mod texts;
mod value;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Arc,
};

use cel::{
    Context, IdedExpr, Value,
    common::{
        types::{CelBool, CelNull},
        value::CowVal,
    },
};

pub(crate) use failure::EvalError;
pub(crate) use quantity::is_valid as is_quantity;

use crate::json::{Json, Projection};

/// An expression that is ready to be evaluated, by any thread.
#[derive(Debug)]
pub(crate) struct Expression {
    guarded: IdedExpr,
    /// What one evaluation costs without its loops.
    price: u64,
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
pub(crate) struct Scope<'a> {
    context: Context<'a, 'a>,
}

impl<'a> Scope<'a> {
    /// A scope for expressions that read no more of the object than the projection.
    pub(crate) fn new(
        object: &'a Json<'_>,
        projection: &Projection,
        namespace: Option<&'a Json<'_>>,
    ) -> Self {
        let mut context = Context::with_env(Arc::clone(functions::env()));
        context.add_variable_as_val(names::OBJECT, value::from_json(object, projection));
        let namespace = match namespace {
            Some(namespace) => value::from_json(namespace, &Projection::whole()),
            None => Box::new(CelNull),
        };
        context.add_variable_as_val(names::NAMESPACE, namespace);
        Self { context }
    }
}

impl Expression {
    pub(crate) fn compile(text: &str) -> Result<Self, CelError> {
        let parsed = parse::parse(text)?;
        check::check(&parsed)?;
        let reads = project::Reads::of(&parsed.root);
        let price = rewrite::price(&parsed.root, 0);
        Ok(Self { guarded: rewrite::rewrite(parsed.root), price, reads })
    }

    /// Adds what the expression reads of an object.
    ///
    /// Evaluating on an object that was read with the projection gives the same value or the same error
    /// as evaluating on the whole object; only the cost can be lower.
    pub(crate) fn project(&self, object: &mut Projection) {
        self.reads.add_to(object);
    }

    /// Whether the expression mentions `namespaceObject`.
    pub(crate) fn reads_namespace(&self) -> bool {
        self.reads.namespace
    }

    /// The value of the expression as plain JSON.
    pub(crate) fn evaluate(&self, scope: &Scope<'_>) -> Result<Json<'static>, EvalError> {
        value::to_json(self.run(scope)?.as_ref())
    }

    /// Whether the value is `true`; an error is not.
    pub(crate) fn is_true(&self, scope: &Scope<'_>) -> bool {
        self.run(scope).is_ok_and(|value| value.downcast_ref::<CelBool>() == Some(&CelBool::TRUE))
    }

    fn run<'e, 'v>(&'e self, scope: &'e Scope<'v>) -> Result<CowVal<'e, 'v>, EvalError> {
        meter::start(self.price);
        // The interpreter panics where it believes that it knows better: that must not end the process.
        let run = AssertUnwindSafe(|| Value::resolve_val(&self.guarded, &scope.context));
        let value = panic::catch_unwind(run);
        match (meter::broken(), value) {
            (Some(bound), _) => Err(bound.into()),
            (None, Ok(value)) => Ok(value?),
            (None, Err(_)) => Err(EvalError::Failed("the interpreter failed on this expression".into())),
        }
    }
}
