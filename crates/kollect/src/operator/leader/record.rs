//! What candidates write into the Lease, and for how long what they read there counts.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use tokio::time::Instant;

/// The lease as it was last read or written, and since when its content has been the same.
///
/// The times in it are of other clocks and are never compared with ours: a holder is alive for the
/// duration it asked for after each change that we saw.
#[derive(Debug)]
pub(super) struct Observation {
    pub(super) lease: Lease,
    since: Instant,
}

impl Observation {
    /// Only a changed record is a sign of life; changed labels are not.
    pub(super) fn note(seen: &mut Option<Self>, lease: Lease, now: Instant) {
        let since = match seen.take() {
            Some(before) if before.lease.spec == lease.spec => before.since,
            _ => now,
        };
        *seen = Some(Self { lease, since });
    }

    pub(super) fn holder(&self) -> Option<&str> {
        holder(&self.lease)
    }

    /// When others may take the lease. `usual` is for records that do not say.
    pub(super) fn expires(&self, usual: Duration) -> Instant {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        self.since + seconds.map_or(usual, Duration::from_secs)
    }
}

/// Older clients write an empty name for nobody.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The lease with `identity` as its holder: renewed if that is so already, else acquired. Labels and the
/// resource version, which guards against other writers, stay.
pub(super) fn claimed(before: Lease, identity: &str, duration: Duration, now: Timestamp) -> Lease {
    let renews = holder(&before) == Some(identity);
    let is_new = before.metadata.resource_version.is_none();
    let spec = before.spec.unwrap_or_default();
    let (acquire_time, transitions) = if renews {
        (spec.acquire_time.clone(), spec.lease_transitions)
    } else {
        let transitions = spec.lease_transitions.unwrap_or(0);
        (None, Some(if is_new { 0 } else { transitions.saturating_add(1) }))
    };
    // Others count whole seconds: rather more than less.
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    let spec = LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
        acquire_time: acquire_time.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: transitions,
        ..spec
    };
    Lease { spec: Some(spec), ..before }
}

/// The lease without a holder, so that nobody has to wait.
pub(super) fn released(before: Lease, now: Timestamp) -> Lease {
    let spec = LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        ..before.spec.unwrap_or_default()
    };
    Lease { spec: Some(spec), ..before }
}
