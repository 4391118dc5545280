//! What is refused when it is compiled: cases of expression, offset and a part of the problem.

use super::super::Expression;

type RefusedCase = (&'static str, Option<usize>, &'static str);

const CASES: &[RefusedCase] = &[
    // Syntax.
    ("", None, "the expression is empty"),
    (" \n ", None, "the expression is empty"),
    ("object.spec.", Some(12), "the expression ends too early"),
    ("1 +", Some(3), "the expression ends too early"),
    ("1 2", Some(2), "did not expect 2 here"),
    ("'éé' + + 1", Some(7), "did not expect + here"),
    ("1 +\n  + 2", Some(6), "did not expect + here"),
    ("'abc", Some(0), "this text is not closed"),
    (r"'\q'", Some(0), "this text is not closed, or has an escape"),
    ("object.spec §", Some(12), "did not expect § here"),
    ("a ? b", Some(5), "the expression ends too early"),
    ("as", Some(0), "as is a reserved word"),
    ("99999999999999999999", Some(0), "does not fit 64 bits"),
    ("has(object)", Some(4), "has() takes a field"),
    ("[1].map(1, 2)", Some(8), "must be a simple name"),
    ("cel.bind(1, 2, 3)", Some(9), "must be a simple name"),
    ("math.greatest([])", Some(14), "invalid single argument"),
    ("math.greatest('a')", Some(14), "invalid single argument"),
    // Variables.
    ("foo", Some(0), "there is no variable foo: known are object and namespaceObject"),
    ("'é' + obect.spec", Some(6), "there is no variable obect: did you mean object?"),
    ("self.spec", Some(0), "it is a variable of Kubernetes, but not available here"),
    ("oldObject.spec", Some(0), "known are object and namespaceObject"),
    ("[1].map(x, y)", Some(11), "there is no variable y: "),
    ("[1].map(item, itme)", Some(14), "did you mean item?"),
    ("[1].map(x, x) + x", Some(16), "there is no variable x: "),
    ("[1].map(.x, .x)", Some(13), "there is no variable .x"),
    ("cel.bind(x, x, 1)", Some(12), "there is no variable x: "),
    ("cel.bind(google, 1, google)", Some(8), "google is the beginning of the names of types"),
    ("[1].map(kubernetes, 1)", Some(7), "choose another name"),
    ("{name: 1}", Some(1), "needs quotes: write 'name'"),
    ("foo.bar()", Some(0), "there is no variable foo"),
    ("Container{name: 'a'}", Some(9), "there is no message Container"),
    // Functions.
    ("fooo(1)", Some(0), "there is no function fooo"),
    ("object.kind.startWith('a')", Some(12), "there is no function startWith: did you mean startsWith?"),
    ("object.kind.startswith('a')", Some(12), "did you mean startsWith?"),
    ("object.kind.foo().size()", Some(12), "there is no function foo"),
    ("sizes(object)", Some(0), "did you mean size?"),
    ("quantiti('1')", Some(0), "did you mean quantity?"),
    ("math.foo(1)", Some(5), "there is no function math.foo"),
    ("math.cell(1.0)", Some(5), "did you mean math.ceil?"),
    ("base64.encod(b'a')", Some(7), "did you mean base64.encode?"),
    ("startsWith('a', 'b')", Some(0), "write x.startsWith(...)"),
    ("'1'.int()", Some(4), "write int(x)"),
    // Numbers of arguments.
    ("size()", Some(0), "size takes 1 argument, not 0"),
    ("'a'.replace('a')", Some(4), "replace takes 2 or 3 arguments, not 1"),
    ("'a'.trim(1)", Some(4), "trim takes 0 arguments, not 1"),
    ("object.spec.containers.map(c)", Some(23), "map takes 2 or 3 arguments, not 1"),
    ("object.spec.containers.filter(c)", Some(23), "filter takes 2 arguments, not 1"),
    ("cel.bind(x, 1)", Some(4), "cel.bind takes 3 arguments, not 2"),
    ("lists.range()", Some(6), "lists.range takes 1 argument, not 0"),
    ("optional.of()", Some(9), "optional.of takes 1 argument, not 0"),
    ("has(object.a, object.b)", Some(0), "has takes 1 argument, not 2"),
    // Libraries of Kubernetes that are not there.
    ("authorizer.group('').resource('pods')", Some(21), "resource is part of the Kubernetes"),
    ("jsonpatch.escapeKey('a')", Some(10), "jsonpatch.escapeKey is part of the Kubernetes"),
    // Patterns.
    ("'a'.matches('(')", Some(12), "the pattern is not valid: the closing ) is missing"),
    ("'a'.find('a(?=b)')", Some(9), "the pattern is not valid"),
    ("matches('a', '[')", Some(13), "the pattern is not valid"),
    ("'a'.findAll('(a{1000}){1000}')", Some(12), "more than 1000 repetitions"),
    ("regex.replace('a', 'a++', '')", Some(19), "repetitions cannot follow each other"),
    ("[1].all(i, i, true)", Some(11), "need different names"),
    ("[1].transformList(v, v)", Some(4), "transformList takes 3 or 4 arguments, not 2"),
];

