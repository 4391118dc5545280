//! Functions on texts that could build more than they were given: `replace`, `join`, `split`, and
//! `indexOf`, `lastIndexOf` and `reverse` for texts as well as lists.
//!
//! They behave as the strings extension of CEL says (positions count code points), and charge the meter.

use cel::{
    ExecutionError,
    common::{
        types::{CelInt, CelList, CelString},
        value::{CowVal, Val},
    },
};

use super::{
    lists, meter,
    operators::{Operands, OperatorResult, int_at, list_at, mismatch, text_at},
    redacted,
};

fn text<'b, 'v>(text: String) -> CowVal<'b, 'v> {
    CowVal::owned(CelString::from(text))
}

pub(super) fn replace<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let limit = if args.len() == 4 { int_at(&args, 3) } else { Some(-1) };
    let (Some(this), Some(from), Some(to), Some(limit)) =
        (text_at(&args, 0), text_at(&args, 1), text_at(&args, 2), limit)
    else {
        return Err(mismatch("replace", &args));
    };
    meter::spend(meter::text_weight(this.len()))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let count = this.matches(from).take(limit).count();
    meter::build_text((this.len() + count.saturating_mul(to.len())).saturating_sub(count * from.len()))?;
    Ok(text(this.replacen(from, to, count)))
}

pub(super) fn join<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let separator = if args.len() == 2 { text_at(&args, 1) } else { Some("") };
    let (Some(list), Some(separator)) = (list_at(&args, 0), separator) else {
        return Err(mismatch("join", &args));
    };
    meter::spend(meter::units(list.len()))?;
    redacted::check_all(list.iter().map(AsRef::as_ref))?;
    let parts: Option<Vec<&str>> =
        list.iter().map(|item| item.downcast_ref::<CelString>().map(CelString::inner)).collect();
    let Some(parts) = parts else {
        return Err(ExecutionError::function_error("join", "every item of the list must be a string"));
    };
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    meter::build_text(bytes.saturating_add(parts.len().saturating_mul(separator.len())))?;
    Ok(text(parts.join(separator)))
}

pub(super) fn split<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let limit = if args.len() == 3 { int_at(&args, 2) } else { Some(-1) };
    let (Some(this), Some(separator), Some(limit)) = (text_at(&args, 0), text_at(&args, 1), limit) else {
        return Err(mismatch("split", &args));
    };
    meter::spend(meter::text_weight(this.len()))?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut parts: Vec<Box<dyn Val + 'v>> = Vec::new();
    let mut rest = (limit > 0 && !(this.is_empty() && separator.is_empty())).then_some(this);
    while let Some(all) = rest {
        // An empty separator splits between code points, and is not found at the ends.
        let found = if separator.is_empty() {
            all.char_indices().nth(1).map(|(at, _)| (at, at))
        } else {
            all.find(separator).map(|at| (at, at + separator.len()))
        };
        let (part, next) = match found.filter(|_| parts.len() + 1 < limit) {
            Some((end, next)) => (all.get(..end), all.get(next..)),
            None => (Some(all), None),
        };
        meter::spend(1)?;
        parts.push(Box::new(CelString::from(part.unwrap_or_default().to_owned())));
        rest = next;
    }
    Ok(CowVal::owned(CelList::from(parts)))
}

pub(super) fn reverse<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(this) = text_at(&args, 0) else { return lists::reverse(args) };
    meter::build_text(this.len())?;
    Ok(text(this.chars().rev().collect()))
}

pub(super) fn index_of<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    if list_at(&args, 0).is_some() && args.len() == 2 {
        return lists::index_of(args);
    }
    position("indexOf", &args, |this, needle, start| {
        let from = byte_at(this, start);
        this.get(from..)?.find(needle).map(|at| from + at)
    })
}

pub(super) fn last_index_of<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    if list_at(&args, 0).is_some() && args.len() == 2 {
        return lists::last_index_of(args);
    }
    let searches_all = args.len() == 2;
    position("lastIndexOf", &args, |this, needle, start| {
        let end = if searches_all { this.len() } else { byte_at(this, start + needle.chars().count()) };
        this.get(..end)?.rfind(needle)
    })
}

/// Where a code point begins; the end if there are fewer.
fn byte_at(text: &str, position: usize) -> usize {
    text.char_indices().nth(position).map_or(text.len(), |(at, _)| at)
}

/// The code point at which a search succeeds; -1 if it does not.
fn position<'b, 'v>(
    function: &str,
    args: &[CowVal<'_, '_>],
    search: impl Fn(&str, &str, usize) -> Option<usize>,
) -> OperatorResult<'b, 'v> {
    let start = if args.len() == 3 { int_at(args, 2) } else { Some(0) };
    let (Some(this), Some(needle), Some(start)) = (text_at(args, 0), text_at(args, 1), start) else {
        return Err(mismatch(function, args));
    };
    meter::spend(3 * meter::text_weight(this.len()) + meter::text_weight(needle.len()))?;
    let len = this.chars().count();
    let out_of_range = || ExecutionError::function_error(function, format!("index out of range: {start}"));
    let at = usize::try_from(start).map_err(|_| out_of_range())?;
    let found = if args.len() == 2 {
        search(this, needle, 0)
    } else if needle.is_empty() {
        Some(byte_at(this, at))
    } else if at < len {
        search(this, needle, at)
    } else {
        return Err(out_of_range());
    };
    let found = found.and_then(|at| this.get(..at)).map(|before| before.chars().count());
    let found = found.map_or(-1, |at| i64::try_from(at).unwrap_or(i64::MAX));
    Ok(CowVal::owned(CelInt::from(found)))
}
