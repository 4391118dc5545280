//! The operators of CEL, charged to the meter: `rewrite` replaces the interpreter's own by these.
//!
//! Each one charges the meter before it copies, compares or builds anything, and refuses operands
//! that do not fit itself: the interpreter's own errors carry copies of both operands, however large.

use std::cmp::Ordering;

use cel::{
    ExecutionError,
    common::{
        traits::Container,
        types::{
            CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelOptional, CelString, CelUInt, Kind,
        },
        value::{CowVal, Val},
    },
};

use super::{exact, meter, redacted};

pub(super) type Operands<'b, 'v> = Vec<CowVal<'b, 'v>>;
pub(super) type OperatorResult<'b, 'v> = Result<CowVal<'b, 'v>, ExecutionError>;

pub(super) fn boolean<'b, 'v>(value: bool) -> CowVal<'b, 'v> {
    CowVal::Borrowed(if value { &CelBool::TRUE } else { &CelBool::FALSE })
}

/// The operator or function does not take these types, or one of the values is redacted.
pub(super) fn mismatch(function: &str, args: &[CowVal<'_, '_>]) -> ExecutionError {
    if let Err(reached) = redacted::check_all(args.iter().map(AsRef::as_ref)) {
        return reached;
    }
    let types = args.iter().map(|arg| arg.get_type().name().to_owned()).collect();
    ExecutionError::no_such_overload(function, types)
}

pub(super) fn pair<'b, 'v>(args: Operands<'b, 'v>) -> Result<[CowVal<'b, 'v>; 2], ExecutionError> {
    <[CowVal<'b, 'v>; 2]>::try_from(args)
        .map_err(|args| ExecutionError::invalid_argument_count(2, args.len()))
}

/// The operands of an operator that computes with numbers.
fn computed_pair<'b, 'v>(args: Operands<'b, 'v>) -> Result<[CowVal<'b, 'v>; 2], ExecutionError> {
    redacted::check_all(args.iter().map(AsRef::as_ref))?;
    pair(args).map(|operands| operands.map(exact::as_computed))
}

pub(super) fn single<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    args.into_iter().next().ok_or_else(ExecutionError::missing_argument_or_target)
}

/// Values that hold others.
fn is_deep(value: &dyn Val) -> bool {
    matches!(value.get_type().kind(), Kind::List | Kind::Map | Kind::Opaque)
}

/// The bytes of a string or of bytes.
fn text_len(value: &dyn Val) -> Option<usize> {
    match value.downcast_ref::<CelString>() {
        Some(text) => Some(text.inner().len()),
        None => value.downcast_ref::<CelBytes>().map(|bytes| bytes.inner().len()),
    }
}

fn is_number(value: &dyn Val) -> bool {
    matches!(value.get_type().kind(), Kind::Int | Kind::UInt | Kind::Double)
}

/// One round of a loop: `@tick(cost)`.
pub(super) fn tick<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    meter::step(int_at(&args, 0).unwrap_or_default().unsigned_abs())?;
    Ok(boolean(true))
}

/// The value as it is. A debug build inlines the interpreter's entry, with 30 KB of stack per level; what
/// is below a call runs in the interpreter itself.
pub(super) fn root<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    single(args)
}

/// A value that the interpreter is about to copy. What is owned is moved, and was paid for when it was built.
pub(super) fn copied<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = single(args)?;
    match text_len(value.as_ref()) {
        _ if value.is_borrowed() => meter::spend(meter::weight(value.as_ref()))?,
        Some(len) => meter::build_text(len)?,
        None => {}
    }
    Ok(value)
}

/// A value that a function of the interpreter is about to read through.
pub(super) fn looked_at<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    redacted::check_all(args.iter().map(AsRef::as_ref))?;
    let value = exact::as_computed(single(args)?);
    // A text that a function of `cel` has built must not be too long.
    match value.downcast_ref::<CelString>().filter(|text| text.as_borrowed().is_none()) {
        Some(built) => meter::build_text(built.inner().len())?,
        None => meter::spend(meter::top_weight(value.as_ref()))?,
    }
    Ok(value)
}

/// A value for a function of `cel` that reads everything in it.
pub(super) fn plain<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = single(args)?;
    redacted::check_deep(value.as_ref())?;
    Ok(exact::as_computed_deep(value))
}

