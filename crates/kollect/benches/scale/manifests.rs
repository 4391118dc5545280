//! Manifests of the kinds that the program watches.

use std::{fs, path::Path};

use anyhow::Result;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The group of the many kinds.
pub(crate) const GROUP: &str = "scale.example.com";

/// The name of one of the many kinds.
pub(crate) fn kind(index: usize) -> String {
    format!("Part{index:03}")
}

/// A directory with manifests.
pub(crate) struct Manifests(TempDir);

impl Manifests {
    /// Ten attributes of all Deployments, or of those in some namespaces.
    pub(crate) fn deployments(namespaces: &[&str]) -> Result<Self> {
        let gvk = json!({ "group": "apps", "version": "v1", "kind": "Deployment" });
        Self::write(&profile_and_target("scale", &gvk, &ten_attributes(), namespaces))
    }

    /// One attribute of each of the many kinds.
    pub(crate) fn kinds(count: usize) -> Result<Self> {
        let attributes = json!([{ "name": "size", "path": "$.spec.size", "type": "int" }]);
        let pairs = (0..count).flat_map(|index| {
            let gvk = json!({ "group": GROUP, "version": "v1", "kind": kind(index) });
            profile_and_target(&kind(index).to_lowercase(), &gvk, &attributes, &[])
        });
        Self::write(&pairs.collect::<Vec<_>>())
    }

    fn write(manifests: &[Value]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let documents: Vec<String> = manifests.iter().map(ToString::to_string).collect();
        fs::write(directory.path().join("kollect.yaml"), documents.join("\n---\n"))?;
        Ok(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A profile and its target.
fn profile_and_target(name: &str, gvk: &Value, attributes: &Value, namespaces: &[&str]) -> [Value; 2] {
    let manifest = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "kollect.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec,
        })
    };
    let mut target = json!({ "profileRef": name });
    if !namespaces.is_empty() {
        target["includedNamespaces"] = json!(namespaces);
    }
    let profile = json!({ "targetGVK": gvk, "attributes": attributes });
    [manifest("KollectProfile", profile), manifest("KollectTarget", target)]
}

fn ten_attributes() -> Value {
    let pods = "spec.template.spec";
    json!([
        { "name": "image", "path": format!("$.{pods}.containers[0].image"), "type": "string" },
        { "name": "images", "path": format!("$.{pods}.containers[*].image"), "type": "list" },
        { "name": "containerCount", "path": format!("cel:size(object.{pods}.containers)"), "type": "int" },
        { "name": "replicas", "path": "$.spec.replicas", "type": "int" },
        { "name": "team", "path": "$.metadata.labels.team", "type": "string" },
        { "name": "tier", "path": "$.metadata.labels.tier", "type": "string" },
        { "name": "owner", "path": "$.metadata.annotations.owner", "type": "string" },
        { "name": "labels", "path": "$.metadata.labels", "type": "map" },
        { "name": "strategy", "path": "$.spec.strategy.type", "type": "string" },
        { "name": "ports", "path": format!("$.{pods}.containers[0].ports[*].containerPort"), "type": "list" },
    ])
}
