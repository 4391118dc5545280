//! What can still be read of an object that breaks its schema.
//!
//! The other fields of such an object are checked too, so that expressions that do not compile and references that
//! lead nowhere are reported in the same run as the schema's problems.

use serde_json::Value;

/// The object in ways that may be read although these fields are wrong: as it is, with plain values as texts,
/// and without the fields.
pub(super) fn attempts(object: &Value, wrong: &[String]) -> [Value; 3] {
    let (mut texts, mut without) = (object.clone(), object.clone());
    for field in wrong {
        let pointer = pointer(field);
        if let Some(value @ (Value::Number(_) | Value::Bool(_))) = texts.pointer_mut(&pointer) {
            *value = value.to_string().into();
        }
        // An element of a list stays: the indexes of those behind it are in messages.
        if let Some((parent, name)) = pointer.rsplit_once('/')
            && let Some(parent) = without.pointer_mut(parent).and_then(Value::as_object_mut)
        {
            parent.remove(name);
        }
    }
    [object.clone(), texts, without]
}

/// Whether a field is one that was reported already, or below it.
pub(super) fn covers(reported: &str, field: &str) -> bool {
    let rest = field.strip_prefix(reported);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// `spec.attributes[2].path` as `/spec/attributes/2/path`.
fn pointer(field: &str) -> String {
    let mut pointer = String::from("/");
    for c in field.chars() {
        match c {
            '.' | '[' => pointer.push('/'),
            ']' => {}
            c => pointer.push(c),
        }
    }
    pointer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wrong_fields_become_texts_or_are_removed() {
        let object = json!({ "spec": { "list": [{ "a": 1, "b": [2] }, 3], "c": { "d": true } } });
        let wrong = ["spec.list[0].a", "spec.list[0].b", "spec.list[1]", "spec.c.d", "spec.none.e"];
        let [first, texts, without] = attempts(&object, &wrong.map(ToOwned::to_owned));
        assert_eq!(first, object);
        assert_eq!(texts, json!({ "spec": { "list": [{ "a": "1", "b": [2] }, "3"], "c": { "d": "true" } } }));
        assert_eq!(without, json!({ "spec": { "list": [{}, 3], "c": {} } }));
    }

    #[test]
    fn fields_below_a_wrong_one_are_covered() {
        for (field, covered) in [
            ("spec.a[1]", true),
            ("spec.a[1].x", true),
            ("spec.a[1][0]", true),
            ("spec.a[10]", false),
            ("spec.a", false),
        ] {
            assert_eq!(covers("spec.a[1]", field), covered, "{field}");
        }
    }
}