/// What a loop runs over: a list, or the keys of a map. The interpreter would give those in random order.
pub(super) fn range<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = single(args)?;
    if let Some(map) = value.downcast_ref::<CelMap>() {
        meter::spend(map.inner().keys().map(meter::key_weight).sum())?;
        let mut keys: Vec<_> = map.inner().keys().collect();
        keys.sort_unstable();
        let keys: Vec<Box<dyn Val + 'v>> = keys.into_iter().map(|key| key.inner().clone_as_boxed()).collect();
        return Ok(CowVal::owned(CelList::from(keys)));
    }
    if value.downcast_ref::<CelList>().is_none() {
        redacted::check(value.as_ref())?;
        let got = value.get_type().name().to_owned();
        return Err(ExecutionError::UnexpectedType { got, want: "list or map".into() });
    }
    copied(vec![value])
}

/// An index or the key of an entry.
pub(super) fn key<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let key = exact::as_computed(single(args)?);
    if is_key(key.as_ref()) { Ok(key) } else { Err(mismatch("_[_]", &[key])) }
}

fn is_key(key: &dyn Val) -> bool {
    match key.downcast_ref::<CelDouble>() {
        Some(double) => double.inner().fract() == 0.0,
        None => matches!(key.get_type().kind(), Kind::String | Kind::Int | Kind::UInt | Kind::Boolean),
    }
}

/// `base.?a.?b` or `base[?a][?b]`: steps along by reference and copies only what it arrives at.
pub(super) fn optional<'b, 'v>(mut args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let keys = args.split_off(1);
    let base = single(args)?;
    let none = || Ok(CowVal::owned(CelOptional::none()));
    let mut at: &(dyn Val + 'v) = base.as_ref();
    if let Some(optional) = at.downcast_ref::<CelOptional>() {
        match optional.option() {
            Some(value) => at = value,
            None => return none(),
        }
    }
    for key in keys {
        redacted::check(key.as_ref())?;
        if at.get_type().kind() == Kind::List && key.get_type().kind() == Kind::String {
            return Err(mismatch("_[?_]", &[CowVal::Borrowed(at), key]));
        }
        match at.as_indexer().filter(|_| is_key(key.as_ref())).map(|indexer| indexer.get(key.as_ref())) {
            Some(Ok(CowVal::Borrowed(value))) => at = value,
            _ => return none(),
        }
    }
    meter::spend(meter::weight(at))?;
    Ok(CowVal::owned(CelOptional::of(at.clone_as_boxed())))
}

/// A value of which the interpreter is about to select a field: it copies the field if the value is an optional.
pub(super) fn selected<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let [value, field] = pair(args)?;
    if let Some(inner) = value.downcast_ref::<CelOptional>().and_then(|optional| optional.option()) {
        meter::spend(match inner.as_indexer().and_then(|inner| inner.get(field.as_ref()).ok()) {
            Some(found) => meter::weight(found.as_ref()),
            // A field that is not known yet is null.
            None if field.get_type().kind() == Kind::NullType => meter::weight(inner),
            None => 1,
        })?;
    }
    Ok(value)
}

pub(super) fn equal<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(same(args)?))
}

pub(super) fn not_equal<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(!same(args)?))
}

fn same(args: Operands<'_, '_>) -> Result<bool, ExecutionError> {
    let [a, b] = pair(args)?;
    equals(a.as_ref(), b.as_ref())
}

/// Whether two values are equal; charges the meter. Fails if that depends on a redacted value.
pub(super) fn equals(a: &dyn Val, b: &dyn Val) -> Result<bool, ExecutionError> {
    redacted::check_all([a, b])?;
    let comparable = match (is_deep(a), is_deep(b)) {
        (true, true) => {
            meter::spend(meter::weight(a) + meter::weight(b))?;
            true
        }
        (false, false) => match (text_len(a), text_len(b)) {
            (Some(a), Some(b)) => {
                meter::spend(meter::text_weight(a.min(b)))?;
                true
            }
            (None, None) => {
                // Versions, URLs and quantities may be long.
                let weight = meter::weight(a) + meter::weight(b);
                if weight > 2 {
                    meter::spend(weight)?;
                }
                true
            }
            _ => false,
        },
        _ => false,
    };
    if !comparable {
        return Ok(false);
    }
    compared(a, b).ok_or_else(meter::reach_redacted)
}

