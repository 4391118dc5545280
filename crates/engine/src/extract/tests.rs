//! Profiles as a whole: compiled once, strict, and without secrets.

use kollect_model::crd::profile::KollectProfileSpec;
use serde_json::{Value, json, value::to_raw_value};

use super::*;

fn spec(kind: &str, attributes: Value) -> KollectProfileSpec {
    let group = if kind == "Secret" || kind == "Pod" { "" } else { "apps" };
    let spec =
        json!({ "targetGVK": { "group": group, "version": "v1", "kind": kind }, "attributes": attributes });
    serde_json::from_value(spec).unwrap()
}

fn compile(spec: &KollectProfileSpec, opt_ins: OptIns) -> Result<CompiledProfile, Vec<SpecError>> {
    CompiledProfile::compile(spec, &opt_ins, &ExtractPolicy::default())
}

fn compiled(spec: &KollectProfileSpec) -> CompiledProfile {
    compile(spec, OptIns::default()).unwrap_or_else(|errors| unreachable!("{errors:?}"))
}

fn extract(spec: &KollectProfileSpec, object: Value) -> String {
    let profile = compiled(spec);
    let raw = to_raw_value(&object).unwrap();
    profile.extract(&profile.gvk, &raw, None).unwrap().attributes.get().to_owned()
}

