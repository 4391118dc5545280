//! The steps of a path and what they select.
//!
//! A path with `..` is evaluated in one walk through the object that carries the set of steps that may come next, so
//! a value is visited once even where `..` gives many ways to reach it, and results come in document order. Any other
//! path is followed step by step: results of a union come in the order in which it is written, and as often.

use std::ops::{ControlFlow, Range};

use super::{
    condition::{FilterCondition, Truth},
    remove::{Removal, RemovalTree},
};
use crate::json::{Json, JsonMap, Projection};

/// The steps that may come next are the bits of a number.
pub(super) const MAX_STEPS: usize = u64::BITS as usize;

/// How many branches of a projection unions may make; beyond, unions read every key.
const MAX_BRANCHES: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct PathSteps(Vec<PathStep>);

#[derive(Clone, Debug)]
pub(super) struct PathStep {
    /// At any depth, not only among the children.
    pub(super) deep: bool,
    pub(super) select: ChildSelector,
}

/// Which children of a value are taken.
#[derive(Clone, Debug)]
pub(super) enum ChildSelector {
    Key(String),
    Keys(Vec<String>),
    Item(i64),
    Items(Vec<UnionMember>),
    Every,
    /// The items of a list for which the condition holds.
    Where(FilterCondition),
}

#[derive(Clone, Debug)]
pub(super) enum UnionMember {
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
pub(super) enum ReadNeed {
    Value,
    /// Only whether there is one.
    Existence,
}

/// What steps lead to.
#[derive(Clone, Copy, Debug)]
pub(super) enum VisitedValue<'v, 'a> {
    Found(&'v Json<'a>),
    /// An item of which it is not known whether a filter selects it, because that depends on a redacted value.
    Undecided,
}

/// Receives what steps lead to, until it stops the visit.
pub(super) type PathVisitor<'s, 'v, 'a> = dyn FnMut(VisitedValue<'v, 'a>) -> ControlFlow<()> + 's;

/// Where a child is.
#[derive(Clone, Copy)]
enum ChildPosition<'v> {
    Key(&'v str),
    Item { index: usize, len: usize },
}

impl PathSteps {
    pub(super) fn new(steps: Vec<PathStep>) -> Self {
        debug_assert!(steps.len() <= MAX_STEPS, "the parser refuses more steps");
        Self(steps)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PathStep> {
        self.0.iter()
    }

    /// How often the unions may lead to the same value.
    pub(super) fn repetitions(&self) -> usize {
        self.0.iter().map(|step| step.select.repetitions()).fold(1, usize::saturating_mul)
    }

    pub(super) fn are_definite(&self) -> bool {
        self.0.iter().all(PathStep::is_definite)
    }

    /// The key that was meant by several steps: labels and annotations are texts, so there is nothing below one of them.
    pub(super) fn split_key(&self) -> Option<String> {
        let keys: Vec<Option<&str>> = self.0.iter().map(PathStep::key).collect();
        let parent = |at: usize| at.checked_sub(1).and_then(|before| keys.get(before).copied().flatten());
        let texts = keys.iter().enumerate().position(|(at, key)| match key {
            Some("labels" | "annotations") => parent(at) == Some("metadata"),
            Some("matchLabels" | "nodeSelector") => true,
            _ => false,
        })?;
        let below: Vec<&str> = keys.iter().skip(texts + 1).map_while(|key| *key).collect();
        (below.len() > 1).then(|| below.join("."))
    }

    /// A key of a union with dots, which kubectl would take for a path. Keys of labels have a slash, and no path has one.
    pub(super) fn unsplit_key(&self) -> Option<&str> {
        let keys = self.0.iter().filter_map(|step| match &step.select {
            ChildSelector::Keys(keys) => Some(keys),
            _ => None,
        });
        let mut keys = keys.flatten().map(String::as_str);
        keys.find(|key| key.contains('.') && !key.contains('/'))
    }

    /// Calls `visitor` with the values that the steps lead to from `value`, until it stops the visit.
    pub(super) fn visit<'v, 'a>(
        &self,
        value: &'v Json<'a>,
        root: &'v Json<'a>,
        visitor: &mut PathVisitor<'_, 'v, 'a>,
    ) -> ControlFlow<()> {
        let fixed = self.0.iter().take_while(|step| step.is_definite()).count();
        match self.follow(fixed, value) {
            Some(value) if fixed == self.0.len() => visitor(VisitedValue::Found(value)),
            Some(value) if self.0.iter().any(|step| step.deep) => self.walk(value, 1 << fixed, root, visitor),
            Some(value) => self.each(fixed, value, root, visitor),
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

    /// Takes the steps from this one on, one after the other.
    fn each<'v, 'a>(
        &self,
        at: usize,
        value: &'v Json<'a>,
        root: &'v Json<'a>,
        visitor: &mut PathVisitor<'_, 'v, 'a>,
    ) -> ControlFlow<()> {
        let Some(step) = self.0.get(at) else { return visitor(VisitedValue::Found(value)) };
        match (&step.select, value) {
            (ChildSelector::Keys(keys), Json::Map(map)) => keys
                .iter()
                .filter_map(|key| map.get(key))
                .try_for_each(|child| self.each(at + 1, child, root, visitor)),
            (ChildSelector::Items(members), Json::List(items)) => {
                let indices = members.iter().flat_map(|member| member.indices(items.len()));
                indices
                    .filter_map(|index| items.get(index))
                    .try_for_each(|child| self.each(at + 1, child, root, visitor))
            }
            (ChildSelector::Key(_) | ChildSelector::Item(_), value) => step
                .select
                .one(value)
                .map_or(ControlFlow::Continue(()), |child| self.each(at + 1, child, root, visitor)),
            (select, value) => children(value).try_for_each(|(position, child)| {
                match select.selects(position, child, root) {
                    Truth::True => self.each(at + 1, child, root, visitor),
                    Truth::Unknown => visitor(VisitedValue::Undecided),
                    Truth::False => ControlFlow::Continue(()),
                }
            }),
        }
    }

    fn walk<'v, 'a>(
        &self,
        value: &'v Json<'a>,
        open_steps: u64,
        root: &'v Json<'a>,
        visitor: &mut PathVisitor<'_, 'v, 'a>,
    ) -> ControlFlow<()> {
        for (position, child) in children(value) {
            let (next, named) = self.advance(open_steps, position, child, root);
            match named {
                Truth::True => visitor(VisitedValue::Found(child))?,
                Truth::Unknown => visitor(VisitedValue::Undecided)?,
                Truth::False => {}
            }
            if next != 0 {
                self.walk(child, next, root, visitor)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// From the steps that are open at a value to those open at its child, and whether the path names
    /// the child. If a step may lead to the child and that is not known, neither is whether the path names it.
    fn advance<'v, 'a>(
        &self,
        open_steps: u64,
        position: ChildPosition<'v>,
        child: &'v Json<'a>,
        root: &'v Json<'a>,
    ) -> (u64, Truth) {
        let (mut next, mut named) = (0, Truth::False);
        for (at, step) in self.0.iter().enumerate().filter(|(at, _)| open_steps >> at & 1 == 1) {
            if step.deep {
                next |= 1 << at;
            }
            match step.select.selects(position, child, root) {
                Truth::True if at + 1 < self.0.len() => next |= 1 << (at + 1),
                selected => named = named.max(selected),
            }
        }
        (next, named)
    }

    /// The values that the steps name, for removal.
    pub(super) fn add_removals(&self, object: &Json<'_>, removals: &mut RemovalTree) {
        if !self.0.is_empty() {
            self.removals_below(object, 1, object, removals);
        }
    }

    fn removals_below<'v, 'a>(
        &self,
        value: &'v Json<'a>,
        open_steps: u64,
        root: &'v Json<'a>,
        removals: &mut RemovalTree,
    ) {
        for (position, child) in children(value) {
            let (next, named) = self.advance(open_steps, position, child, root);
            if named == Truth::False && next == 0 {
                continue;
            }
            let child_removals = match position {
                ChildPosition::Key(key) => removals.key(key),
                ChildPosition::Item { index, .. } => removals.item(index),
            };
            match named {
                Truth::True => child_removals.set(Removal::Remove),
                Truth::Unknown => child_removals.set(Removal::Redact),
                Truth::False => self.removals_below(child, next, root, child_removals),
            }
        }
    }

    /// Asks for what `visit` looks at below a value; `branches` is how many branches unions have made so far.
    pub(super) fn project(&self, need: ReadNeed, branches: usize, projection: &mut Projection) {
        project(&self.0, need, branches, projection);
    }

    /// The steps from the root of the object in the filters of these steps.
    pub(super) fn collect_from_root<'p>(&'p self, found: &mut Vec<(&'p PathSteps, ReadNeed)>) {
        for step in &self.0 {
            if let ChildSelector::Where(condition) = &step.select {
                condition.collect_from_root(found);
            }
        }
    }
}

fn project(steps: &[PathStep], need: ReadNeed, branches: usize, projection: &mut Projection) {
    if projection.is_everything() {
        return;
    }
    let Some((step, rest)) = steps.split_first() else {
        if need == ReadNeed::Value {
            projection.take_all();
        }
        return;
    };
    match &step.select {
        _ if step.deep => projection.take_all(),
        ChildSelector::Key(key) => project(rest, need, branches, projection.key(key)),
        ChildSelector::Keys(keys) if branches * keys.len() <= MAX_BRANCHES => {
            keys.iter().for_each(|key| project(rest, need, branches * keys.len(), projection.key(key)));
        }
        select => {
            let each = projection.each();
            if let ChildSelector::Where(condition) = select {
                condition.project(branches, each);
            }
            project(rest, need, branches, each);
        }
    }
}

impl PathStep {
    /// The key, if the step takes one child by its key.
    fn key(&self) -> Option<&str> {
        match &self.select {
            ChildSelector::Key(key) if !self.deep => Some(key),
            _ => None,
        }
    }

    fn is_definite(&self) -> bool {
        !self.deep && matches!(self.select, ChildSelector::Key(_) | ChildSelector::Item(_))
    }
}

impl ChildSelector {
    fn repetitions(&self) -> usize {
        let most = |counts: Vec<usize>| counts.into_iter().max().unwrap_or(1);
        match self {
            ChildSelector::Keys(keys) => {
                most(keys.iter().map(|key| keys.iter().filter(|other| *other == key).count()).collect())
            }
            ChildSelector::Items(members) => {
                // An index from the end, or a slice, may be any of the others.
                let same =
                    |at: i64| members.iter().filter(|m| matches!(m, UnionMember::At(b) if *b == at)).count();
                let (mut fixed, mut moving) = (Vec::new(), 0);
                for member in members {
                    match member {
                        UnionMember::At(at) if *at >= 0 => fixed.push(same(*at)),
                        _ => moving += 1,
                    }
                }
                fixed.into_iter().max().unwrap_or(0) + moving
            }
            ChildSelector::Where(condition) => condition.repetitions(),
            ChildSelector::Key(_) | ChildSelector::Item(_) | ChildSelector::Every => 1,
        }
    }

    /// The one child that a definite step takes.
    fn one<'v, 'a>(&self, value: &'v Json<'a>) -> Option<&'v Json<'a>> {
        match (self, value) {
            (ChildSelector::Key(key), Json::Map(map)) => map.get(key),
            (ChildSelector::Item(at), Json::List(items)) => items.get(index_of(*at, items.len())?),
            _ => None,
        }
    }

    fn selects<'v, 'a>(&self, position: ChildPosition<'v>, child: &'v Json<'a>, root: &'v Json<'a>) -> Truth {
        let selects = match (self, position) {
            (ChildSelector::Where(condition), ChildPosition::Item { .. }) => {
                return condition.holds(child, root);
            }
            (ChildSelector::Every, _) => true,
            (ChildSelector::Key(key), ChildPosition::Key(known)) => key == known,
            (ChildSelector::Keys(keys), ChildPosition::Key(known)) => keys.iter().any(|key| key == known),
            (ChildSelector::Item(at), ChildPosition::Item { index, len }) => {
                index_of(*at, len) == Some(index)
            }
            (ChildSelector::Items(members), ChildPosition::Item { index, len }) => {
                members.iter().any(|member| member.selects(index, len))
            }
            _ => false,
        };
        selects.into()
    }
}

impl UnionMember {
    fn selects(&self, index: usize, len: usize) -> bool {
        let (range, step) = self.range(len);
        range.contains(&index) && (index - range.start).is_multiple_of(step)
    }

    /// The indices of a list with this many items, in the order of the list.
    fn indices(&self, len: usize) -> impl Iterator<Item = usize> + use<> {
        let (range, step) = self.range(len);
        range.step_by(step)
    }

    fn range(&self, len: usize) -> (Range<usize>, usize) {
        match self {
            UnionMember::At(at) => {
                let at = index_of(*at, len).filter(|at| *at < len);
                (at.map_or(0..0, |at| at..at + 1), 1)
            }
            UnionMember::Slice { from, to, step } => {
                let from = from.map_or(0, |from| bound_of(from, len));
                let to = to.map_or(len, |to| bound_of(to, len));
                (from..to, *step)
            }
        }
    }
}

/// The index from the start of the list; `None` when it lies before the list.
fn index_of(at: i64, len: usize) -> Option<usize> {
    let distance = usize::try_from(at.unsigned_abs()).ok()?;
    if at < 0 { len.checked_sub(distance) } else { Some(distance) }
}

/// The bound of a slice from the start of the list, moved to the nearest end when it lies outside of the list.
fn bound_of(at: i64, len: usize) -> usize {
    let distance = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
    if at < 0 { len.saturating_sub(distance) } else { distance.min(len) }
}

fn children<'v, 'a>(value: &'v Json<'a>) -> impl Iterator<Item = (ChildPosition<'v>, &'v Json<'a>)> {
    let (items, map) = match value {
        Json::List(items) => (items.as_slice(), None),
        Json::Map(map) => (Default::default(), Some(map)),
        _ => (Default::default(), None),
    };
    let len = items.len();
    let items = items.iter().enumerate().map(move |(index, item)| (ChildPosition::Item { index, len }, item));
    items.chain(map.into_iter().flat_map(JsonMap::iter).map(|(key, value)| (ChildPosition::Key(key), value)))
}
