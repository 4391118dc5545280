//! Reads the documents of YAML and JSON files.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The YAML and JSON files that a path means: itself, or those directly in the directory.
pub(crate) fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let metadata = fs::metadata(path).with_context(|| format!("{}", path.display()))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = fs::read_dir(path).with_context(|| format!("{}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.with_context(|| format!("{}", path.display()))?.path();
        let is_document_file = file
            .extension()
            .is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json");
        if is_document_file && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(anyhow!("{}: holds no .yaml, .yml or .json file", path.display()));
    }
    Ok(files)
}

/// A document and its number in the file, from 1.
pub(crate) type Document = (usize, Result<Value, String>);

/// The text of a file; `-` is the standard input.
pub(crate) fn text(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
    } else {
        text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    }
    Ok(text)
}

/// The values of a text that is JSON.
pub(crate) fn json<T: DeserializeOwned>(text: &str) -> Option<Vec<T>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()
}

/// The documents of a text; empty ones are counted and left out.
pub(crate) fn parse(text: &str) -> Vec<Document> {
    if let Some(values) = json::<Value>(text) {
        return values.into_iter().enumerate().map(|(index, value)| (index + 1, Ok(value))).collect();
    }
    let parsed = split(text).into_iter().map(|(number, text)| (number, parse_one(&text)));
    parsed.filter(|(_, value)| !matches!(value, Ok(Value::Null))).collect()
}

/// Cuts a stream at its document markers. A line that starts with three dashes is always one,
/// so a document that does not parse does not hide the others.
fn split(text: &str) -> Vec<(usize, String)> {
    let blank = |text: &str| text.lines().all(|line| line.trim().is_empty() || line.starts_with(['#', '%']));
    let mut documents = Vec::new();
    let (mut current, mut started) = (String::new(), false);
    for line in text.split_inclusive('\n') {
        let marker =
            line.strip_prefix("---").filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        match marker {
            // A marker before the first document separates nothing.
            Some(rest) if !started && blank(&current) => current.push_str(rest),
            Some(rest) => documents.push(std::mem::replace(&mut current, rest.to_owned())),
            None => current.push_str(line),
        }
        started |= marker.is_some();
    }
    documents.push(current);
    documents.into_iter().enumerate().map(|(index, text)| (index + 1, text)).collect()
}

fn parse_one(text: &str) -> Result<Value, String> {
    // The user's own files may be as large as a dump of a whole cluster; only depth and aliases are limited.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_depth: 256,
            max_total_scalar_bytes: usize::MAX,
        },
        with_snippet: false,
    };
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string().replace('\n', " "))
}

/// Takes lists apart: `kind: List`, and typed lists, whose items do not repeat their kind.
pub(crate) fn unpack(document: Value) -> Vec<Value> {
    let is_list =
        document["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) && document["items"].is_array();
    let Value::Object(mut list) = document else { return vec![document] };
    if !is_list {
        return vec![Value::Object(list)];
    }
    let kind =
        list.get("kind").and_then(Value::as_str).unwrap_or_default().trim_end_matches("List").to_owned();
    let api_version = list.get("apiVersion").cloned().unwrap_or_default();
    let Some(Value::Array(items)) = list.remove("items") else { return Vec::new() };
    let complete = |mut item: Value| {
        if let Value::Object(fields) = &mut item
            && !kind.is_empty()
            && !fields.contains_key("kind")
        {
            fields.insert("kind".into(), kind.clone().into());
            fields.insert("apiVersion".into(), api_version.clone());
        }
        unpack(item)
    };
    items.into_iter().flat_map(complete).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_keep_their_numbers() {
        let numbers = |text: &str| -> Vec<usize> {
            let documents = split(text).into_iter().map(|(number, text)| (number, parse_one(&text)));
            documents
                .filter(|(_, value)| !matches!(value, Ok(Value::Null)))
                .map(|(number, _)| number)
                .collect()
        };
        assert_eq!(numbers("a: 1\n---\nb: 2\n"), [1, 2]);
        assert_eq!(numbers("# comment\n---\na: 1\n---\nb: 2\n"), [1, 2]);
        assert_eq!(numbers("---\na: 1\n---\n---\nb: 2\n--- \nc: |\n  x\n"), [1, 3, 4]);
        assert_eq!(numbers("---\n---\nb: 2\n"), [2], "an empty document counts");
        assert_eq!(numbers("a: [1\n---\nb: 2\n"), [1, 2], "a broken document hides no other");
    }
}
