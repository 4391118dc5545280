//! Sums, labels and their limit.

use kollect_model::row::{RowKey, TargetId};
use serde_json::json;

use super::*;

fn gvk() -> Gvk {
    Gvk { group: String::new(), version: "v1".into(), kind: "Volume".into() }
}

fn row(target: &str, uid: &str, attributes: Value) -> Arc<Row> {
    let key = RowKey {
        target: TargetId { namespace: Some("team".into()), name: target.into() },
        group: "".into(),
        kind: "Volume".into(),
        namespace: "shop".into(),
        uid: uid.into(),
    };
    let attributes = RawValue::from_string(attributes.to_string()).unwrap();
    Arc::new(Row::new(key, "v1".into(), uid.into(), attributes.into()))
}

fn names() -> Vec<String> {
    ["size", "team", "on", "resource"].map(ToOwned::to_owned).into()
}

fn metric(name: &str, path: &str, labels: &[&str]) -> ProfileMetric {
    let labels = labels.iter().map(ToString::to_string).collect();
    ProfileMetric { name: name.into(), path: path.into(), labels }
}

#[test]
fn numbers_and_strings_that_are_numbers_are_summed_and_nothing_else_is() {
    let rows = [
        row("a", "1", json!({ "size": 1.5 })),
        row("a", "2", json!({ "size": "2" })),
        row("a", "3", json!({ "size": "2Gi" })),
        row("a", "4", json!({ "size": null })),
        row("a", "5", json!({ "size": "NaN" })),
        row("a", "6", json!({ "size": [7] })),
        row("a", "7", json!({})),
    ];
    let sums = sum(&[metric("bytes", "size", &[])], &names(), &[], &rows);
    let kind = &sums[&gvk()];
    assert_eq!((kind.objects, kind.series[0].sum), (7, 3.5));
    assert!(kind.series[0].tuples.is_empty());
}

#[test]
fn an_object_of_two_targets_counts_once() {
    let rows = [
        row("a", "1", json!({ "size": 1 })),
        row("b", "1", json!({ "size": 1 })),
        row("b", "2", json!({ "size": 2 })),
    ];
    let sums = sum(&[metric("bytes", "size", &[])], &names(), &[gvk()], &rows);
    assert_eq!((sums[&gvk()].objects, sums[&gvk()].series[0].sum), (2, 3.0));
}

#[test]
fn kinds_without_objects_are_zero_and_profiles_without_metrics_are_counted() {
    let none = sum(&[metric("bytes", "size", &["team"])], &names(), &[gvk()], &[]);
    assert_eq!((none[&gvk()].objects, none[&gvk()].series[0].sum), (0, 0.0));
    let counted = sum(&[], &names(), &[gvk()], &[row("a", "1", json!({ "size": 1 }))]);
    assert_eq!(counted[&gvk()], KindSeries { objects: 1, series: Vec::new() });
}

#[test]
fn sums_are_split_by_labels_and_missing_values_are_empty() {
    let rows = [
        row("a", "1", json!({ "size": 1, "team": "x", "on": true })),
        row("a", "2", json!({ "size": 2, "team": "x", "on": true })),
        row("a", "3", json!({ "size": 4, "team": null, "on": [1] })),
        row("a", "4", json!({ "size": 8, "team": "y".repeat(500) })),
        row("a", "5", json!({ "team": "without a size" })),
    ];
    let sums = sum(&[metric("bytes", "size", &["team", "on"])], &names(), &[], &rows);
    let series = &sums[&gvk()].series[0];
    let tuple = |team: &str, on: &str| series.tuples.get(&vec![team.to_owned(), on.to_owned()]).copied();
    assert_eq!(series.labels, ["team", "on"]);
    assert_eq!(tuple("x", "true"), Some(3.0));
    assert_eq!(tuple("", "[1]"), Some(4.0));
    assert_eq!(tuple(&"y".repeat(LONGEST_VALUE), ""), Some(8.0));
    assert_eq!((series.tuples.len(), series.sum), (3, 15.0));
}

#[test]
fn the_combinations_that_sort_first_are_kept_and_the_sum_has_all() {
    let rows: Vec<_> = (0..MAX_TUPLES + 7)
        .rev()
        .map(|number| row("a", &number.to_string(), json!({ "size": 1, "team": format!("{number:04}") })))
        .collect();
    let sums = sum(&[metric("bytes", "size", &["team"]), metric("plain", "size", &[])], &names(), &[], &rows);
    let [bytes, plain] = &sums[&gvk()].series[..] else { unreachable!() };
    assert_eq!((bytes.tuples.len(), bytes.dropped, plain.dropped), (MAX_TUPLES, 7, 0));
    assert_eq!(bytes.tuples.last_key_value().unwrap().0, &["0199"]);
    assert_eq!((bytes.sum, plain.sum), (207.0, 207.0));
}

#[test]
fn names_of_labels_are_allowed_and_unique() {
    let names = |names: &[&str]| label_names(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(
        names(&["app.kubernetes.io/name", "app-kubernetes-io-name"]),
        ["app_kubernetes_io_name", "app_kubernetes_io_name_2"]
    );
    assert_eq!(
        names(&["profile", "gvk", "series"]),
        ["attribute_profile", "attribute_gvk", "attribute_series"]
    );
    assert_eq!(names(&["2nd", "__name__", "größe"]), ["attribute_2nd", "attribute_name__", "gr__e"]);
}

#[test]
fn a_value_inside_of_an_attribute_is_summed() {
    let resource = |replicas: i32| json!({ "resource": { "spec": { "replicas": replicas, "tier": ["a"] } } });
    let rows =
        [row("a", "1", resource(2)), row("a", "2", resource(3)), row("a", "3", json!({ "resource": 7 }))];
    let metric = metric("replicas", "resource.spec.replicas", &["resource.spec.tier[0]"]);
    let sums = sum(&[metric], &names(), &[], &rows);
    let series = &sums[&gvk()].series[0];
    assert_eq!((series.sum, &*series.labels), (5.0, &["resource_spec_tier_0_".to_owned()][..]));
    assert_eq!(series.tuples, BTreeMap::from([(vec!["a".to_owned()], 5.0)]));
}
