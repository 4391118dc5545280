//! Paths of jq, as Argo CD writes them in `jqPathExpressions`, as far as they are JSONPaths.

use crate::extract::jsonpath::Path;

const ADVICE: &str = "only paths of jq are available, such as .spec.containers[].env: write filters as a JSONPath in jsonPaths, \
                      such as $.spec.containers[?(@.name == 'proxy')]";

/// The path that an expression of jq names: `.a.b`, `.a["b"]`, `.a."b"`, `.a[0]`, `.a[]`, each with a `?` behind it if you like.
pub(super) fn parse(text: &str) -> Result<Path, String> {
    let text = text.trim();
    if !text.starts_with('.') || text.contains("..") || text.contains(['|', '(', ',', '$', '{']) {
        return Err(ADVICE.into());
    }
    let mut path = String::from("$");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // Missing values are no errors here.
            '?' => {}
            '.' if matches!(chars.peek(), Some('[') | None) => {}
            '.' if chars.peek() == Some(&'"') => {
                chars.next();
                path.push_str(&quoted(&mut chars)?);
            }
            '[' => match chars.peek() {
                Some(']') => {
                    chars.next();
                    path.push_str("[*]");
                }
                Some('"') => {
                    chars.next();
                    path.push_str(&quoted(&mut chars)?);
                    if chars.next() != Some(']') {
                        return Err("the closing ] is missing".into());
                    }
                }
                _ => path.push('['),
            },
            c => path.push(c),
        }
    }
    Path::parse(&path).map_err(|error| error.problem)
}

/// A key up to its closing quote, as a JSONPath writes it.
fn quoted(chars: &mut impl Iterator<Item = char>) -> Result<String, String> {
    let mut key = String::from("['");
    loop {
        match chars.next() {
            Some('"') => return Ok(key + "']"),
            Some(c @ ('\'' | '\\')) => {
                key.push('\\');
                key.push(c);
            }
            Some(c) => key.push(c),
            None => return Err("the closing quote is missing".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{Json, Projection};

    #[test]
    fn paths_of_jq_name_what_they_name_there() {
        let text = r#"{"a":{"b":[{"c":1},{"c":2}],"x.y/z":3,"it's":4},"d":5}"#;
        for (path, expected) in [
            (".a.b[0].c", "1"),
            (".a.b[].c", "[1,2]"),
            (".a.b[]?.c?", "[1,2]"),
            (r#".a["x.y/z"]"#, "3"),
            (r#".a."x.y/z""#, "3"),
            (r#".a["it's"]"#, "4"),
            (".d", "5"),
            (".missing.x", "null"),
        ] {
            let object = Json::read(text, &Projection::everything()).unwrap();
            let mut found = String::new();
            let parsed = parse(path).unwrap_or_else(|problem| unreachable!("{path}: {problem}"));
            parsed.value(&object, 1 << 20).unwrap().write(&mut found);
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn anything_else_of_jq_is_refused_with_advice() {
        for text in [".a[] | select(.b == 1)", "..", "del(.a)", ".a, .b", "a.b", "", ".a[\"b\"", ".a[x]"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(".a | .b").unwrap_err().contains("jsonPaths"));
    }
}
