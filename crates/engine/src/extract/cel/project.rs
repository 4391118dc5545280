//! Which parts of an object an expression reads.
//!
//! `Expression::compile` follows every value that may be a part of `object` through the tree: a chain of
//! fields leads to a place, a loop over a place binds its variable to the items of it. What happens to the
//! value at a place decides how much of it is read: nothing but its presence (`has`, a field of it),
//! its shape (`size`, a loop), or everything. Whatever is not understood reads everything.
//!
//! It must hold that evaluating on the parts gives what evaluating on the whole object gives, errors
//! included. A reader of parts keeps scalars, the presence of named keys and the length of lists, but
//! replaces items of lists of which nothing is read by null: [`Reads::type_of`] reads such items.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, Expr, LiteralValue, operators},
};

use super::{
    check::namespaced,
    names::{NAMESPACE, OBJECT},
    parse::children,
};
use crate::json::Projection;

/// From one place to a part of it.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Key(String),
    /// An item of a list or a value of a map.
    Each,
}

type Place = Vec<Step>;

/// How much of a place is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    Presence,
    /// The number of items, the keys.
    Shape,
    Everything,
}

/// What an expression reads.
#[derive(Debug, Default)]
pub(super) struct Reads {
    places: Vec<(Place, Extent)>,
    pub(super) namespace: bool,
}

/// A value that may be at more places is not followed.
const MAX_PLACES: usize = 16;

impl Reads {
    pub(super) fn of(root: &IdedExpr) -> Self {
        let mut tracer = Tracer { reads: Self::default(), variables: Vec::new() };
        tracer.consume(root);
        tracer.reads
    }

    pub(super) fn add_to(&self, object: &mut Projection) {
        for (place, extent) in &self.places {
            let mut at = &mut *object;
            for step in place {
                at = match step {
                    Step::Key(key) => at.key(key),
                    Step::Each => at.each(),
                };
            }
            match extent {
                Extent::Presence => {}
                Extent::Shape => {
                    at.each();
                }
                Extent::Everything => at.take_all(),
            }
        }
    }

    fn add(&mut self, places: &[Place], extent: Extent) {
        for place in places {
            let read = (place.clone(), extent);
            if !self.places.contains(&read) {
                self.places.push(read);
            }
        }
    }

    /// Reads enough to know the type of a value, and the value of a scalar.
    fn type_of(&mut self, places: &[Place]) {
        for place in places {
            let is_item = place.last() == Some(&Step::Each);
            let extent = if is_item { Extent::Everything } else { Extent::Presence };
            self.add(std::slice::from_ref(place), extent);
        }
    }
}

struct Tracer<'e> {
    reads: Reads,
    /// Of macros, innermost last: where the value of each may be.
    variables: Vec<(&'e str, Vec<Place>)>,
}

impl<'e> Tracer<'e> {
    /// Reads all of what an expression evaluates to.
    fn consume(&mut self, expr: &'e IdedExpr) {
        let places = self.places(expr);
        self.reads.add(&places, Extent::Everything);
    }

    fn consume_parts(&mut self, expr: &'e IdedExpr) -> Vec<Place> {
        children(expr).into_iter().for_each(|part| self.consume(part));
        Vec::new()
    }

    /// Where the value of an expression may be; it is not read yet.
    fn places(&mut self, expr: &'e IdedExpr) -> Vec<Place> {
        let places = match &expr.expr {
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let places = self.places(&select.operand);
                let places = self.step(places, Step::Key(select.field.clone()));
                if select.test { Vec::new() } else { places }
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            _ => self.consume_parts(expr),
        };
        if places.len() > MAX_PLACES {
            self.reads.add(&[Place::new()], Extent::Everything);
            return Vec::new();
        }
        places
    }

