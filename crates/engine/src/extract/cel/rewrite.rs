//! Puts guards into an expression that `lower` has prepared, so that the meter is charged for everything that the interpreter does.
//!
//! The interpreter of `cel` has no limits of its own, but its syntax tree is public. Every round of every
//! loop becomes a call of `@tick`, every operator and every function whose cost depends on more than the
//! expression one of ours, and every value that the interpreter copies or looks through passes a guard.
//! The shapes that the interpreter recognises stay: the appending step of `map` and `filter`, and the
//! `&&` and `||` of `all` and `exists`.

use std::cell::Cell;

use cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, MapEntryExpr, SelectExpr,
        operators,
    },
};

use super::{
    check::namespaced,
    functions::{self, MAX_OPTIONAL_KEYS},
    meter,
    names::{self, NAMESPACE, OBJECT},
    parse::children,
    project::is_bind,
};

/// The interpreter's operators and ours.
const OPERATORS: [(&str, &str); 10] = [
    (operators::ADD, "@add"),
    (operators::SUBSTRACT, "@subtract"),
    (operators::MULTIPLY, "@multiply"),
    (operators::DIVIDE, "@divide"),
    (operators::MODULO, "@modulo"),
    (operators::LESS, "@less"),
    (operators::LESS_EQUALS, "@less_equal"),
    (operators::GREATER, "@greater"),
    (operators::GREATER_EQUALS, "@greater_equal"),
    (operators::IN, "@contained"),
];

/// Functions that do not read through their argument, whatever its size.
const TRANSPARENT: [&str; 7] = ["dyn", "value", "hasValue", "or", "orValue", "@used", "@value"];

/// Macros in which a name is looked up for the cost of a node.
const LOOKUPS_PER_UNIT: u64 = 4;

/// The guarded expression.
pub(super) fn rewrite(root: IdedExpr) -> IdedExpr {
    let rewriter = Rewriter {
        optionals: uses_optionals(&root),
        shadowed: shadows(&root),
        enclosing_macros: Cell::new(0),
    };
    call("@root", vec![rewriter.expr(root)])
}

/// Cost of visiting the nodes of an expression without the bodies of its loops; `enclosing_macros`: how many are
/// around it.
pub(super) fn cost(expr: &IdedExpr, enclosing_macros: u64) -> u64 {
    let own = match &expr.expr {
        // A name is looked up in every macro around it.
        Expr::Ident(_) | Expr::Select(_) => 1 + enclosing_macros / LOOKUPS_PER_UNIT,
        Expr::Literal(LiteralValue::String(text)) => 1 + meter::text_weight(text.inner().len()),
        Expr::Literal(LiteralValue::Bytes(bytes)) => 1 + meter::text_weight(bytes.inner().len()),
        _ => 1,
    };
    let parts: u64 = match &expr.expr {
        Expr::Comprehension(c) => {
            let outside = cost(&c.iter_range, enclosing_macros) + cost(&c.accu_init, enclosing_macros);
            outside + cost(&c.result, enclosing_macros + 1)
        }
        _ => children(expr).into_iter().map(|part| cost(part, enclosing_macros)).sum(),
    };
    own + parts
}

fn uses_optionals(expr: &IdedExpr) -> bool {
    let here = match &expr.expr {
        Expr::Call(call) if call.target.is_none() => {
            [operators::OPT_SELECT, operators::OPT_INDEX].contains(&call.func_name.as_str())
        }
        Expr::Call(call) => {
            ["first", "last"].contains(&call.func_name.as_str())
                || namespaced(call).is_some_and(|name| {
                    name.starts_with("optional.") || name == "regex.extract" || name == "format.named"
                })
        }
        _ => false,
    };
    here || children(expr).into_iter().any(uses_optionals)
}

/// Whether a variable of a macro is named like the object or its namespace.
fn shadows(expr: &IdedExpr) -> bool {
    let here = match &expr.expr {
        Expr::Comprehension(c) => [&c.accu_var, &c.iter_var].into_iter().any(|name| is_root(name)),
        _ => false,
    };
    here || children(expr).into_iter().any(shadows)
}

fn is_root(name: &str) -> bool {
    [OBJECT, NAMESPACE].contains(&name)
}

