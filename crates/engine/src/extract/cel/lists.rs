//! Functions on lists: those of Kubernetes (`sum`, `min`, `max`, `isSorted`, `indexOf`, `lastIndexOf`) and those of
//! CEL's lists extension that can cost more than the size of their result.
//!
//! Both behave as their documentation says; every one charges the meter for each item it looks at.

use std::{
    cmp::Ordering,
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use cel::{
    ExecutionError,
    common::{
        types::{CelBool, CelInt, CelList, CelMap, CelString, Kind},
        value::{CowVal, Val},
    },
};

use super::{
    meter,
    operators::{self, Operands, OperatorResult, boolean, int_at, list_at, mismatch},
    redacted,
};

type ListItems<'v> = Vec<Box<dyn Val + 'v>>;

fn list<'b>(items: ListItems<'_>) -> CowVal<'b, '_> {
    CowVal::owned(CelList::from(items))
}

fn int<'b, 'v>(number: usize) -> CowVal<'b, 'v> {
    CowVal::owned(CelInt::from(i64::try_from(number).unwrap_or(i64::MAX)))
}

fn failed(function: &str, problem: &str) -> ExecutionError {
    ExecutionError::function_error(function, problem)
}

/// The items of a list, moved out of it or copied.
fn items<'v>(value: CowVal<'_, 'v>) -> Result<ListItems<'v>, ExecutionError> {
    meter::spend(meter::weight(value.as_ref()))?;
    Vec::try_from(value.into_owned()).map_err(|value| mismatch("list", &[CowVal::Owned(value)]))
}

fn take_list<'v>(function: &str, args: Operands<'_, 'v>) -> Result<ListItems<'v>, ExecutionError> {
    if list_at(&args, 0).is_none() {
        return Err(mismatch(function, &args));
    }
    items(args.into_iter().next().ok_or_else(ExecutionError::missing_argument_or_target)?)
}

pub(super) fn sum<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch("sum", &args)) };
    meter::spend(meter::units(items.len()))?;
    let mut total: Option<Box<dyn Val + 'v>> = None;
    for item in items {
        redacted::check(item.as_ref())?;
        if !matches!(item.get_type().kind(), Kind::Int | Kind::UInt | Kind::Double | Kind::Duration) {
            return Err(failed("sum", "every item of the list must be a number or a duration"));
        }
        total = Some(match &total {
            None => item.clone(),
            Some(total) => {
                operators::add(vec![CowVal::Borrowed(total.as_ref()), CowVal::Borrowed(item.as_ref())])?
                    .into_owned()
            }
        });
    }
    Ok(CowVal::Owned(total.unwrap_or_else(|| Box::new(CelInt::from(0)))))
}

pub(super) fn min<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    extreme("min", args, Ordering::Less)
}

pub(super) fn max<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    extreme("max", args, Ordering::Greater)
}

fn extreme<'b, 'v>(function: &str, args: Operands<'b, 'v>, wanted: Ordering) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch(function, &args)) };
    meter::spend(meter::units(items.len()))?;
    let mut best: Option<&(dyn Val + 'v)> = None;
    for item in items {
        // The first item is compared to itself: it must be comparable, even alone.
        let order = compare(function, item.as_ref(), best.unwrap_or(item.as_ref()))?;
        if best.is_none() || order == wanted {
            best = Some(item.as_ref());
        }
    }
    match best {
        Some(best) => Ok(CowVal::Owned(best.clone_as_boxed())),
        None => Err(failed(function, &format!("{function} called on empty list"))),
    }
}

/// The order of two items, which must have one.
fn compare(function: &str, a: &dyn Val, b: &dyn Val) -> Result<Ordering, ExecutionError> {
    match operators::order(a, b) {
        Ok(Some(order)) => Ok(order),
        Ok(None) => Err(failed(function, "NaN cannot be ordered")),
        Err(()) => Err(failed(function, "the items of the list cannot be ordered")),
    }
}

pub(super) fn is_sorted<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(items) = list_at(&args, 0) else { return Err(mismatch("isSorted", &args)) };
    meter::spend(meter::units(items.len()))?;
    for (a, b) in items.iter().zip(items.iter().skip(1)) {
        if compare("isSorted", a.as_ref(), b.as_ref())? == Ordering::Greater {
            return Ok(boolean(false));
        }
    }
    Ok(boolean(true))
}

pub(super) fn index_of<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    find("indexOf", &args, false)
}

pub(super) fn last_index_of<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    find("lastIndexOf", &args, true)
}

fn find<'b, 'v>(function: &str, args: &[CowVal<'b, 'v>], backwards: bool) -> OperatorResult<'b, 'v> {
    let (Some(items), [_, wanted]) = (list_at(args, 0), args) else { return Err(mismatch(function, args)) };
    for step in 0..items.len() {
        let at = if backwards { items.len() - 1 - step } else { step };
        meter::spend(1)?;
        if operators::equals(items[at].as_ref(), wanted.as_ref())? {
            return Ok(int(at));
        }
    }
    Ok(CowVal::owned(CelInt::from(-1)))
}

pub(super) fn sort<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let mut items = take_list("sort", args)?;
    sort_by("sort", &mut items, |item| item.as_ref())?;
    Ok(list(items))
}

