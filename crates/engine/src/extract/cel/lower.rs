//! Expresses what the interpreter does not have by what it has.
//!
//! `Expression::compile` calls [`lower`] on the checked tree, before `rewrite` puts guards into it. These differ in `cel` 0.15
//! (`src/objects.rs`, `src/common/types/optional.rs`) from Kubernetes, and can go when it has them:
//!
//! * `or` and `orValue` evaluate their argument only if there is no value, and `cel.bind` its value only if it is used.
//! * `has(x.f)` is false if `x` has no fields.
//! * Macros can have two variables: a loop over entries, each a list of key and value.

use cel::{
    IdedExpr,
    common::ast::{
        CallExpr, ComprehensionExpr, EntryExpr, Expr, ListExpr, LiteralValue, SelectExpr, operators,
    },
};

use super::{
    names::{NAMESPACE, OBJECT},
    parse::children,
    project::is_bind,
};

/// The variable of an optional whose alternative is evaluated only without a value.
const OPTIONAL: &str = "@optional_value";

/// The variable of a loop over entries; a number follows, which is larger than those of the loops inside.
const ENTRY: &str = "@entry";

pub(super) fn lower(expr: IdedExpr) -> IdedExpr {
    let id = expr.id;
    let expr = match expr.expr {
        Expr::Call(call) => lower_call(call),
        Expr::Select(select) if select.test => has(select),
        Expr::Select(select) => {
            Expr::Select(SelectExpr { operand: Box::new(lower(*select.operand)), ..select })
        }
        Expr::List(list) => {
            let elements = list.elements.into_iter().map(lower).collect();
            Expr::List(ListExpr { elements, ..list })
        }
        Expr::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = lower(std::mem::take(&mut entry.key));
                    entry.value = lower(std::mem::take(&mut entry.value));
                }
            }
            Expr::Map(map)
        }
        Expr::Comprehension(c) if is_bind(&c) => bind(lower_parts(*c)),
        Expr::Comprehension(c) => {
            let c = lower_parts(*c);
            Expr::Comprehension(Box::new(if c.iter_var2.is_some() { over_entries(c) } else { c }))
        }
        other => other,
    };
    IdedExpr { id, expr }
}

fn lower_parts(c: ComprehensionExpr) -> ComprehensionExpr {
    ComprehensionExpr {
        iter_range: lower(c.iter_range),
        accu_init: lower(c.accu_init),
        loop_cond: lower(c.loop_cond),
        loop_step: lower(c.loop_step),
        result: lower(c.result),
        ..c
    }
}

fn lower_call(call: CallExpr) -> Expr {
    let target = call.target.map(|target| Box::new(lower(*target)));
    let mut args: Vec<IdedExpr> = call.args.into_iter().map(lower).collect();
    match (call.func_name.as_str(), target) {
        (name @ ("or" | "orValue"), Some(optional)) if args.len() == 1 && may_fail(&args[0]) => {
            alternative(name, *optional, args.remove(0))
        }
        (_, target) => Expr::Call(CallExpr { func_name: call.func_name, target, args }),
    }
}

fn node(expr: Expr) -> IdedExpr {
    IdedExpr { id: 0, expr }
}

fn ident(name: &str) -> IdedExpr {
    node(Expr::Ident(name.to_owned()))
}

fn text(text: String) -> IdedExpr {
    node(Expr::Literal(LiteralValue::String(text.into())))
}

