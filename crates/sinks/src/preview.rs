//! What all previews share. The code that writes files, messages and statements also draws their preview.

use kollect_model::crd::sinks::Preview;

/// The part of a preview that says what is created, with a warning if that is nothing.
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
