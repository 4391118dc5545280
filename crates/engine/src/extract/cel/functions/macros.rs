//! Macros that `cel` does not have: `cel.bind`, those with two variables, and `format.<name>()`.

use cel::{
    ParseError,
    common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue, operators},
    parser::{Macro, MacroExprHelper},
};

use super::named_formats;

type Expanded = Result<Option<IdedExpr>, ParseError>;

/// The variable in which a loop collects its result.
const RESULT: &str = "@result";

pub(super) fn all() -> Vec<Macro> {
    let mut macros = vec![
        Macro::receiver("bind", 3, bind),
        Macro::receiver("all", 3, |helper, target, args| quantifier(helper, target, args, Quantifier::All)),
        Macro::receiver("exists", 3, |helper, target, args| {
            quantifier(helper, target, args, Quantifier::Exists)
        }),
    ];
    for name in ["exists_one", "existsOne"] {
        macros.push(Macro::receiver(name, 3, |helper, target, args| {
            quantifier(helper, target, args, Quantifier::ExistsOne)
        }));
    }
    for arguments in [3, 4] {
        macros.push(Macro::receiver("transformList", arguments, |helper, target, args| {
            let (variables, filter, item) = transformation(helper, args)?;
            Ok(Some(transform(helper, target, variables, filter, item)))
        }));
        macros.push(Macro::receiver("transformMap", arguments, |helper, target, args| {
            let (variables, filter, value) = transformation(helper, args)?;
            let key = helper.next_expr(Expr::Ident(variables.0.clone()));
            let pair = helper.next_expr(Expr::List(ListExpr::new(vec![key, value])));
            let pairs = transform(helper, target, variables, filter, pair);
            Ok(Some(call(helper, "@map_of", vec![pairs])))
        }));
        macros.push(Macro::receiver("transformMapEntry", arguments, |helper, target, args| {
            let (variables, filter, entries) = transformation(helper, args)?;
            let maps = transform(helper, target, variables, filter, entries);
            Ok(Some(call(helper, "@merged", vec![maps])))
        }));
    }
    macros.extend(named_formats::names().map(|name| {
        Macro::receiver(name, 0, move |helper, target, _| {
            if !is_namespace(target.as_ref(), "format") {
                return Ok(None);
            }
            target.take();
            let name = helper.next_expr(Expr::Literal(LiteralValue::String(name.to_owned().into())));
            Ok(Some(call(helper, "@format", vec![name])))
        })
    }));
    macros
}

fn is_namespace(target: Option<&IdedExpr>, namespace: &str) -> bool {
    matches!(target.map(|target| &target.expr), Some(Expr::Ident(name)) if name == namespace)
}

fn call(helper: &mut MacroExprHelper<'_>, name: &str, args: Vec<IdedExpr>) -> IdedExpr {
    helper.next_expr(Expr::Call(CallExpr { func_name: name.to_owned(), target: None, args }))
}

fn literal(helper: &mut MacroExprHelper<'_>, value: LiteralValue) -> IdedExpr {
    helper.next_expr(Expr::Literal(value))
}

fn result(helper: &mut MacroExprHelper<'_>) -> IdedExpr {
    helper.next_expr(Expr::Ident(RESULT.to_owned()))
}

/// The name that an argument is.
fn variable(helper: &MacroExprHelper<'_>, argument: IdedExpr) -> Result<String, ParseError> {
    match argument.expr {
        Expr::Ident(name) => Ok(name),
        _ => Err(helper.new_error(argument.id, "argument must be a simple name")),
    }
}

/// The two variables of a macro.
fn variables(helper: &MacroExprHelper<'_>, args: &mut Vec<IdedExpr>) -> Result<(String, String), ParseError> {
    let (key, value) = (args.remove(0), args.remove(0));
    let at = value.id;
    let names = (variable(helper, key)?, variable(helper, value)?);
    if names.0 == names.1 {
        return Err(helper.new_error(at, "the two variables of a macro need different names"));
    }
    Ok(names)
}

