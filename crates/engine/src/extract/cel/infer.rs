//! Types of expressions as far as a schema shows them, and mistakes that follow from them.
//!
//! CEL's type checker refuses what may go wrong; this one only reports what always goes wrong: a field that the schema does not
//! have, an operand that no operator takes, a result that can never have the type of its attribute. What it does not understand
//! has any type.

use cel::{
    IdedExpr,
    common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue, operators},
};
use kollect_model::schema::AttributeType;

use super::{
    super::schema::{Field, Shape, ShapeKind, no_field},
    CelError,
    check::namespaced,
    names::OBJECT,
    parse::{ParsedExpression, children, parse},
    project::is_bind,
};

/// A type, as far as it is known.
#[derive(Clone, Debug)]
enum StaticType<'s> {
    Any,
    Bool,
    Int,
    Double,
    /// An integer or a double.
    Number,
    String,
    /// Anything that is not made of other values and is none of the above.
    Opaque(&'static str),
    List(Box<StaticType<'s>>),
    Map(Box<StaticType<'s>>),
    Fields(Shape<'s>),
    Optional(Box<StaticType<'s>>),
}

use StaticType::{Any, Bool, Double, Fields, Int, List, Map, Number, Opaque, Optional, String as Text};

/// Methods that only texts have.
const TEXT_METHODS: &str = " startsWith endsWith contains matches find findAll split replace substring charAt trim lowerAscii \
                            upperAscii format ";
const BOOL_RESULTS: &str = " startsWith endsWith contains matches hasValue isSorted isQuantity isSemver isURL isIP isCIDR bool \
                             isInteger isGreaterThan isLessThan containsIP containsCIDR sets.contains sets.equivalent \
                             sets.intersects ";
const INT_RESULTS: &str = " size int indexOf lastIndexOf asInteger compareTo sign major minor patch getHours getMinutes getSeconds \
                            getMilliseconds getFullYear getMonth getDate getDayOfMonth getDayOfWeek getDayOfYear prefixLength \
                            family ";
const TEXT_RESULTS: &str = " string replace substring charAt trim lowerAscii upperAscii format join find getHost getHostname getPort \
                             getScheme getEscapedPath strings.quote base64.encode regex.replace ";
const LIST_RESULTS: &str = " split findAll regex.extractAll lists.range ";

fn is_listed(list: &str, name: &str) -> bool {
    list.contains(&format!(" {name} "))
}

impl<'s> StaticType<'s> {
    fn of(shape: Shape<'s>) -> Self {
        match shape.kind() {
            ShapeKind::Any => Any,
            ShapeKind::Bool => Bool,
            ShapeKind::Int => Int,
            ShapeKind::Number => Number,
            ShapeKind::String => Text,
            ShapeKind::List(items) => List(Box::new(Self::of(items))),
            ShapeKind::Map(values) => Map(Box::new(Self::of(values))),
            ShapeKind::Fields => Fields(shape),
        }
    }

    /// The name with its article.
    fn described(&self) -> Option<String> {
        let name = self.name()?;
        let article = if name.starts_with(['i', 'o']) { "an" } else { "a" };
        Some(format!("{article} {name}"))
    }

    /// A word for it; none if it may be anything.
    fn name(&self) -> Option<&'static str> {
        Some(match self {
            Any => return None,
            Bool => "bool",
            Int => "int",
            Double => "double",
            Number => "number",
            Text => "string",
            Opaque(name) => name,
            List(_) => "list",
            Map(_) | Fields(_) => "map",
            Optional(_) => "optional",
        })
    }

    fn is_number(&self) -> bool {
        matches!(self, Int | Double | Number)
    }

    /// Whether values of both can be equal or ordered.
    fn is_comparable(&self, other: &Self) -> bool {
        match (self.name(), other.name()) {
            (Some(a), Some(b)) => a == b || (self.is_number() && other.is_number()),
            _ => true,
        }
    }

    fn either(self, other: Self) -> Self {
        match (self, other) {
            (List(a), List(b)) => List(Box::new(a.either(*b))),
            (Map(a), Map(b)) => Map(Box::new(a.either(*b))),
            (Optional(a), Optional(b)) => Optional(Box::new(a.either(*b))),
            (Fields(a), Fields(b)) if a.is_same(b) => Fields(a),
            (Fields(_), _) | (_, Fields(_)) => Any,
            (a, b) if a.name().is_some() && a.name() == b.name() => a,
            _ => Any,
        }
    }

    /// What an index of a list or a key of a map gives.
    fn item(self) -> Self {
        match self {
            List(items) => *items,
            Map(values) => *values,
            _ => Any,
        }
    }

    /// What an optional holds; any other type is its own.
    fn unwrapped(self) -> Self {
        if let Optional(inner) = self { *inner } else { self }
    }

    /// Whether no value of this type can become one of the declared type.
    fn is_never(&self, declared: AttributeType) -> bool {
        use AttributeType as D;
        match self {
            Any => false,
            Optional(inner) => inner.is_never(declared),
            List(_) => declared != D::List,
            Map(_) | Fields(_) => declared != D::Map,
            Bool => !matches!(declared, D::Bool | D::String),
            Int | Double | Number => !matches!(declared, D::Int | D::Number | D::String | D::Quantity),
            Text | Opaque(_) => matches!(declared, D::List | D::Map),
        }
    }
}

/// What the schema of `object` shows about an expression whose attribute has a declared type.
pub(crate) fn schema_warnings(
    text: &str,
    object: Shape<'_>,
    declared: Option<AttributeType>,
) -> Vec<CelError> {
    let Ok(parsed) = parse(text) else { return Vec::new() };
    let mut inference = Inference { parsed: &parsed, object, variables: Vec::new(), warnings: Vec::new() };
    let result = inference.infer(&parsed.root);
    if let (Some(declared), Some(name)) = (declared, result.clone().unwrapped().described())
        && result.is_never(declared)
    {
        let problem = format!("the result is {name}, which can never be the type {}", declared.name());
        inference.warnings.push(CelError { at: None, problem });
    }
    inference.warnings
}

struct Inference<'p, 's> {
    parsed: &'p ParsedExpression,
    object: Shape<'s>,
    /// Of macros, innermost last.
    variables: Vec<(&'p str, StaticType<'s>)>,
    warnings: Vec<CelError>,
}

impl<'p, 's> Inference<'p, 's> {
    fn warn(&mut self, node: &IdedExpr, problem: String) {
        let warning = CelError { at: self.parsed.at(node), problem };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn infer(&mut self, expr: &'p IdedExpr) -> StaticType<'s> {
        match &expr.expr {
            Expr::Literal(literal) => match literal {
                LiteralValue::Boolean(_) => Bool,
                LiteralValue::Int(_) | LiteralValue::UInt(_) => Int,
                LiteralValue::Double(_) => Double,
                LiteralValue::String(_) => Text,
                LiteralValue::Bytes(_) => Opaque("bytes"),
                LiteralValue::Null => Any,
            },
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) => {
                let value = self.infer(&select.operand);
                let field = self.field(expr, value, &select.field);
                if select.test { Bool } else { field }
            }
            Expr::List(list) => {
                let mut items = list.elements.iter().map(|item| self.infer(item)).collect::<Vec<_>>();
                let first = if items.is_empty() { Any } else { items.remove(0) };
                List(Box::new(items.into_iter().fold(first, StaticType::either)))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.infer(&entry.key);
                        self.infer(&entry.value);
                    }
                }
                Map(Box::new(Any))
            }
            Expr::Call(call) => self.call(expr, call),
            Expr::Comprehension(c) => self.comprehension(expr, c),
            Expr::Struct(_) | Expr::Unspecified => Any,
        }
    }

    fn variable(&self, name: &str) -> StaticType<'s> {
        if let Some((_, known)) = self.variables.iter().rev().find(|(known, _)| *known == name) {
            return known.clone();
        }
        if name.trim_start_matches('.') == OBJECT { StaticType::of(self.object) } else { Any }
    }

    /// The type of a field; reports one that does not exist.
    fn field(&mut self, at: &IdedExpr, value: StaticType<'s>, name: &str) -> StaticType<'s> {
        match value {
            Optional(inner) => Optional(Box::new(self.field(at, *inner, name))),
            Fields(shape) => match shape.field(name) {
                Field::Known(field) => StaticType::of(field),
                Field::Open => Any,
                Field::Missing(similar) => {
                    self.warn(at, no_field(name, similar.as_deref()));
                    Any
                }
            },
            Map(values) => *values,
            List(_) => {
                self.warn(at, "a list has no fields: use an index, or a macro such as map".into());
                Any
            }
            Bool | Int | Double | Number | Text => {
                let problem = format!("{} has no fields", value.described().unwrap_or_default());
                self.warn(at, problem);
                Any
            }
            Any | Opaque(_) => Any,
        }
    }

    fn call(&mut self, expr: &'p IdedExpr, call: &'p CallExpr) -> StaticType<'s> {
        match (call.func_name.as_str(), call.args.as_slice()) {
            (operators::INDEX, [value, key]) => {
                let value = self.infer(value);
                self.indexed(expr, value, key)
            }
            (operators::OPT_INDEX | operators::OPT_SELECT, [value, key]) => {
                let value = self.infer(value).unwrapped();
                Optional(Box::new(self.indexed(expr, value, key)))
            }
            (operators::CONDITIONAL, [condition, yes, no]) => {
                self.expect_bool(condition, "?");
                let yes = self.infer(yes);
                let no = self.infer(no);
                yes.either(no)
            }
            (name @ (operators::LOGICAL_AND | operators::LOGICAL_OR), [a, b]) => {
                let sign = if name == operators::LOGICAL_AND { "&&" } else { "||" };
                self.expect_bool(a, sign);
                self.expect_bool(b, sign);
                Bool
            }
            (operators::LOGICAL_NOT, [a]) => {
                self.expect_bool(a, "!");
                Bool
            }
            (name, [a, b]) if sign_of_operator(name).is_some() => self.operator(expr, name, a, b),
            _ => self.function(expr, call),
        }
    }

    fn expect_bool(&mut self, operand: &'p IdedExpr, sign: &str) {
        let found = self.infer(operand);
        if let Some(name) = found.described().filter(|_| !matches!(found, Bool)) {
            self.warn(operand, format!("{sign} takes a bool, and this is {name}"));
        }
    }

    fn indexed(&mut self, at: &IdedExpr, value: StaticType<'s>, key: &'p IdedExpr) -> StaticType<'s> {
        if let Expr::Literal(LiteralValue::String(name)) = &key.expr {
            return self.field(at, value, name.inner());
        }
        self.infer(key);
        match value {
            Optional(inner) => Optional(Box::new(inner.item())),
            value => value.item(),
        }
    }

    fn operator(
        &mut self,
        expr: &'p IdedExpr,
        name: &str,
        a: &'p IdedExpr,
        b: &'p IdedExpr,
    ) -> StaticType<'s> {
        let (a, b) = (self.infer(a), self.infer(b));
        let sign = sign_of_operator(name).unwrap_or_default();
        let words = a.described().zip(b.described());
        match sign {
            "==" | "!=" | "<" | "<=" | ">" | ">=" => {
                if let (Some((left, right)), false) = (words, a.is_comparable(&b)) {
                    let outcome =
                        if ["==", "!="].contains(&sign) { "they are never equal" } else { "it always fails" };
                    self.warn(expr, format!("{sign} compares {left} with {right}: {outcome}"));
                }
                Bool
            }
            "in" => Bool,
            _ => {
                let both_text = matches!((&a, &b), (Text, Text)) && sign == "+";
                let both_lists = matches!((&a, &b), (List(_), List(_))) && sign == "+";
                let numbers = a.is_number() && b.is_number();
                let mixed = matches!((&a, &b), (Int, Double) | (Double, Int));
                let may_be_time = [&a, &b].iter().any(|operand| matches!(operand, Opaque(_)));
                if let Some((left, right)) = words
                    && !both_text
                    && !both_lists
                    && !may_be_time
                    && (!numbers || mixed)
                {
                    self.warn(expr, format!("{sign} does not take {left} and {right}: convert one of them"));
                    return Any;
                }
                if both_lists {
                    a.either(b)
                } else if both_text || (numbers && !mixed) {
                    a
                } else {
                    Any
                }
            }
        }
    }

    fn function(&mut self, expr: &'p IdedExpr, call: &'p CallExpr) -> StaticType<'s> {
        if let Some(full) = namespaced(call) {
            let args: Vec<_> = call.args.iter().map(|arg| self.infer(arg)).collect();
            return match (full.as_str(), args.as_slice()) {
                ("optional.of" | "optional.ofNonZeroValue", [inner]) => Optional(Box::new(inner.clone())),
                _ => result_of(&full),
            };
        }
        let target = call.target.as_deref().map(|target| self.infer(target));
        let args: Vec<_> = call.args.iter().map(|arg| self.infer(arg)).collect();
        let name = call.func_name.trim_start_matches('.');
        if let Some(found) = target.as_ref().and_then(StaticType::described)
            && is_listed(TEXT_METHODS, name)
            && !matches!(target, Some(Text | Optional(_)))
        {
            self.warn(expr, format!("{name} is a function of texts, and this is {found}"));
            return Any;
        }
        match (name, target, args.as_slice()) {
            ("dyn", None, _) => Any,
            ("value", Some(optional), []) => optional.unwrapped(),
            ("orValue", Some(optional), [other]) => optional.unwrapped().either(other.clone()),
            ("or", Some(optional), [other]) => optional.either(other.clone()),
            ("first" | "last", Some(List(items)), []) => Optional(items),
            ("sort" | "distinct" | "reverse" | "slice" | "sortBy", Some(list @ List(_)), _) => list,
            ("min" | "max" | "sum", Some(List(items)), []) => *items,
            _ => result_of(name),
        }
    }

    fn comprehension(&mut self, expr: &'p IdedExpr, c: &'p ComprehensionExpr) -> StaticType<'s> {
        let outer = self.variables.len();
        if is_bind(c) {
            let value = self.infer(&c.accu_init);
            self.variables.push((&c.accu_var, value));
            let result = self.infer(&c.result);
            self.variables.truncate(outer);
            return result;
        }
        let range = self.infer(&c.iter_range);
        let (key, value) = match range {
            List(items) => (Int, *items),
            Map(values) => (Text, *values),
            Fields(_) => (Text, Any),
            Bool | Int | Double | Number | Text => {
                let name = range.described().unwrap_or_default();
                self.warn(expr, format!("a macro runs over a list or a map, and this is {name}"));
                (Any, Any)
            }
            _ => (Any, Any),
        };
        let over_map = matches!(key, Text);
        match &c.iter_var2 {
            Some(second) => self.variables.extend([(c.iter_var.as_str(), key), (second.as_str(), value)]),
            None => self.variables.push((&c.iter_var, if over_map { key } else { value })),
        }
        self.variables.push((&c.accu_var, Any));
        let result = match (&c.accu_init.expr, appended(&c.loop_step)) {
            (Expr::List(_), Some((condition, item))) => {
                if let Some(condition) = condition {
                    self.expect_bool(condition, "a filter");
                }
                List(Box::new(self.infer(item)))
            }
            (init, _) => {
                children(&c.loop_step).into_iter().for_each(|part| drop(self.infer(part)));
                let counts = matches!(init, Expr::Literal(LiteralValue::Boolean(_) | LiteralValue::Int(_)));
                if counts { Bool } else { Any }
            }
        };
        self.variables.truncate(outer);
        result
    }
}