#[test]
fn a_missing_value_is_null_unless_its_attribute_is_optional() {
    let spec = spec(
        "Deployment",
        json!([
            { "name": "replicas", "path": "$.spec.replicas" },
            { "name": "gone", "path": "$.spec.gone" },
            { "name": "maybe", "path": "$.spec.maybe", "optional": true },
        ]),
    );
    let object = json!({ "spec": { "replicas": 9_223_372_036_854_775_807_i64 } });
    assert_eq!(extract(&spec, object), r#"{"gone":null,"replicas":9223372036854775807}"#);
}

#[test]
fn a_wildcard_gives_a_list_whatever_it_finds() {
    let spec = spec(
        "Deployment",
        json!([
            { "name": "images", "path": "{.spec.containers[*].image}" },
            { "name": "one", "path": "{.spec.containers[*].image}", "type": "string" },
        ]),
    );
    let containers = |images: &[&str]| {
        let containers: Vec<Value> =
            images.iter().map(|image| json!({ "image": image, "other": 1 })).collect();
        json!({ "spec": { "containers": containers } })
    };
    assert_eq!(extract(&spec, containers(&[])), r#"{"images":[],"one":null}"#);
    assert_eq!(extract(&spec, containers(&["a"])), r#"{"images":["a"],"one":"a"}"#);
    let profile = compiled(&spec);
    let raw = to_raw_value(&containers(&["a", "b"])).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).unwrap();
    assert_eq!(extracted.attributes.get(), r#"{"images":["a","b"],"one":null}"#);
    let nulls: Vec<_> =
        extracted.notes.nulls.iter().map(|null| (&*null.name, null.cause, null.types)).collect();
    let expected = [("one", NullCause::TypeMismatch, Some(("string", "a list")))];
    assert_eq!(nulls, expected, "two images are not one string");
    assert_eq!(extracted.examples, [("one".into(), r#"["a","b"]"#.to_owned())]);
}

#[test]
fn numbers_keep_all_their_digits() {
    let spec = spec(
        "Deployment",
        json!([{ "name": "n", "path": "$.n" }, { "name": "s", "path": "$.n[0]", "type": "string" }]),
    );
    let raw = RawValue::from_string(
        r#"{"n":[12345678901234567890.12345678901234567890,1.10,18446744073709551616]}"#.into(),
    );
    let profile = compiled(&spec);
    let extracted = profile.extract(&profile.gvk, &raw.unwrap(), None).unwrap();
    assert_eq!(
        extracted.attributes.get(),
        r#"{"n":[12345678901234567890.12345678901234567890,1.10,18446744073709551616],"s":"12345678901234567890.12345678901234567890"}"#
    );
}

#[test]
fn key_order_of_the_input_does_not_matter() {
    let profile = compiled(&spec("Deployment", json!([{ "name": "l", "path": "$.l" }])));
    let extract = |text: &str| {
        let raw = RawValue::from_string(text.into()).unwrap();
        profile.extract(&profile.gvk, &raw, None).unwrap().attributes.get().to_owned()
    };
    assert_eq!(
        extract(r#"{"l":{"a":1,"b":{"x":1,"y":2}}}"#),
        extract(r#"{"z":0,"l":{"b":{"y":2,"x":1},"a":1}}"#)
    );
}

#[test]
fn every_invalid_expression_is_reported_with_a_caret() {
    let spec = spec(
        "Deployment",
        json!([
            { "name": "a", "path": "spec.replicas" },
            { "name": "b", "path": "{.spec.containers[}" },
            { "name": "c", "path": "$.ok" },
            { "name": "d", "path": "helm:release.chartVersion" },
        ]),
    );
    let Err(errors) = compile(&spec, OptIns::default()) else { unreachable!("must not compile") };
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.attributes[0].path", "spec.attributes[1].path", "spec.attributes[3].path"]);
    assert!(errors[0].problem.ends_with("\n    spec.replicas\n    ^"), "{}", errors[0]);
    assert!(errors[2].problem.contains("kind Secret"), "{}", errors[2]);
}

#[test]
fn unknown_types_warn_and_are_not_enforced() {
    let spec = spec("Deployment", json!([{ "name": "a", "path": "$.s", "type": "integer" }]));
    assert_eq!(compiled(&spec).warnings[0].field, "spec.attributes[0].type");
    assert_eq!(extract(&spec, json!({ "s": "x" })), r#"{"a":"x"}"#);
}

#[test]
fn secrets_do_not_escape_under_another_name() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "harmless", "path": "$.spec.containers[0].env[0].value" },
            { "name": "all", "path": "{.spec.containers[*].env[*].value}" },
            { "name": "filtered", "path": "{.spec.containers[0].env[?(@.name=='DB_PASSWORD')].value}" },
            { "name": "nested", "path": "$.spec.auth.password" },
            { "name": "typed", "path": "$.spec.auth.password", "type": "int" },
            { "name": "token", "path": "$.spec.plain" },
            { "name": "kept", "path": "$.spec.containers[0].env[1].value" },
        ]),
    );
    let object = json!({ "spec": {
        "auth": { "password": "hunter2" }, "plain": "hunter2",
        "containers": [{ "env": [{ "name": "DB_PASSWORD", "value": "hunter2" }, { "name": "TZ", "value": "UTC" }] }],
    } });
    let attributes = extract(&spec, object);
    assert!(!attributes.contains("hunter2"), "{attributes}");
    assert!(attributes.contains(r#""kept":"UTC""#), "{attributes}");
    let parsed: Value = serde_json::from_str(&attributes).unwrap();
    for name in ["harmless", "nested", "typed", "token"] {
        assert_eq!(parsed[name]["redacted"], true, "{name}: {attributes}");
    }
}

#[test]
fn secret_data_needs_the_opt_in() {
    let data = spec("Secret", json!([{ "name": "x", "path": "$['data']['x']" }]));
    let Err(errors) = compile(&data, OptIns::default()) else { unreachable!("must not compile") };
    assert!(errors[0].problem.contains("kollect.dev/allow-secret-extraction"), "{}", errors[0]);
    let helm = spec("Secret", json!([{ "name": "values", "path": "helm:release.config" }]));
    for spec in [&data, &helm] {
        let unnamed = OptIns { operator_must_name: Some("team-a".into()), ..OptIns::default() };
        let Err(errors) = compile(spec, unnamed) else { unreachable!("must not compile") };
        let both = ["kollect.dev/allow-secret-extraction: \"true\"", "--allow-secret-extraction team-a"];
        assert!(both.iter().all(|half| errors[0].problem.contains(half)), "{}", errors[0]);
    }
    let object = json!({ "data": { "x": "aHVudGVyMg==" }, "stringData": { "y": "hunter2" }, "type": "Opaque",
        "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hunter2" } } });
    let everything =
        spec("Secret", json!([{ "name": "all", "path": "{.}" }, { "name": "deep", "path": "{..x}" }]));
    let attributes = extract(&everything, object.clone());
    assert!(!attributes.contains("hunter2") && !attributes.contains("aHVudGVyMg"), "{attributes}");
    assert!(attributes.contains(r#""kind":"Secret""#), "the item of a list knows its kind: {attributes}");
    let opted_in = OptIns { secret_extraction: true, ..OptIns::default() };
    let profile = compile(&data, opted_in).unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(&object).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).unwrap();
    assert_eq!(extracted.attributes.get(), r#"{"x":"aHVudGVyMg=="}"#);
}

#[test]
fn sensitive_kinds_are_treated_like_secrets() {
    let spec = spec("Deployment", json!([{ "name": "all", "path": "{.}" }]));
    let policy = ExtractPolicy {
        sensitive_kinds: vec![("apps".into(), "Deployment".into())],
        ..ExtractPolicy::default()
    };
    let profile = CompiledProfile::compile(&spec, &OptIns::default(), &policy)
        .unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(&json!({ "data": { "a": 1 }, "spec": {} })).unwrap();
    let attributes = profile.extract(&profile.gvk, &raw, None).unwrap().attributes;
    assert_eq!(attributes.get(), r#"{"all":{"apiVersion":"apps/v1","kind":"Deployment","spec":{}}}"#);
}

fn exported(export: Value, object: Value) -> String {
    let mut spec = spec("Deployment", json!([]));
    spec.export = Some(serde_json::from_value(export).unwrap());
    extract(&spec, object)
}

fn object() -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 3, "labels": { "a": "b" },
            "managedFields": [1], "annotations": { "argocd.argoproj.io/tracking-id": "x", "kept": "y" } },
        "spec": { "replicas": 3, "list": [{ "n": 1, "drop": 1 }, { "n": 2, "drop": 2 }], "dbPassword": "hunter2" },
        "status": { "ready": 3 }, "data": { "k": "v" },
    })
}

#[test]
fn whole_objects_are_pruned_in_the_documented_order() {
    assert_eq!(
        exported(json!({ "mode": "Resource" }), object()),
        r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","spec":{"dbPassword":{"reason":"sensitive-key","redacted":true},"list":[{"drop":1,"n":1},{"drop":2,"n":2}],"replicas":3},"status":{"ready":3}}}"#
    );
    assert_eq!(
        exported(json!({ "mode": "Resource", "include": "MetadataOnly", "as": "object" }), object()),
        r#"{"object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"kept":"y"},"labels":{"a":"b"}}}}"#
    );
    let everything = exported(
        json!({ "mode": "Resource", "include": "All", "dedupeIdentity": false, "prune": { "defaults": false,
            "jsonPointers": ["/spec/list/0", "/metadata/annotations/argocd.argoproj.io~1tracking-id", "/status"],
            "jsonPaths": ["$.spec.list[*].drop", "{.spec.list[?(@.n==2)].n}", ".metadata.managedFields"] } }),
        object(),
    );
    assert_eq!(
        everything,
        r#"{"resource":{"apiVersion":"apps/v1","data":{"k":"v"},"kind":"Deployment","metadata":{"annotations":{"kept":"y"},"generation":3,"labels":{"a":"b"},"name":"web","namespace":"shop","uid":"u"},"spec":{"dbPassword":{"reason":"sensitive-key","redacted":true},"list":[{}],"replicas":3}}}"#
    );
}

#[test]
fn whole_objects_are_pruned_by_presets_paths_of_jq_and_expressions() {
    let pruned =
        |prune: Value| exported(json!({ "mode": "Resource", "include": "All", "prune": prune }), object());
    assert_eq!(
        pruned(
            json!({ "preset": "gitops", "jqPathExpressions": [".spec.list[].drop", ".data", ".spec.dbPassword"] })
        ),
        r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"kept":"y"},"labels":{"a":"b"}},"spec":{"list":[{"n":1},{"n":2}],"replicas":3}}}"#
    );
    let only_metadata = json!(["/spec", "/data"]);
    assert_eq!(
        pruned(json!({ "preset": "status", "jsonPointers": only_metadata })),
        r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"kept":"y"},"labels":{"a":"b"}}}}"#
    );
    let with_identity = json!({ "mode": "Resource", "include": "All", "dedupeIdentity": false,
        "prune": { "preset": "minimal", "defaults": false, "jsonPointers": only_metadata } });
    assert_eq!(
        exported(with_identity, object()),
        r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"argocd.argoproj.io/tracking-id":"x","kept":"y"},"labels":{"a":"b"},"name":"web","namespace":"shop"}}}"#
    );
    let expressions = json!([
        "object.spec.list.transformList(i, v, v.n > 1, '/spec/list/' + string(i) + '/n')",
        "cel:has(object.data) ? '/data' : null",
        "['/status', '/metadata', '/spec/dbPassword', '/none']"
    ]);
    assert_eq!(
        pruned(json!({ "cel": expressions })),
        r#"{"resource":{"apiVersion":"apps/v1","kind":"Deployment","spec":{"list":[{"drop":1,"n":1},{"drop":2}],"replicas":3}}}"#
    );
}

