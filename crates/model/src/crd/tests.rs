//! The generated manifests are the committed ones, and specs decode from them.

use std::{fs, path::PathBuf};

use serde_json::json;

use super::*;
use crate::sink::SinkSpec;

#[test]
fn committed_definitions_are_the_generated_ones() {
    let bases = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../config/crd/bases");
    let mut committed: Vec<_> =
        fs::read_dir(&bases).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    committed.sort();
    let mut generated: Vec<_> = all().iter().map(file_name).collect();
    generated.sort();
    assert_eq!(committed, generated, "run `make generate`");
    for crd in all() {
        let file = bases.join(file_name(&crd));
        let text = fs::read_to_string(&file).unwrap();
        assert!(text == yaml(&crd), "{} is out of date: run `make generate`", file.display());
    }
}

#[test]
fn every_secret_that_a_sink_reads_is_known() {
    let mongodb = json!({ "type": "mongodb", "mongodb": { "databaseRef": { "name": "m" }, "database": "d", "collection": "c" } });
    let spec = SinkSpec::Database(serde_json::from_value(mongodb).unwrap());
    let names: Vec<_> = spec.secret_refs().into_iter().map(|(field, r)| (field, r.name.as_str())).collect();
    assert_eq!(names, [("spec.mongodb.databaseRef", "m")]);

    let git = json!({
        "type": "git", "endpoint": "https://git.example.com/x.git", "secretRef": { "name": "a" },
        "tls": { "caSecretRef": { "name": "ca" } }, "git": { "auth": { "secretRef": { "name": "b" } } },
    });
    let spec = SinkSpec::Snapshot(serde_json::from_value(git).unwrap());
    let names: Vec<_> = spec.secret_refs().into_iter().map(|(field, r)| (field, r.name.as_str())).collect();
    assert_eq!(
        names,
        [("spec.secretRef", "a"), ("spec.tls.caSecretRef", "ca"), ("spec.git.auth.secretRef", "b")]
    );
}

#[test]
fn the_file_format_comes_from_the_spec_or_the_type_of_the_sink() {
    let format =
        |spec: Value| serde_json::from_value::<sinks::KollectSnapshotSinkSpec>(spec).unwrap().format();
    let s3 = |extra: Value| {
        let mut spec = json!({ "type": "s3", "endpoint": "s3://b" });
        spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        format(spec)
    };
    assert_eq!(s3(json!({})), sinks::FileFormat::Json);
    assert_eq!(s3(json!({ "serialization": { "format": "csv" } })), sinks::FileFormat::Csv);
    assert_eq!(s3(json!({ "objectStore": { "format": "parquet" } })), sinks::FileFormat::Parquet);
    assert_eq!(format(json!({ "type": "git", "endpoint": "x" })), sinks::FileFormat::Yaml);
}
