//! Rows for people and programs: table, JSON, NDJSON, YAML, CSV.

use std::{
    collections::BTreeSet,
    fmt,
    io::{self, Write},
    sync::Arc,
};

use clap::ValueEnum;
use kollect_model::{row::Row, yaml};
use serde_json::{Map, Value};

/// Exit code of a run whose output was closed: that of a program that the signal SIGPIPE has ended.
pub(crate) const OUTPUT_CLOSED: u8 = 141;

/// The reader of the standard output has ended, such as `head` when it has its lines. That is no error, but
/// there is nothing left to do.
#[derive(Debug)]
pub(crate) struct OutputClosed;

impl fmt::Display for OutputClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for OutputClosed {}

/// Turns the result of printing to the standard output into an error: [`OutputClosed`] if it was closed.
pub(crate) fn printed(result: io::Result<()>, attempt: &'static str) -> anyhow::Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => OutputClosed.into(),
        _ => anyhow::Error::new(error).context(attempt),
    })
}

/// How rows are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Table,
    Json,
    Ndjson,
    Yaml,
    Csv,
}

/// Prints the rows.
pub(crate) fn rows(out: &mut impl Write, rows: &[Arc<Row>], output: OutputFormat) -> io::Result<()> {
    match output {
        OutputFormat::Table => table(out, rows),
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &rows.iter().map(|row| &**row).collect::<Vec<_>>())?;
            writeln!(out)
        }
        OutputFormat::Ndjson => rows.iter().try_for_each(|row| {
            serde_json::to_writer(&mut *out, &**row)?;
            writeln!(out)
        }),
        OutputFormat::Yaml if rows.is_empty() => writeln!(out, "[]"),
        OutputFormat::Yaml => rows
            .iter()
            .try_for_each(|row| out.write_all(yaml::list_item(&serde_json::to_string(&**row)?).as_bytes())),
        OutputFormat::Csv => csv(out, rows),
    }
}

pub(crate) fn attributes(row: &Row) -> Map<String, Value> {
    serde_json::from_str(row.attributes.get()).expect("attributes are a JSON object")
}

/// The attributes that any of the rows has.
fn columns(parsed: &[Map<String, Value>]) -> Vec<String> {
    parsed.iter().flat_map(|row| row.keys().cloned()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// Wider cells would break the table; the other formats show everything.
const CELL_WIDTH: usize = 48;

/// One table per target: its rows have the same columns.
fn table(out: &mut impl Write, rows: &[Arc<Row>]) -> io::Result<()> {
    let same = |a: &Arc<Row>, b: &Arc<Row>| a.key.target == b.key.target && a.key.kind == b.key.kind;
    for (index, group) in rows.chunk_by(same).enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let Some(first) = group.first() else { continue };
        let noun = if group.len() == 1 { "row" } else { "rows" };
        writeln!(out, "{} · {} · {} {noun}", first.key.target, first.gvk(), group.len())?;
        let parsed: Vec<_> = group.iter().map(|row| attributes(row)).collect();
        let columns = columns(&parsed);
        let mut lines = vec![["NAMESPACE", "NAME"].map(Into::into).to_vec()];
        lines[0].extend(columns.iter().map(|name| name.to_uppercase()));
        for (row, attributes) in group.iter().zip(&parsed) {
            let mut line = vec![row.key.namespace.to_string(), row.name.to_string()];
            line.extend(columns.iter().map(|name| cell(attributes.get(name))));
            lines.push(line);
        }
        aligned(out, &lines)?;
    }
    Ok(())
}

/// Columns next to each other, as wide as they need to be.
pub(crate) fn aligned(out: &mut impl Write, lines: &[Vec<String>]) -> io::Result<()> {
    let shown: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let cut = |cell: &String| match cell.chars().count() {
                0 => "-".to_owned(),
                n if n > CELL_WIDTH => cell.chars().take(CELL_WIDTH - 1).chain("…".chars()).collect(),
                _ => cell.clone(),
            };
            line.iter().map(cut).map(|cell: String| cell.replace(['\n', '\t'], " ")).collect()
        })
        .collect();
    let columns = shown.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| shown.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    for line in &shown {
        let padded: Vec<String> =
            line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        writeln!(out, "{}", padded.join("  ").trim_end())?;
    }
    Ok(())
}

fn csv(out: &mut impl Write, rows: &[Arc<Row>]) -> io::Result<()> {
    let parsed: Vec<_> = rows.iter().map(|row| attributes(row)).collect();
    let columns = columns(&parsed);
    let identity =
        ["target_namespace", "target_name", "namespace", "name", "group", "version", "kind", "uid"];
    // RFC 4180; attributes have a prefix, so that none of them can be taken for identity.
    let quoted = |text: String| {
        let plain = !text.contains([',', '"', '\n', '\r']);
        if plain { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
    };
    let names = columns.iter().map(|name| quoted(format!("attr_{name}")));
    let header: Vec<String> = identity.map(Into::into).into_iter().chain(names).collect();
    writeln!(out, "{}", header.join(","))?;
    for (row, attributes) in rows.iter().zip(&parsed) {
        let key = &row.key;
        let identity = [
            row.target_namespace(),
            &key.target.name,
            &key.namespace,
            &row.name,
            &key.group,
            &row.version,
            &key.kind,
            &key.uid,
        ];
        let identity = identity.map(ToOwned::to_owned).into_iter();
        let values = columns.iter().map(|name| cell(attributes.get(name)));
        let line: Vec<String> = identity.chain(values).map(quoted).collect();
        writeln!(out, "{}", line.join(","))?;
    }
    Ok(())
}