/// What could not be pruned may be what must not be exported.
#[test]
fn an_object_whose_pruning_fails_has_no_row() {
    for (expression, problem) in [
        ("object.spec.nope", "attribute resource: prune.cel[0]: no such key: nope"),
        (
            "object.spec.replicas",
            "attribute resource: prune.cel[0]: it must give JSON pointers, such as /spec/replicas",
        ),
    ] {
        let mut spec = spec("Deployment", json!([]));
        let export = json!({ "mode": "Resource", "prune": { "cel": [expression] } });
        spec.export = Some(serde_json::from_value(export).unwrap());
        let profile = compile(&spec, OptIns::default()).unwrap_or_else(|e| unreachable!("{e:?}"));
        let error = profile.extract(&profile.gvk, &to_raw_value(&object()).unwrap(), None).unwrap_err();
        assert_eq!(error.to_string(), problem);
    }
}

#[test]
fn wrong_pruning_and_series_are_refused_with_their_field() {
    let mut spec = spec("Deployment", json!([{ "name": "a", "path": "$.spec" }]));
    let prune = json!({ "cel": ["object.("], "jqPathExpressions": [".a | .b"], "jsonPaths": ["$.["] });
    spec.export = Some(serde_json::from_value(json!({ "mode": "Resource", "prune": prune })).unwrap());
    spec.metrics = serde_json::from_value(json!([
        { "name": "m", "path": "a.replicas", "labels": ["resource.spec.tier"] },
        { "name": "n", "path": "b" }, { "name": "o", "path": "a.list[*]", "labels": ["a["] },
    ]))
    .unwrap();
    let Err(errors) = compile(&spec, OptIns::default()) else { unreachable!("must not compile") };
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.export.prune.jsonPaths[0]",
            "spec.export.prune.jqPathExpressions[0]",
            "spec.export.prune.cel[0]",
            "spec.metrics[1].path",
            "spec.metrics[2].labels[0]",
            "spec.metrics[2].path",
        ]
    );
}

