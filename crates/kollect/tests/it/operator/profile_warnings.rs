//! What the status of a profile says about mistakes that the schema of its kind shows.

use serde_json::json;

use super::OperatorTest;
use crate::program::eventually;

#[test]
fn the_status_of_a_profile_names_a_field_that_its_kind_does_not_have() {
    let mut test = OperatorTest::new("schemas");
    let spec = |path: &str| {
        json!({
            "targetGVK": { "version": "v1", "kind": "ConfigMap" },
            "attributes": [{ "name": "a", "path": path }],
        })
    };
    test.apply_kollect("KollectProfile", "wrong", spec("$.metadata.label.app"));
    test.start(&[]);
    let says = |expected: &str| {
        eventually(expected, || {
            let message: String =
                serde_json::from_str(&test.condition_message("kollectprofile/wrong", "Ready"))
                    .unwrap_or_default();
            if message == expected { Ok(()) } else { Err(message) }
        });
    };
    says(
        "all expressions compile; 0 targets use it; warning: spec.attributes[0].path = \"$.metadata.label.app\": \
         the schema has no field label here: did you mean labels?",
    );
    test.wait_for_condition("kollectprofile/wrong", "Ready", "True Compiled");
    test.apply_kollect("KollectProfile", "wrong", spec("$.metadata.labels.app"));
    says("all expressions compile; 0 targets use it");
}