fn function(name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    node(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

/// `variable` is `value` in `result`.
fn bound(variable: &str, value: IdedExpr, result: IdedExpr) -> Expr {
    Expr::Comprehension(Box::new(ComprehensionExpr {
        iter_range: node(Expr::List(ListExpr::new(Vec::new()))),
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: variable.to_owned(),
        accu_init: value,
        loop_cond: node(Expr::Literal(LiteralValue::Boolean(false.into()))),
        loop_step: ident(variable),
        result,
    }))
}

/// `has(x.f)`: one of our functions decides.
fn has(select: SelectExpr) -> Expr {
    function("@has", vec![lower(*select.operand), text(select.field)]).expr
}

/// `optional.or(other)` or `optional.orValue(other)`.
fn alternative(name: &str, optional: IdedExpr, other: IdedExpr) -> Expr {
    let has_value = function("@has_value", vec![ident(OPTIONAL), text(name.to_owned())]);
    let value = if name == "or" { ident(OPTIONAL) } else { function("@value", vec![ident(OPTIONAL)]) };
    bound(OPTIONAL, optional, function(operators::CONDITIONAL, vec![has_value, value, other]))
}

/// `cel.bind`. If the value may fail and may not be needed, a failure is kept in the variable, and using the variable fails.
fn bind(c: ComprehensionExpr) -> Expr {
    // `optMap` binds the value of an optional that has one.
    let optional_value = matches!(&c.accu_init.expr, Expr::Call(CallExpr { func_name, target: Some(target), .. })
        if func_name == "value" && matches!(&target.expr, Expr::Ident(name) if name.starts_with('@')));
    // A value that is written twice contains no other: expressions must not grow with each level.
    let grows = || calls(&c.accu_init, "@failed");
    if optional_value || !may_fail(&c.accu_init) || always_uses(&c.result, &c.accu_var) || grows() {
        return Expr::Comprehension(Box::new(c));
    }
    let fails = function(operators::NOT_STRICTLY_FALSE, vec![function("@false", vec![c.accu_init.clone()])]);
    let value = function(operators::CONDITIONAL, vec![fails, function("@failed", Vec::new()), c.accu_init]);
    let used = function("@used", vec![ident(&c.accu_var), text(c.accu_var.clone())]);
    let result = substitute(c.result, &c.accu_var, &used);
    bound(&c.accu_var, value, result)
}

/// Whether the expression calls a function.
fn calls(expr: &IdedExpr, name: &str) -> bool {
    matches!(&expr.expr, Expr::Call(call) if call.func_name == name)
        || children(expr).into_iter().any(|part| calls(part, name))
}

/// Whether evaluating the expression can be an error. A variable can be one of `cel.bind` whose value failed.
fn may_fail(expr: &IdedExpr) -> bool {
    match &expr.expr {
        Expr::Literal(_) => false,
        Expr::Ident(name) => ![OBJECT, NAMESPACE].contains(&name.as_str()),
        Expr::List(_) | Expr::Map(_) => children(expr).into_iter().any(may_fail),
        _ => true,
    }
}

/// Whether an error in the variable is always an error of the expression.
fn always_uses(expr: &IdedExpr, variable: &str) -> bool {
    let uses = |expr: &IdedExpr| always_uses(expr, variable);
    match &expr.expr {
        Expr::Ident(name) => name == variable,
        Expr::Comprehension(c) if is_bind(c) => {
            uses(&c.accu_init) || (c.accu_var != variable && uses(&c.result))
        }
        Expr::Comprehension(c) => uses(&c.iter_range) || uses(&c.accu_init),
        Expr::Call(call) => match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => uses(condition) || (uses(yes) && uses(no)),
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [a, b]) => uses(a) && uses(b),
            (operators::NOT_STRICTLY_FALSE, _) => false,
            ("or" | "orValue", _) if call.target.is_some() => call.target.as_deref().is_some_and(uses),
            _ => children(expr).into_iter().any(uses),
        },
        _ => children(expr).into_iter().any(uses),
    }
}

/// A loop with two variables as a loop over entries.
fn over_entries(c: ComprehensionExpr) -> ComprehensionExpr {
    let key_and_value = [Some(c.iter_var.clone()), c.iter_var2.clone()];
    let entry = format!("{ENTRY}{}", loop_depth(&c.loop_step).max(loop_depth(&c.loop_cond)));
    let inside = |expr: IdedExpr| {
        key_and_value.iter().zip(0_i64..).fold(expr, |expr, (variable, position)| {
            let Some(variable) = variable else { return expr };
            let position = node(Expr::Literal(LiteralValue::Int(position.into())));
            substitute(expr, variable, &function(operators::INDEX, vec![ident(&entry), position]))
        })
    };
    ComprehensionExpr {
        iter_range: function("@entries", vec![c.iter_range]),
        iter_var: entry.clone(),
        iter_var2: None,
        accu_var: c.accu_var,
        accu_init: c.accu_init,
        loop_cond: inside(c.loop_cond),
        loop_step: inside(c.loop_step),
        result: inside(c.result),
    }
}

/// How many loops are inside of each other.
fn loop_depth(expr: &IdedExpr) -> usize {
    let inside = children(expr).into_iter().map(loop_depth).max().unwrap_or_default();
    inside + usize::from(matches!(expr.expr, Expr::Comprehension(_)))
}

/// The expression with another one for each use of a variable.
fn substitute(expr: IdedExpr, variable: &str, replacement: &IdedExpr) -> IdedExpr {
    let again = |expr: IdedExpr| substitute(expr, variable, replacement);
    let id = expr.id;
    let expr = match expr.expr {
        Expr::Ident(name) if name == variable => return replacement.clone(),
        Expr::Call(call) => Expr::Call(CallExpr {
            target: call.target.map(|target| Box::new(again(*target))),
            args: call.args.into_iter().map(again).collect(),
            func_name: call.func_name,
        }),
        Expr::Select(select) => {
            Expr::Select(SelectExpr { operand: Box::new(again(*select.operand)), ..select })
        }
        Expr::List(list) => {
            Expr::List(ListExpr { elements: list.elements.into_iter().map(again).collect(), ..list })
        }
        Expr::Map(mut map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    entry.key = again(std::mem::take(&mut entry.key));
                    entry.value = again(std::mem::take(&mut entry.value));
                }
            }
            Expr::Map(map)
        }
        Expr::Comprehension(c) => {
            let hidden = [&c.accu_var, &c.iter_var].into_iter().any(|name| name == variable);
            let inside = |expr: IdedExpr| if hidden { expr } else { again(expr) };
            let c = *c;
            Expr::Comprehension(Box::new(ComprehensionExpr {
                iter_range: again(c.iter_range),
                accu_init: again(c.accu_init),
                loop_cond: inside(c.loop_cond),
                loop_step: inside(c.loop_step),
                result: inside(c.result),
                ..c
            }))
        }
        other => other,
    };
    IdedExpr { id, expr }
}
