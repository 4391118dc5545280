//! JSON Schemas of Kubernetes' own kinds, in several versions, and of kinds that the chart uses from other projects, as
//! kubeconform reads them.
//!
//! They are made from what the Go modules of these projects contain, once, and kept in the cache of programs. They are
//! strict: a field that the version does not have is an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::programs::cache;

/// Versions that the chart is checked with: the minor version, and the module that has its schemas.
pub const KUBERNETES_VERSIONS: [(&str, &str); 4] = [
    ("1.33", "k8s.io/kubernetes@v1.33.13"),
    ("1.34", "k8s.io/kubernetes@v1.34.4"),
    ("1.35", "k8s.io/kubernetes@v1.35.4"),
    ("1.36", "k8s.io/kubernetes@v1.36.3"),
];

/// Definitions of custom resources in modules of other projects.
const CUSTOM_KINDS: [(&str, &str); 4] = [
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
    ),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ),
    ("github.com/cert-manager/cert-manager@v1.21.2", "deploy/crds/cert-manager.io_certificates.yaml"),
    ("github.com/cert-manager/cert-manager@v1.21.2", "deploy/crds/cert-manager.io_issuers.yaml"),
];

/// Directory with a directory for each minor version, in which every kind has a file: `deployment-apps-v1.json`.
pub fn directory() -> Result<PathBuf, Error> {
    let directory = cache()?.join("schemas-v1");
    if !directory.exists() {
        // Only a complete directory gets the name. Another process may be first.
        let staging = cache()?.join(format!("schemas.{}", std::process::id()));
        write_all(&staging)?;
        if fs::rename(&staging, &directory).is_err() {
            fs::remove_dir_all(&staging).map_err(Error::io(format!("remove {}", staging.display())))?;
        }
    }
    Ok(directory)
}

fn write_all(directory: &Path) -> Result<(), Error> {
    for (version, module) in KUBERNETES_VERSIONS {
        let target = directory.join(version);
        fs::create_dir_all(&target).map_err(Error::io(format!("create {}", target.display())))?;
        write_kinds(&target, &module_directory(module)?.join("api/openapi-spec/swagger.json"))?;
        for (module, file) in CUSTOM_KINDS {
            write_custom_kind(&target, &module_directory(module)?.join(file))?;
        }
    }
    Ok(())
}

/// The definition of Argo CD's Applications, as it publishes it.
pub fn argo_application() -> Result<PathBuf, Error> {
    Ok(module_directory("github.com/argoproj/argo-cd/v3@v3.1.0")?.join("manifests/crds/application-crd.yaml"))
}

/// Downloads a Go module, which is `path@version`, and returns where it is.
pub(crate) fn module_directory(module: &str) -> Result<PathBuf, Error> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=mod")
        .current_dir(std::env::temp_dir())
        .output()
        .map_err(Error::io(format!("download {module}")))?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    answer["Dir"].as_str().map(PathBuf::from).ok_or_else(|| Error::Command {
        command: format!("go mod download {module}"),
        stderr: format!("{}{}", answer["Error"], String::from_utf8_lossy(&output.stderr)),
    })
}

/// Writes the kinds of a version: their definitions into one file, and a file that refers to it for each kind.
fn write_kinds(directory: &Path, swagger: &Path) -> Result<(), Error> {
    let text = read(swagger)?;
    let mut swagger: Value = serde_json::from_str(&text).map_err(|error| malformed(swagger, &error))?;
    let mut definitions = swagger["definitions"].take();
    for definition in definitions.as_object_mut().into_iter().flat_map(Map::values_mut) {
        make_strict(definition);
    }
    for (name, definition) in definitions.as_object().into_iter().flatten() {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let [group, version, kind] =
                ["group", "version", "kind"].map(|key| kind[key].as_str().unwrap_or_default());
            let schema = json!({ "$ref": format!("definitions.json#/definitions/{name}") });
            write_kind(directory, group, version, kind, &schema)?;
        }
    }
    write(&directory.join("definitions.json"), &json!({ "definitions": definitions }))
}

fn write_custom_kind(directory: &Path, file: &Path) -> Result<(), Error> {
    let definition: Value = serde_saphyr::from_str(&read(file)?).map_err(|error| malformed(file, &error))?;
    let spec = &definition["spec"];
    let version = &spec["versions"][0];
    let mut schema = version["schema"]["openAPIV3Schema"].clone();
    // Metadata is described by Kubernetes.
    schema["properties"]["metadata"] = json!({ "type": "object" });
    make_strict(&mut schema);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    write_kind(
        directory,
        &text(&spec["group"]),
        &text(&version["name"]),
        &text(&spec["names"]["kind"]),
        &schema,
    )
}

fn write_kind(directory: &Path, group: &str, version: &str, kind: &str, schema: &Value) -> Result<(), Error> {
    let group = group.split('.').next().filter(|group| !group.is_empty());
    let name = [Some(kind), group, Some(version)].into_iter().flatten().collect::<Vec<_>>().join("-");
    write(&directory.join(format!("{}.json", name.to_lowercase())), schema)
}

/// Forbids fields that are not described, and leaves out what no validator needs.
fn make_strict(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(make_strict),
        Value::Object(fields) => {
            // Of a property that is called "description" this is an object.
            if fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            if fields.get("format").is_some_and(|format| format == "int-or-string")
                || fields.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
            {
                fields.clear();
                fields.insert("type".into(), json!(["string", "integer"]));
            }
            // Formats such as int32 are not those of JSON Schema.
            if fields.get("format").is_some_and(Value::is_string) {
                fields.remove("format");
            }
            let keeps_unknown =
                fields.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
            let is_object = fields.get("properties").is_some_and(Value::is_object);
            if is_object && !keeps_unknown && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".into(), Value::Bool(false));
            }
            fields.values_mut().for_each(make_strict);
        }
        _ => {}
    }
}

fn read(file: &Path) -> Result<String, Error> {
    fs::read_to_string(file).map_err(Error::io(format!("read {}", file.display())))
}

fn write(file: &Path, schema: &Value) -> Result<(), Error> {
    fs::write(file, schema.to_string()).map_err(Error::io(format!("write {}", file.display())))
}

fn malformed(file: &Path, error: &dyn std::error::Error) -> Error {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidData, error.to_string());
    Error::Io { action: format!("read {}", file.display()), source }
}
