//! Numbers of an object that a double would change.
//!
//! CEL has 64-bit integers and doubles. A number such as 12345678901234567890 is neither: it is a double for every operator and
//! function, as in Kubernetes, but one that is only passed on keeps its digits. `operators` and the guards of `rewrite` replace it by
//! its double before anything computes with it.

use std::{any::Any, collections::HashMap};

use cel::common::{
    traits::{Comparer, Negator, Zeroer},
    types::{CelDouble, CelList, CelMap, DOUBLE_TYPE, Type},
    value::{CowVal, StaticVal, Val},
};

static DOUBLE: Type = DOUBLE_TYPE;

#[derive(Clone, Debug)]
pub(super) struct ExactNumber {
    pub(super) double: CelDouble,
    /// As the object has it.
    pub(super) text: Box<str>,
}

impl ExactNumber {
    /// The number, if its double has other digits.
    pub(super) fn of(text: &str, double: f64) -> Option<Self> {
        let shortest = format!("{double:e}");
        let same = Digits::of(text).is_some_and(|digits| Some(digits) == Digits::of(&shortest));
        (!same && double.is_finite()).then(|| Self { double: CelDouble::from(double), text: text.into() })
    }
}

/// A number as its digits, without zeros at the ends, and where the point is.
#[derive(PartialEq)]
struct Digits {
    is_negative: bool,
    significant: String,
    exponent: i64,
}

impl Digits {
    fn of(text: &str) -> Option<Self> {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let (integer, fraction) = number.split_once('.').unwrap_or((number, ""));
        let all = format!("{integer}{fraction}");
        let digits = all.trim_end_matches('0');
        let zeros = i64::try_from(all.len() - digits.len()).ok()?;
        let fraction = i64::try_from(fraction.len()).ok()?;
        let digits = digits.trim_start_matches('0').to_owned();
        let exponent = if digits.is_empty() { 0 } else { exponent + zeros - fraction };
        Some(Self { is_negative, significant: digits, exponent })
    }
}

/// The value with the double of a number in its place.
pub(super) fn as_computed<'b, 'v>(value: CowVal<'b, 'v>) -> CowVal<'b, 'v> {
    match value.downcast_ref::<ExactNumber>() {
        Some(number) => CowVal::owned(number.double),
        None => value,
    }
}

/// The same for everything that is in the value.
pub(super) fn as_computed_deep<'b, 'v>(value: CowVal<'b, 'v>) -> CowVal<'b, 'v> {
    if has_exact_numbers(value.as_ref()) { CowVal::Owned(computed_copy(value.as_ref())) } else { value }
}

fn has_exact_numbers(value: &dyn Val) -> bool {
    if let Some(list) = value.downcast_ref::<CelList>() {
        list.inner().iter().any(|item| has_exact_numbers(item.as_ref()))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        map.inner().values().any(|value| has_exact_numbers(value.as_ref()))
    } else {
        value.downcast_ref::<ExactNumber>().is_some()
    }
}

fn computed_copy<'v>(value: &(dyn Val + 'v)) -> Box<dyn Val + 'v> {
    if let Some(list) = value.downcast_ref::<CelList>() {
        let items: Vec<Box<dyn Val + 'v>> =
            list.inner().iter().map(|item| computed_copy(item.as_ref())).collect();
        Box::new(CelList::from(items))
    } else if let Some(map) = value.downcast_ref::<CelMap>() {
        let entries = map.inner().iter().map(|(key, value)| (key.clone(), computed_copy(value.as_ref())));
        Box::new(CelMap::from(entries.collect::<HashMap<_, _>>()))
    } else {
        computed(value).clone_as_boxed()
    }
}

/// The double of a number in its place, by reference.
pub(super) fn computed<'a, 'v>(value: &'a (dyn Val + 'v)) -> &'a (dyn Val + 'v) {
    match value.downcast_ref::<ExactNumber>() {
        Some(number) => &number.double,
        None => value,
    }
}

impl Val for ExactNumber {
    fn get_type(&self) -> &Type {
        &DOUBLE
    }

    fn cel_type() -> &'static Type {
        &DOUBLE
    }

    fn as_comparer(&self) -> Option<&dyn Comparer> {
        self.double.as_comparer()
    }

    fn as_negator<'b, 'v>(&'b self) -> Option<&'b (dyn Negator + 'v)>
    where
        Self: 'v,
    {
        self.double.as_negator()
    }

    fn as_zeroer(&self) -> Option<&dyn Zeroer> {
        self.double.as_zeroer()
    }

    fn equals(&self, other: &dyn Val) -> bool {
        self.double.equals(computed(other))
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for ExactNumber {}
