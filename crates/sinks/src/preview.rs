//! Parts that all previews share. Previews use the same code that writes files, messages and statements.

use kollect_model::crd::sinks::Preview;

/// The part of a preview about provisioning, with a warning if nothing is created.
pub(crate) fn provisioned(create: bool, what: &str) -> Preview {
    let mode = if create { "ensure" } else { "existing" };
    let warning = format!("provisioning.mode is existing: {what}");
    Preview {
        provisioning_mode: Some(mode.into()),
        serialization_format: Some("json".into()),
        warnings: if create { Vec::new() } else { vec![warning] },
        ..Preview::default()
    }
}
