//! Objects of real shapes, and the profile that the comparison with other programs uses.

use serde_json::{Value, json};

/// The profile that the comparison with other programs uses; `pods` is where the containers are.
pub(crate) fn ten_attributes(pods: &str) -> Value {
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

/// Metadata with this number of managed fields.
pub(crate) fn metadata(managed: usize) -> Value {
    let fields: serde_json::Map<_, _> =
        (0..managed).map(|i| (format!("f:field{i}"), json!({ "f:nested": {}, "f:type": {} }))).collect();
    json!({
        "name": "cart", "namespace": "shop", "uid": "6f0e7c1e-27a1-4a0e-9d5c-0d3a6f5a8a11", "resourceVersion": "123456",
        "generation": 7, "creationTimestamp": "2026-11-15T10:00:00Z",
        "labels": { "team": "shop", "tier": "web", "app.kubernetes.io/name": "cart", "app.kubernetes.io/part-of": "shop" },
        "annotations": { "owner": "shop@example.com", "deployment.kubernetes.io/revision": "7" },
        "managedFields": [{ "manager": "kubectl", "operation": "Apply", "apiVersion": "apps/v1", "fieldsV1": fields }],
    })
}

/// A container with this number of environment variables.
pub(crate) fn container(index: usize, variables: usize) -> Value {
    let env: Vec<_> =
        (0..variables).map(|i| json!({ "name": format!("SETTING_{i}"), "value": "x".repeat(24) })).collect();
    json!({
        "name": format!("c{index}"), "image": format!("registry.example.com/shop/c{index}:1.2.3"), "env": env,
        "ports": [{ "containerPort": 8080, "protocol": "TCP" }, { "containerPort": 9090, "protocol": "TCP" }],
        "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
        "livenessProbe": { "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 10 },
        "terminationMessagePath": "/dev/termination-log", "imagePullPolicy": "IfNotPresent",
    })
}

/// A Deployment with two containers, about 3 KB.
pub(crate) fn deployment() -> Value {
    json!({
        "metadata": metadata(20),
        "spec": { "replicas": 3, "strategy": { "type": "RollingUpdate" },
            "template": { "metadata": { "labels": { "app": "cart" } }, "spec": { "containers": [container(0, 8), container(1, 8)] } } },
        "status": { "replicas": 3, "readyReplicas": 3, "conditions": [{ "type": "Available", "status": "True" }] },
    })
}