/// Whether an expression is the object or its namespace, or a field somewhere in them.
fn starts_at_root(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Ident(name) => is_root(name),
        Expr::Select(select) => !select.test && starts_at_root(&select.operand),
        _ => false,
    }
}

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn call(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn operands(args: Vec<IdedExpr>) -> [IdedExpr; 2] {
    <[IdedExpr; 2]>::try_from(args).expect("the parser gives an index its two operands")
}

fn is_literal(expr: &IdedExpr) -> bool {
    matches!(expr.expr, Expr::Literal(_))
}

fn is_ident(expr: &IdedExpr, wanted: &str) -> bool {
    matches!(&expr.expr, Expr::Ident(name) if name == wanted)
}

struct Rewriter {
    /// Without optionals, selecting a field copies nothing.
    optionals: bool,
    /// The object and its namespace are no optionals, unless a macro has variables with their names.
    shadowed: bool,
    /// How many macros are around the expression.
    enclosing_macros: Cell<u64>,
}

impl Rewriter {
    fn expr(&self, expr: IdedExpr) -> IdedExpr {
        let id = expr.id;
        let expr = match expr.expr {
            Expr::Call(call) => self.call(call),
            Expr::Select(select) => self.select(select),
            Expr::List(list) => Expr::List(self.list(list)),
            Expr::Map(mut map) => {
                map.entries.iter_mut().for_each(|entry| self.entry(&mut entry.expr));
                Expr::Map(map)
            }
            Expr::Comprehension(comprehension) => {
                Expr::Comprehension(Box::new(self.comprehension(*comprehension)))
            }
            other => other,
        };
        IdedExpr { id, expr }
    }

    fn all(&self, exprs: Vec<IdedExpr>) -> Vec<IdedExpr> {
        exprs.into_iter().map(|expr| self.expr(expr)).collect()
    }

    /// An expression whose value the interpreter copies.
    fn copied(&self, expr: IdedExpr) -> IdedExpr {
        let owned = match &expr.expr {
            Expr::Literal(_) | Expr::List(_) | Expr::Map(_) | Expr::Comprehension(_) => true,
            Expr::Call(call) => replacement(call).is_some(),
            _ => false,
        };
        let expr = self.expr(expr);
        if owned || is_operator(&expr) { expr } else { call("@copied", vec![expr]) }
    }

    fn looked_at(&self, expr: IdedExpr) -> IdedExpr {
        let literal = is_literal(&expr);
        let expr = self.expr(expr);
        if literal || is_operator(&expr) { expr } else { call("@looked_at", vec![expr]) }
    }

    fn key(&self, key: IdedExpr) -> IdedExpr {
        use LiteralValue::{Boolean, Int, String, UInt};
        let fits = matches!(&key.expr, Expr::Literal(String(_) | Int(_) | UInt(_) | Boolean(_)));
        let key = self.expr(key);
        if fits { key } else { call("@key", vec![key]) }
    }

    fn list(&self, list: ListExpr) -> ListExpr {
        let elements = list.elements.into_iter().map(|element| self.copied(element)).collect();
        ListExpr { elements, ..list }
    }

    fn entry(&self, entry: &mut EntryExpr) {
        if let EntryExpr::MapEntry(MapEntryExpr { key, value, .. }) = entry {
            *key = self.key(std::mem::take(key));
            *value = self.copied(std::mem::take(value));
        }
    }

    fn select(&self, select: SelectExpr) -> Expr {
        let field = node(Expr::Literal(LiteralValue::String(select.field.clone().into())));
        // The interpreter takes `object.a.b` for a name, which it looks for in every length before it
        // takes it apart; `object['a']['b']` is the same value for a third of the work.
        if !select.test && !self.shadowed && starts_at_root(&select.operand) {
            return call(operators::INDEX, vec![self.expr(*select.operand), field]).expr;
        }
        let operand = self.selected(*select.operand, field);
        Expr::Select(SelectExpr { operand: Box::new(operand), ..select })
    }

    /// A value of which a part is taken. If it can be an optional in a variable, the part is copied.
    fn selected(&self, value: IdedExpr, key: IdedExpr) -> IdedExpr {
        let guarded = self.optionals && self.may_be_optional(&value);
        let value = self.expr(value);
        if guarded { call("@selected", vec![value, key]) } else { value }
    }

    /// Whether a value may be, or may be in, a variable that is an optional.
    fn may_be_optional(&self, expr: &IdedExpr) -> bool {
        match &expr.expr {
            // The name of a type must stay a name, and no variable has one.
            Expr::Ident(name) => (self.shadowed || !is_root(name)) && !names::is_type_root(name),
            Expr::Select(select) => self.may_be_optional(&select.operand),
            Expr::Call(call) if call.func_name == operators::INDEX => {
                call.args.first().is_some_and(|value| self.may_be_optional(value))
            }
            Expr::Call(call) => {
                TRANSPARENT.contains(&call.func_name.as_str()) || call.func_name == operators::CONDITIONAL
            }
            _ => false,
        }
    }

    fn call(&self, mut this: CallExpr) -> Expr {
        // `.size(x)` is another way to write `size(x)`.
        if this.func_name.starts_with('.') {
            this.func_name.remove(0);
        }
        let name = this.func_name.as_str();
        if let Some((_, replacement)) = OPERATORS.iter().find(|(theirs, _)| *theirs == name) {
            return call(replacement, self.all(this.args)).expr;
        }
        match name {
            operators::EQUALS => return self.equality("@equal", this).expr,
            operators::NOT_EQUALS => return self.equality("@not_equal", this).expr,
            operators::OPT_SELECT | operators::OPT_INDEX => return self.optional(this).expr,
            operators::INDEX => return self.index(this),
            _ => {}
        }
        if let Some(replacement) = replacement(&this) {
            let receiver = if namespaced(&this).is_some() { None } else { this.target.take() };
            let args = receiver.map(|target| *target).into_iter().chain(this.args).collect();
            return call(replacement, self.all(args)).expr;
        }
        if let Some(full) = namespaced(&this) {
            return self.namespaced_call(&full, this);
        }
        if name.starts_with(|c: char| c.is_alphabetic()) && !TRANSPARENT.contains(&name) {
            // Functions of `cel` look through their arguments once; `format` through all that is in them.
            let deep = name == "format";
            let guard = |arg| {
                if deep { call("@plain", vec![self.copied(arg)]) } else { self.looked_at(arg) }
            };
            this.target = this.target.map(|target| Box::new(self.looked_at(*target)));
            this.args = this.args.into_iter().map(guard).collect();
        } else {
            this.target = this.target.map(|target| Box::new(self.expr(*target)));
            this.args = self.all(this.args);
        }
        Expr::Call(this)
    }

    fn namespaced_call(&self, full: &str, mut this: CallExpr) -> Expr {
        let copies = full.starts_with("optional.");
        let computes = full.starts_with("math.");
        let guard = |arg| match (copies, computes) {
            (true, _) => self.copied(arg),
            // Their lists may have numbers with all their digits.
            (_, true) => call("@plain", vec![self.looked_at(arg)]),
            _ => self.looked_at(arg),
        };
        this.args = this.args.into_iter().map(guard).collect();
        Expr::Call(this)
    }

    /// Comparing with a literal is cheap, as long as the literal is on the right.
    fn equality(&self, replacement: &str, mut this: CallExpr) -> IdedExpr {
        this.args = self.all(this.args);
        if this.args.first().is_some_and(is_literal) {
            this.args.reverse();
        }
        if this.args.last().is_some_and(is_literal) {
            return node(Expr::Call(this));
        }
        call(replacement, this.args)
    }

    fn index(&self, this: CallExpr) -> Expr {
        let CallExpr { func_name, target, args } = this;
        let [value, key] = operands(args);
        // Only a literal can be repeated without being evaluated twice.
        let field = if is_literal(&key) { key.clone() } else { node(Expr::Literal(LiteralValue::Null)) };
        let value = self.selected(value, field);
        Expr::Call(CallExpr { func_name, target, args: vec![value, self.key(key)] })
    }

    /// `a.?b.?c` is one call: nothing in between is copied.
    fn optional(&self, this: CallExpr) -> IdedExpr {
        let [value, key] = operands(this.args);
        if !matches!(key.expr, Expr::Literal(_) | Expr::Ident(_)) {
            // Without a value, the key must not be evaluated: it could fail.
            let args = vec![self.copied(value), self.looked_at(key)];
            return node(Expr::Call(CallExpr { func_name: this.func_name, target: None, args }));
        }
        let (value, key) = (self.expr(value), self.expr(key));
        match value {
            IdedExpr { expr: Expr::Call(mut chain), .. }
                if chain.func_name == "@optional" && chain.args.len() <= MAX_OPTIONAL_KEYS =>
            {
                chain.args.push(key);
                node(Expr::Call(chain))
            }
            value => call("@optional", vec![value, key]),
        }
    }

    /// Rewrites what is inside of one more macro.
    fn inside<T>(&self, rewrite: impl FnOnce() -> T) -> T {
        self.enclosing_macros.set(self.enclosing_macros.get() + 1);
        let inside = rewrite();
        self.enclosing_macros.set(self.enclosing_macros.get() - 1);
        inside
    }

    fn comprehension(&self, c: ComprehensionExpr) -> ComprehensionExpr {
        if is_bind(&c) {
            let accu_init = self.copied(c.accu_init);
            let result = self.inside(|| self.copied(c.result));
            return ComprehensionExpr { accu_init, result, ..c };
        }
        let enclosing_macros = self.enclosing_macros.get() + 1;
        let cost = cost(&c.loop_cond, enclosing_macros) + cost(&c.loop_step, enclosing_macros);
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let tick = || call("@tick", vec![node(Expr::Literal(LiteralValue::Int(cost.into())))]);
        let done = || node(Expr::Literal(LiteralValue::Boolean(false.into())));
        let is_list = matches!(&c.iter_range.expr, Expr::List(_));
        let range = self.expr(c.iter_range);
        let iter_range = if is_list { range } else { call("@range", vec![range]) };
        let appends = is_literal(&c.loop_cond) && is_ident(&c.result, &c.accu_var);
        let (loop_cond, loop_step) = self.inside(|| {
            if appends {
                return (c.loop_cond, self.appending(c.loop_step, &c.accu_var, tick, done));
            }
            let ticking = vec![tick(), self.expr(c.loop_cond), done()];
            (call(operators::CONDITIONAL, ticking), self.expr(c.loop_step))
        });
        let (accu_init, result) = (self.expr(c.accu_init), self.inside(|| self.expr(c.result)));
        ComprehensionExpr { iter_range, accu_init, loop_cond, loop_step, result, ..c }
    }

    /// The step of `map` and `filter`, `condition ? result + [item] : result`, where the condition may be missing:
    /// the interpreter recognises it by its shape, so the tick goes into the condition.
    fn appending(
        &self,
        step: IdedExpr,
        accu: &str,
        tick: impl Fn() -> IdedExpr,
        done: impl Fn() -> IdedExpr,
    ) -> IdedExpr {
        let result = || node(Expr::Ident(accu.to_owned()));
        match step.expr {
            Expr::Call(CallExpr { func_name, target: None, mut args })
                if func_name == operators::CONDITIONAL && args.len() == 3 =>
            {
                let no = args.pop().unwrap_or_default();
                let yes = args.pop().unwrap_or_default();
                let condition = args.pop().map(|condition| self.expr(condition)).unwrap_or_default();
                let condition = call(operators::CONDITIONAL, vec![tick(), condition, done()]);
                call(&func_name, vec![condition, self.append(yes, accu), self.expr(no)])
            }
            step => {
                let step = self.append(node(step), accu);
                call(operators::CONDITIONAL, vec![tick(), step, result()])
            }
        }
    }

    /// `result + [item]`; anything else is guarded as usual.
    fn append(&self, step: IdedExpr, accu: &str) -> IdedExpr {
        match step.expr {
            Expr::Call(CallExpr { func_name, target: None, args })
                if func_name == operators::ADD
                    && matches!(args.as_slice(), [result, items]
                        if is_ident(result, accu) && matches!(items.expr, Expr::List(_))) =>
            {
                call(&func_name, self.all(args))
            }
            step => self.expr(node(step)),
        }
    }
}

/// The name of our function for a call.
fn replacement(call: &CallExpr) -> Option<&'static str> {
    let arguments = call.args.len();
    match namespaced(call) {
        Some(full) => functions::replacement(&full, arguments),
        None => functions::replacement(&call.func_name, arguments + usize::from(call.target.is_some())),
    }
}

/// Operators return small values, or new ones that were charged when they were built.
fn is_operator(expr: &IdedExpr) -> bool {
    let Expr::Call(call) = &expr.expr else { return false };
    let selects =
        [operators::CONDITIONAL, operators::INDEX, "@used", "@value"].contains(&call.func_name.as_str());
    !selects && !call.func_name.starts_with(|c: char| c.is_alphabetic())
}