#[test]
fn mistakes_are_reported_at_their_position() {
    let mut wrong = Vec::new();
    for (text, at, problem) in CASES {
        match Expression::compile(text) {
            Ok(_) => wrong.push(format!("{text}: compiles")),
            Err(error) if error.at != *at || !error.problem.contains(problem) => {
                wrong.push(format!("{text}: {error:?}"));
            }
            Err(_) => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn long_texts_and_patterns_are_refused() {
    let problem =
        |text: String| Expression::compile(&text).err().map(|error| error.problem).unwrap_or_default();
    assert!(problem(format!("'{}'", "a".repeat(8 * 1024))).contains("longer than 8192 bytes"));
    assert!(problem(format!("'a'.matches('{}')", "a".repeat(1025))).contains("longer than 1024 bytes"));
    assert_eq!(problem(format!("'{}'", "a".repeat(8 * 1024 - 2))), "");
}

#[test]
fn deep_texts_are_refused_on_a_small_stack() {
    let nested = |open: &str, inner: &str, close: &str, count: usize| {
        format!("{}{inner}{}", open.repeat(count), close.repeat(count))
    };
    let mut texts = Vec::new();
    for count in [100, 500, 2000, 10_000] {
        texts.extend([
            nested("(", "1", ")", count),
            nested("(", "", "", count),
            nested("[", "1", "]", count),
            nested("{1:", "1", "}", count),
            nested("-", "1", "", count),
            nested("!", "true", "", count),
            nested("-(", "1", ")", count),
            nested("true ? 1 : ", "1", "", count),
            nested("1+", "1", "", count),
            nested("1<", "1", "", count),
            nested("true||", "true", "", count),
            nested("dyn(", "1", ")", count),
            nested("[1].map(x,", "1", ")", count),
            format!("object{}", ".a".repeat(count)),
            format!("object{}", ".?a".repeat(count)),
            format!("object{}", "[0]".repeat(count)),
            format!("'a'{}", ".trim()".repeat(count)),
        ]);
    }
    let small = std::thread::Builder::new().stack_size(1 << 20);
    let compiled = small.spawn(move || {
        let object = crate::json::Json::Null;
        let variables =
            super::super::CelVariables::new(&object, &crate::json::Projection::everything(), None).unwrap();
        let compiled: Vec<_> = texts.iter().filter_map(|text| Expression::compile(text).ok()).collect();
        compiled.iter().for_each(|expression| drop(expression.evaluate(&variables, super::MAX_BYTES)));
        compiled.len()
    });
    // Signs and connectives do not nest, and 100 levels of most are fine.
    let compiled = compiled.expect("a thread").join().expect("no overflow");
    assert!(compiled > 10, "{compiled}");
}
