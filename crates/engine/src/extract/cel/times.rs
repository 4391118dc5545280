//! `duration()`, `timestamp()` and what is read of a timestamp.
//!
//! They replace those of `cel` 0.15: its `duration` ignores text that it cannot read (`src/duration.rs`), its `timestamp` takes
//! notations that RFC 3339 does not have, and its accessors use the written offset instead of UTC (`src/common/types/timestamp.rs`).

use cel::{
    ExecutionError,
    common::{
        types::{CelDuration, CelInt, CelTimestamp},
        value::CowVal,
    },
};
use chrono::{DateTime, Datelike, FixedOffset, NaiveDate, TimeDelta, TimeZone as _, Timelike, Utc};

use super::operators::{Operands, OperatorResult, charged_text, int_at, mismatch, single};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Seconds of the first moment of year 1 and of the last second of year 9999.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

fn failed(function: &str) -> ExecutionError {
    // The message would repeat the text, which may be of the object.
    ExecutionError::function_error(function, "")
}

pub(super) fn duration<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(text) = charged_text(&args, 0)? else {
        let is_duration = args.first().is_some_and(|value| value.downcast_ref::<CelDuration>().is_some());
        return if is_duration { single(args) } else { Err(mismatch("duration", &args)) };
    };
    let nanos = parse_duration(text).ok_or_else(|| failed("duration"))?;
    Ok(CowVal::owned(CelDuration::from(TimeDelta::nanoseconds(nanos))))
}

/// Nanoseconds of a text such as `1h30m` or `-1.5s`, as Go reads it.
fn parse_duration(text: &str) -> Option<i64> {
    let (is_negative, mut rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (integer, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if integer.is_empty() && fraction.is_empty() {
            return None;
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit: u64 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS_PER_SECOND,
            "m" => 60 * NANOS_PER_SECOND,
            "h" => 3600 * NANOS_PER_SECOND,
            _ => return None,
        };
        let whole = if integer.is_empty() { 0 } else { integer.parse::<u64>().ok()?.checked_mul(unit)? };
        total = total.checked_add(whole)?.checked_add(part_of(unit, fraction))?;
        rest = after;
    }
    match (is_negative, i64::try_from(total)) {
        (false, Ok(total)) => Some(total),
        (true, Ok(total)) => Some(-total),
        (true, Err(_)) if total == i64::MIN.unsigned_abs() => Some(i64::MIN),
        _ => None,
    }
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `unit` times the fraction with these digits, rounded down.
fn part_of(unit: u64, digits: &str) -> u64 {
    // A unit has 13 digits: more of the fraction than 18 do not change the result.
    let digits = digits.get(..18).unwrap_or(digits);
    let fraction: u128 = digits.parse().unwrap_or_default();
    let scale = 10_u128.pow(u32::try_from(digits.len()).unwrap_or_default());
    u64::try_from(u128::from(unit) * fraction / scale).unwrap_or_default()
}

pub(super) fn timestamp<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let time = match (charged_text(&args, 0)?, int_at(&args, 0)) {
        (Some(text), _) => parse_timestamp(text).ok_or_else(|| failed("timestamp"))?,
        (None, Some(seconds)) if SECONDS.contains(&seconds) => {
            DateTime::from_timestamp(seconds, 0).ok_or_else(|| failed("timestamp"))?.fixed_offset()
        }
        (None, Some(_)) => return Err(failed("timestamp")),
        (None, None) => {
            let is_timestamp =
                args.first().is_some_and(|value| value.downcast_ref::<CelTimestamp>().is_some());
            return if is_timestamp { single(args) } else { Err(mismatch("timestamp", &args)) };
        }
    };
    Ok(CowVal::owned(CelTimestamp::from(time)))
}

/// A time as RFC 3339 writes it, with an offset of up to 24 hours as Go takes it.
pub(super) fn parse_timestamp(text: &str) -> Option<DateTime<FixedOffset>> {
    let number = |range: std::ops::Range<usize>| {
        let digits = text.get(range)?;
        if digits.bytes().all(|b| b.is_ascii_digit()) { digits.parse::<u32>().ok() } else { None }
    };
    let signs = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !signs.iter().all(|(at, sign)| text.as_bytes().get(*at) == Some(sign)) {
        return None;
    }
    let date = NaiveDate::from_ymd_opt(i32::try_from(number(0..4)?).ok()?, number(5..7)?, number(8..10)?)?;
    let rest = text.get(19..)?;
    let (nanos, zone) = match rest.strip_prefix(['.', ',']) {
        Some(rest) => {
            let (fraction, zone) = digits(rest);
            if fraction.is_empty() {
                return None;
            }
            (u32::try_from(part_of(NANOS_PER_SECOND, fraction)).ok()?, zone)
        }
        None => (0, rest),
    };
    let time = date.and_hms_nano_opt(number(11..13)?, number(14..16)?, number(17..19)?, nanos)?;
    let time = offset(zone)?.from_local_datetime(&time).single()?;
    SECONDS.contains(&time.timestamp()).then_some(time)
}

fn offset(zone: &str) -> Option<FixedOffset> {
    if zone == "Z" {
        return FixedOffset::east_opt(0);
    }
    let sign = if zone.starts_with('-') { -1 } else { 1 };
    let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<i32>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    // 24 hours are more than chrono has.
    FixedOffset::east_opt(sign * (hours * 3600 + minutes * 60)).filter(|_| minutes < 60)
}

/// The text of a timestamp, with its offset; a fraction only if there is one.
pub(super) fn timestamp_text(time: &CelTimestamp) -> String {
    let time = time.inner();
    let offset =
        if time.offset().local_minus_utc() == 0 { "Z".to_owned() } else { time.format("%:z").to_string() };
    let fraction = format!("{:09}", time.timestamp_subsec_nanos() % 1_000_000_000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}{offset}", time.format("%Y-%m-%dT%H:%M:%S"))
}

/// The text of a duration: seconds as a double has them, without an exponent.
pub(super) fn duration_text(duration: &CelDuration) -> String {
    let duration = duration.inner();
    #[expect(clippy::cast_precision_loss, reason = "as Kubernetes does it")]
    let seconds = duration.num_seconds() as f64 + f64::from(duration.subsec_nanos()) / 1e9;
    format!("{seconds}s")
}

/// A number of a timestamp in UTC, or of a duration.
fn accessor<'b, 'v>(
    function: &str,
    args: &[CowVal<'b, 'v>],
    of_time: fn(&DateTime<Utc>) -> u32,
    of_duration: Option<fn(&TimeDelta) -> i64>,
) -> OperatorResult<'b, 'v> {
    let value = args.first();
    let time = value.and_then(|value| value.downcast_ref::<CelTimestamp>());
    let duration = value.and_then(|value| value.downcast_ref::<CelDuration>());
    let number = match (time, duration, of_duration) {
        (Some(time), ..) => i64::from(of_time(&time.inner().to_utc())),
        (None, Some(duration), Some(of_duration)) => of_duration(duration.inner()),
        _ => return Err(mismatch(function, args)),
    };
    Ok(CowVal::owned(CelInt::from(number)))
}

macro_rules! accessors {
    ($($function:ident $name:literal $of_time:expr, $of_duration:expr;)*) => {$(
        pub(super) fn $function<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
            accessor($name, &args, $of_time, $of_duration)
        }
    )*};
}