/// `cel.bind(x, init, result)`: a loop over nothing whose accumulator is `x`.
fn bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Expanded {
    if !is_namespace(target.as_ref(), "cel") {
        return Ok(None);
    }
    let name = variable(helper, args.remove(0))?;
    let (init, result) = (args.remove(0), args.remove(0));
    let iter_range = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let loop_cond = literal(helper, LiteralValue::Boolean(false.into()));
    let loop_step = helper.next_expr(Expr::Ident(name.clone()));
    let bound = ComprehensionExpr {
        iter_range,
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: name,
        accu_init: init,
        loop_cond,
        loop_step,
        result,
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(bound)))))
}

/// A loop with two variables.
struct Loop {
    variables: (String, String),
    init: IdedExpr,
    condition: IdedExpr,
    step: IdedExpr,
    result: IdedExpr,
}

impl Loop {
    fn over(self, helper: &mut MacroExprHelper<'_>, target: &mut Option<IdedExpr>) -> IdedExpr {
        helper.next_expr(Expr::Comprehension(Box::new(ComprehensionExpr {
            iter_range: target.take().expect("a macro of a receiver has one"),
            iter_var: self.variables.0,
            iter_var2: Some(self.variables.1),
            accu_var: RESULT.to_owned(),
            accu_init: self.init,
            loop_cond: self.condition,
            loop_step: self.step,
            result: self.result,
        })))
    }
}

#[derive(Clone, Copy)]
enum Quantifier {
    All,
    Exists,
    ExistsOne,
}

fn quantifier(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
    quantifier: Quantifier,
) -> Expanded {
    let variables = variables(helper, args)?;
    let predicate = args.remove(0);
    let accumulator = result(helper);
    let again = result(helper);
    let last = result(helper);
    let (init, condition, step, last) = match quantifier {
        Quantifier::All => (
            literal(helper, LiteralValue::Boolean(true.into())),
            call(helper, operators::NOT_STRICTLY_FALSE, vec![accumulator]),
            call(helper, operators::LOGICAL_AND, vec![again, predicate]),
            last,
        ),
        Quantifier::Exists => {
            let none_yet = call(helper, operators::LOGICAL_NOT, vec![accumulator]);
            (
                literal(helper, LiteralValue::Boolean(false.into())),
                call(helper, operators::NOT_STRICTLY_FALSE, vec![none_yet]),
                call(helper, operators::LOGICAL_OR, vec![again, predicate]),
                last,
            )
        }
        Quantifier::ExistsOne => {
            let one = literal(helper, LiteralValue::Int(1.into()));
            let one_more = call(helper, operators::ADD, vec![accumulator, one]);
            let one = literal(helper, LiteralValue::Int(1.into()));
            (
                literal(helper, LiteralValue::Int(0.into())),
                literal(helper, LiteralValue::Boolean(true.into())),
                call(helper, operators::CONDITIONAL, vec![predicate, one_more, again]),
                call(helper, operators::EQUALS, vec![last, one]),
            )
        }
    };
    Ok(Some(Loop { variables, init, condition, step, result: last }.over(helper, target)))
}

type Transformation = ((String, String), Option<IdedExpr>, IdedExpr);

/// The arguments of `transformList` and its like: two variables, a condition if there is one, and what is made of an entry.
fn transformation(
    helper: &MacroExprHelper<'_>,
    args: &mut Vec<IdedExpr>,
) -> Result<Transformation, ParseError> {
    let variables = variables(helper, args)?;
    let filter = if args.len() == 2 { Some(args.remove(0)) } else { None };
    Ok((variables, filter, args.remove(0)))
}

/// A list of what is made of each entry.
fn transform(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    variables: (String, String),
    filter: Option<IdedExpr>,
    item: IdedExpr,
) -> IdedExpr {
    let init = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let condition = literal(helper, LiteralValue::Boolean(true.into()));
    let accumulator = result(helper);
    let items = helper.next_expr(Expr::List(ListExpr::new(vec![item])));
    let appended = call(helper, operators::ADD, vec![accumulator, items]);
    let step = match filter {
        Some(filter) => {
            let unchanged = result(helper);
            call(helper, operators::CONDITIONAL, vec![filter, appended, unchanged])
        }
        None => appended,
    };
    let result = result(helper);
    Loop { variables, init, condition, step, result }.over(helper, target)
}
