//! kubectl's JSONPath: one path, compiled once, evaluated on borrowed JSON.
//!
//! Profiles are compiled with [`Path::parse`], which refuses everything that is not one path and says how
//! to write it. Three things must hold:
//!
//! * A path names values of an object. Results are in document order, that is in the order of the sorted maps, and those of a
//!   union in the order in which it is written, as often as it names them; behind a `..` each value counts once, in document
//!   order. Equal objects give equal results.
//! * Evaluation never fails, and its work is bounded by the length of the text times the size of the
//!   object: what would make it grow faster is refused by `parse`.
//! * What [`Path::project`] asks for is enough for `find` and `remove` to give the result that they give
//!   on the whole object.

mod condition;
mod parse;
mod remove;
mod schema_check;
mod steps;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

pub(crate) use self::remove::RemovalTree;
use self::{
    parse::PathParser,
    steps::{PathSteps, ReadNeed, VisitedValue},
};
use crate::json::{Json, Projection};

/// A path of kubectl's dialect.
#[derive(Clone, Debug)]
pub(crate) struct Path(PathSteps);

/// Where in the text a path is wrong, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathError {
    /// Offset in characters.
    pub(crate) at: usize,
    /// What is wrong and how to write it.
    pub(crate) problem: String,
}

/// Why an attribute fails whose value is too large.
pub(crate) fn too_large(max_bytes: usize) -> String {
    format!("its value is larger than {max_bytes} bytes: read a part of it, or raise --max-attribute-bytes")
}

/// What a path finds.
#[cfg(test)]
#[derive(Debug, PartialEq)]
enum PathMatches<'v, 'a> {
    /// Of a definite path: the value, or `None` when any step of the path is missing.
    One(Option<&'v Json<'a>>),
    /// Of every other path: as many values as there are, in document order.
    Many(Vec<&'v Json<'a>>),
}

impl Path {
    pub(crate) fn parse(text: &str) -> Result<Self, PathError> {
        PathParser::path(text).map(Self)
    }

    /// Whether the path names at most one value.
    pub(crate) fn is_definite(&self) -> bool {
        self.0.are_definite()
    }

    /// Why the path most likely finds nothing: dots that split a key, or that do not split one.
    pub(crate) fn hint(&self) -> Option<String> {
        if let Some(key) = self.0.split_key() {
            return Some(format!("finds nothing: its dots split the key; quote it, as in ['{key}']"));
        }
        let key = self.0.unsplit_key()?;
        Some(format!(
            "takes '{key}' for one key with a dot in it, not for a path: give each field an attribute of its own"
        ))
    }

    /// The value of a definite path, or a list of everything that any other path finds; about `max_bytes` of JSON at most. `..` can
    /// find the same text once per level, and nothing is copied that is too large.
    pub(crate) fn value<'a>(&self, object: &Json<'a>, max_bytes: usize) -> Result<Json<'a>, String> {
        if self.is_definite() {
            return match self.0.one(object) {
                None => Ok(Json::Null),
                Some(value) if value.size() > max_bytes => Err(too_large(max_bytes)),
                Some(value) => Ok(value.clone()),
            };
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        self.visit(object, |value| {
            let value = match value {
                VisitedValue::Found(value) => value,
                VisitedValue::Undecided => &Json::Redacted,
            };
            bytes += value.size();
            if bytes <= max_bytes {
                items.push(value.clone());
            }
        });
        if bytes > max_bytes { Err(too_large(max_bytes)) } else { Ok(Json::List(items)) }
    }

    #[cfg(test)]
    fn find<'v, 'a>(&self, object: &'v Json<'a>) -> PathMatches<'v, 'a> {
        if self.is_definite() {
            return PathMatches::One(self.0.one(object));
        }
        let mut found = Vec::new();
        self.visit(object, |value| {
            found.push(match value {
                VisitedValue::Found(value) => value,
                VisitedValue::Undecided => &Json::Redacted,
            });
        });
        PathMatches::Many(found)
    }

    fn visit<'v, 'a>(&self, object: &'v Json<'a>, mut visitor: impl FnMut(VisitedValue<'v, 'a>)) {
        let end = self.0.visit(object, object, &mut |value| {
            visitor(value);
            ControlFlow::Continue(())
        });
        debug_assert!(end.is_continue(), "nothing stops the visit");
    }

    /// Asks for everything that `find` looks at.
    pub(crate) fn project(&self, projection: &mut Projection) {
        self.0.project(ReadNeed::Value, 1, projection);
        let mut from_root = Vec::new();
        self.0.collect_from_root(&mut from_root);
        from_root.into_iter().for_each(|(steps, need)| steps.project(need, 1, projection));
    }

    /// Adds every value that the path names to what is removed: entries of maps and items of lists. The object itself stays.
    pub(crate) fn add_removals(&self, object: &Json<'_>, removals: &mut RemovalTree) {
        self.0.add_removals(object, removals);
    }

    /// Removes every value that the path names.
    #[cfg(test)]
    fn remove(&self, object: &mut Json<'_>) {
        let mut removals = RemovalTree::default();
        self.add_removals(object, &mut removals);
        removals.apply(object);
    }
}
