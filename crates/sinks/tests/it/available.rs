//! A type that is not in the build is refused by name.

use kollect_model::sink::SinkSpec;
use kollect_sinks::plan;
use serde_json::json;

#[test]
fn a_type_that_is_not_in_the_build_is_refused() {
    let specs = [
        SinkSpec::Snapshot(serde_json::from_value(json!({ "type": "gcs", "endpoint": "gs://x" })).unwrap()),
        SinkSpec::Database(serde_json::from_value(json!({ "type": "mongodb" })).unwrap()),
        SinkSpec::Event(serde_json::from_value(json!({ "type": "kafka" })).unwrap()),
    ];
    for (spec, name) in specs.iter().zip(["gcs", "mongodb", "kafka"]) {
        let errors = plan(spec).unwrap_err();
        let text = errors[0].to_string();
        assert!(
            text.starts_with(&format!("spec.type = \"{name}\": is not available in this build")),
            "{text}"
        );
    }
}