/// Equality of CEL, also of numbers with all their digits inside of lists and maps; `None`: it depends on a redacted value. Parts
/// that differ decide, whatever the others are, so that the order of the parts does not matter.
fn compared(a: &dyn Val, b: &dyn Val) -> Option<bool> {
    fn all(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
        let mut all = Some(true);
        for part in parts {
            match part {
                Some(true) => {}
                Some(false) => return Some(false),
                None => all = None,
            }
        }
        all
    }
    if redacted::is_redacted(a) || redacted::is_redacted(b) {
        return None;
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<CelList>(), b.downcast_ref::<CelList>()) {
        let (a, b) = (a.inner(), b.inner());
        if a.len() != b.len() {
            return Some(false);
        }
        return all(a.iter().zip(b).map(|(a, b)| compared(a.as_ref(), b.as_ref())));
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<CelOptional>(), b.downcast_ref::<CelOptional>()) {
        return match (a.option(), b.option()) {
            (Some(a), Some(b)) => compared(a, b),
            (a, b) => Some(a.is_none() && b.is_none()),
        };
    }
    if let (Some(a), Some(b)) = (a.downcast_ref::<CelMap>(), b.downcast_ref::<CelMap>()) {
        let (a, b) = (a.inner(), b.inner());
        if a.len() != b.len() {
            return Some(false);
        }
        return all(a.iter().map(|(key, value)| {
            // `1` and `1u` are the same key; the first one that is missing ends the comparison.
            let equal =
                || b.iter().find(|(other, _)| other.inner().equals(key.inner())).map(|(_, value)| value);
            match b.get(key).or_else(equal) {
                Some(other) => compared(value.as_ref(), other.as_ref()),
                None => Some(false),
            }
        }));
    }
    Some(exact::computed(a).equals(exact::computed(b)))
}

pub(super) fn contained<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let [item, container] = computed_pair(args)?;
    if let Some(list) = container.downcast_ref::<CelList>() {
        for candidate in list.inner() {
            meter::spend(1)?;
            if equals(candidate.as_ref(), item.as_ref())? {
                return Ok(boolean(true));
            }
        }
        return Ok(boolean(false));
    }
    meter::spend(meter::top_weight(item.as_ref()))?;
    match container.downcast_ref::<CelMap>() {
        // A value that cannot be a key is not among the keys.
        Some(map) => {
            let map: &dyn Container = map;
            Ok(boolean(is_key(item.as_ref()) && map.contains(item.as_ref()).unwrap_or(false)))
        }
        None => Err(mismatch("@in", &[item, container])),
    }
}

/// The order of two values; `None` when a NaN is among them.
pub(super) fn order(a: &dyn Val, b: &dyn Val) -> Result<Option<Ordering>, ()> {
    redacted::check_all([a, b]).map_err(drop)?;
    let (a, b) = (exact::computed(a), exact::computed(b));
    let fits = match (text_len(a), text_len(b)) {
        (Some(x), Some(y)) => meter::spend(meter::text_weight(x.min(y))).is_ok(),
        (None, None) => !is_deep(a) && !is_deep(b),
        _ => false,
    };
    match a.as_comparer().filter(|_| fits).map(|comparer| comparer.compare(b)) {
        Some(Ok(order)) => Ok(Some(order)),
        Some(Err(_)) if is_number(a) && is_number(b) => Ok(None),
        _ => Err(()),
    }
}

fn compare<'b, 'v>(
    args: Operands<'b, 'v>,
    operator: &str,
    holds: impl Fn(Ordering) -> bool,
) -> OperatorResult<'b, 'v> {
    let [a, b] = computed_pair(args)?;
    match order(a.as_ref(), b.as_ref()) {
        Ok(order) => Ok(boolean(order.is_some_and(holds))),
        Err(()) => Err(mismatch(operator, &[a, b])),
    }
}

pub(super) fn less<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    compare(args, "_<_", Ordering::is_lt)
}

pub(super) fn less_equal<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    compare(args, "_<=_", Ordering::is_le)
}

