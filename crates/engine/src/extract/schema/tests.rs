use serde_json::json;

use super::*;

/// As much of a document of the API server as the tests read.
fn schema() -> ObjectSchema {
    let reference = |name: &str| json!({ "allOf": [{ "$ref": format!("{REFERENCE}{name}") }] });
    let document = json!({ "components": { "schemas": {
        "apps.v1.Deployment": {
            "type": "object",
            KINDS: [{ "group": "apps", "version": "v1", "kind": "Deployment" }],
            "properties": {
                "apiVersion": { "type": "string" }, "kind": { "type": "string" },
                "metadata": reference("ObjectMeta"), "spec": reference("Spec"),
            },
        },
        "ObjectMeta": { "type": "object", "properties": {
            "name": { "type": "string" }, "creationTimestamp": { "type": "string", "format": "date-time" },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } },
        } },
        "Spec": { "type": "object", "properties": {
            "replicas": { "type": "integer" }, "paused": { "type": "boolean" }, "ratio": { "type": "number" },
            "port": { "x-kubernetes-int-or-string": true },
            "containers": { "type": "array", "items": reference("Container") },
            "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {} },
        } },
        "Container": { "type": "object", "properties": {
            "name": { "type": "string" }, "image": { "type": "string" },
            "env": { "type": "array", "items": { "type": "object", "properties": { "name": { "type": "string" } } } },
        } },
        "Unrelated": { "type": "object" },
    } } });
    let gvk = Gvk { group: "apps".into(), version: "v1".into(), kind: "Deployment".into() };
    let schema = ObjectSchema::of(&document.to_string(), &gvk).unwrap();
    assert_eq!(schema.schemas.len(), 4, "only what the kind refers to is kept");
    let other = Gvk { kind: "StatefulSet".into(), ..gvk };
    assert!(ObjectSchema::of(&document.to_string(), &other).is_none());
    schema
}

/// The warnings about one attribute.
fn warnings(path: &str, type_: &str) -> Vec<String> {
    let spec = json!({
        "targetGVK": { "group": "apps", "version": "v1", "kind": "Deployment" },
        "attributes": [{ "name": "a", "path": path, "type": type_ }],
    });
    let spec: KollectProfileSpec = serde_json::from_value(spec).unwrap();
    check(&spec, &schema()).into_iter().map(|warning| warning.problem).collect()
}

#[test]
fn mistakes_that_the_schema_shows_are_warnings() {
    for (path, type_, expected) in [
        ("$.spec.replica", "", "the schema has no field replica here: did you mean replicas?"),
        ("{.metadata.label.app}", "", "the schema has no field label here: did you mean labels?"),
        ("$.spec.containers[*].imagee", "", "the schema has no field imagee here: did you mean image?"),
        ("$.spec.containers", "int", "the value is a list, which can never be the type int"),
        ("$.spec.paused", "int", "the value is a bool, which can never be the type int"),
        ("$.spec.containers[*].image", "map", "the value is a string, which can never be the type map"),
        ("cel:object.spec.replica", "", "the schema has no field replica here: did you mean replicas?"),
        ("cel:has(object.spec.pause)", "", "the schema has no field pause here: did you mean paused?"),
        ("cel:object.?spec.?replica.orValue(1)", "", "the schema has no field replica here"),
        ("cel:object.spec['replica']", "", "the schema has no field replica here"),
        ("cel:object.spec.containers.map(c, c.imagee)", "", "the schema has no field imagee here"),
        ("cel:object.spec.containers.filter(c, c.nam == 'a')", "", "the schema has no field nam here"),
        ("cel:object.spec.containers.exists(c, c.env.all(e, e.nome == 'a'))", "", "did you mean name?"),
        ("cel:object.spec.containers.transformList(i, c, c.imag)", "", "the schema has no field imag here"),
        ("cel:cel.bind(s, object.spec, s.replica)", "", "the schema has no field replica here"),
        ("cel:object.spec.containers[0].imagee", "", "the schema has no field imagee here"),
        ("cel:object.spec.containers.first().value().imagee", "", "the schema has no field imagee here"),
        (
            "cel:object.spec.containers.image",
            "",
            "a list has no fields: use an index, or a macro such as map",
        ),
        ("cel:object.metadata.name.x", "", "a string has no fields"),
        ("cel:object.spec.replicas == '3'", "", "== compares an int with a string: they are never equal"),
        ("cel:object.spec.replicas < '3'", "", "< compares an int with a string: it always fails"),
        ("cel:object.spec.replicas + 'x'", "", "+ does not take an int and a string: convert one of them"),
        ("cel:object.spec.replicas + 1.5", "", "+ does not take an int and a double"),
        ("cel:object.spec.replicas && true", "", "&& takes a bool, and this is an int"),
        ("cel:object.spec.replicas ? 1 : 2", "", "? takes a bool, and this is an int"),
        (
            "cel:object.spec.replicas.startsWith('a')",
            "",
            "startsWith is a function of texts, and this is an int",
        ),
        ("cel:object.spec.replicas.map(x, x)", "", "a macro runs over a list or a map, and this is an int"),
        (
            "cel:object.spec.containers.map(c, c.image)",
            "string",
            "the result is a list, which can never be the type string",
        ),
        (
            "cel:size(object.spec.containers)",
            "bool",
            "the result is an int, which can never be the type bool",
        ),
        (
            "cel:object.spec.containers.all(c, has(c.image))",
            "number",
            "the result is a bool, which can never be",
        ),
    ] {
        let found = warnings(path, type_);
        assert_eq!(found.len(), 1, "{path}: {found:?}");
        assert!(found[0].starts_with(expected) || found[0].contains(expected), "{path}: {found:?}");
    }
}

