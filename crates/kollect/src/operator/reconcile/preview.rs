//! Previews of what a sink would export, while an annotation requests them.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kollect_model::crd::sinks::Preview;

use super::connection::is_requested;
use crate::operator::objects::SinkObject;

/// Annotation that requests a preview.
const PREVIEW: &str = "kollect.dev/preview";

/// The preview of a sink, from its spec alone. Its time changes only with its content: otherwise every check would
/// change the status and cause another check.
pub(super) fn preview(sink: &SinkObject, now: Timestamp) -> Option<Preview> {
    if !is_requested(&sink.metadata, PREVIEW) {
        return None;
    }
    // Conditions report errors in the spec.
    let plan = kollect_sinks::plan(&sink.spec).ok()?;
    let after = plan.preview(sink.spec.common().cluster.as_deref().unwrap_or_default());
    let before = sink.status.preview.as_ref();
    let same = before.filter(|before| Preview { rendered_at: None, ..(*before).clone() } == after);
    let rendered_at = same.map_or(Some(Time(now)), |before| before.rendered_at.clone());
    Some(Preview { rendered_at, ..after })
}