pub(super) fn greater<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    compare(args, "_>_", Ordering::is_gt)
}

pub(super) fn greater_equal<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    compare(args, "_>=_", Ordering::is_ge)
}

pub(super) fn add<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let [a, b] = computed_pair(args)?;
    let fits = match (a.get_type().kind(), b.get_type().kind()) {
        (Kind::String, Kind::String) | (Kind::Bytes, Kind::Bytes) => {
            let len = text_len(a.as_ref()).unwrap_or_default() + text_len(b.as_ref()).unwrap_or_default();
            meter::build_text(len)?;
            true
        }
        (Kind::List, Kind::List) => {
            meter::spend(meter::weight(a.as_ref()) + meter::weight(b.as_ref()))?;
            true
        }
        _ => are_plain(a.as_ref(), b.as_ref()),
    };
    arithmetic("_+_", fits, a, b, |a, b| Some(a.as_adder()?.add(b)))
}

fn are_plain(a: &dyn Val, b: &dyn Val) -> bool {
    [a, b].iter().all(|value| !is_deep(*value) && text_len(*value).is_none())
}

type Computed<'b, 'v> = Option<Result<CowVal<'b, 'v>, ExecutionError>>;

fn arithmetic<'b, 'v>(
    operator: &str,
    fits: bool,
    a: CowVal<'b, 'v>,
    b: CowVal<'b, 'v>,
    compute: impl for<'x> Fn(&'x (dyn Val + 'v), &'x (dyn Val + 'v)) -> Computed<'x, 'v>,
) -> OperatorResult<'b, 'v> {
    let result = if fits {
        compute(a.as_ref(), b.as_ref()).map(|result| result.map(CowVal::into_owned))
    } else {
        None
    };
    match result {
        Some(Ok(value)) => Ok(CowVal::Owned(value)),
        None | Some(Err(ExecutionError::UnsupportedBinaryOperator(..))) => Err(mismatch(operator, &[a, b])),
        Some(Err(error)) => Err(error),
    }
}

macro_rules! plain_operator {
    ($name:ident, $operator:literal, $accessor:ident, $method:ident) => {
        pub(super) fn $name<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
            let [a, b] = computed_pair(args)?;
            let fits = are_plain(a.as_ref(), b.as_ref());
            arithmetic($operator, fits, a, b, |a, b| Some(a.$accessor()?.$method(b)))
        }
    };
}

plain_operator!(subtract, "_-_", as_subtractor, sub);
plain_operator!(multiply, "_*_", as_multiplier, mul);
plain_operator!(divide, "_/_", as_divider, div);
plain_operator!(modulo, "_%_", as_modder, modulo);

/// A number of the arguments as an integer.
pub(super) fn int_at(args: &[CowVal<'_, '_>], index: usize) -> Option<i64> {
    args.get(index)?.downcast_ref::<CelInt>().map(|int| *int.inner())
}

pub(super) fn text_at<'a>(args: &'a [CowVal<'_, '_>], index: usize) -> Option<&'a str> {
    args.get(index)?.downcast_ref::<CelString>().map(CelString::inner)
}

/// A text that is about to be read through.
pub(super) fn charged_text<'a>(
    args: &'a [CowVal<'_, '_>],
    index: usize,
) -> Result<Option<&'a str>, ExecutionError> {
    let text = text_at(args, index);
    meter::spend(text.map_or(0, |text| meter::text_weight(text.len())))?;
    Ok(text)
}

pub(super) fn list_at<'a, 'v>(args: &'a [CowVal<'_, 'v>], index: usize) -> Option<&'a [Box<dyn Val + 'v>]> {
    args.get(index)?.downcast_ref::<CelList>().map(CelList::inner)
}

/// A number as a double, to distinguish values that cannot be equal.
pub(super) fn as_double(value: &dyn Val) -> Option<f64> {
    let value = exact::computed(value);
    #[expect(clippy::cast_precision_loss, reason = "equal numbers lose the same digits")]
    if let Some(int) = value.downcast_ref::<CelInt>() {
        Some(*int.inner() as f64)
    } else if let Some(uint) = value.downcast_ref::<CelUInt>() {
        Some(*uint.inner() as f64)
    } else {
        value.downcast_ref::<CelDouble>().map(|double| *double.inner())
    }
}
