//! The page about expressions: every example gives the result that it shows, and every function has an example.
//!
//! `UPDATE=1` writes the results.

use std::{fs, path::Path};

use super::{
    super::{
        CelVariables, Expression,
        names::{FUNCTIONS, METHODS},
    },
    MAX_BYTES, NAMESPACE, read,
};
use crate::json::Projection;

/// The texts between backticks of the cells of a row.
fn cells(line: &str) -> Vec<String> {
    let cells = line.trim_matches('|').replace("\\|", "\u{0}");
    let cells = cells.split('|').map(|cell| cell.trim().replace('\u{0}', "|"));
    cells.filter_map(|cell| Some(cell.strip_prefix('`')?.strip_suffix('`')?.to_owned())).collect()
}

#[test]
fn examples_of_the_page_give_what_they_show() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/use/expressions.md");
    let page = fs::read_to_string(&file).unwrap();
    let (_, rest) = page.split_once("```json\n").unwrap();
    let object = read(rest.split_once("```").unwrap().0, &Projection::everything());
    let namespace = read(NAMESPACE, &Projection::everything());
    let variables = CelVariables::new(&object, &Projection::everything(), Some(&namespace)).unwrap();
    let (mut wrong, mut examples, mut updated) = (Vec::new(), String::new(), String::new());
    let mut has_results = false;
    for line in page.lines() {
        if line.starts_with("| ") && line.contains(" Write |") {
            has_results = true;
        } else if !line.starts_with('|') {
            has_results = false;
        }
        let mut line = line.to_owned();
        if let ([expression, shown], true) = (&*cells(&line), has_results) {
            let found = match Expression::compile(expression) {
                Ok(compiled) => match compiled.evaluate(&variables, MAX_BYTES) {
                    Ok(json) => {
                        let mut text = String::new();
                        json.write(&mut text);
                        text
                    }
                    Err(error) => error.to_string(),
                },
                Err(error) => error.problem,
            };
            if found != *shown {
                wrong.push(format!("{expression}\n    shown {shown}\n    found {found}"));
            }
            let head = line.rsplit_once(" | `").unwrap().0.to_owned();
            line = format!("{head} | `{}` |", found.replace('|', "\\|"));
            examples.push_str(expression);
            examples.push('\n');
        }
        updated.push_str(&line);
        updated.push('\n');
    }
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&file, updated).unwrap();
    } else {
        assert!(wrong.is_empty(), "UPDATE=1 writes the results\n{}", wrong.join("\n"));
    }
    for (name, ..) in FUNCTIONS.iter().chain(METHODS) {
        assert!(examples.contains(&format!("{name}(")), "{name} has no example in {}", file.display());
    }
}
