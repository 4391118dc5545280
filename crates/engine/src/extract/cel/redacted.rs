//! A redacted value inside of an expression: it can be passed on, counted and asked for, but nothing can be computed from it.
//!
//! Whatever looks at it ends the evaluation, also inside of `||`, `exists` and the like: the meter remembers it, and the value of
//! the whole expression is unknown. The operators and functions here ask [`is_redacted`] wherever they take a value apart; what
//! the interpreter does itself calls the methods of the value.

use std::any::Any;

use cel::{
    ExecutionError,
    common::{
        traits::{
            Adder, Comparer, Container, Divider, Indexer, Iterable, Modder, Multiplier, Negator, Sizer,
            Subtractor, Zeroer,
        },
        types::{CelList, CelMap, CelOptional, Type},
        value::{StaticVal, Val},
    },
};

use super::meter;

/// The name of the type, in errors of the interpreter about operands.
pub(super) const TYPE_NAME: &str = "kollect.Redacted";

static REDACTED: Type = Type::new_unspecified_type(TYPE_NAME);

#[derive(Clone, Copy, Debug)]
pub(super) struct RedactedValue;

pub(super) fn is_redacted(value: &dyn Val) -> bool {
    value.downcast_ref::<RedactedValue>().is_some()
}

/// Fails if a value is redacted that is about to be looked at.
pub(super) fn check(value: &dyn Val) -> Result<(), ExecutionError> {
    if is_redacted(value) { Err(meter::reach_redacted()) } else { Ok(()) }
}

/// Fails if one of the values is redacted.
pub(super) fn check_all<'v>(
    values: impl IntoIterator<Item = &'v (dyn Val + 'v)>,
) -> Result<(), ExecutionError> {
    values.into_iter().try_for_each(check)
}

/// Fails if anything in a value is redacted.
pub(super) fn check_deep(value: &dyn Val) -> Result<(), ExecutionError> {
    if let Some(list) = value.downcast_ref::<CelList>() {
        list.inner().iter().try_for_each(|item| check_deep(item.as_ref()))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        map.inner().values().try_for_each(|value| check_deep(value.as_ref()))
    } else if let Some(inner) = value.downcast_ref::<CelOptional>().and_then(CelOptional::option) {
        check_deep(inner)
    } else {
        check(value)
    }
}

/// The redacted value is looked at by the interpreter, which gets `otherwise`.
fn looked_at<T>(otherwise: T) -> T {
    drop(meter::reach_redacted());
    otherwise
}

impl Val for RedactedValue {
    fn get_type(&self) -> &Type {
        // The interpreter asks for it to find a function, also one that only passes the value on.
        &REDACTED
    }

    fn cel_type() -> &'static Type {
        &REDACTED
    }

    fn as_adder<'b, 'v>(&'b self) -> Option<&'b (dyn Adder + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_comparer(&self) -> Option<&dyn Comparer> {
        looked_at(None)
    }

    fn as_container(&self) -> Option<&dyn Container> {
        looked_at(None)
    }

    fn as_divider<'b, 'v>(&'b self) -> Option<&'b (dyn Divider + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_modder<'b, 'v>(&'b self) -> Option<&'b (dyn Modder + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_multiplier<'b, 'v>(&'b self) -> Option<&'b (dyn Multiplier + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_negator<'b, 'v>(&'b self) -> Option<&'b (dyn Negator + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        looked_at(None)
    }

    fn as_subtractor<'b, 'v>(&'b self) -> Option<&'b (dyn Subtractor + 'v)>
    where
        Self: 'v,
    {
        looked_at(None)
    }

    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        looked_at(None)
    }

    fn equals(&self, _other: &dyn Val) -> bool {
        looked_at(false)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(*self)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for RedactedValue {}
