//! Changes the white space of JSON texts: numbers and strings keep every character.

/// The text with one value per line, indented by two spaces, as Go writes it.
pub(super) fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    let mut before = ' ';
    walk(json, |c, in_string| {
        let opened = matches!(before, '{' | '[');
        match c {
            '}' | ']' if !in_string => {
                depth = depth.saturating_sub(1);
                if !opened {
                    line(&mut out, depth);
                }
                out.push(c);
            }
            _ => {
                if opened {
                    line(&mut out, depth);
                }
                out.push(c);
                match c {
                    '{' | '[' if !in_string => depth += 1,
                    ',' if !in_string => line(&mut out, depth),
                    ':' if !in_string => out.push(' '),
                    _ => {}
                }
            }
        }
        before = if in_string { ' ' } else { c };
    });
    out
}

/// The text without white space between values.
pub(super) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    walk(json, |c, _| out.push(c));
    out
}

/// Every character that is not white space between values, and whether it belongs to a string.
fn walk(json: &str, mut visit: impl FnMut(char, bool)) {
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if in_string {
            visit(c, true);
            in_string = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
        } else if c == '"' {
            in_string = true;
            visit(c, true);
        } else if !c.is_ascii_whitespace() {
            visit(c, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_compacted_without_changing_values() {
        let text = r#"{"a":[1.50,{"b":" {[,:\"\\"}],"c":{},"d":[],"e":18446744073709551615}"#;
        let pretty = "{\n  \"a\": [\n    1.50,\n    {\n      \"b\": \" {[,:\\\"\\\\\"\n    }\n  ],\n  \"c\": {},\n  \"d\": [],\n  \"e\": 18446744073709551615\n}";
        assert_eq!(indented(text), pretty);
        assert_eq!(compact(pretty), text);
        assert_eq!(indented(pretty), pretty);
        assert_eq!(indented("[]"), "[]");
    }
}
