//! Which parts of an object an expression reads.
//!
//! `Expression::compile` follows every value that may be a part of `object` through the tree: a chain of
//! fields is a path, a loop over a path binds its variable to the items below it. What happens to the
//! value at a path decides how much of it is read: nothing but its presence (`has`, a field of it),
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

/// From a value to a part of it.
#[derive(Clone, Debug, PartialEq)]
enum ReadStep {
    Key(String),
    /// An item of a list or a value of a map.
    Each,
}

type ReadPath = Vec<ReadStep>;

/// How much of the value at a path is read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadExtent {
    Presence,
    /// The number of items, the keys.
    Shape,
    Everything,
}

/// What an expression reads.
#[derive(Debug, Default)]
pub(super) struct Reads {
    paths: Vec<(ReadPath, ReadExtent)>,
    pub(super) namespace: bool,
}

/// A value that may be at more paths is not followed.
const MAX_PATHS: usize = 16;

impl Reads {
    pub(super) fn of(root: &IdedExpr) -> Self {
        let mut tracer = Tracer { reads: Self::default(), variables: Vec::new() };
        tracer.consume(root);
        tracer.reads
    }

    pub(super) fn add_to(&self, object: &mut Projection) {
        for (path, extent) in &self.paths {
            let mut current = &mut *object;
            for step in path {
                current = match step {
                    ReadStep::Key(key) => current.key(key),
                    ReadStep::Each => current.each(),
                };
            }
            match extent {
                ReadExtent::Presence => {}
                ReadExtent::Shape => {
                    current.each();
                }
                ReadExtent::Everything => current.take_all(),
            }
        }
    }

    fn add(&mut self, paths: &[ReadPath], extent: ReadExtent) {
        for path in paths {
            let read = (path.clone(), extent);
            if !self.paths.contains(&read) {
                self.paths.push(read);
            }
        }
    }

    /// Reads enough to know the type of a value, and the value of a scalar.
    fn type_of(&mut self, paths: &[ReadPath]) {
        for path in paths {
            let is_item = path.last() == Some(&ReadStep::Each);
            let extent = if is_item { ReadExtent::Everything } else { ReadExtent::Presence };
            self.add(std::slice::from_ref(path), extent);
        }
    }
}

struct Tracer<'e> {
    reads: Reads,
    /// Of macros, innermost last: where the value of each may be.
    variables: Vec<(&'e str, Vec<ReadPath>)>,
}

impl<'e> Tracer<'e> {
    /// Reads all of what an expression evaluates to.
    fn consume(&mut self, expr: &'e IdedExpr) {
        let paths = self.paths_of(expr);
        self.reads.add(&paths, ReadExtent::Everything);
    }

    fn consume_parts(&mut self, expr: &'e IdedExpr) -> Vec<ReadPath> {
        children(expr).into_iter().for_each(|part| self.consume(part));
        Vec::new()
    }

    /// Where the value of an expression may be; it is not read yet.
    fn paths_of(&mut self, expr: &'e IdedExpr) -> Vec<ReadPath> {
        let paths = match &expr.expr {
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let paths = self.paths_of(&select.operand);
                let paths = self.step(paths, ReadStep::Key(select.field.clone()));
                if select.test { Vec::new() } else { paths }
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            _ => self.consume_parts(expr),
        };
        if paths.len() > MAX_PATHS {
            self.reads.add(&[ReadPath::new()], ReadExtent::Everything);
            return Vec::new();
        }
        paths
    }

