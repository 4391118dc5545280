//! The steps of a path and what they select.
//!
//! A path is evaluated in one walk through the object that carries the set of steps that may come next, so
//! a value is visited once even where `..` gives many ways to reach it, and results come in document order.

use std::ops::ControlFlow;

use super::{
    condition::Condition,
    remove::{Cut, Spot},
};
use crate::json::{Json, Map, Projection};

/// The steps that may come next are the bits of a number.
pub(super) const MAX_STEPS: usize = u64::BITS as usize;

/// How many branches of a projection unions may make; beyond, unions read every key.
const MAX_SPREAD: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Steps(Vec<Step>);

#[derive(Clone, Debug)]
pub(super) struct Step {
    /// At any depth, not only among the children.
    pub(super) deep: bool,
    pub(super) select: Select,
}

/// Which children of a value are taken.
#[derive(Clone, Debug)]
pub(super) enum Select {
    Key(String),
    Keys(Vec<String>),
    Item(i64),
    Items(Vec<Pick>),
    Every,
    /// The items of a list for which the condition holds.
    Where(Condition),
}

#[derive(Clone, Debug)]
pub(super) enum Pick {
    /// Negative counts from the end.
    At(i64),
    Slice {
        from: Option<i64>,
        to: Option<i64>,
        step: usize,
    },
}

/// What is needed of the values that steps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Value,
    /// Only whether there is one.
    Existence,
}

/// Where a child is.
#[derive(Clone, Copy)]
enum Place<'v> {
    Key(&'v str),
    Item { index: usize, len: usize },
}

impl Steps {
    pub(super) fn new(steps: Vec<Step>) -> Self {
        debug_assert!(steps.len() <= MAX_STEPS, "the parser refuses more steps");
        Self(steps)
    }

    pub(super) fn are_definite(&self) -> bool {
        self.0.iter().all(Step::is_definite)
    }

