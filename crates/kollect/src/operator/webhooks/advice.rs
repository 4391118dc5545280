//! What is allowed and may not be meant.

use std::path::Path;

use kollect_model::{
    SpecError,
    crd::{
        profile::KollectProfileSpec,
        sinks::{Format, KollectSnapshotSinkSpec, ProvisioningMode, PushPolicy, SnapshotSinkType},
    },
    sink::SinkSpec,
};

/// Paths whose values may surprise.
pub(super) fn paths(profile: &KollectProfileSpec) -> Vec<String> {
    let filtered = profile.attributes.iter().enumerate().filter(|(_, a)| a.path.contains("[?("));
    filtered
        .filter(|(_, attribute)| !attribute.path.starts_with("cel:"))
        .map(|(index, attribute)| {
            let field = format!("spec.attributes[{index}].path");
            let problem = "a filter always gives a list, also of one match or of none";
            SpecError::new(field, &attribute.path.as_str().into(), problem).to_string()
        })
        .collect()
}

/// What any sink may say.
pub(super) fn sink(spec: &SinkSpec) -> Vec<String> {
    let common = spec.common();
    let mut warnings = Vec::new();
    if common.tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify) {
        warnings.push("spec.tls.insecureSkipVerify: any server is trusted; a caBundle is safer".into());
    }
    if common.provisioning.as_ref().and_then(|p| p.mode) == Some(ProvisioningMode::Existing) {
        warnings.push("spec.provisioning.mode = existing: nothing is created; it must be there".into());
    }
    warnings
}

/// What a sink of documents may say.
pub(super) fn documents(spec: &KollectSnapshotSinkSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_git = matches!(spec.type_, SnapshotSinkType::Git | SnapshotSinkType::Gitlab);
    if spec.git.as_ref().and_then(|git| git.push_policy) == Some(PushPolicy::ForcePush) {
        warnings.push("spec.git.pushPolicy = ForcePush: the history of the branch is overwritten".into());
    }
    let asked = spec.common.serialization.as_ref().and_then(|serialization| serialization.format);
    if is_git && asked.is_none() {
        warnings.push("spec.serialization.format is absent: documents are written as yaml".into());
    }
    let template = Path::new(spec.common.path_template.as_deref().unwrap_or_default());
    if template.extension().is_some_and(|extension| extension == "json") && spec.format() != Format::Json {
        warnings.push("spec.pathTemplate ends with .json, and the format is another".into());
    }
    warnings
}