/// The condition and the item of `condition ? result + [item] : result`, where the condition may be missing.
fn appended(step: &IdedExpr) -> Option<(Option<&IdedExpr>, &IdedExpr)> {
    let Expr::Call(call) = &step.expr else { return None };
    match (call.func_name.as_str(), call.args.as_slice()) {
        (operators::ADD, [_, items]) => match &items.expr {
            Expr::List(list) => list.elements.first().map(|item| (None, item)),
            _ => None,
        },
        (operators::CONDITIONAL, [condition, step, _]) => {
            appended(step).map(|(_, item)| (Some(condition), item))
        }
        _ => None,
    }
}

fn sign_of_operator(name: &str) -> Option<&'static str> {
    Some(match name {
        operators::ADD => "+",
        operators::SUBSTRACT => "-",
        operators::MULTIPLY => "*",
        operators::DIVIDE => "/",
        operators::MODULO => "%",
        operators::EQUALS => "==",
        operators::NOT_EQUALS => "!=",
        operators::LESS => "<",
        operators::LESS_EQUALS => "<=",
        operators::GREATER => ">",
        operators::GREATER_EQUALS => ">=",
        operators::IN => "in",
        _ => return None,
    })
}

/// The type of what a function gives, if that is always the same.
fn result_of<'s>(name: &str) -> StaticType<'s> {
    match name {
        "double" | "asApproximateFloat" => Double,
        "timestamp" => Opaque("timestamp"),
        "duration" => Opaque("duration"),
        "bytes" | "base64.decode" => Opaque("bytes"),
        "quantity" | "add" | "sub" => Opaque("quantity"),
        "regex.extract" => Optional(Box::new(Text)),
        _ if is_listed(BOOL_RESULTS, name) => Bool,
        _ if is_listed(INT_RESULTS, name) => Int,
        _ if is_listed(TEXT_RESULTS, name) => Text,
        _ if is_listed(LIST_RESULTS, name) => List(Box::new(Any)),
        _ => Any,
    }
}