accessors! {
    get_date "getDate" Datelike::day, None;
    get_day_of_month "getDayOfMonth" Datelike::day0, None;
    get_day_of_week "getDayOfWeek" |time| time.weekday().num_days_from_sunday(), None;
    get_day_of_year "getDayOfYear" Datelike::ordinal0, None;
    get_full_year "getFullYear" |time| time.year().unsigned_abs(), None;
    get_hours "getHours" Timelike::hour, Some(TimeDelta::num_hours);
    get_milliseconds "getMilliseconds" DateTime::timestamp_subsec_millis, Some(TimeDelta::num_milliseconds);
    get_minutes "getMinutes" Timelike::minute, Some(TimeDelta::num_minutes);
    get_month "getMonth" Datelike::month0, None;
    get_seconds "getSeconds" Timelike::second, Some(TimeDelta::num_seconds);
}

/// `int(duration)` is its nanoseconds.
pub(super) fn nanoseconds(duration: &CelDuration) -> Option<CelInt> {
    duration.inner().num_nanoseconds().map(CelInt::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1h30m", Some(5_400_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            ("+1ms", Some(1_000_000)),
            ("1µs", Some(1_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("9223372036.854775807s", Some(i64::MAX)),
            ("-9223372036.854775808s", Some(i64::MIN)),
            ("9223372036.854775808s", None),
            ("1h 30m", None),
            ("1hour", None),
            ("1h30", None),
            ("5minutes", None),
            ("1e3s", None),
            ("1", None),
            ("", None),
            ("-", None),
            (".s", None),
        ] {
            assert_eq!(parse_duration(text), expected, "{text}");
        }
    }
}
