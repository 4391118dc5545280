//! Entries of maps and lists for macros with two variables, and `sets`.

use std::collections::HashMap;

use cel::{
    ExecutionError,
    common::{
        types::{CelInt, CelList, CelMap, CelMapKey},
        value::{CowVal, Val},
    },
};

use super::{
    meter,
    operators::{self, Operands, OperatorResult, boolean, list_at, mismatch, single},
    redacted,
};

/// A list of key and value for each entry of a map, in the order of the keys, or of index and item for each item of a list.
pub(super) fn entries<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let value = single(args)?;
    meter::spend(meter::weight(value.as_ref()))?;
    let entry = |key: Box<dyn Val + 'v>, value: &(dyn Val + 'v)| {
        Box::new(CelList::from(vec![key, value.clone_as_boxed()])) as Box<dyn Val + 'v>
    };
    let entries: Vec<Box<dyn Val + 'v>> = if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut entries: Vec<_> = map.inner().iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        entries.into_iter().map(|(key, value)| entry(key.inner().clone_as_boxed(), value.as_ref())).collect()
    } else if let Some(list) = value.downcast_ref::<CelList>() {
        let items = list.inner().iter().zip(0_i64..);
        items.map(|(item, index)| entry(Box::new(CelInt::from(index)), item.as_ref())).collect()
    } else {
        let got = value.get_type().name().to_owned();
        return Err(ExecutionError::UnexpectedType { got, want: "list or map".into() });
    };
    Ok(CowVal::owned(CelList::from(entries)))
}

/// The map of a list of keys and values.
pub(super) fn map_of<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(pairs) = list_at(&args, 0) else { return Err(mismatch("transformMap", &args)) };
    let mut map = HashMap::with_capacity(pairs.len());
    for pair in pairs {
        meter::spend(meter::weight(pair.as_ref()))?;
        if let Some([key, value]) = pair.downcast_ref::<CelList>().map(CelList::inner) {
            insert("transformMap", &mut map, key.as_ref(), value.as_ref())?;
        }
    }
    Ok(CowVal::owned(CelMap::from(map)))
}

/// The map of the entries of a list of maps.
pub(super) fn merged<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let Some(maps) = list_at(&args, 0) else { return Err(mismatch("transformMapEntry", &args)) };
    let mut merged = HashMap::new();
    for map in maps {
        meter::spend(meter::weight(map.as_ref()))?;
        let Some(map) = map.downcast_ref::<CelMap>() else {
            let problem = "the last argument must be a map, such as {key: value}";
            return Err(ExecutionError::function_error("transformMapEntry", problem));
        };
        for (key, value) in map.inner() {
            insert("transformMapEntry", &mut merged, key.inner(), value.as_ref())?;
        }
    }
    Ok(CowVal::owned(CelMap::from(merged)))
}

fn insert<'v>(
    function: &str,
    map: &mut HashMap<CelMapKey<'v>, Box<dyn Val + 'v>>,
    key: &(dyn Val + 'v),
    value: &(dyn Val + 'v),
) -> Result<(), ExecutionError> {
    redacted::check(key)?;
    let key = CelMapKey::try_from(CowVal::Owned(key.clone_as_boxed()))?;
    if map.insert(key, value.clone_as_boxed()).is_some() {
        return Err(ExecutionError::function_error(function, "two entries have the same key"));
    }
    Ok(())
}

/// Whether each item of the second list is in the first one.
fn holds_all(function: &str, args: &[CowVal<'_, '_>], swapped: bool) -> Result<bool, ExecutionError> {
    let (Some(a), Some(b)) = (list_at(args, usize::from(swapped)), list_at(args, usize::from(!swapped)))
    else {
        return Err(mismatch(function, args));
    };
    for item in b {
        if !is_among(a, item.as_ref())? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_among(items: &[Box<dyn Val + '_>], wanted: &dyn Val) -> Result<bool, ExecutionError> {
    for item in items {
        meter::spend(1)?;
        if operators::equals(item.as_ref(), wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn sets_contains<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    Ok(boolean(holds_all("sets.contains", &args, false)?))
}

pub(super) fn sets_equivalent<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let function = "sets.equivalent";
    Ok(boolean(holds_all(function, &args, false)? && holds_all(function, &args, true)?))
}

pub(super) fn sets_intersects<'b, 'v>(args: Operands<'b, 'v>) -> OperatorResult<'b, 'v> {
    let (Some(a), Some(b)) = (list_at(&args, 0), list_at(&args, 1)) else {
        return Err(mismatch("sets.intersects", &args));
    };
    for item in b {
        if is_among(a, item.as_ref())? {
            return Ok(boolean(true));
        }
    }
    Ok(boolean(false))
}
