//! Random expressions and random text, the same in every run.

use super::{
    super::{CelVariables, Expression, parse, value},
    NAMESPACE, language, libraries, outcome,
    properties::{SHAPES, assert_reads_enough},
    read,
};
use crate::{
    json::{Json, Projection},
    random::Random,
};

/// Expressions without parts, separated by semicolons.
const LEAVES: &str = "
    1; -3; 2u; 1.5; 0; 'a'; ''; 'é1Gi'; b'x'; true; null; []; {}; x; object; object.spec;
    object.metadata.labels; object.spec.containers; object.spec.tags; object.data; object.spec.replicas;
    object.?spec.?replicas; object.spec.containers[0]; namespaceObject; timestamp(0); duration('1h');
    quantity('1Ki'); optional.none(); int; 9223372036854775807; -9223372036854775808; duration('-292y');
    timestamp('9999-12-31T23:59:59Z'); double('NaN')";

/// Expressions with parts, each a `_`.
const FORMS: &str = "
    _ + _; _ - _; _ * _; _ / _; _ % _; _ == _; _ != _; _ < _; _ >= _; _ in _; -(_); !(_); _ && _;
    _ || _; _ ? _ : _; [_, _]; {'k': _}; {_: _}; [?_]; (_)[_]; (_)[?_]; (_).name; (_).?image;
    has((_).name); (_).map(x, _); (_).filter(x, _); (_).all(x, _); (_).exists(x, _);
    (_).exists_one(x, _); (_).map(x, _, _); cel.bind(x, _, _); (_).optMap(x, _); (_).optFlatMap(x, _);
    optional.of(_); optional.ofNonZeroValue(_); (_).orValue(_); (_).or(_); (_).value(); (_).hasValue();
    size(_); type(_); dyn(_); string(_); int(_); uint(_); double(_); bytes(_); bool(_); duration(_);
    timestamp(_); quantity(_); isQuantity(_); (_).add(_); (_).compareTo(_); (_).sum(); (_).min();
    (_).max(); (_).isSorted(); (_).sort(); (_).sortBy(x, _); (_).distinct(); (_).flatten(_);
    (_).slice(_, _); (_).reverse(); lists.range(_); (_).indexOf(_); (_).lastIndexOf(_, _); (_).join(_);
    (_).split(_, _); (_).replace(_, _); (_).substring(_); (_).charAt(_); (_).trim(); (_).matches(_);
    (_).find(_); (_).findAll(_, _); '%s %d'.format([_, _]); (_).format(_); math.greatest(_, _);
    math.abs(_); math.bitShiftLeft(_, _); base64.encode(_); base64.decode(_); strings.quote(_);
    (_).getHours(); (_).getFullYear(_); (_).contains(_); (_).startsWith(_); (_).all(x, y, _); (_).exists(x, y, _);
    (_).existsOne(x, y, _); (_).transformList(x, y, _); (_).transformList(x, y, _, _); (_).transformMap(x, y, _);
    (_).transformMapEntry(x, y, {y: _}); (_).first(); (_).last(); optional.unwrap(_); [_, _].unwrapOpt();
    sets.contains(_, _); sets.equivalent(_, _); sets.intersects(_, _); semver(_); isSemver(_, _); url(_); isURL(_);
    (_).getHost(); ip(_); isIP(_); cidr(_); (_).containsIP(_); (_).masked(); regex.replace(_, _, _);
    regex.extract(_, _); regex.extractAll(_, _); format.named(_); format.uuid().validate(_); (_).major();
    cel.bind(y, _, _ == 1 || _ == y); (_).orValue((_).name); has((_).name.image)";

