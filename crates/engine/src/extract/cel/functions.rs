//! The functions that an expression can call, as `cel` knows them.
//!
//! [`env()`] declares the standard library, the extensions of `cel`, the macro `cel.bind` and our functions. Ours have
//! names that cannot be written in an expression (`@replace`): `rewrite` replaces calls by our functions as
//! [`REPLACEMENTS`] lists them, so that no unbounded function of `cel` is ever called.

use std::sync::{Arc, LazyLock};

use cel::{
    Env, ParseError,
    common::{
        ast::{ComprehensionExpr, Expr, IdedExpr, ListExpr, LiteralValue},
        functions::Function,
        types::{DYN_TYPE, STRING_TYPE},
    },
    extensions,
    parser::{Macro, MacroExprHelper},
};

use super::{
    lists, operators, patterns,
    quantity::{self, QUANTITY},
    texts,
};

/// The function that the macro `sortBy` of `cel` expands to.
const SORT_BY: &str = "@sortByAssociatedKeys";

/// Calls that are replaced: name, name of our function, numbers of arguments with the receiver, function.
const REPLACEMENTS: &[(&str, &str, &[usize], Function)] = &[
    ("distinct", "@distinct", &[1], lists::distinct),
    ("find", "@find", &[2], patterns::find),
    ("findAll", "@findAll", &[2, 3], patterns::find_all),
    ("flatten", "@flatten", &[1, 2], lists::flatten),
    ("indexOf", "@indexOf", &[2, 3], texts::index_of),
    ("isSorted", "@isSorted", &[1], lists::is_sorted),
    ("join", "@join", &[1, 2], texts::join),
    ("lastIndexOf", "@lastIndexOf", &[2, 3], texts::last_index_of),
    ("matches", "@matches", &[2], patterns::matches),
    ("max", "@max", &[1], lists::max),
    ("min", "@min", &[1], lists::min),
    ("replace", "@replace", &[3, 4], texts::replace),
    ("reverse", "@reverse", &[1], texts::reverse),
    ("slice", "@slice", &[3], lists::slice),
    ("sort", "@sort", &[1], lists::sort),
    (SORT_BY, "@sortBy", &[2], lists::sort_by_keys),
    ("split", "@split", &[2, 3], texts::split),
    ("sum", "@sum", &[1], lists::sum),
];

/// The guards and operators that `rewrite` puts into an expression.
const GUARDS: &[(&str, &[usize], Function)] = &[
    ("@root", &[1], operators::root),
    ("@tick", &[1], operators::tick),
    ("@copied", &[1], operators::copied),
    ("@looked_at", &[1], operators::looked_at),
    ("@range", &[1], operators::range),
    ("@key", &[1], operators::key),
    ("@optional", &[2, 3, 4, 5, 6, 7, 8, 9], operators::optional),
    ("@selected", &[2], operators::selected),
    ("@equal", &[2], operators::equal),
    ("@not_equal", &[2], operators::not_equal),
    ("@contained", &[2], operators::contained),
    ("@less", &[2], operators::less),
    ("@less_equal", &[2], operators::less_equal),
    ("@greater", &[2], operators::greater),
    ("@greater_equal", &[2], operators::greater_equal),
    ("@add", &[2], operators::add),
    ("@subtract", &[2], operators::subtract),
    ("@multiply", &[2], operators::multiply),
    ("@divide", &[2], operators::divide),
    ("@modulo", &[2], operators::modulo),
    ("@lists.range", &[1], lists::range),
];

/// The most keys that `@optional` takes.
pub(super) const MAX_OPTIONAL_KEYS: usize = 8;

const QUANTITY_METHODS: &[(&str, usize, Function)] = &[
    ("isInteger", 0, quantity::is_integer),
    ("asInteger", 0, quantity::as_integer),
    ("asApproximateFloat", 0, quantity::as_approximate_float),
    ("sign", 0, quantity::sign),
    ("add", 1, quantity::add),
    ("sub", 1, quantity::sub),
    ("compareTo", 1, quantity::compare_to),
    ("isGreaterThan", 1, quantity::is_greater_than),
    ("isLessThan", 1, quantity::is_less_than),
];

/// The name of our function for a call of this name.
pub(super) fn replacement(name: &str) -> Option<&'static str> {
    REPLACEMENTS.iter().find(|(known, ..)| *known == name).map(|(_, replacement, ..)| *replacement)
}

/// The environment of every expression.
pub(super) fn env() -> &'static Arc<Env> {
    static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(build()));
    &ENV
}

fn build() -> Env {
    const ONCE: &str = "every name is declared once";
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings).expect(ONCE);
    env.add_extension(extensions::lists).expect(ONCE);
    env.add_extension(extensions::math).expect(ONCE);
    env.add_extension(extensions::encoders).expect(ONCE);
    env.add_macro(Macro::receiver("bind", 3, bind)).expect(ONCE);
    let replacements = REPLACEMENTS.iter().map(|(_, name, arities, function)| (name, arities, function));
    for (name, arities, function) in
        replacements.chain(GUARDS.iter().map(|(name, arities, f)| (name, arities, f)))
    {
        for arity in *arities {
            let types = std::iter::repeat_with(|| DYN_TYPE).take(*arity).collect();
            env.add_overload(name, &format!("{name}_{arity}"), types, *function).expect(ONCE);
        }
    }
    env.add_type(QUANTITY.to_owned()).expect(ONCE);
    env.add_overload("quantity", "string_to_quantity", vec![STRING_TYPE], quantity::quantity).expect(ONCE);
    env.add_overload("isQuantity", "is_quantity_string", vec![STRING_TYPE], quantity::is_quantity)
        .expect(ONCE);
    env.add_overload("sign", "sign_quantity", vec![QUANTITY.to_owned()], quantity::sign).expect(ONCE);
    for (name, arity, function) in QUANTITY_METHODS.iter().copied() {
        let types = std::iter::repeat_with(|| DYN_TYPE).take(arity).collect();
        let id = format!("quantity_{name}");
        env.add_member_overload(name, &id, QUANTITY.to_owned(), types, function).expect(ONCE);
    }
    env
}

/// `cel.bind(x, init, result)`: a loop over nothing whose accumulator is `x`.
fn bind(
    helper: &mut MacroExprHelper<'_>,
    target: &mut Option<IdedExpr>,
    args: &mut Vec<IdedExpr>,
) -> Result<Option<IdedExpr>, ParseError> {
    if !matches!(target.as_ref().map(|target| &target.expr), Some(Expr::Ident(name)) if name == "cel") {
        return Ok(None);
    }
    let [variable, init, result] =
        <[IdedExpr; 3]>::try_from(std::mem::take(args)).expect("the macro is declared for three arguments");
    let Expr::Ident(variable) = variable.expr else {
        return Err(helper.new_error(variable.id, "argument must be a simple name"));
    };
    let iter_range = helper.next_expr(Expr::List(ListExpr::new(Vec::new())));
    let loop_cond = helper.next_expr(Expr::Literal(LiteralValue::Boolean(false.into())));
    let loop_step = helper.next_expr(Expr::Ident(variable.clone()));
    let bound = ComprehensionExpr {
        iter_range,
        iter_var: "#unused".to_owned(),
        iter_var2: None,
        accu_var: variable,
        accu_init: init,
        loop_cond,
        loop_step,
        result,
    };
    Ok(Some(helper.next_expr(Expr::Comprehension(Box::new(bound)))))
}
