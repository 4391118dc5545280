//! What is refused, at which position, and with which message.

use super::*;

fn refused(text: &str) -> PathError {
    match Path::parse(text) {
        Err(error) => error,
        Ok(path) => unreachable!("{text}: {path:?}"),
    }
}

/// The text, where it is wrong, and a part of the problem.
fn check(vectors: &[(&str, usize, &str)]) {
    for (text, at, problem) in vectors {
        let error = refused(text);
        assert!(error.problem.contains(problem), "{text}: {error:?}");
        assert_eq!(error.at, *at, "{text}: {error:?}");
    }
}

#[test]
fn a_text_that_is_not_one_path_is_refused_at_the_position_of_the_mistake() {
    check(&[
        ("", 0, "starts with $ or a dot"),
        ("{}", 1, "starts with $ or a dot"),
        ("spec.x", 0, "a path starts with $ or a dot, such as $.spec.x"),
        ("{spec.x}", 1, "starts with $ or a dot"),
        ("{\"text\"}", 1, "starts with $ or a dot"),
        ("object.spec", 0, "starts with $ or a dot"),
        ("$spec", 1, "expected a dot or ["),
        ("kind is {.kind}", 0, "without text around it"),
        ("{.kind} is it", 8, "without text around it"),
        ("{.a}{.b}", 4, "one block"),
        ("{.a} {.b}", 5, "one block"),
        ("{range .items[*]}{.metadata.name}{end}", 1, "range and end"),
        ("{end}", 1, "range and end"),
        ("{.spec.replicas", 15, "closing } is missing"),
        (".spec}", 5, "no opening bracket"),
        ("{.spec}}", 7, "without text around it"),
        ("{.a{.b}}", 3, "around the whole path"),
    ]);
}

#[test]
fn bad_keys_are_refused() {
    check(&[
        ("$.a.", 4, "key is missing"),
        ("$.", 2, "key is missing"),
        ("{.a.}", 4, "key is missing"),
        ("{.a b}", 3, "quote a key"),
        (".a=b", 2, "quote a key"),
        (".a$b", 2, "quote a key"),
        (".'a'", 1, "stands in brackets"),
        (".a\\", 3, "nothing follows"),
        (".a*", 2, "* stands alone"),
        (".*a", 2, "expected a dot or ["),
        ("...a", 2, "one dot too many"),
        ("$..", 3, "name what to find"),
        ("{..}", 3, "name what to find"),
        ("$.items.length()", 14, "functions"),
        ("length($.items)", 0, "functions"),
    ]);
}

#[test]
fn bad_brackets_are_refused() {
    check(&[
        ("$.a[0", 5, "closing ] is missing"),
        ("$.a[", 4, "expected an index"),
        ("$.a[]", 4, "expected an index"),
        ("$.a[x]", 4, "expected an index"),
        ("$.a[+1]", 4, "expected an index"),
        ("$.a]", 3, "no opening bracket"),
        ("$.a[0]]", 6, "no opening bracket"),
        ("$.a[0]b", 6, "expected a dot or ["),
        ("$.a[0 1]", 6, "expected ] here"),
        ("$.a['b]", 4, "closing quote is missing"),
        ("$.a[\"b']", 4, "closing quote is missing"),
        ("$.a['b\\", 4, "closing quote is missing"),
        ("$.a[(@.length-1)]", 4, "[-1] is the last item"),
        ("$.a[-]", 5, "number is missing"),
        ("$.a[9223372036854775808]", 4, "too large"),
        ("$.a[0:9223372036854775808]", 6, "too large"),
        ("$.a[0:6:0]", 8, "at least 1"),
        ("$.a[0:6:-1]", 8, "at least 1"),
        ("$.a[0:1:2:3]", 9, "expected ] here"),
        ("$.a[0,'b']", 6, "only indices or only quoted keys"),
        ("$.a['b',0]", 8, "only indices or only quoted keys"),
        ("$.a[0,]", 6, "only indices or only quoted keys"),
        ("$.a[*,0]", 5, "only indices or only quoted keys"),
        ("$.a['*','b']", 4, "'*' stands alone"),
        (&format!("$.a{}", "['b','b']".repeat(7)), 66, "the same values too often"),
        ("$.a[?(@[0,0,0,0,0,0,0,0,0][?(@[0,0,0,0,0,0,0,0,0].x)])]", 53, "the same values too often"),
    ]);
}