    fn variable(&mut self, name: &str) -> Vec<ReadPath> {
        // A leading dot skips the variables of macros.
        if let Some((_, paths)) = self.variables.iter().rev().find(|(known, _)| *known == name) {
            return paths.clone();
        }
        match name.trim_start_matches('.') {
            OBJECT => vec![ReadPath::new()],
            NAMESPACE => {
                self.reads.namespace = true;
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Adds a step to each path; the presence of the value there is read.
    fn step(&mut self, mut paths: Vec<ReadPath>, step: ReadStep) -> Vec<ReadPath> {
        paths.iter_mut().for_each(|path| path.push(step.clone()));
        self.reads.add(&paths, ReadExtent::Presence);
        paths
    }

    fn call(&mut self, expr: &'e IdedExpr, call: &'e CallExpr) -> Vec<ReadPath> {
        if let Some(name) = namespaced(call) {
            return match (name.as_str(), call.args.as_slice()) {
                ("optional.of", [value]) => self.paths_of(value),
                (_, args) => {
                    args.iter().for_each(|arg| self.consume(arg));
                    Vec::new()
                }
            };
        }
        match (call.func_name.as_str(), call.target.as_deref(), call.args.as_slice()) {
            (operators::INDEX | operators::OPT_INDEX | operators::OPT_SELECT, None, [value, key]) => {
                let paths = self.paths_of(value);
                match &key.expr {
                    Expr::Literal(LiteralValue::String(key)) => {
                        self.step(paths, ReadStep::Key(key.inner().to_owned()))
                    }
                    _ => {
                        self.consume(key);
                        self.step(paths, ReadStep::Each)
                    }
                }
            }
            (operators::CONDITIONAL, None, [condition, yes, no]) => {
                self.consume(condition);
                let paths = self.paths_of(yes);
                self.either(paths, no)
            }
            (operators::EQUALS | operators::NOT_EQUALS, None, [value, literal] | [literal, value])
                if matches!(literal.expr, Expr::Literal(_)) =>
            {
                // Against a scalar, a list or map is different whatever is in it.
                let paths = self.paths_of(value);
                self.reads.type_of(&paths);
                Vec::new()
            }
            ("size", Some(value), []) | ("size", None, [value]) => {
                let paths = self.paths_of(value);
                self.reads.add(&paths, ReadExtent::Shape);
                Vec::new()
            }
            ("type", None, [value]) => {
                let paths = self.paths_of(value);
                self.reads.type_of(&paths);
                Vec::new()
            }
            ("hasValue", Some(value), []) => {
                self.optional(value);
                Vec::new()
            }
            ("value", Some(value), []) => self.optional(value),
            ("dyn", None, [value]) => self.paths_of(value),
            ("first" | "last", Some(value), []) => {
                let paths = self.paths_of(value);
                self.reads.add(&paths, ReadExtent::Shape);
                self.step(paths, ReadStep::Each)
            }
            ("or" | "orValue", Some(value), [other]) => {
                let paths = self.optional(value);
                self.either(paths, other)
            }
            _ => self.consume_parts(expr),
        }
    }

    /// The paths of the value in an optional; its type is read.
    fn optional(&mut self, expr: &'e IdedExpr) -> Vec<ReadPath> {
        let paths = self.paths_of(expr);
        self.reads.type_of(&paths);
        paths
    }

    fn either(&mut self, mut paths: Vec<ReadPath>, other: &'e IdedExpr) -> Vec<ReadPath> {
        for path in self.paths_of(other) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    fn comprehension(&mut self, c: &'e ComprehensionExpr) -> Vec<ReadPath> {
        let outer = self.variables.len();
        if is_bind(c) {
            let paths = self.paths_of(&c.accu_init);
            self.variables.push((&c.accu_var, paths));
            let paths = self.paths_of(&c.result);
            self.variables.truncate(outer);
            return paths;
        }
        let range = self.paths_of(&c.iter_range);
        self.reads.add(&range, ReadExtent::Shape);
        let items = self.step(range.clone(), ReadStep::Each);
        self.consume(&c.accu_init);
        self.variables.push((&c.accu_var, Vec::new()));
        match &c.iter_var2 {
            // The first variable is the key or the index.
            Some(value) => {
                self.variables.extend([(c.iter_var.as_str(), Vec::new()), (value.as_str(), items)]);
            }
            None => self.variables.push((&c.iter_var, items)),
        }
        self.consume(&c.loop_cond);
        let selection = selection(c);
        match selection {
            Some(CollectingLoop { condition: Some(condition) }) => self.consume(condition),
            Some(CollectingLoop { condition: None }) => {}
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
struct CollectingLoop<'e> {
    condition: Option<&'e IdedExpr>,
}

/// Whether a loop does nothing but collect items: `filter(x, condition)` is
/// `condition ? result + [x] : result`.
fn selection(c: &ComprehensionExpr) -> Option<CollectingLoop<'_>> {
    let is_result = |expr: &IdedExpr| matches!(&expr.expr, Expr::Ident(name) if *name == c.accu_var);
    let appends = |expr: &IdedExpr| {
        let Expr::Call(CallExpr { func_name, target: None, args }) = &expr.expr else { return false };
        let [result, items] = args.as_slice() else { return false };
        let Expr::List(items) = &items.expr else { return false };
        let [item] = items.elements.as_slice() else { return false };
        let is_item = matches!(&item.expr, Expr::Ident(name) if *name == c.iter_var);
        func_name == operators::ADD && is_result(result) && is_item && items.optional_indices.is_empty()
    };
    if c.iter_var2.is_some()
        || !is_result(&c.result)
        || !matches!(&c.accu_init.expr, Expr::List(list) if list.elements.is_empty())
    {
        return None;
    }
    if appends(&c.loop_step) {
        return Some(CollectingLoop { condition: None });
    }
    match &c.loop_step.expr {
        Expr::Call(CallExpr { func_name, target: None, args }) if func_name == operators::CONDITIONAL => {
            match args.as_slice() {
                [condition, step, result] if appends(step) && is_result(result) => {
                    Some(CollectingLoop { condition: Some(condition) })
                }
                _ => None,
            }
        }
        _ => None,
    }
}
