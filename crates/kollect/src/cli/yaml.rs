//! Reads the documents of YAML and JSON files.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
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
        let known = file.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if known && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(anyhow!("{}: holds no .yaml, .yml or .json file", path.display()));
    }
    Ok(files)
}

/// The documents of a file, with their numbers from 1; empty documents are left out. `-` is the
/// standard input.
pub(crate) fn documents(file: &Path) -> anyhow::Result<Vec<(usize, Value)>> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
    } else {
        text = fs::read_to_string(file).with_context(|| format!("{}", file.display()))?;
    }
    let documents = parse(&text).with_context(|| format!("{}", file.display()))?;
    let numbered = documents.into_iter().enumerate().map(|(index, value)| (index + 1, value));
    Ok(numbered.filter(|(_, value)| !value.is_null()).collect())
}

fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    if text.trim_start().starts_with(['{', '[']) {
        let documents = serde_json::Deserializer::from_str(text).into_iter();
        return Ok(documents.collect::<Result<_, _>>()?);
    }
    // These are the user's own files: a dump of a whole cluster is welcome, a bomb of aliases is not.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_depth: 256,
            max_total_scalar_bytes: usize::MAX,
        },
        with_snippet: false,
    };
    Ok(serde_saphyr::from_multiple_with_options(text, options)?)
}