#[test]
fn bad_filters_are_refused() {
    check(&[
        ("$.a[?@.b]", 5, "stands in parentheses"),
        ("$.a[?(@.b]", 9, "expected a comparison, &&, || or )"),
        ("$.a[?(@.b", 9, "closing ) is missing"),
        ("$.a[?(@.b)", 10, "closing ] is missing"),
        ("$.a[?((@.b)]", 11, "expected a comparison, &&, || or )"),
        ("$.a[?(@.b) || (@.c)]", 11, "one pair of parentheses"),
        ("$.a[?()]", 6, "expected a path or a value"),
        ("$.a[?(@.b ==)]", 12, "expected a path or a value"),
        ("$.a[?(@.b && )]", 13, "expected a path or a value"),
        ("$.a[?(@b)]", 7, "expected a dot or ["),
        ("$.a[?(@. == 1)]", 8, "key is missing"),
        ("$.a[?(@.b c)]", 10, "expected a comparison, &&, || or )"),
        ("$.a[?(@.b and @.c)]", 10, "expected a comparison, &&, || or )"),
        ("$.a[?(@.b = 1)]", 10, "write == to compare"),
        ("$.a[?(@.b =~ '.*')]", 10, "=~ is not available"),
        ("$.a[?(@.b=~'.*')]", 9, "=~ is not available"),
        ("$.a[?(@.b <> 1)]", 10, "write !="),
        ("$.a[?(@.b === 1)]", 10, "no such comparison"),
        ("$.a[?(@.b => 1)]", 10, "no such comparison"),
        ("$.a[?(@.b & @.c)]", 10, "write &&"),
        ("$.a[?(@.b | @.c)]", 10, "write ||"),
        ("$.a[?(1 < @.b < 5)]", 14, "two values at a time"),
        ("$.a[?(@.b == yes)]", 13, "quote text"),
        ("$.a[?(@.b == 5Gi)]", 13, "quote text"),
        ("$.a[?(@.b == 1e999)]", 13, "quote text"),
        ("$.a[?(b == 1)]", 6, "quote text"),
        ("$.a[?(@.b == 'c)]", 13, "closing quote is missing"),
        (r"$.a[?(@.b == 'a\d')]", 15, "can be escaped"),
        ("$.a[?('x')]", 6, "compare this with a path"),
        ("$.a[?(true)]", 6, "compare this with a path"),
        ("$.a[?(1 == 1)]", 6, "one side of a comparison is a path"),
        ("$.a[?(!'x')]", 7, "! stands before"),
        ("$.a[?(!!@.b)]", 7, "one ! is enough"),
        ("$.a[?(!@.b == 1)]", 11, "into parentheses"),
        ("$.a[?(length(@.b) > 1)]", 6, "functions"),
        ("$.a[?(@.b.length() > 1)]", 16, "functions"),
        ("$.a[?(not(@.b))]", 6, "functions"),
        ("$.a[?(@.b[*] == @.c[*])]", 13, "only one side"),
        ("$.a[?(@.b == $..c)]", 13, "names one value"),
        ("$.a[?($.b[*])]", 6, "names one value"),
        ("$..a[?(@..c)]", 8, "stands behind a .."),
        ("$..[?(@..c)]", 7, "stands behind a .."),
        ("$.a[?(@..b[?(@..c)])]", 14, "stands behind a .."),
        ("$..a[?(@.b[?(@..c)])]", 14, "stands behind a .."),
    ]);
}

#[test]
fn offsets_count_characters() {
    assert_eq!(refused("$.grüße🦀.").at, 9);
}

#[test]
fn length_steps_and_nesting_are_limited() {
    let longest = format!("$.{}", "a".repeat(4094));
    assert!(Path::parse(&longest).is_ok());
    let error = refused(&format!("{longest}a"));
    assert_eq!((error.at, error.problem.contains("4096")), (4096, true), "{error:?}");

    assert!(Path::parse(&format!("${}", ".a".repeat(64))).is_ok());
    let error = refused(&format!("${}", ".a".repeat(65)));
    assert_eq!((error.at, error.problem.contains("64 steps")), (129, true), "{error:?}");

    let nested = |count: usize| format!("$[?{}@.a{}]", "(".repeat(count), ")".repeat(count));
    assert!(Path::parse(&nested(31)).is_ok());
    let error = refused(&nested(32));
    assert_eq!((error.at, error.problem.contains("at most 32")), (34, true), "{error:?}");

    let filters = |count: usize| format!("$.a{}{}", "[?(@.a".repeat(count), ")]".repeat(count));
    assert!(Path::parse(&filters(16)).is_ok());
    assert!(refused(&filters(17)).problem.contains("at most 32"));
}
