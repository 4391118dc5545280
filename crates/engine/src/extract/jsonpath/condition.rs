//! The conditions of filters: existence and comparison of values.
//!
//! A comparison holds if it holds for any value that its paths lead to; a path that leads nowhere makes it
//! false, `!=` included, as in kubectl.

use std::{cmp::Ordering, ops::ControlFlow};

use super::steps::{Need, Steps};
use crate::json::{Json, Projection};

#[derive(Clone, Debug)]
pub(super) enum Condition {
    Exists(Query),
    Compare(Operand, Comparison, Operand),
    Not(Box<Condition>),
    All(Vec<Condition>),
    Any(Vec<Condition>),
}

/// A path inside a filter.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) origin: Origin,
    pub(super) steps: Steps,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// The item that is filtered.
    Item,
    /// The whole object; the steps are definite, so that each item looks at one more value only.
    Root,
}

#[derive(Clone, Debug)]
pub(super) enum Operand {
    Query(Query),
    Literal(Json<'static>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Condition {
    pub(super) fn holds<'v, 'a>(&self, item: &'v Json<'a>, root: &'v Json<'a>) -> bool {
        match self {
            Condition::Exists(query) => query.any(item, root, &mut |_| true),
            Condition::Compare(left, comparison, right) => left.any(item, root, &mut |left| {
                right.any(item, root, &mut |right| comparison.holds(left, right))
            }),
            Condition::Not(inner) => !inner.holds(item, root),
            Condition::All(inner) => inner.iter().all(|inner| inner.holds(item, root)),
            Condition::Any(inner) => inner.iter().any(|inner| inner.holds(item, root)),
        }
    }

    /// Asks for what the condition looks at in an item.
    pub(super) fn project(&self, spread: usize, item: &mut Projection) {
        self.each_query(&mut |query, need| {
            if query.origin == Origin::Item {
                query.steps.project(need, spread, item);
            }
        });
    }

    pub(super) fn collect_from_root<'p>(&'p self, found: &mut Vec<(&'p Steps, Need)>) {
        self.each_query(&mut |query, need| match query.origin {
            Origin::Root => found.push((&query.steps, need)),
            Origin::Item => query.steps.collect_from_root(found),
        });
    }

    fn each_query<'p>(&'p self, see: &mut dyn FnMut(&'p Query, Need)) {
        match self {
            Condition::Exists(query) => see(query, Need::Existence),
            Condition::Compare(left, _, right) => {
                for operand in [left, right] {
                    if let Operand::Query(query) = operand {
                        see(query, Need::Value);
                    }
                }
            }
            Condition::Not(inner) => inner.each_query(see),
            Condition::All(inner) | Condition::Any(inner) => {
                inner.iter().for_each(|inner| inner.each_query(see));
            }
        }
    }
}

impl Query {
    fn any<'v, 'a>(
        &self,
        item: &'v Json<'a>,
        root: &'v Json<'a>,
        test: &mut dyn FnMut(&Json<'a>) -> bool,
    ) -> bool {
        let start = if self.origin == Origin::Root { root } else { item };
        let mut see =
            |value: &Json<'a>| if test(value) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        self.steps.visit(start, root, &mut see).is_break()
    }
}

impl Operand {
    /// Whether this can be more than one value.
    pub(super) fn is_many(&self) -> bool {
        matches!(self, Operand::Query(query) if !query.steps.are_definite())
    }

    fn any<'v, 'a>(
        &self,
        item: &'v Json<'a>,
        root: &'v Json<'a>,
        test: &mut dyn FnMut(&Json<'a>) -> bool,
    ) -> bool {
        match self {
            Operand::Query(query) => query.any(item, root, test),
            Operand::Literal(value) => test(value),
        }
    }
}

impl Comparison {
    fn holds(self, left: &Json<'_>, right: &Json<'_>) -> bool {
        match self {
            Comparison::Equal => equal(left, right),
            Comparison::NotEqual => !equal(left, right),
            Comparison::Less => order(left, right).is_some_and(Ordering::is_lt),
            Comparison::LessOrEqual => order(left, right).is_some_and(Ordering::is_le),
            Comparison::Greater => order(left, right).is_some_and(Ordering::is_gt),
            Comparison::GreaterOrEqual => order(left, right).is_some_and(Ordering::is_ge),
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

/// Integers exactly, because a float cannot tell large ones apart.
fn order_of_numbers(left: &str, right: &str) -> Option<Ordering> {
    match (left.parse::<i128>(), right.parse::<i128>()) {
        (Ok(left), Ok(right)) => Some(left.cmp(&right)),
        _ => left.parse::<f64>().ok()?.partial_cmp(&right.parse::<f64>().ok()?),
    }
}
