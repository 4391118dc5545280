//! The conditions of filters: existence and comparison of values.
//!
//! A comparison holds if it holds for any value that its paths lead to; a path that leads nowhere makes it
//! false, `!=` included, as in kubectl.

use std::{cmp::Ordering, ops::ControlFlow};

use super::steps::{PathSteps, ReadNeed};
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

impl FilterCondition {
    pub(super) fn holds<'v, 'a>(&self, item: &'v Json<'a>, root: &'v Json<'a>) -> bool {
        match self {
            FilterCondition::Exists(query) => query.any(item, root, &mut |_| true),
            FilterCondition::Compare(left, comparison, right) => left.any(item, root, &mut |left| {
                right.any(item, root, &mut |right| comparison.holds(left, right))
            }),
            FilterCondition::Not(inner) => !inner.holds(item, root),
            FilterCondition::All(inner) => inner.iter().all(|inner| inner.holds(item, root)),
            FilterCondition::Any(inner) => inner.iter().any(|inner| inner.holds(item, root)),
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
        test: &mut dyn FnMut(&Json<'a>) -> bool,
    ) -> bool {
        let start = if self.origin == FilterPathRoot::Root { root } else { item };
        let mut visitor =
            |value: &Json<'a>| if test(value) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        self.steps.visit(start, root, &mut visitor).is_break()
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
        test: &mut dyn FnMut(&Json<'a>) -> bool,
    ) -> bool {
        match self {
            FilterOperand::Query(query) => query.any(item, root, test),
            FilterOperand::Literal(value) => test(value),
        }
    }
}

impl FilterComparison {
    fn holds(self, left: &Json<'_>, right: &Json<'_>) -> bool {
        match self {
            FilterComparison::Equal => equal(left, right),
            FilterComparison::NotEqual => !equal(left, right),
            FilterComparison::Less => order(left, right).is_some_and(Ordering::is_lt),
            FilterComparison::LessOrEqual => order(left, right).is_some_and(Ordering::is_le),
            FilterComparison::Greater => order(left, right).is_some_and(Ordering::is_gt),
            FilterComparison::GreaterOrEqual => order(left, right).is_some_and(Ordering::is_ge),
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

fn equal(left: &Json<'_>, right: &Json<'_>) -> bool {
    match (left, right) {
        (Json::Null, Json::Null) => true,
        (Json::Bool(left), Json::Bool(right)) => left == right,
        (Json::List(left), Json::List(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| equal(left, right))
        }
        (Json::Map(left), Json::Map(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right.iter())
                    .all(|((key, left), (other, right))| key == other && equal(left, right))
        }
        _ => order(left, right).is_some_and(Ordering::is_eq),
    }
}

/// Integers exactly, because a float cannot distinguish large ones.
fn order_of_numbers(left: &str, right: &str) -> Option<Ordering> {
    match (left.parse::<i128>(), right.parse::<i128>()) {
        (Ok(left), Ok(right)) => Some(left.cmp(&right)),
        _ => left.parse::<f64>().ok()?.partial_cmp(&right.parse::<f64>().ok()?),
    }
}
