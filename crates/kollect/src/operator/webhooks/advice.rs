//! Warnings about valid specs that may not do what is intended.

use kollect_model::{
    SpecError,
    crd::{profile::KollectProfileSpec, sinks::ProvisioningMode},
    sink::SinkSpec,
};

/// Warns about paths with a filter: their value is always a list.
pub(super) fn paths(profile: &KollectProfileSpec) -> Vec<String> {
    let filtered =
        profile.attributes.iter().enumerate().filter(|(_, attribute)| attribute.path.contains("[?("));
    filtered
        .filter(|(_, attribute)| !attribute.path.starts_with("cel:"))
        .map(|(index, attribute)| {
            let field = format!("spec.attributes[{index}].path");
            let problem = "a filter always gives a list, also of one match or of none";
            SpecError::new(field, &attribute.path.as_str().into(), problem).to_string()
        })
        .collect()
}

/// Warnings about sinks of any type. Those of a backend come from `kollect_sinks::advice`.
pub(super) fn sink(spec: &SinkSpec) -> Vec<String> {
    let common = spec.common();
    let mut warnings = Vec::new();
    if common.tls.as_ref().is_some_and(|tls| tls.insecure_skip_verify) {
        warnings.push("spec.tls.insecureSkipVerify: the certificate of the server is not verified; set spec.tls.caBundle instead".into());
    }
    if common.provisioning.as_ref().and_then(|provisioning| provisioning.mode)
        == Some(ProvisioningMode::Existing)
    {
        warnings.push("spec.provisioning.mode = existing: nothing is created; it must be there".into());
    }
    warnings
}