#[test]
fn whole_secrets_need_the_opt_in_and_stay_without_data() {
    let mut spec = spec("Secret", json!([]));
    spec.export = Some(serde_json::from_value(json!({ "mode": "Resource", "include": "All" })).unwrap());
    let Err(errors) = compile(&spec, OptIns::default()) else { unreachable!("must not compile") };
    assert!(errors[0].problem.contains("allow-full-resource-export"), "{}", errors[0]);
    let opted_in = OptIns { full_resource: true, ..OptIns::default() };
    let profile = compile(&spec, opted_in).unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(&json!({ "type": "Opaque", "data": { "x": "hunter2" } })).unwrap();
    let attributes = profile.extract(&profile.gvk, &raw, None).unwrap().attributes;
    assert_eq!(
        attributes.get(),
        r#"{"resource":{"apiVersion":"v1","kind":"Secret","type":"Opaque"}}"#,
        "its data is left out"
    );
}

#[test]
fn profiles_know_how_much_they_read() {
    let needs = |path: &str| compiled(&spec("Pod", json!([{ "name": "a", "path": path }]))).needs();
    assert_eq!(needs("$.metadata.labels.app"), ProfileNeeds::MetadataOnly);
    assert_eq!(needs("$.spec.nodeName"), ProfileNeeds::Fields);
    assert_eq!(needs("{..image}"), ProfileNeeds::Everything);
    assert_eq!(needs("{.}"), ProfileNeeds::Everything);
}

#[test]
fn values_that_are_not_objects_are_errors() {
    let profile = compiled(&spec("Pod", json!([{ "name": "a", "path": "$.a" }])));
    for text in ["[1]", "7", &format!("{{\"a\":{}1{}}}", "[".repeat(1000), "]".repeat(1000))] {
        let Ok(raw) = RawValue::from_string(text.to_owned()) else { continue };
        assert!(profile.extract(&profile.gvk, &raw, None).is_err(), "{text:.20}");
    }
}