    fn variable(&mut self, name: &str) -> Vec<Place> {
        // A leading dot skips the variables of macros.
        if let Some((_, places)) = self.variables.iter().rev().find(|(known, _)| *known == name) {
            return places.clone();
        }
        match name.trim_start_matches('.') {
            OBJECT => vec![Place::new()],
            NAMESPACE => {
                self.reads.namespace = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Takes a step from each place; the presence of the new place is read.
    fn step(&mut self, mut places: Vec<Place>, step: Step) -> Vec<Place> {
        places.iter_mut().for_each(|place| place.push(step.clone()));
        self.reads.add(&places, Extent::Presence);
        places
    }

    fn call(&mut self, expr: &'e IdedExpr, call: &'e CallExpr) -> Vec<Place> {
        if let Some(name) = namespaced(call) {
            return match (name.as_str(), call.args.as_slice()) {
                ("optional.of", [value]) => self.places(value),
                (_, args) => {
                    args.iter().for_each(|arg| self.consume(arg));
                    Vec::new()
                }
            };
        }
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, None, [value, key]) => {
                let places = self.places(value);
                match &key.expr {
                    Expr::Literal(LiteralValue::String(key)) => {
                        self.step(places, Step::Key(key.inner().to_owned()))
                    }
                    _ => {
                        self.consume(key);
                        self.step(places, Step::Each)
                    }
                }
            }
            (operators::CONDITIONAL, None, [condition, yes, no]) => {
                self.consume(condition);
                let places = self.places(yes);
                self.either(places, no)
            }
            (operators::EQUALS | operators::NOT_EQUALS, None, [value, literal] | [literal, value])
                if matches!(literal.expr, Expr::Literal(_)) =>
            {
                // Against a scalar, a list or map is different whatever is in it.
                let places = self.places(value);
                self.reads.type_of(&places);
                Vec::new()
            }
            ("size", Some(value), []) | ("size", None, [value]) => {
                let places = self.places(value);
                self.reads.add(&places, Extent::Shape);
                Vec::new()
            }
            ("type", None, [value]) => {
                let places = self.places(value);
                self.reads.type_of(&places);
                Vec::new()
            }
            ("hasValue", Some(value), []) => {
                self.optional(value);
                Vec::new()
            }
            ("value", Some(value), []) => self.optional(value),
            ("dyn", None, [value]) => self.places(value),
            ("or" | "orValue", Some(value), [other]) => {
                let places = self.optional(value);
                self.either(places, other)
            }
            _ => self.consume_parts(expr),
        }
    }

    /// The places of the value in an optional; its type is read.
    fn optional(&mut self, expr: &'e IdedExpr) -> Vec<Place> {
        let places = self.places(expr);
        self.reads.type_of(&places);
        places
    }

    fn either(&mut self, mut places: Vec<Place>, other: &'e IdedExpr) -> Vec<Place> {
        for place in self.places(other) {
            if !places.contains(&place) {
                places.push(place);
            }
        }
        places
    }

    fn comprehension(&mut self, c: &'e ComprehensionExpr) -> Vec<Place> {
        let outer = self.variables.len();
        if is_bind(c) {
            let places = self.places(&c.accu_init);
            self.variables.push((&c.accu_var, places));
            let places = self.places(&c.result);
            self.variables.truncate(outer);
            return places;
        }
        let range = self.places(&c.iter_range);
        self.reads.add(&range, Extent::Shape);
        let items = self.step(range.clone(), Step::Each);
        self.consume(&c.accu_init);
        self.variables.push((&c.accu_var, Vec::new()));
        self.variables.push((&c.iter_var, items));
        self.consume(&c.loop_cond);
        let selection = selection(c);
        match selection {
            Some(Selection { condition: Some(condition) }) => self.consume(condition),
            Some(Selection { condition: None }) => {}
            None => self.consume(&c.loop_step),
        }
        self.consume(&c.result);
        self.variables.truncate(outer);
        // What is selected from a list is a list of some of its items.
        if selection.is_some() { range } else { Vec::new() }
    }
}

/// `cel.bind` and similar macros: a loop that never runs and only binds its accumulator.
pub(super) fn is_bind(c: &ComprehensionExpr) -> bool {
    matches!(&c.loop_cond.expr, Expr::Literal(LiteralValue::Boolean(b)) if !*b.inner())
}

#[derive(Clone, Copy)]
struct Selection<'e> {
    condition: Option<&'e IdedExpr>,
}

/// Whether a loop does nothing but collect items: `filter(x, condition)` is
/// `condition ? result + [x] : result`.
fn selection(c: &ComprehensionExpr) -> Option<Selection<'_>> {
    let is_result = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == c.accu_var);
    let appends = |expr: &IdedExpr| {
        let Expr::Call(CallExpr { func_name, target: None, args }) = &expr.expr else { return false };
        let [result, items] = args.as_slice() else { return false };
        let Expr::List(items) = &items.expr else { return false };
        let [item] = items.elements.as_slice() else { return false };
        let is_item = matches!(&item.expr, Expr::Ident(name) if *name == c.iter_var);
        func_name == operators::ADD && is_result(result) && is_item && items.optional_indices.is_empty()
    };
    if !is_result(&c.result) || !matches!(&c.accu_init.expr, Expr::List(list) if list.elements.is_empty()) {
        return None;
    }
    if appends(&c.loop_step) {
        return Some(Selection { condition: None });
    }
    match &c.loop_step.expr {
        Expr::Call(CallExpr { func_name, target: None, args }) if func_name == operators::CONDITIONAL => {
            match args.as_slice() {
                [condition, step, result] if appends(step) && is_result(result) => {
                    Some(Selection { condition: Some(condition) })
                }
                _ => None,
            }
        }
        _ => None,
    }
}
