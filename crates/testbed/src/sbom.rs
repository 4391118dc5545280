//! The bill of materials of the program: every crate that is linked into it, with version and licence, as CycloneDX.
//!
//! `make dist` puts it beside the program. It is made from `cargo metadata`, and is the same for the same `Cargo.lock`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{Error, features::cargo_metadata};

const PROGRAM: &str = "kollect";

/// The bill of materials, as JSON text.
pub fn of_program() -> Result<String, Error> {
    let metadata = cargo_metadata(&["--locked", "--filter-platform", "x86_64-unknown-linux-musl"])?;
    Ok(format!("{:#}\n", in_metadata(&metadata)))
}

/// The crates that the program is linked with, directly or not, without those that only tests and builds need.
fn in_metadata(metadata: &Value) -> Value {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> =
        list(&metadata["packages"]).into_iter().map(|package| (text(&package["id"]), package)).collect();
    let nodes: BTreeMap<String, Value> =
        list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
    let is_program = |package: &&Value| package["name"] == PROGRAM;
    let root = packages.values().find(is_program).map(|package| text(&package["id"])).unwrap_or_default();
    let (mut linked, mut open) = (BTreeSet::new(), vec![root.clone()]);
    while let Some(id) = open.pop() {
        if !linked.insert(id.clone()) {
            continue;
        }
        for dependency in list(&nodes.get(&id).unwrap_or(&Value::Null)["deps"]) {
            if list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                open.push(text(&dependency["pkg"]));
            }
        }
    }
    let component = |id: &String| {
        let package = &packages[id];
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        json!({
            "type": if *id == root { "application" } else { "library" },
            "bom-ref": format!("{name}@{version}"),
            "name": name,
            "version": version,
            "purl": format!("pkg:cargo/{name}@{version}"),
            "licenses": [{ "expression": package["license"] }],
        })
    };
    let components: Vec<Value> = linked.iter().filter(|id| **id != root).map(component).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(&root) },
        "components": components,
    })
}

#[cfg(test)]
mod tests {
    use super::of_program;

    #[test]
    fn the_bill_names_what_is_linked_and_not_what_tests_need() {
        let text = of_program().unwrap();
        let bill: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["metadata"]["component"]["name"], "kollect");
        let names: Vec<&str> =
            bill["components"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        for linked in ["kollect-engine", "kollect-sinks", "kube-client", "libgit2-sys", "rustls"] {
            assert!(names.contains(&linked), "{linked}: {names:?}");
        }
        for not_linked in ["kollect-testbed", "tempfile"] {
            assert!(!names.contains(&not_linked), "{not_linked}");
        }
        assert_eq!(of_program().unwrap(), text, "the same bill twice");
    }
}