#[test]
fn what_the_schema_does_not_know_is_no_mistake() {
    for (path, type_) in [
        ("$.spec.replicas", "string"),
        ("$.spec.free.anything.goes", "int"),
        ("$.metadata.labels.app", "int"),
        ("$.metadata.labels['x.y/z']", "bool"),
        ("$..nope", ""),
        ("$.spec.port", "string"),
        ("$.spec.containers[*].image", "string"),
        ("$.spec.containers[?(@.name == 'a')].image", "list"),
        ("cel:object.spec.free.anything.goes + 1", "map"),
        ("cel:object.spec.port == 'http' || object.spec.port == 80", "bool"),
        ("cel:object.metadata.labels.app", "int"),
        ("cel:object.metadata.labels.all(k, v, k != v)", "bool"),
        ("cel:object.spec.ratio * 2.0 + double(object.spec.replicas)", "number"),
        ("cel:object.spec.replicas > 1.5", "bool"),
        ("cel:timestamp(object.metadata.creationTimestamp) + duration('1h')", "timestamp"),
        ("cel:object.spec.containers.map(c, c.env).flatten().map(e, e.name)", "list"),
        ("cel:namespaceObject.metadata.labels.x", "int"),
        ("cel:object.spec.paused ? 1 : 'x'", "int"),
        ("cel:object.spec.containers + [1]", "list"),
        ("cel:[1, 'a'].exists(x, x == object.spec.replicas)", "bool"),
        ("cel:object.metadata.?labels.?app.orValue(object.metadata.name)", "string"),
        ("helm:release.chartVersion", "map"),
    ] {
        assert_eq!(warnings(path, type_), Vec::<String>::new(), "{path}");
    }
}

#[test]
fn a_warning_points_into_the_expression() {
    let spec = json!({
        "targetGVK": { "group": "apps", "version": "v1", "kind": "Deployment" },
        "attributes": [{ "name": "a", "path": "cel:1 + object.spec.replica" }],
        "export": { "mode": "Resource", "prune": { "cel": ["object.spec.nope == 1 ? '/a' : '/b'"] } },
    });
    let spec: KollectProfileSpec = serde_json::from_value(spec).unwrap();
    let found = check(&spec, &schema());
    let lines: Vec<&str> = found[0].problem.lines().map(str::trim_end).collect();
    assert_eq!(lines[1], "    1 + object.spec.replica");
    assert!(lines[2].ends_with('^') && lines[2].len() > 10, "{lines:?}");
    assert_eq!(found[1].field, "spec.export.prune.cel[0]");
}