/// `list.sortBy(x, key)`: the items and the key of each.
pub(super) fn sort_by_keys<'b, 'v>(mut args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let keys = args.pop().map_or(Ok(Vec::new()), items)?;
    let mut keyed: Vec<_> = take_list("sortBy", args)?.into_iter().zip(keys).collect();
    sort_by("sortBy", &mut keyed, |(_, key)| key.as_ref())?;
    Ok(list(keyed.into_iter().map(|(item, _)| item).collect()))
}

fn sort_by<T>(function: &str, items: &mut [T], key: impl Fn(&T) -> &dyn Val) -> Result<(), ExecutionError> {
    let count = meter::units(items.len());
    meter::spend(count.saturating_mul(1 + u64::from(count.max(1).ilog2())))?;
    redacted::check_all(items.iter().map(&key))?;
    if let [first, rest @ ..] = &*items {
        // One type and no NaN: from here on the order is total.
        compare(function, key(first), key(first))?;
        for item in rest {
            if key(item).get_type() != key(first).get_type() {
                return Err(failed(function, "list elements must have the same type"));
            }
            compare(function, key(item), key(first))?;
        }
    }
    items.sort_by(|a, b| compare(function, key(a), key(b)).unwrap_or(Ordering::Equal));
    Ok(())
}

pub(super) fn distinct<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let items = take_list("distinct", args)?;
    let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut unique: ListItems<'v> = Vec::new();
    for item in items {
        redacted::check_deep(item.as_ref())?;
        let same_hash = known.entry(fingerprint(item.as_ref())).or_default();
        let mut repeated = false;
        for at in same_hash.iter() {
            meter::spend(1)?;
            repeated = repeated || operators::equals(unique[*at].as_ref(), item.as_ref())?;
        }
        if !repeated {
            same_hash.push(unique.len());
            unique.push(item);
        }
    }
    Ok(list(unique))
}

/// A hash that is the same for equal values; `1`, `1u` and `1.0` are equal.
fn fingerprint(value: &dyn Val) -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Some(number) = operators::as_double(value) {
        // Adding zero turns -0 into 0.
        (number + 0.0).to_bits().hash(&mut hasher);
    } else if let Some(text) = value.downcast_ref::<CelString>() {
        text.inner().hash(&mut hasher);
    } else if let Some(b) = value.downcast_ref::<CelBool>() {
        b.inner().hash(&mut hasher);
    } else if let Some(items) = value.downcast_ref::<CelList>() {
        items.inner().iter().for_each(|item| fingerprint(item.as_ref()).hash(&mut hasher));
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        let entries = map.inner().values().map(|value| fingerprint(value.as_ref()));
        // Keys are left out, because `1` and `1u` are the same key; the order of entries does not matter.
        entries.fold(0, u64::wrapping_add).hash(&mut hasher);
    } else {
        value.get_type().name().hash(&mut hasher);
    }
    hasher.finish()
}

pub(super) fn flatten<'b, 'v>(mut args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let depth = if args.len() == 2 { int_at(&args, 1) } else { Some(1) };
    let Some(depth) = depth else { return Err(mismatch("flatten", &args)) };
    let depth = u64::try_from(depth).map_err(|_| failed("flatten", "level must be non-negative"))?;
    args.truncate(1);
    let mut flat = Vec::new();
    flatten_into(take_list("flatten", args)?, depth, &mut flat)?;
    Ok(list(flat))
}

fn flatten_into<'v>(
    items: ListItems<'v>,
    depth: u64,
    flat: &mut ListItems<'v>,
) -> Result<(), ExecutionError> {
    for item in items {
        if depth == 0 || item.get_type().kind() != Kind::List {
            flat.push(item);
            continue;
        }
        match Vec::try_from(item) {
            Ok(nested) => flatten_into(nested, depth - 1, flat)?,
            Err(item) => flat.push(item),
        }
    }
    Ok(())
}

pub(super) fn slice<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(items), Some(start), Some(end)) = (list_at(&args, 0), int_at(&args, 1), int_at(&args, 2))
    else {
        return Err(mismatch("slice", &args));
    };
    let invalid = |reason: &str| failed("slice", &format!("cannot slice({start}, {end}), {reason}"));
    let (Ok(from), Ok(to)) = (usize::try_from(start), usize::try_from(end)) else {
        return Err(invalid("negative indexes not supported"));
    };
    if from > to {
        return Err(invalid("start index must be less than or equal to end index"));
    }
    let Some(items) = items.get(from..to) else {
        return Err(invalid(&format!("list is length {}", items.len())));
    };
    meter::spend(items.iter().map(|item| meter::weight(item.as_ref())).sum())?;
    Ok(list(items.to_vec()))
}

pub(super) fn reverse<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let mut items = take_list("reverse", args)?;
    items.reverse();
    Ok(list(items))
}

pub(super) fn range<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(count) = int_at(&args, 0) else { return Err(mismatch("lists.range", &args)) };
    // A negative size is that of an empty list.
    meter::spend(count.max(0).unsigned_abs())?;
    Ok(list((0..count).map(|at| Box::new(CelInt::from(at)) as Box<dyn Val + 'v>).collect()))
}
