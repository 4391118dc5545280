//! Secrets among the manifests: credentials of sinks, taken from the environment or from files where
//! the manifest says so. No value is ever part of a message.

use std::{env, fs};

use base64::{Engine, prelude::BASE64_STANDARD};
use kollect_model::SpecError;
use serde_json::Value;

use crate::resolve::{SecretContents, check_secret_type};

/// What a Secret holds, or everything that is wrong with it.
pub(super) fn contents(secret: &Value) -> Result<SecretContents, Vec<SpecError>> {
    let mut contents = SecretContents::new();
    let mut errors = Vec::new();
    let type_ = secret["type"].as_str();
    if let Err(problem) = check_secret_type(type_) {
        errors.push(SpecError::new("type", &type_.into(), problem));
    }
    let entries = |part: &'static str| secret[part].as_object().into_iter().flatten();
    let texts = entries("data").map(|entry| ("data", entry));
    for (part, (key, value)) in texts.chain(entries("stringData").map(|entry| ("stringData", entry))) {
        let field = format!("{part}.{key}");
        let read = match value.as_str() {
            None => Err("must be a text".to_owned()),
            Some(text) if part == "stringData" => expand(text).map(String::into_bytes),
            Some(text) => BASE64_STANDARD
                .decode(text.trim())
                .map_err(|_| "must be base64; write plain text under stringData".to_owned()),
        };
        match read {
            Ok(value) => drop(contents.insert(key.clone(), value)),
            Err(problem) => errors.push(SpecError::absent(field, problem)),
        }
    }
    if errors.is_empty() { Ok(contents) } else { Err(errors) }
}

/// The text with `${env:NAME}` and `${file:PATH}` replaced by what they name.
fn expand(text: &str) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let Some((name, tail)) = after.split_once('}') else {
            return Err("has ${ without }".into());
        };
        let value = match name.split_once(':') {
            Some(("env", name)) => {
                env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?
            }
            Some(("file", path)) => fs::read_to_string(path)
                .map_err(|error| format!("read {path}: {error}"))?
                .trim_end_matches('\n')
                .to_owned(),
            _ => return Err("knows ${env:NAME} and ${file:PATH} only".into()),
        };
        expanded.push_str(&value);
        rest = tail;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn placeholders_are_replaced_from_the_environment_and_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        fs::write(&file, "hunter2\n").unwrap();
        let path = file.display();
        let secret = json!({
            "data": { "a": "aGVsbG8=" },
            "stringData": {
                "dsn": format!("postgres://me:${{file:{path}}}@db/x"),
                "home": "${env:CARGO_MANIFEST_DIR}",
                "plain": "$5 {x}",
            },
        });
        let contents = contents(&secret).unwrap();
        assert_eq!(contents["a"], b"hello");
        assert_eq!(contents["dsn"], b"postgres://me:hunter2@db/x");
        assert_eq!(contents["home"], env!("CARGO_MANIFEST_DIR").as_bytes());
        assert_eq!(contents["plain"], b"$5 {x}");
    }

    #[test]
    fn a_secret_of_a_type_that_sinks_may_not_use_is_refused() {
        let secret =
            json!({ "type": "kubernetes.io/service-account-token", "stringData": { "token": "hunter2" } });
        let errors: Vec<String> = contents(&secret).unwrap_err().iter().map(ToString::to_string).collect();
        assert!(errors[0].starts_with("type") && errors[0].contains("type Opaque"), "{errors:?}");
        assert!(!errors[0].contains("hunter2"), "{errors:?}");
    }

    #[test]
    fn errors_name_what_is_missing_and_show_no_value() {
        let secret = json!({
            "data": { "a": "hunter2!" },
            "stringData": { "b": "hunter2 ${env:KOLLECT_NO_SUCH_VARIABLE}", "c": "hunter2 ${x}", "d": "${env:", "e": 1 },
        });
        let errors: Vec<String> = contents(&secret).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "data.a: must be base64; write plain text under stringData",
                "stringData.b: the environment variable KOLLECT_NO_SUCH_VARIABLE is not set",
                "stringData.c: knows ${env:NAME} and ${file:PATH} only",
                "stringData.d: has ${ without }",
                "stringData.e: must be a text",
            ]
        );
    }
}
