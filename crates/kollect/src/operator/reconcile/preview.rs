//! What exports of a sink would look like, while an annotation asks for it.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kollect_model::crd::sinks::Preview;

use super::connection::is_asked;
use crate::operator::objects::SinkObject;

/// Annotation that asks for a preview.
const PREVIEW: &str = "kollect.dev/preview";

/// The preview of a sink, from its spec alone. Its time moves only when something else in it does: else every
/// look would be a change, and every change another look.
pub(super) fn preview(sink: &SinkObject, now: Timestamp) -> Option<Preview> {
    if !is_asked(&sink.metadata, PREVIEW) {
        return None;
    }
    // What is wrong with the spec is in the conditions.
    let plan = kollect_sinks::plan(&sink.spec).ok()?;
    let after = plan.preview(sink.spec.common().cluster.as_deref().unwrap_or_default());
    let before = sink.status.preview.as_ref();
    let same = before.filter(|before| Preview { rendered_at: None, ..(*before).clone() } == after);
    let rendered_at = same.map_or(Some(Time(now)), |before| before.rendered_at.clone());
    Some(Preview { rendered_at, ..after })
}