#[test]
fn a_text_that_is_no_path_never_becomes_its_own_value() {
    for text in ["spec.x", "x", "{.a} and {.b}", "{range .items[*]}{.a}{end}", "prefix {.a}", "{}", " "] {
        let spec = spec("Pod", json!([{ "name": "a", "path": text }]));
        assert!(compile(&spec, OptIns::default()).is_err(), "{text:?}");
    }
}

#[test]
fn the_result_of_a_cel_expression_is_plain_json_and_scrubbed() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "map", "path": "cel:{'b': 1, 'a': [object.spec.n, 2.5], 'password': 'hunter2'}" },
            { "name": "renamed", "path": "cel:object.spec.env.map(e, {'k': e.name, 'v': e.value})" },
            { "name": "bytes", "path": "cel:b'abc'" },
            { "name": "time", "path": "cel:timestamp(object.spec.at) + duration('90s')" },
        ]),
    );
    let object = json!({ "spec": { "n": 7, "at": "2026-11-15T10:00:00Z", "env": [{ "name": "DB_PASSWORD", "value": "hunter2" }] } });
    let marker = r#"{"reason":"sensitive-key","redacted":true}"#;
    assert_eq!(
        extract(&spec, object),
        format!(
            r#"{{"bytes":"YWJj","map":{{"a":[7,2.5],"b":1,"password":{marker}}},"renamed":[{{"k":"DB_PASSWORD","v":{marker}}}],"time":"2026-11-15T10:01:30Z"}}"#
        )
    );
}

#[test]
fn an_expression_that_fails_on_a_redacted_value_does_not_fail_the_object() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "hidden", "path": "cel:object.spec.password.startsWith('x')" },
            { "name": "kept", "path": "$.spec.image" },
        ]),
    );
    let attributes = extract(&spec, json!({ "spec": { "password": "hunter2", "image": "a" } }));
    assert_eq!(attributes, r#"{"hidden":{"reason":"sensitive-key","redacted":true},"kept":"a"}"#);
}

#[test]
fn an_expression_that_exceeds_its_budget_fails_and_its_attribute_is_named() {
    let bomb = "cel:[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, [1,2,3,4,5,6,7,8].all(e, true)))))";
    let required = spec("Pod", json!([{ "name": "fine", "path": "$.a" }, { "name": "bomb", "path": bomb }]));
    let profile = compiled(&required);
    let raw = to_raw_value(&json!({ "a": 1 })).unwrap();
    let error = profile.extract(&profile.gvk, &raw, None).unwrap_err().to_string();
    assert!(error.starts_with("attribute bomb: "), "{error}");
    let optional = spec(
        "Pod",
        json!([{ "name": "fine", "path": "$.a" }, { "name": "bomb", "path": bomb, "optional": true }]),
    );
    assert_eq!(
        extract(&optional, json!({ "a": 1 })),
        r#"{"fine":1}"#,
        "only the attribute that fails is left out"
    );
}

#[test]
fn misspelt_functions_and_variables_are_refused_before_anything_runs() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "a", "path": "cel:object.spec.containers.mapp(c, c.image)" },
            { "name": "b", "path": "cel:obj.spec" },
            { "name": "c", "path": "cel:jsonpatch.escapeKey(object.status.podIP)" },
        ]),
    );
    let Err(errors) = compile(&spec, OptIns::default()) else { unreachable!("must not compile") };
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["spec.attributes[0].path", "spec.attributes[1].path", "spec.attributes[2].path"]);
    assert!(errors[0].problem.contains("map"), "{}", errors[0]);
    assert!(errors[1].problem.contains("object"), "{}", errors[1]);
    assert!(errors[2].problem.contains("not available"), "{}", errors[2]);
}