fn parts(list: &'static str) -> Vec<&'static str> {
    list.split(';').map(str::trim).collect()
}

impl Random {
    /// An expression in which `x` and `y` are known everywhere.
    pub(in crate::extract) fn closed_expression(&mut self) -> String {
        format!(
            "cel.bind(x, object.spec.containers, cel.bind(y, object.spec.replicas, {}))",
            self.expression(3)
        )
    }

    /// An expression; `_` in a form is another one.
    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 || self.below(5) == 0 {
            return self.pick(&parts(LEAVES)).to_owned();
        }
        let form = self.pick(&parts(FORMS));
        form.split('_').enumerate().fold(String::new(), |text, (index, part)| match index {
            // `exists_one` has an underscore of its own.
            _ if text.ends_with("exists") => text + "_" + part,
            0 => part.to_owned(),
            _ => text + &self.expression(depth - 1) + part,
        })
    }
}

#[test]
fn random_expressions_never_panic_and_need_no_more_than_their_projection() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut valid = 0;
    // `make fuzz` has more.
    let count = std::env::var("EXPRESSIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(3000);
    for _ in 0..count {
        let text = random.closed_expression();
        let Ok(expression) = Expression::compile(&text) else { continue };
        valid += 1;
        assert_reads_enough(&text, &expression);
    }
    assert!(valid > count / 2, "{valid} of {count}");
}

#[test]
fn random_text_never_panics() {
    const PIECES: &[&str] = &[
        "object",
        ".",
        "spec",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "'",
        "\"",
        "\\",
        "é",
        "🦀",
        "1",
        "0x",
        "u",
        "e9",
        "?",
        ":",
        ",",
        "+",
        "-",
        "!",
        "&&",
        "||",
        "==",
        "<",
        " ",
        "\n",
        "//",
        "in",
        "has(",
        ".map(x,",
        ".?",
        "[?",
        "r'",
        "b'",
        "`",
        "@",
        "#",
        "cel.bind(",
        "math.greatest(",
        "null",
        "true",
        "int",
        "as",
        "\u{0}",
        "...",
        "'''",
        "%",
    ];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2000 {
        let text: String = (0..random.below(12)).map(|_| random.pick(PIECES)).collect();
        match Expression::compile(&text) {
            Ok(expression) => {
                assert!(!outcome(&expression, &Json::Null).contains("the interpreter failed"), "{text}");
            }
            Err(error) => assert!(!error.problem.contains("the parser failed"), "{text}"),
        }
    }
}

/// Lists in any order: the interpreter takes the keys of maps in any.
fn unordered(json: &Json<'_>) -> String {
    match json {
        Json::List(items) => {
            let mut items: Vec<String> = items.iter().map(unordered).collect();
            items.sort();
            format!("[{}]", items.join(","))
        }
        Json::Map(map) => {
            map.iter().map(|(key, value)| format!("{key}:{}", unordered(value))).collect::<Vec<_>>().join(",")
        }
        other => {
            let mut out = String::new();
            other.write(&mut out);
            out
        }
    }
}

#[test]
fn guards_change_no_result() {
    let mut random = Random(0xda94_2042_e4dd_58b5);
    let random = (0..2000).map(|_| random.closed_expression());
    let rows = language::CASES.iter().chain(libraries::CASES).map(|(_, text, _)| (*text).to_owned());
    let mut compared = 0;
    for text in rows.chain(random.collect::<Vec<_>>()) {
        let (Ok(guarded), Ok(plain)) = (Expression::compile(&text), parse::parse(&text)) else { continue };
        for shape in SHAPES {
            let (object, namespace) =
                (read(shape, &Projection::everything()), read(NAMESPACE, &Projection::everything()));
            let variables =
                CelVariables::new(&object, &crate::json::Projection::everything(), Some(&namespace)).unwrap();
            let context = variables.context();
            let plain = cel::Value::resolve_val(&plain.root, &context);
            if let (Ok(guarded), Ok(plain)) = (guarded.evaluate(&variables, super::MAX_BYTES), plain)
                && let Ok(plain) = value::to_json(plain.as_ref(), super::MAX_BYTES)
            {
                assert_eq!(unordered(&guarded), unordered(&plain), "{text} on {shape}");
                compared += 1;
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}
