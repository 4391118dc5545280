//! The parts of AdmissionReview that are read and answered here.

use kollect_model::{
    SpecError,
    crd::{GROUP, VERSION},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::KindSchema;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// Limit of characters in a warning; API servers cut longer ones.
const LONGEST_WARNING: usize = 240;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewRequest {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<AdmissionRequest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AdmissionRequest {
    uid: String,
    kind: RequestKind,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    operation: String,
    #[serde(default)]
    object: Value,
    #[serde(default)]
    old_object: Value,
}

#[derive(Deserialize)]
struct RequestKind {
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

/// The request of a review.
pub(super) struct ObjectReview {
    uid: String,
    kind: String,
    operation: String,
    pub(super) object: Value,
    old: Value,
}

impl ObjectReview {
    /// Reads a review; the error names what is wrong with it.
    pub(super) fn read(body: &[u8], kind: &KindSchema) -> Result<Self, String> {
        let review: ReviewRequest =
            serde_json::from_slice(body).map_err(|error| format!("this is no {KIND}: {error}"))?;
        if (&*review.api_version, &*review.kind) != (API_VERSION, KIND) {
            let found = format!("{} {}", review.api_version, review.kind);
            return Err(format!("this is {found:?}; only {API_VERSION} {KIND} is known"));
        }
        let request = review.request.ok_or("the review has no request")?;
        let RequestKind { group, version, kind: named } = &request.kind;
        if (&**group, &**version, named) != (GROUP, VERSION, &kind.name) {
            let expected = format!("{GROUP}/{VERSION} {}", kind.name);
            return Err(format!("the review is about {group}/{version} {named}; here it is {expected}"));
        }
        let AdmissionRequest { uid, name, namespace, operation, mut object, old_object, .. } = request;
        if matches!(&*operation, "CREATE" | "UPDATE") {
            let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
            let metadata = metadata.ok_or("the review has no object with metadata")?;
            // The object may omit what the URL of the request contains.
            for (field, value) in [("name", name), ("namespace", namespace)] {
                if !value.is_empty() && metadata.get(field).is_none_or(Value::is_null) {
                    metadata.insert(field.into(), value.into());
                }
            }
            if let Some(prefix) = metadata.get("generateName").and_then(Value::as_str)
                && metadata.get("name").is_none_or(|name| name == "")
            {
                let name = format!("{prefix}x");
                metadata.insert("name".into(), name.into());
            }
        }
        Ok(Self { uid, kind: kind.name.clone(), operation, object, old: old_object })
    }

    /// Whether the request is always allowed: deletion, and changes of metadata only. The finalizer of an object that
    /// has become invalid must be removable.
    pub(super) fn is_exempt(&self) -> bool {
        match &*self.operation {
            "CREATE" => false,
            "UPDATE" => {
                let is_being_deleted = !self.object["metadata"]["deletionTimestamp"].is_null();
                is_being_deleted || (self.is_same_spec() && !self.changes_annotations())
            }
            _ => true,
        }
    }

    /// Whether the spec is unchanged; then problems are warnings only.
    pub(super) fn is_same_spec(&self) -> bool {
        self.operation == "UPDATE" && self.object["spec"] == self.old["spec"]
    }

    /// Whether annotations of a profile change: they can permit what is forbidden by default.
    fn changes_annotations(&self) -> bool {
        let annotations = |object: &Value| object["metadata"]["annotations"].clone();
        self.kind == "KollectProfile" && annotations(&self.object) != annotations(&self.old)
    }

    /// The answer.
    pub(super) fn respond(self, result: ReviewResult) -> ReviewResponse {
        let ReviewResult { problems, warnings } = result;
        let status = (!problems.is_empty()).then(|| {
            let (code, reason) = if problems.iter().all(|problem| problem.forbidden) {
                (403, "Forbidden")
            } else {
                (422, "Invalid")
            };
            let name = self.object["metadata"]["name"].as_str().unwrap_or_default();
            let errors: Vec<String> = problems.iter().map(|problem| problem.error.to_string()).collect();
            let message = format!("{} {name:?}: {}", self.kind, errors.join("; "));
            RefusalStatus { code, reason, message }
        });
        let warnings = warnings.iter().map(|warning| clip(warning)).collect();
        let response = AdmissionResponse { uid: self.uid, allowed: status.is_none(), status, warnings };
        ReviewResponse { api_version: API_VERSION, kind: KIND, response }
    }
}

fn clip(text: &str) -> String {
    let line = text.replace(['\n', '\r'], " ");
    if line.chars().count() <= LONGEST_WARNING {
        return line;
    }
    line.chars().take(LONGEST_WARNING).chain("…".chars()).collect()
}

/// The result of a review.
#[derive(Debug, Default)]
pub(super) struct ReviewResult {
    pub(super) problems: Vec<RefusalReason>,
    pub(super) warnings: Vec<String>,
}

/// One reason to refuse.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusalReason {
    pub(super) error: SpecError,
    /// A scope forbids it; the object itself is valid.
    pub(super) forbidden: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReviewResponse {
    api_version: &'static str,
    kind: &'static str,
    response: AdmissionResponse,
}

#[derive(Serialize)]
struct AdmissionResponse {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<RefusalStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct RefusalStatus {
    code: u16,
    reason: &'static str,
    message: String,
}