#[test]
fn secrets_of_namespaces_are_removed_too() {
    let spec = spec("Pod", json!([{ "name": "ns", "path": "cel:namespaceObject.metadata" }]));
    let metadata: Metadata = serde_json::from_value(json!({
        "name": "shop", "labels": { "team": "a" },
        "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hunter2", "deploy-token": "hunter2", "x": "y" },
    }))
    .unwrap();
    let profile = compiled(&spec);
    let raw = to_raw_value(&json!({})).unwrap();
    let attributes = profile.extract(&profile.gvk, &raw, Some(&metadata)).unwrap().attributes;
    assert!(!attributes.get().contains("hunter2"), "{attributes}");
    assert!(attributes.get().contains(r#""x":"y""#), "{attributes}");
}

#[test]
fn redaction_does_not_depend_on_which_other_fields_are_read() {
    let object = json!({ "spec": {
        "tls": { "cert": "c", "key": "hunter2" },
        "volume": { "secret": { "secretName": "s1", "optional": false, "items": [{ "key": "k", "path": "p" }] } },
        "login": { "secret": { "secretName": "s1", "other": "hunter2", "key": "Hunter2" } },
        "db": { "password": { "secret": "shop-db", "key": "db" }, "token": { "secret": "Hunter2", "key": "Hunter3" } },
        "env": [{ "name": "PASSWORD", "value": "hunter2" }, { "key": "token", "default": "hunter2" }],
        "data": [{ "secretKey": "k", "remoteRef": { "key": "r" } }, { "secretKey": "hunter2" }],
        "headers": [{ "headerName": "x-api-key", "headerValue": "hunter2" }],
        "files": [{ "path": "/etc/token.csv", "content": "hunter2" }],
    } });
    let whole: Value =
        serde_json::from_str(&extract(&spec("Pod", json!([{ "name": "all", "path": "$" }])), object.clone()))
            .unwrap();
    let mut places = Vec::new();
    leaves(&object, &mut String::new(), &mut places);
    assert!(places.len() > 20, "{places:?}");
    for place in places {
        let alone = json!([{ "name": "alone", "path": format!("${place}") }]);
        let row: Value = serde_json::from_str(&extract(&spec("Pod", alone), object.clone())).unwrap();
        let pointer = place.replace('[', ".").replace(']', "").replace('.', "/");
        assert_eq!(row["alone"], *whole["all"].pointer(&pointer).unwrap(), "{place}");
    }
}

/// The paths of all scalars.
fn leaves(value: &Value, path: &mut String, found: &mut Vec<String>) {
    let length = path.len();
    let step = |path: &mut String, step: String, value: &Value, found: &mut Vec<String>| {
        path.push_str(&step);
        leaves(value, path, found);
        path.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| step(path, format!(".{key}"), value, found)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, item)| step(path, format!("[{index}]"), item, found));
        }
        _ => found.push(path.clone()),
    }
}

fn opted_in(attributes: Value, object: &Value) -> Result<String, String> {
    let opt_ins = OptIns { secret_extraction: true, ..OptIns::default() };
    let profile = compile(&spec("Secret", attributes), opt_ins).unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(object).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).map_err(|error| error.to_string())?;
    Ok(extracted.attributes.get().to_owned())
}

