//! kubectl's JSONPath, as far as it names one place: keys and indices.
//!
//! `{.spec.replicas}`, `.spec.replicas`, `$.spec.replicas`, `$['a']["b"]`, `.metadata.labels.app\.kubernetes\.io/name`,
//! `.items[0]`, `.items[-1]`. Everything else is refused when the profile is compiled.

use serde_json::Value;

/// A path that names one place in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    Index(i64),
}

/// Where in the text a path is wrong, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PathError {
    /// Offset in characters.
    pub(crate) at: usize,
    pub(crate) problem: String,
}

impl Path {
    pub(crate) fn parse(text: &str) -> Result<Self, PathError> {
        Parser { chars: text.chars().collect(), at: 0 }.path()
    }

    /// The value at the path; `None` when any step of it is missing.
    pub(crate) fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(object, |value, step| match step {
            Step::Key(key) => value.as_object()?.get(key),
            Step::Index(index) => {
                let items = value.as_array()?;
                let index = usize::try_from(*index)
                    .ok()
                    .or_else(|| items.len().checked_sub(usize::try_from(index.unsigned_abs()).ok()?))?;
                items.get(index)
            }
        })
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
}

impl Parser {
    fn path(mut self) -> Result<Path, PathError> {
        let braced = self.eat('{');
        self.eat('$');
        let mut steps = Vec::new();
        loop {
            match self.peek() {
                Some('.') if self.chars.get(self.at + 1) == Some(&'.') => {
                    return self.fail("recursive descent (..) is not available in this build");
                }
                Some('.') => {
                    self.at += 1;
                    // `.['key']` is a spelling of `['key']`, and `.` alone is the whole object.
                    let whole = steps.is_empty() && matches!(self.peek(), None | Some('}'));
                    if !whole && self.peek() != Some('[') {
                        steps.push(Step::Key(self.bare_key()?));
                    }
                }
                Some('[') => steps.push(self.bracket()?),
                Some('}') if braced => {
                    self.at += 1;
                    return match self.peek() {
                        None => Ok(Path(steps)),
                        Some(_) => self.fail("a path is one block: text and further blocks are not allowed"),
                    };
                }
                None if !braced => return Ok(Path(steps)),
                None => return self.fail("the closing } is missing"),
                Some(_) if steps.is_empty() => {
                    return self.fail("a path starts with $ or a dot, such as $.spec.replicas");
                }
                Some(_) => return self.fail("expected a dot or [ here"),
            }
        }
    }

    fn bare_key(&mut self) -> Result<String, PathError> {
        let mut key = String::new();
        while let Some(c) = self.peek() {
            match c {
                '\\' => {
                    self.at += 1;
                    let Some(escaped) = self.peek() else { return self.fail("nothing follows the \\") };
                    key.push(escaped);
                }
                '*' => return self.fail("wildcards are not available in this build"),
                '.' | '[' | '}' => break,
                c if c.is_whitespace() || c == '{' => {
                    return self.fail("quote a key with such a character, as in ['a key']");
                }
                c => key.push(c),
            }
            self.at += 1;
        }
        if key.is_empty() { self.fail("a key is missing here") } else { Ok(key) }
    }

    fn bracket(&mut self) -> Result<Step, PathError> {
        self.at += 1;
        let step = match self.peek() {
            Some(quote @ ('\'' | '"')) => Step::Key(self.quoted(quote)?),
            Some(c) if c.is_ascii_digit() || c == '-' => self.index()?,
            Some('*') => return self.fail("wildcards are not available in this build"),
            Some('?') => return self.fail("filters are not available in this build"),
            Some(':') => return self.fail("slices are not available in this build"),
            _ => return self.fail("expected an index or a quoted key, as in [0] or ['key']"),
        };
        match self.peek() {
            Some(']') => self.at += 1,
            Some(',') => return self.fail("unions are not available in this build"),
            Some(':') => return self.fail("slices are not available in this build"),
            _ => return self.fail("the closing ] is missing"),
        }
        Ok(step)
    }

    fn quoted(&mut self, quote: char) -> Result<String, PathError> {
        self.at += 1;
        let mut key = String::new();
        loop {
            match self.peek() {
                None => return self.fail("the closing quote is missing"),
                Some(c) if c == quote => break,
                Some('\\') => {
                    self.at += 1;
                    key.extend(self.peek());
                }
                Some(c) => key.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        Ok(key)
    }

    fn index(&mut self) -> Result<Step, PathError> {
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_digit() || *c == '-') {
            digits.push(c);
            self.at += 1;
        }
        match digits.parse() {
            Ok(index) => Ok(Step::Index(index)),
            Err(_) => self.fail("this index is not a number"),
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn fail<T>(&self, problem: &str) -> Result<T, PathError> {
        Err(PathError { at: self.at, problem: problem.into() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_place_in_every_spelling() {
        let object = json!({
            "spec": { "replicas": 3, "list": [{ "a": 1 }, { "a": 2 }] },
            "metadata": { "labels": { "app.kubernetes.io/name": "web", "a key": "x", "it's": "y" } },
        });
        for (path, expected) in [
            ("{.spec.replicas}", json!(3)),
            (".spec.replicas", json!(3)),
            ("$.spec.replicas", json!(3)),
            ("{$.spec.replicas}", json!(3)),
            ("$['spec'][\"replicas\"]", json!(3)),
            ("{.spec['replicas']}", json!(3)),
            (r"{.metadata.labels.app\.kubernetes\.io/name}", json!("web")),
            ("$.metadata.labels['app.kubernetes.io/name']", json!("web")),
            ("$.metadata.labels['a key']", json!("x")),
            (r"$.metadata.labels['it\'s']", json!("y")),
            ("{.spec.list[0].a}", json!(1)),
            ("{.spec.list[-1].a}", json!(2)),
            ("{.spec.list[1]}", json!({ "a": 2 })),
        ] {
            assert_eq!(Path::parse(path).unwrap().find(&object), Some(&expected), "{path}");
        }
        for path in
            ["{.spec.nope}", "{.spec.replicas.deeper}", "{.spec.list[2]}", "{.spec.list[-3]}", "{.spec[0]}"]
        {
            assert_eq!(Path::parse(path).unwrap().find(&object), None, "{path}");
        }
        assert_eq!(Path::parse("{.}").unwrap().find(&object), Some(&object));
    }

    #[test]
    fn w31_what_is_not_a_path_is_refused_where_it_is_wrong() {
        for (path, at, problem) in [
            ("spec.replicas", 0, "starts with $ or a dot"),
            ("{.spec.replicas", 15, "closing }"),
            ("{.a}{.b}", 4, "one block"),
            ("{.a} text", 4, "one block"),
            ("{.a..b}", 3, "recursive descent"),
            ("{.a[*]}", 4, "wildcards"),
            ("{.a.*}", 4, "wildcards"),
            ("{.a[?(@.b==1)]}", 4, "filters"),
            ("{.a[0:2]}", 5, "slices"),
            ("{.a[0,1]}", 5, "unions"),
            ("{.a[x]}", 4, "expected an index"),
            ("{.a['b]}", 8, "closing quote"),
            ("{.a b}", 3, "quote a key"),
            ("$.a.", 4, "key is missing"),
        ] {
            let error = Path::parse(path).expect_err(path);
            assert!(error.problem.contains(problem), "{path}: {error:?}");
            assert_eq!(error.at, at, "{path}");
        }
    }
}
