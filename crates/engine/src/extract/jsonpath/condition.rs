//! The conditions of filters: existence and comparison of values.
//!
//! A comparison holds if it holds for any value that its paths lead to; a path that leads nowhere makes it
//! false, `!=` included, as in kubectl. A comparison with a redacted value is neither true nor false.

use std::{cmp::Ordering, ops::ControlFlow};

use super::steps::{PathSteps, ReadNeed, VisitedValue};
use crate::json::{Json, Projection};

#[derive(Clone, Debug)]
pub(super) enum FilterCondition {
    Exists(FilterPath),
    Compare(FilterOperand, FilterComparison, FilterOperand),
    Not(Box<FilterCondition>),
    All(Vec<FilterCondition>),
    Any(Vec<FilterCondition>),
}

/// A path inside a filter.
#[derive(Clone, Debug)]
pub(super) struct FilterPath {
    pub(super) origin: FilterPathRoot,
    pub(super) steps: PathSteps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterPathRoot {
    /// The item that is filtered.
    Item,
    /// The whole object; the steps are definite, so that each item looks at one more value only.
    Root,
}

#[derive(Clone, Debug)]
pub(super) enum FilterOperand {
    Query(FilterPath),
    Literal(Json<'static>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FilterComparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Truth {
    False,
    /// It depends on a redacted value.
    Unknown,
    True,
}

impl Truth {
    fn negated(self) -> Self {
        match self {
            Self::False => Self::True,
            Self::Unknown => Self::Unknown,
            Self::True => Self::False,
        }
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

impl FilterCondition {
    pub(super) fn holds<'v, 'a>(&self, item: &'v Json<'a>, root: &'v Json<'a>) -> Truth {
        match self {
            FilterCondition::Exists(query) => query.any(item, root, &mut |_| Truth::True),
            FilterCondition::Compare(left, comparison, right) => left.any(item, root, &mut |left| {
                right.any(item, root, &mut |right| comparison.holds(left, right))
            }),
            FilterCondition::Not(inner) => inner.holds(item, root).negated(),
            FilterCondition::All(inner) => {
                let mut all = Truth::True;
                for inner in inner {
                    all = all.min(inner.holds(item, root));
                    if all == Truth::False {
                        break;
                    }
                }
                all
            }
            FilterCondition::Any(inner) => {
                let mut any = Truth::False;
                for inner in inner {
                    any = any.max(inner.holds(item, root));
                    if any == Truth::True {
                        break;
                    }
                }
                any
            }
        }
    }

    /// How often the unions of its paths may lead to the same value.
    pub(super) fn repetitions(&self) -> usize {
        match self {
            FilterCondition::Exists(query) => query.steps.repetitions(),
            FilterCondition::Compare(left, _, right) => {
                left.repetitions().saturating_mul(right.repetitions())
            }
            FilterCondition::Not(inner) => inner.repetitions(),
            FilterCondition::All(inner) | FilterCondition::Any(inner) => {
                inner.iter().map(Self::repetitions).max().unwrap_or(1)
            }
        }
    }

    /// Asks for what the condition looks at in an item.
    pub(super) fn project(&self, branches: usize, item: &mut Projection) {
        self.each_query(&mut |query, need| {
            if query.origin == FilterPathRoot::Item {
                query.steps.project(need, branches, item);
            }
        });
    }

    pub(super) fn collect_from_root<'p>(&'p self, found: &mut Vec<(&'p PathSteps, ReadNeed)>) {
        self.each_query(&mut |query, need| match query.origin {
            FilterPathRoot::Root => found.push((&query.steps, need)),
            FilterPathRoot::Item => query.steps.collect_from_root(found),
        });
    }

    fn each_query<'p>(&'p self, visitor: &mut dyn FnMut(&'p FilterPath, ReadNeed)) {
        match self {
            FilterCondition::Exists(query) => visitor(query, ReadNeed::Existence),
            FilterCondition::Compare(left, _, right) => {
                for operand in [left, right] {
                    if let FilterOperand::Query(query) = operand {
                        visitor(query, ReadNeed::Value);
                    }
                }
            }
            FilterCondition::Not(inner) => inner.each_query(visitor),
            FilterCondition::All(inner) | FilterCondition::Any(inner) => {
                inner.iter().for_each(|inner| inner.each_query(visitor));
            }
        }
    }
}

impl FilterOperand {
    fn repetitions(&self) -> usize {
        match self {
            FilterOperand::Query(query) => query.steps.repetitions(),
            FilterOperand::Literal(_) => 1,
        }
    }
}

impl FilterPath {
    fn any<'v, 'a>(
        &self,
        item: &'v Json<'a>,
        root: &'v Json<'a>,
        test: &mut dyn FnMut(&Json<'a>) -> Truth,
    ) -> Truth {
        let start = if self.origin == FilterPathRoot::Root { root } else { item };
        let mut any = Truth::False;
        let mut visitor = |value: VisitedValue<'v, 'a>| {
            any = any.max(match value {
                VisitedValue::Found(value) => test(value),
                VisitedValue::Undecided => Truth::Unknown,
            });
            if any == Truth::True { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // The visit ends early if the answer is known.
        let (ControlFlow::Continue(()) | ControlFlow::Break(())) =
            self.steps.visit(start, root, &mut visitor);
        any
    }
}

impl FilterOperand {
    /// Whether this can be more than one value.
    pub(super) fn is_many(&self) -> bool {
        matches!(self, FilterOperand::Query(query) if !query.steps.are_definite())
    }

    fn any<'v, 'a>(
        &self,
        item: &'v Json<'a>,
        root: &'v Json<'a>,
        test: &mut dyn FnMut(&Json<'a>) -> Truth,
    ) -> Truth {
        match self {
            FilterOperand::Query(query) => query.any(item, root, test),
            FilterOperand::Literal(value) => test(value),
        }
    }
}

impl FilterComparison {
    fn holds(self, left: &Json<'_>, right: &Json<'_>) -> Truth {
        let ordered = |holds: fn(Ordering) -> bool| match (left, right) {
            (Json::Redacted, _) | (_, Json::Redacted) => Truth::Unknown,
            _ => order(left, right).is_some_and(holds).into(),
        };
        match self {
            FilterComparison::Equal => equal(left, right),
            FilterComparison::NotEqual => equal(left, right).negated(),
            FilterComparison::Less => ordered(Ordering::is_lt),
            FilterComparison::LessOrEqual => ordered(Ordering::is_le),
            FilterComparison::Greater => ordered(Ordering::is_gt),
            FilterComparison::GreaterOrEqual => ordered(Ordering::is_ge),
        }
    }
}

/// Only numbers and strings have an order, each among themselves.
fn order(left: &Json<'_>, right: &Json<'_>) -> Option<Ordering> {
    match (left, right) {
        (Json::Number(left), Json::Number(right)) => order_of_numbers(left, right),
        (Json::String(left), Json::String(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

fn equal(left: &Json<'_>, right: &Json<'_>) -> Truth {
    // Parts that differ decide, whatever the redacted ones are.
    let all = |parts: &mut dyn Iterator<Item = Truth>| parts.min().unwrap_or(Truth::True);
    match (left, right) {
        (Json::Redacted, _) | (_, Json::Redacted) => Truth::Unknown,
        (Json::Null, Json::Null) => Truth::True,
        (Json::Bool(left), Json::Bool(right)) => (left == right).into(),
        (Json::List(left), Json::List(right)) if left.len() == right.len() => {
            all(&mut left.iter().zip(right).map(|(left, right)| equal(left, right)))
        }
        (Json::Map(left), Json::Map(right)) if left.len() == right.len() => {
            let entries = left.iter().zip(right.iter());
            all(&mut entries.map(
                |((key, left), (other, right))| {
                    if key == other { equal(left, right) } else { Truth::False }
                },
            ))
        }
        _ => order(left, right).is_some_and(Ordering::is_eq).into(),
    }
}

/// Integers exactly, because a float cannot distinguish large ones.
fn order_of_numbers(left: &str, right: &str) -> Option<Ordering> {
    match (left.parse::<i128>(), right.parse::<i128>()) {
        (Ok(left), Ok(right)) => Some(left.cmp(&right)),
        _ => left.parse::<f64>().ok()?.partial_cmp(&right.parse::<f64>().ok()?),
    }
}
