//! Reads `/metrics` as Prometheus does, and fails on everything that Prometheus would refuse.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

/// One line with a value.
#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) family: String,
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// All metrics of one answer.
#[derive(Debug)]
pub(crate) struct Exposition {
    /// Type of each family.
    pub(crate) types: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

impl Exposition {
    /// Fails on everything that is not OpenMetrics.
    #[track_caller]
    pub(crate) fn parse(text: &str) -> Self {
        let body = text.strip_suffix("# EOF\n").expect("ends with # EOF");
        let (mut types, mut samples) = (BTreeMap::new(), Vec::new());
        let (mut with_help, mut family) = (BTreeSet::new(), String::new());
        let mut seen = BTreeSet::new();
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split(' ').next().unwrap();
                assert!(with_help.insert(name.to_owned()), "two families {name}");
                assert!(help.len() > name.len() + 5, "no help: {line}");
            } else if let Some(declared) = line.strip_prefix("# TYPE ") {
                let (name, declared_type) = declared.split_once(' ').unwrap();
                assert!(is_name(name) && with_help.contains(name), "{line}");
                assert!(["counter", "gauge", "histogram", "info"].contains(&declared_type), "{line}");
                assert!(
                    types.insert(name.to_owned(), declared_type.to_owned()).is_none(),
                    "two types: {line}"
                );
                name.clone_into(&mut family);
            } else {
                let sample = parse_sample(line, &family, &types[&family]);
                let id = format!("{} {:?}", sample.name, sample.labels);
                assert!(seen.insert(id), "the same series twice: {line}");
                samples.push(sample);
            }
        }
        Self { types, samples }
    }

    /// The value of a series that must be there once: `name{label="value"}`, with all or some of its labels.
    pub(crate) fn get(&self, series: &str) -> Option<f64> {
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let wanted = labels_of(labels.strip_suffix('}').unwrap());
        let found: Vec<&Sample> = self
            .samples
            .iter()
            .filter(|sample| {
                sample.name == name && wanted.iter().all(|(key, value)| sample.labels.get(key) == Some(value))
            })
            .collect();
        assert!(found.len() < 2, "{series} is ambiguous: {found:?}");
        found.first().map(|sample| sample.value)
    }

    /// Differences between the series and the table of name, type and labels of a page.
    pub(crate) fn undocumented(&self, page: &str) -> String {
        let documented = documented(page);
        let mut wrong = String::new();
        for (family, type_) in &self.types {
            let name = full_name(family, type_);
            let Some((known_type, known)) = documented.get(&name) else {
                writeln!(wrong, "{name} is not documented").unwrap();
                continue;
            };
            if known_type != type_ {
                writeln!(wrong, "{name} is a {type_}, documented: {known_type}").unwrap();
            }
            for sample in self.samples.iter().filter(|sample| sample.family == *family) {
                let labels: BTreeSet<String> =
                    sample.labels.keys().filter(|label| *label != "le").cloned().collect();
                // Attributes of rows are additional labels of these.
                let same = if family.ends_with("_labeled_series") {
                    labels.is_superset(known)
                } else {
                    labels == *known
                };
                if !same {
                    writeln!(wrong, "{name} has labels {labels:?}, documented: {known:?}").unwrap();
                }
            }
        }
        wrong
    }

    /// Names that the page lists and the exposition does not contain.
    pub(crate) fn missing(&self, page: &str) -> Vec<String> {
        let exposed: BTreeSet<String> =
            self.types.iter().map(|(family, type_)| full_name(family, type_)).collect();
        documented(page).into_keys().filter(|name| !exposed.contains(name)).collect()
    }
}

/// Type and labels by name.
fn documented(page: &str) -> BTreeMap<String, (String, BTreeSet<String>)> {
    let table = page.split("## Retired").next().unwrap();
    let lines = table.lines().filter(|line| line.starts_with("| `kollect_"));
    let entries = lines.map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split('`').skip(1).step_by(2).map(Into::into).collect();
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels))
    });
    entries.collect()
}

/// The name of a family in queries.
fn full_name(family: &str, type_: &str) -> String {
    let suffix = match type_ {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    };
    format!("{family}{suffix}")
}

fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|other| other.is_ascii_alphanumeric() || other == '_')
}

fn parse_sample(line: &str, family: &str, type_: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels_of(labels.strip_suffix('}').expect(line))),
        None => (series, BTreeMap::new()),
    };
    let suffixes: &[&str] = match type_ {
        "counter" => &["_total"],
        "histogram" => &["_sum", "_count", "_bucket"],
        "info" => &["_info"],
        _ => &[""],
    };
    let has_known_suffix = suffixes.iter().any(|suffix| name == format!("{family}{suffix}"));
    assert!(is_name(name) && has_known_suffix, "{line} is not of {family}, a {type_}");
    let value: f64 = value.parse().expect(line);
    assert!(type_ == "gauge" || value >= 0.0, "{line}");
    Sample { family: family.to_owned(), name: name.to_owned(), labels, value }
}

fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect(text);
        assert!(is_name(name) && !name.starts_with("__"), "{text}");
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect(text) {
                (position, '"') => break position,
                (_, '\\') => value.push(match chars.next().expect(text).1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    other => unreachable!("\\{other} in {text}"),
                }),
                (_, character) => value.push(character),
            }
        };
        assert!(labels.insert(name.to_owned(), value).is_none(), "a label twice: {text}");
        let after = after.get(end + 1..).unwrap();
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    labels
}
