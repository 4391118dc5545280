//! What one evaluation may cost: loop steps, work, and the length of a text.
//!
//! The functions of `cel` are plain pointers without captures, so the counters live in a thread-local
//! cell: [`start`] resets it, the guards that `rewrite` puts into every expression and our own functions
//! charge it, [`exceeded`] returns at the end which limit was exceeded. An evaluation runs on one thread
//! from start to end and never starts another one, so that evaluations cannot mix.
//!
//! An exceeded limit stays exceeded: errors inside of `||`, `&&`, `all` and `exists` can be absorbed, this
//! cannot, and every later charge fails at once.

use std::cell::Cell;

use cel::{
    ExecutionError,
    common::{
        types::{CelBytes, CelList, CelMap, CelMapKey, CelOptional, CelString},
        value::Val,
    },
};

use super::{quantity::Quantity, urls::Url, versions::SemanticVersion};

/// Loop steps of one evaluation: each round of each macro is one.
pub(super) const MAX_STEPS: u32 = 10_000;

/// Units of work of one evaluation: roughly the visited nodes of the expression and the values that
/// are copied, compared or built; a text counts one per [`TEXT_UNIT`] bytes.
pub(super) const MAX_WORK: u64 = 200_000;

/// The longest text that an expression may build, in bytes.
pub(super) const MAX_TEXT: usize = 1 << 20;

/// Bytes of text that cost as much as one node.
const TEXT_UNIT: usize = 64;

/// A limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExceededLimit {
    Steps,
    Work,
    Text,
    /// Something looked at a redacted value.
    Redacted,
}

#[derive(Clone, Copy)]
struct Meter {
    steps: u32,
    work: u64,
    exceeded: Option<ExceededLimit>,
}

thread_local! {
    static METER: Cell<Meter> = const { Cell::new(Meter { steps: 0, work: 0, exceeded: None }) };
}

/// Starts an evaluation that has this much work to do even without loops.
pub(super) fn start(work: u64) {
    METER.set(Meter { steps: 0, work, exceeded: None });
}

/// The limit that the evaluation exceeded.
pub(super) fn exceeded() -> Option<ExceededLimit> {
    METER.get().exceeded
}

/// Counts one round of a loop, and the work of its body.
pub(super) fn step(work: u64) -> Result<(), ExecutionError> {
    let mut meter = METER.get();
    meter.steps += 1;
    let limit = if meter.steps > MAX_STEPS { Some(ExceededLimit::Steps) } else { None };
    meter.exceeded = meter.exceeded.or(limit);
    METER.set(meter);
    spend(work)
}

/// Counts work; to be called before it is done.
pub(super) fn spend(units: u64) -> Result<(), ExecutionError> {
    let mut meter = METER.get();
    meter.work = meter.work.saturating_add(units);
    if meter.work > MAX_WORK {
        meter.exceeded = meter.exceeded.or(Some(ExceededLimit::Work));
    }
    METER.set(meter);
    if meter.exceeded.is_some() { Err(stopped()) } else { Ok(()) }
}

/// Counts a text that is about to be built.
pub(super) fn build_text(bytes: usize) -> Result<(), ExecutionError> {
    check_text(bytes)?;
    spend(text_weight(bytes))
}

/// Fails if a text is too long.
pub(super) fn check_text(bytes: usize) -> Result<(), ExecutionError> {
    if bytes > MAX_TEXT {
        let mut meter = METER.get();
        meter.exceeded = meter.exceeded.or(Some(ExceededLimit::Text));
        METER.set(meter);
    }
    spend(0)
}

/// Something is about to look at a redacted value: the evaluation has no value.
pub(super) fn reach_redacted() -> ExecutionError {
    let mut meter = METER.get();
    meter.exceeded = meter.exceeded.or(Some(ExceededLimit::Redacted));
    METER.set(meter);
    stopped()
}

/// The evaluation reports the limit itself; this only unwinds it.
fn stopped() -> ExecutionError {
    ExecutionError::function_error("budget", "the evaluation was stopped")
}

pub(super) fn text_weight(bytes: usize) -> u64 {
    units(bytes / TEXT_UNIT)
}

pub(super) fn units(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// What it costs to copy or compare a value.
pub(super) fn weight(value: &dyn Val) -> u64 {
    if let Some(text) = value.downcast_ref::<CelString>() {
        1 + text_weight(text.inner().len())
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        1 + list.inner().iter().map(|item| weight(item.as_ref())).sum::<u64>()
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        1 + map.inner().iter().map(|(key, value)| key_weight(key) + weight(value.as_ref())).sum::<u64>()
    } else if let Some(optional) = value.downcast_ref::<CelOptional>() {
        1 + optional.option().map_or(0, weight)
    } else if let Some(url) = value.downcast_ref::<Url>() {
        1 + text_weight(2 * url.text.len())
    } else if let Some(version) = value.downcast_ref::<SemanticVersion>() {
        1 + text_weight(version.0.pre.len() + version.0.build.len())
    } else if let Some(quantity) = value.downcast_ref::<Quantity>() {
        quantity.weight()
    } else {
        1 + value.downcast_ref::<CelBytes>().map_or(0, |bytes| text_weight(bytes.inner().len()))
    }
}

pub(super) fn key_weight(key: &CelMapKey<'_>) -> u64 {
    match key {
        CelMapKey::String(text) => 1 + text_weight(text.inner().len()),
        _ => 1,
    }
}

/// What it costs to look at the top of a value: its bytes or its number of items.
pub(super) fn top_weight(value: &dyn Val) -> u64 {
    if let Some(text) = value.downcast_ref::<CelString>() {
        text_weight(text.inner().len())
    } else if let Some(bytes) = value.downcast_ref::<CelBytes>() {
        text_weight(bytes.inner().len())
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        units(list.inner().len())
    } else {
        value.downcast_ref::<CelMap>().map_or(0, |map| units(map.inner().len()))
    }
}
