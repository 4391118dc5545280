//! `string()`, `int()` and `uint()` of every value that has one.
//!
//! They replace those of `cel` 0.15, which writes doubles without an exponent (`src/common/types/double.rs`), timestamps without their
//! offset (`timestamp.rs`), has no `int()` of a duration (`int.rs`), and takes a `+` in `uint()` (`uint.rs`).

use cel::{
    ExecutionError,
    common::{
        types::{CelBool, CelBytes, CelDouble, CelDuration, CelInt, CelString, CelTimestamp, CelUInt},
        value::{CowVal, Val},
    },
};

use super::{
    exact, functions, meter,
    network::{IpAddress, IpNetwork},
    operators::{self, Operands, OperatorResult, charged_text, mismatch, single},
    times,
};

pub(super) fn string<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = exact::as_computed(single(args)?);
    if value.downcast_ref::<CelString>().is_some() {
        return operators::copied(vec![value]);
    }
    let Some(text) = text_of(value.as_ref())? else { return Err(mismatch("string", &[value])) };
    meter::build_text(text.len())?;
    Ok(CowVal::owned(CelString::from(text)))
}

/// The text of a value that is no string; none if it has no text.
pub(super) fn text_of(value: &dyn Val) -> Result<Option<String>, ExecutionError> {
    Ok(Some(if let Some(int) = value.downcast_ref::<CelInt>() {
        int.inner().to_string()
    } else if let Some(uint) = value.downcast_ref::<CelUInt>() {
        uint.inner().to_string()
    } else if let Some(double) = value.downcast_ref::<CelDouble>() {
        double_text(*double.inner())
    } else if let Some(boolean) = value.downcast_ref::<CelBool>() {
        boolean.inner().to_string()
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        let invalid = |_| ExecutionError::function_error("string", "invalid UTF-8 in bytes");
        str::from_utf8(bytes.inner()).map_err(invalid)?.to_owned()
    } else if let Some(time) = value.downcast_ref::<CelTimestamp>() {
        times::timestamp_text(time)
    } else if let Some(duration) = value.downcast_ref::<CelDuration>() {
        times::duration_text(duration)
    } else if let Some(address) = value.downcast_ref::<IpAddress>() {
        address.0.to_string()
    } else if let Some(network) = value.downcast_ref::<IpNetwork>() {
        network.0.to_string()
    } else {
        return Ok(None);
    }))
}

/// A double as Go writes it: the fewest digits, and an exponent below 0.0001 and from a million on.
pub(super) fn double_text(double: f64) -> String {
    if double.is_nan() {
        return "NaN".to_owned();
    }
    if double.is_infinite() {
        return if double > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{double:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{double}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

pub(super) fn int<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    charged_text(&args, 0)?;
    let value = exact::as_computed(single(args)?);
    match value.downcast_ref::<CelDuration>() {
        Some(duration) => match times::nanoseconds(duration) {
            Some(nanoseconds) => Ok(CowVal::owned(nanoseconds)),
            None => Err(ExecutionError::function_error("int", "integer overflow")),
        },
        None => functions::call_standard("int", vec![value]),
    }
}

pub(super) fn uint<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    charged_text(&args, 0)?;
    let value = exact::as_computed(single(args)?);
    if value.downcast_ref::<CelString>().is_some_and(|text| text.inner().starts_with('+')) {
        return Err(ExecutionError::function_error("uint", "a number without a sign is expected"));
    }
    functions::call_standard("uint", vec![value])
}