#[test]
fn only_the_decoder_sees_a_helm_release() {
    let object = json!({ "data": { "release": "aHVudGVyMg==", "other": "eA==" } });
    let row = opted_in(
        json!([{ "name": "data", "path": "$.data" }, { "name": "r", "path": "$.data.release" }]),
        &object,
    );
    assert_eq!(row.unwrap(), r#"{"data":{"other":"eA=="},"r":null}"#);
}

#[test]
fn errors_do_not_repeat_values() {
    let object = json!({ "data": { "pin": "hunter2" } });
    for expression in [
        "{'a':1}[object.data.pin]",
        "object[object.data.pin]",
        "duration(object.data.pin)",
        "timestamp(object.data.pin)",
        "int(object.data.pin)",
    ] {
        let path = format!("cel:{expression}");
        let error = opted_in(json!([{ "name": "a", "path": path }]), &object).unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
    }
    let error = opted_in(json!([{ "name": "a", "path": "cel:object.data.nope" }]), &object).unwrap_err();
    assert!(error.contains("nope"), "a key that the expression names is named: {error}");
}

#[test]
fn the_result_of_a_path_has_a_size_limit() {
    let mut object = json!("x".repeat(1 << 20));
    for _ in 0..20 {
        object = json!({ "a": object });
    }
    let profile = compiled(&spec("Pod", json!([{ "name": "deep", "path": "{..a}" }])));
    let error = profile.extract(&profile.gvk, &to_raw_value(&object).unwrap(), None).unwrap_err().to_string();
    assert_eq!(
        error,
        "attribute deep: its value is larger than 1048576 bytes: read a part of it, or raise --max-attribute-bytes"
    );
}

#[test]
fn an_attribute_that_is_too_large_fails_by_name_before_it_is_copied() {
    let attributes = json!([
        { "name": "small", "path": "cel:object.small", "optional": true },
        { "name": "whole", "path": "$", "optional": true },
        { "name": "list", "path": "$.items[*]", "optional": true },
        { "name": "expression", "path": "cel:object", "optional": true },
        { "name": "built", "path": "cel:object.text + object.text", "optional": true },
    ]);
    let object = json!({
        "small": 1, "text": "x".repeat(700_000),
        "items": vec![json!({ "a": "y".repeat(90) }); 12_000],
    });
    let profile =
        compile(&spec("Pod", attributes), OptIns::default()).unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(&object).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).unwrap();
    assert_eq!(extracted.attributes.get(), r#"{"small":1}"#);
    assert_eq!(extracted.notes.nulls.len(), 4, "{:?}", extracted.notes.nulls);
    let required = json!([{ "name": "whole", "path": "$" }]);
    let profile =
        compile(&spec("Pod", required), OptIns::default()).unwrap_or_else(|e| unreachable!("{e:?}"));
    let error = profile.extract(&profile.gvk, &raw, None).unwrap_err().to_string();
    assert_eq!(
        error,
        "attribute whole: its value is larger than 1048576 bytes: read a part of it, or raise --max-attribute-bytes"
    );
}

/// Building three million values took seconds before the meter started.
#[test]
fn an_expression_over_a_huge_object_fails_soon_and_others_still_read_their_parts() {
    let attributes = json!([
        { "name": "all", "path": "cel:object", "optional": true },
        { "name": "one", "path": "cel:object.first.x" },
        { "name": "many", "path": "cel:size(object.many)" },
    ]);
    let profile =
        compile(&spec("Pod", attributes), OptIns::default()).unwrap_or_else(|e| unreachable!("{e:?}"));
    let many: serde_json::Map<String, serde_json::Value> =
        (0..150_000).map(|index| (index.to_string(), json!([1]))).collect();
    let raw = to_raw_value(&json!({ "first": { "x": 1 }, "many": many })).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).unwrap();
    assert_eq!(extracted.attributes.get(), r#"{"many":150000,"one":1}"#);
}

#[test]
fn an_error_in_an_expression_of_several_lines_shows_its_line() {
    let spec =
        spec("Pod", json!([{ "name": "a", "path": "cel:object.spec.replicas >\n  objct.x\n  && true\n" }]));
    let Err(errors) = compile(&spec, OptIns::default()) else { unreachable!("must not compile") };
    assert_eq!(
        errors[0].problem,
        "there is no variable objct: did you mean object? (line 2, column 3)\n      objct.x\n      ^"
    );
}

#[test]
fn objects_without_a_spec_are_exported_as_a_whole_without_noise() {
    let mut spec: KollectProfileSpec = serde_json::from_value(json!({
        "targetGVK": { "version": "v1", "kind": "ConfigMap" }, "attributes": [{ "name": "x", "path": "$.data.x" }],
        "export": { "mode": "Resource" },
    }))
    .unwrap();
    let object = json!({ "metadata": { "name": "a", "uid": "u", "labels": { "l": "1" }, "managedFields": [1], "resourceVersion": "5" },
        "data": { "x": "1", "db.password": "hunter2" } });
    assert_eq!(
        extract(&spec, object.clone()),
        r#"{"resource":{"apiVersion":"v1","data":{"db.password":{"reason":"sensitive-key","redacted":true},"x":"1"},"kind":"ConfigMap","metadata":{"labels":{"l":"1"}}},"x":"1"}"#
    );
    spec.export.as_mut().unwrap().include = kollect_model::crd::profile::ExportSections::SpecOnly;
    assert_eq!(extract(&spec, object), r#"{"resource":{"apiVersion":"v1","kind":"ConfigMap"},"x":"1"}"#);
}

#[test]
fn an_object_whose_pruning_depends_on_a_redacted_value_is_hidden_as_a_whole() {
    let object = json!({ "spec": { "password": "hunter2", "a": 1 } });
    let export = json!({ "mode": "Resource", "prune": { "cel": ["object.spec.password == 'x' ? '/spec/a' : '/spec/b'"] } });
    assert_eq!(
        exported(export, object.clone()),
        r#"{"resource":{"reason":"sensitive-key","redacted":true}}"#
    );
    let export = json!({ "mode": "Resource", "prune": { "cel": ["has(object.spec.password) ? '/spec/a' : '/spec/b'"] } });
    assert!(exported(export, object).contains(r#""spec":{"password":{"reason""#));
}

#[test]
fn redactions_and_nulls_are_noted_with_examples() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "env", "path": "$.spec.env[*].value" },
            { "name": "first", "path": "cel:object.spec.env[0].value == 'x'" },
            { "name": "url", "path": "cel:object.spec.env[1].value" },
            { "name": "names", "path": "$.spec.env[*].name" },
            { "name": "ready", "path": "$.spec.ready", "type": "bool" },
            { "name": "count", "path": "$.spec.ready", "type": "int" },
            { "name": "text", "path": "$.spec.url", "type": "int" },
            { "name": "missing", "path": "$.spec.nope", "optional": true },
            { "name": "failed", "path": "cel:object.spec.env[9].name", "optional": true },
        ]),
    );
    let profile = compiled(&spec);
    let object = json!({ "spec": { "ready": "True", "url": "redis://:hunter2@h",
        "env": [{ "name": "PASSWORD", "value": "hunter2" }, { "name": "URL", "value": "redis://:hunter2@h" }] } });
    let extracted = profile.extract(&profile.gvk, &to_raw_value(&object).unwrap(), None).unwrap();
    let redactions: Vec<_> = extracted.notes.redactions.iter().map(|r| (&*r.name, r.values)).collect();
    assert_eq!(redactions, [("env", 2), ("first", 1), ("url", 1)]);
    let nulls: Vec<_> =
        extracted.notes.nulls.iter().map(|null| (&*null.name, null.cause, null.types)).collect();
    assert_eq!(
        nulls,
        [
            ("count", NullCause::TypeMismatch, Some(("int", "a string"))),
            ("text", NullCause::TypeMismatch, Some(("int", "a string"))),
            ("missing", NullCause::Missing, None),
            ("failed", NullCause::Failed, None),
        ]
    );
    let examples: Vec<_> = extracted.examples.iter().map(|(name, text)| (&**name, &**text)).collect();
    assert_eq!(
        examples,
        [("count", r#""True""#), ("text", r#""redis://:***@h""#), ("failed", "index out of bounds: 9")]
    );
    assert!(extracted.attributes.get().contains(r#""ready":true"#), "{}", extracted.attributes);
    assert!(extracted.places.is_empty(), "only if they are asked for");
}

#[test]
fn values_of_secrets_are_in_no_example() {
    let opt_ins = OptIns { secret_extraction: true, ..OptIns::default() };
    let spec = spec("Secret", json!([{ "name": "n", "path": "$.data.n", "type": "int" }]));
    let profile = compile(&spec, opt_ins).unwrap_or_else(|e| unreachable!("{e:?}"));
    let raw = to_raw_value(&json!({ "data": { "n": "aHVudGVyMg==" } })).unwrap();
    let extracted = profile.extract(&profile.gvk, &raw, None).unwrap();
    assert_eq!((extracted.notes.nulls.len(), extracted.examples.len()), (1, 0));
}

#[test]
fn names_of_attributes_that_mean_a_credential_and_paths_that_find_nothing_are_warnings() {
    let spec = spec(
        "Pod",
        json!([
            { "name": "secrets", "path": "$.spec.volumes[*].secret.secretName" },
            { "name": "secretNames", "path": "$.spec.volumes[*].secret.secretName" },
            { "name": "hasSecret", "path": "cel:has(object.spec.secret)", "type": "bool" },
            { "name": "app", "path": "$.metadata.labels.app.kubernetes.io/name" },
        ]),
    );
    let warnings: Vec<String> = compiled(&spec).warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("spec.attributes[0].name = \"secrets\": means a credential"),
        "{warnings:?}"
    );
    assert!(warnings[1].contains("quote it, as in ['app.kubernetes.io/name']"), "{warnings:?}");
    let object = json!({ "spec": { "volumes": [{ "secret": { "secretName": "regcred" } }, { "secret": { "secretName": "shop-db" } }], "secret": { "name": "x" } } });
    assert_eq!(
        extract(&spec, object),
        r#"{"app":null,"hasSecret":true,"secretNames":["regcred","shop-db"],"secrets":[{"reason":"sensitive-key","redacted":true},"shop-db"]}"#
    );
}
