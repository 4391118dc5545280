//! Series that profiles request: sums of an attribute over all objects of a profile.
//!
//! An object that several targets of one profile collect counts once.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use kollect_engine::extract::AttributePath;
use kollect_model::{
    crd::{profile::ProfileMetric, shapes::Gvk},
    row::Row,
};
use serde_json::{Value, value::RawValue};

/// Limit of combinations of label values per series; combinations that sort after it are left out.
pub(super) const MAX_TUPLES: usize = 200;
/// Limit of characters in a label value.
const LONGEST_VALUE: usize = 128;
/// Labels that all series have.
const OWN_LABELS: [&str; 3] = ["profile", "gvk", "series"];

/// The sums over the objects of one kind.
#[derive(Debug, Default, PartialEq)]
pub(super) struct KindSeries {
    pub(super) objects: usize,
    /// In the order of the profile.
    pub(super) series: Vec<Series>,
}

/// One series of a profile.
#[derive(Debug, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) sum: f64,
    /// Names of the labels; empty if none are requested.
    pub(super) labels: Vec<String>,
    /// Sums by the values of the labels.
    pub(super) tuples: BTreeMap<Vec<String>, f64>,
    /// Combinations that were left out.
    pub(super) dropped: usize,
}

impl Series {
    fn new(metric: &ProfileMetric) -> Self {
        let labels = label_names(&metric.labels);
        Self { name: metric.name.clone(), sum: 0.0, labels, tuples: BTreeMap::new(), dropped: 0 }
    }
}

/// Sums up the rows of all targets of a profile. The result contains `kinds` even without rows.
pub(super) fn sum(
    metrics: &[ProfileMetric],
    attributes: &[String],
    kinds: &[Gvk],
    rows: &[Arc<Row>],
) -> BTreeMap<Gvk, KindSeries> {
    // A profile with a path that leads nowhere does not compile.
    let path = |text: &String| AttributePath::parse(text, attributes.iter().map(String::as_str)).ok();
    let paths: Vec<(Option<AttributePath>, Vec<Option<AttributePath>>)> =
        metrics.iter().map(|metric| (path(&metric.path), metric.labels.iter().map(path).collect())).collect();
    let empty = || KindSeries { objects: 0, series: metrics.iter().map(Series::new).collect() };
    let mut sums: BTreeMap<Gvk, KindSeries> = kinds.iter().map(|gvk| (gvk.clone(), empty())).collect();
    let mut seen: HashSet<(&str, &str, &str)> = HashSet::new();
    for row in rows {
        let key = &row.key;
        if !seen.insert((&key.group, &key.kind, &key.uid)) {
            continue;
        }
        let kind = sums.entry(row.gvk()).or_insert_with(empty);
        kind.objects += 1;
        if metrics.is_empty() {
            continue;
        }
        // Attributes are a JSON object; any other value counts as empty.
        let attributes: BTreeMap<Cow<'_, str>, &RawValue> =
            serde_json::from_str(row.attributes.get()).unwrap_or_default();
        let value = |path: &Option<AttributePath>| {
            let path = path.as_ref()?;
            path.value(attributes.get(path.attribute())?)
        };
        for ((path, labels), series) in paths.iter().zip(&mut kind.series) {
            let Some(number) = value(path).and_then(|value| number(&value)) else { continue };
            series.sum += number;
            if !series.labels.is_empty() {
                let label = |path| value(path).map(|value| text(&value)).unwrap_or_default();
                let tuple = labels.iter().map(label).collect();
                *series.tuples.entry(tuple).or_default() += number;
            }
        }
    }
    for series in sums.values_mut().flat_map(|kind| &mut kind.series) {
        if let Some(first_left_out) = series.tuples.keys().nth(MAX_TUPLES).cloned() {
            series.dropped = series.tuples.split_off(&first_left_out).len();
        }
    }
    sums
}

/// A number, or a string that is one.
fn number(json: &str) -> Option<f64> {
    let number: f64 = match serde_json::from_str(json).ok()? {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// A value as a label: strings as they are, nothing for null, JSON for all others.
fn text(json: &str) -> String {
    let text = match serde_json::from_str(json) {
        Ok(Value::String(text)) => text,
        Ok(Value::Null) | Err(_) => String::new(),
        Ok(_) => json.to_owned(),
    };
    text.chars().take(LONGEST_VALUE).collect()
}

/// Converts names of attributes to valid and unique names of labels.
fn label_names(attributes: &[String]) -> Vec<String> {
    let mut taken: BTreeSet<String> = OWN_LABELS.iter().map(ToString::to_string).collect();
    let mut names = Vec::new();
    for attribute in attributes {
        let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = attribute.chars().map(allowed).collect();
        // A label name must not begin with a digit; names with two leading underscores are reserved for Prometheus.
        let reserved = name.starts_with(|c: char| c.is_ascii_digit()) || name.starts_with("__");
        if reserved || OWN_LABELS.contains(&&*name) {
            name = format!("attribute_{}", name.trim_start_matches('_'));
        }
        let mut unique = name.clone();
        let mut number = 2;
        while !taken.insert(unique.clone()) {
            unique = format!("{name}_{number}");
            number += 1;
        }
        names.push(unique);
    }
    names
}

#[cfg(test)]
mod tests;