    /// Shows the values that the steps lead to from `value`, until told to stop.
    pub(super) fn visit<'v, 'a>(
        &self,
        value: &'v Json<'a>,
        root: &'v Json<'a>,
        see: &mut dyn FnMut(&'v Json<'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let fixed = self.0.iter().take_while(|step| step.is_definite()).count();
        match self.follow(fixed, value) {
            Some(value) if fixed == self.0.len() => see(value),
            Some(value) => self.walk(value, 1 << fixed, root, see),
            None => ControlFlow::Continue(()),
        }
    }

    /// The value that definite steps lead to.
    pub(super) fn one<'v, 'a>(&self, value: &'v Json<'a>) -> Option<&'v Json<'a>> {
        self.follow(self.0.len(), value)
    }

    fn follow<'v, 'a>(&self, count: usize, value: &'v Json<'a>) -> Option<&'v Json<'a>> {
        self.0.iter().take(count).try_fold(value, |value, step| step.select.one(value))
    }

    fn walk<'v, 'a>(
        &self,
        value: &'v Json<'a>,
        open: u64,
        root: &'v Json<'a>,
        see: &mut dyn FnMut(&'v Json<'a>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for (place, child) in children(value) {
            let (next, named) = self.advance(open, place, child, root);
            if named {
                see(child)?;
            }
            if next != 0 {
                self.walk(child, next, root, see)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// From the steps that are open at a value to those open at its child, and whether the path names
    /// the child.
    fn advance<'v, 'a>(
        &self,
        open: u64,
        place: Place<'v>,
        child: &'v Json<'a>,
        root: &'v Json<'a>,
    ) -> (u64, bool) {
        let (mut next, mut named) = (0, false);
        for (at, step) in self.0.iter().enumerate().filter(|(at, _)| open >> at & 1 == 1) {
            if step.deep {
                next |= 1 << at;
            }
            if step.select.takes(place, child, root) {
                if at + 1 == self.0.len() {
                    named = true;
                } else {
                    next |= 1 << (at + 1);
                }
            }
        }
        (next, named)
    }

    /// The places that the steps name, for removal.
    pub(super) fn cuts(&self, object: &Json<'_>) -> Vec<Cut> {
        if self.0.is_empty() { Vec::new() } else { self.cuts_below(object, 1, object) }
    }

    fn cuts_below<'v, 'a>(&self, value: &'v Json<'a>, open: u64, root: &'v Json<'a>) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for (place, child) in children(value) {
            let (next, named) = self.advance(open, place, child, root);
            let below = match next {
                _ if named => None,
                0 => continue,
                next => Some(self.cuts_below(child, next, root)),
            };
            if below.as_ref().is_none_or(|below| !below.is_empty()) {
                let spot = match place {
                    Place::Key(key) => Spot::Key(key.to_owned()),
                    Place::Item { index, .. } => Spot::Item(index),
                };
                cuts.push(Cut { spot, below });
            }
        }
        cuts
    }

    /// Asks for what `visit` looks at below a value; `spread` is how often unions have branched so far.
    pub(super) fn project(&self, need: Need, spread: usize, projection: &mut Projection) {
        project(&self.0, need, spread, projection);
    }

    /// The steps from the root of the object in the filters of these steps.
    pub(super) fn collect_from_root<'p>(&'p self, found: &mut Vec<(&'p Steps, Need)>) {
        for step in &self.0 {
            if let Select::Where(condition) = &step.select {
                condition.collect_from_root(found);
            }
        }
    }
}

fn project(steps: &[Step], need: Need, spread: usize, projection: &mut Projection) {
    if projection.is_whole() {
        return;
    }
    let Some((step, rest)) = steps.split_first() else {
        if need == Need::Value {
            projection.take_all();
        }
        return;
    };
    match &step.select {
        _ if step.deep => projection.take_all(),
        Select::Key(key) => project(rest, need, spread, projection.key(key)),
        Select::Keys(keys) if spread * keys.len() <= MAX_SPREAD => {
            keys.iter().for_each(|key| project(rest, need, spread * keys.len(), projection.key(key)));
        }
        select => {
            let each = projection.each();
            if let Select::Where(condition) = select {
                condition.project(spread, each);
            }
            project(rest, need, spread, each);
        }
    }
}

impl Step {
    fn is_definite(&self) -> bool {
        !self.deep && matches!(self.select, Select::Key(_) | Select::Item(_))
    }
}

impl Select {
    /// The one child that a definite step takes.
    fn one<'v, 'a>(&self, value: &'v Json<'a>) -> Option<&'v Json<'a>> {
        match (self, value) {
            (Select::Key(key), Json::Map(map)) => map.get(key),
            (Select::Item(at), Json::List(items)) => items.get(index_of(*at, items.len())?),
            _ => None,
        }
    }

    fn takes<'v, 'a>(&self, place: Place<'v>, child: &'v Json<'a>, root: &'v Json<'a>) -> bool {
        match (self, place) {
            (Select::Every, _) => true,
            (Select::Key(key), Place::Key(known)) => key == known,
            (Select::Keys(keys), Place::Key(known)) => keys.iter().any(|key| key == known),
            (Select::Item(at), Place::Item { index, len }) => index_of(*at, len) == Some(index),
            (Select::Items(picks), Place::Item { index, len }) => {
                picks.iter().any(|pick| pick.takes(index, len))
            }
            (Select::Where(condition), Place::Item { .. }) => condition.holds(child, root),
            _ => false,
        }
    }
}

impl Pick {
    fn takes(&self, index: usize, len: usize) -> bool {
        match self {
            Pick::At(at) => index_of(*at, len) == Some(index),
            Pick::Slice { from, to, step } => {
                let from = from.map_or(0, |from| bound_of(from, len));
                let to = to.map_or(len, |to| bound_of(to, len));
                (from..to).contains(&index) && (index - from).is_multiple_of(*step)
            }
        }
    }
}

/// The place of an index; `None` when it lies before the list.
fn index_of(at: i64, len: usize) -> Option<usize> {
    let distance = usize::try_from(at.unsigned_abs()).ok()?;
    if at < 0 { len.checked_sub(distance) } else { Some(distance) }
}

/// The place of a slice's bound, moved to the nearest end when it lies outside of the list.
fn bound_of(at: i64, len: usize) -> usize {
    let distance = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
    if at < 0 { len.saturating_sub(distance) } else { distance.min(len) }
}

fn children<'v, 'a>(value: &'v Json<'a>) -> impl Iterator<Item = (Place<'v>, &'v Json<'a>)> {
    let (items, map) = match value {
        Json::List(items) => (items.as_slice(), None),
        Json::Map(map) => (Default::default(), Some(map)),
        _ => (Default::default(), None),
    };
    let len = items.len();
    let items = items.iter().enumerate().map(move |(index, item)| (Place::Item { index, len }, item));
    items.chain(map.into_iter().flat_map(Map::iter).map(|(key, value)| (Place::Key(key), value)))
}
