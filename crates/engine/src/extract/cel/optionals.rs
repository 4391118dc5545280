//! Presence: `has()`, optionals, and values of `cel.bind` that may have failed.
//!
//! `lower` calls most of these; `optional.ofNonZeroValue`, `first`, `last` and `unwrap` are functions of expressions.

use std::any::Any;

use cel::{
    ExecutionError,
    common::{
        types::{CelList, CelMap, CelMapKey, CelOptional, CelTimestamp, Kind, Type},
        value::{CowVal, StaticVal, Val},
    },
};

use super::{
    meter,
    operators::{self, Operands, OperatorResult, boolean, list_at, mismatch, pair, single, text_at},
    redacted,
};

fn none<'b, 'v>() -> CowVal<'b, 'v> {
    CowVal::owned(CelOptional::none())
}

/// `has(value.field)`: false for a value that has no fields.
pub(super) fn has<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(value), Some(field)) = (args.first(), text_at(&args, 1)) else {
        return Err(mismatch("has", &args));
    };
    let mut value: &dyn Val = value.as_ref();
    while let Some(optional) = value.downcast_ref::<CelOptional>() {
        match optional.option() {
            Some(inner) => value = inner,
            None => return Ok(boolean(false)),
        }
    }
    redacted::check(value)?;
    match value.downcast_ref::<CelMap>() {
        Some(map) => Ok(boolean(map.inner().contains_key(&CelMapKey::from(field)))),
        None if value.get_type().kind() == Kind::List => {
            Err(ExecutionError::function_error("has", "a list has no fields: use an index or a macro"))
        }
        None => Ok(boolean(false)),
    }
}

/// Whether an optional has a value. The second argument is the function that asks.
pub(super) fn has_value<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let optional = args.first().and_then(|value| value.downcast_ref::<CelOptional>());
    match optional {
        Some(optional) => Ok(boolean(optional.option().is_some())),
        None => Err(mismatch(text_at(&args, 1).unwrap_or_default(), args.get(..1).unwrap_or_default())),
    }
}

/// The value of an optional that has one.
pub(super) fn value<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    match single(args)? {
        CowVal::Borrowed(value) => match value.downcast_ref::<CelOptional>().and_then(CelOptional::option) {
            Some(inner) => Ok(CowVal::Borrowed(inner)),
            None => Err(ExecutionError::function_error("value", "optional.none() dereference")),
        },
        owned @ CowVal::Owned(_) => {
            let inner = owned.downcast_ref::<CelOptional>().and_then(CelOptional::option);
            let inner = inner.map(Val::clone_as_boxed);
            let failed = || ExecutionError::function_error("value", "optional.none() dereference");
            inner.map(CowVal::Owned).ok_or_else(failed)
        }
    }
}

/// `false` for any value; an argument that fails is an error, which `lower` looks for.
pub(super) fn is_false<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    single(args)?;
    Ok(boolean(false))
}

/// What a variable of `cel.bind` has if its value failed.
#[derive(Debug, Clone)]
struct FailedValue;

static FAILED: Type = Type::new_unspecified_type("kollect.Failed");

impl Val for FailedValue {
    fn get_type(&self) -> &Type {
        &FAILED
    }

    fn cel_type() -> &'static Type {
        &FAILED
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for FailedValue {}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a function of CEL")]
pub(super) fn failed<'b, 'v>(_args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(CowVal::owned(FailedValue))
}

/// The value of a variable of `cel.bind`, and the name of the variable.
pub(super) fn used<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let [value, name] = pair(args)?;
    if value.downcast_ref::<FailedValue>().is_some() {
        let name = text_at(&[name], 0).unwrap_or_default().to_owned();
        return Err(ExecutionError::function_error("cel.bind", format!("the value of {name} failed")));
    }
    Ok(value)
}

/// `optional.ofNonZeroValue`. The zero of a timestamp is the first second of the year 1, as in Go.
pub(super) fn of_non_zero_value<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = operators::copied(args)?;
    let is_zero = match value.downcast_ref::<CelTimestamp>() {
        Some(time) => {
            time.inner().timestamp() == -62_135_596_800 && time.inner().timestamp_subsec_nanos() == 0
        }
        None => value.as_zeroer().is_some_and(cel::common::traits::Zeroer::is_zero_value),
    };
    if is_zero { Ok(none()) } else { Ok(CowVal::owned(CelOptional::of(value.into_owned()))) }
}

/// The values of a list of optionals.
pub(super) fn unwrap<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch("unwrap", &args)) };
    let mut values: Vec<Box<dyn Val + 'v>> = Vec::new();
    for item in items {
        let Some(optional) = item.downcast_ref::<CelOptional>() else {
            let problem = "every item of the list must be an optional";
            return Err(ExecutionError::function_error("unwrap", problem));
        };
        meter::spend(1 + optional.option().map_or(0, meter::weight))?;
        values.extend(optional.option().map(Val::clone_as_boxed));
    }
    Ok(CowVal::owned(CelList::from(values)))
}

pub(super) fn first<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch("first", &args)) };
    optional_copy(items.first().map(AsRef::as_ref))
}

pub(super) fn last<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch("last", &args)) };
    optional_copy(items.last().map(AsRef::as_ref))
}

fn optional_copy<'b, 'v>(item: Option<&(dyn Val + 'v)>) -> OperatorResult<'b, 'v> {
    let Some(item) = item else { return Ok(none()) };
    meter::spend(meter::weight(item))?;
    Ok(CowVal::owned(CelOptional::of(item.clone_as_boxed())))
}
