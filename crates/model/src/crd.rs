//! The eleven kinds of group `kollect.dev`, version `v1alpha1`, written once as Rust types.
//!
//! The CRD manifests are generated from them ([`all`]); the doc comment of a field is its description
//! there. Everything that a schema can refuse is refused by the schema: the API server and the command
//! line (`crates/kollect/src/schema.rs`) enforce the same rules.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::Schema;
use serde_json::{Value, json};

pub mod connection_test;
pub mod inventory;
pub mod profile;
pub mod scope;
pub mod shapes;
pub mod sinks;
pub mod target;

pub use connection_test::KollectConnectionTest;
pub use inventory::{KollectClusterInventory, KollectInventory};
pub use profile::KollectProfile;
pub use scope::{KollectClusterScope, KollectScope};
pub use sinks::{KollectDatabaseSink, KollectEventSink, KollectSnapshotSink};
pub use target::{KollectClusterTarget, KollectTarget};

/// API group of every kind.
pub const GROUP: &str = "kollect.dev";
/// The one served and stored version.
pub const VERSION: &str = "v1alpha1";

/// The definitions of all eleven kinds, ready to be applied.
pub fn all() -> Vec<Value> {
    [
        KollectProfile::crd(),
        KollectTarget::crd(),
        KollectClusterTarget::crd(),
        KollectInventory::crd(),
        KollectClusterInventory::crd(),
        KollectSnapshotSink::crd(),
        KollectDatabaseSink::crd(),
        KollectEventSink::crd(),
        KollectScope::crd(),
        KollectClusterScope::crd(),
        KollectConnectionTest::crd(),
    ]
    .iter()
    .map(definition)
    .collect()
}

/// File name of a definition below `config/crd/bases`.
pub fn file_name(crd: &Value) -> String {
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap_or_default();
    format!("{GROUP}_{plural}.yaml")
}

/// A definition as the YAML document that `kollect crds` prints.
pub fn yaml(crd: &Value) -> String {
    let body = serde_saphyr::to_string(crd).expect("a JSON value is always YAML");
    format!("---\n{body}")
}

/// The kinds whose schema has always required metadata.
const METADATA_REQUIRED: [&str; 3] = ["KollectScope", "KollectClusterScope", "KollectConnectionTest"];

fn definition(crd: &CustomResourceDefinition) -> Value {
    let mut value = json!(crd);
    let version = &mut value["spec"]["versions"][0];
    remove_nullable(version);
    let root = &mut version["schema"]["openAPIV3Schema"]["properties"];
    root["apiVersion"] = json!({ "type": "string", "description": "Group and version of the kind." });
    root["kind"] = json!({ "type": "string", "description": "The kind." });
    root["metadata"] = json!({ "type": "object" });
    if METADATA_REQUIRED.contains(&&*crd.spec.names.kind) {
        version["schema"]["openAPIV3Schema"]["required"] = json!(["metadata", "spec"]);
    }
    value
}

/// Removes `nullable` from a schema. The API server then drops nulls, so that a null field and an absent
/// optional field mean the same.
fn remove_nullable(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("nullable");
            map.values_mut().for_each(remove_nullable);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nullable),
        _ => {}
    }
}

/// `x-kubernetes-validations` from (rule, message) pairs.
fn rules(pairs: &[(&str, &str)]) -> Value {
    pairs.iter().map(|(rule, message)| json!({ "rule": rule, "message": message })).collect()
}

/// Puts rules on the items of a list, so that a refusal names the item.
fn on_items(rules: Value) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(Value::Object(items)) = schema.get_mut("items") {
            items.insert("x-kubernetes-validations".into(), rules.clone());
        }
    }
}

#[cfg(test)]
mod tests;
