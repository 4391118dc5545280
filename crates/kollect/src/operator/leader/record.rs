//! The content of the Lease: how candidates write it, and when a lease that another candidate holds expires.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use tokio::time::Instant;

/// The lease as it was last read or written, and since when its content has been the same.
///
/// The times in it come from other clocks and are never compared with the local clock: a holder counts as alive for its
/// lease duration after each change that this process saw.
#[derive(Debug)]
pub(super) struct ObservedLease {
    pub(super) lease: Lease,
    since: Instant,
}

impl ObservedLease {
    /// Stores the lease. A changed spec shows that the holder is alive; changed labels do not.
    pub(super) fn record(observed: &mut Option<Self>, lease: Lease, now: Instant) {
        let since = match observed.take() {
            Some(before) if before.lease.spec == lease.spec => before.since,
            _ => now,
        };
        *observed = Some(Self { lease, since });
    }

    pub(super) fn holder(&self) -> Option<&str> {
        holder(&self.lease)
    }

    /// When other candidates may take the lease. `default_duration` applies to a lease without a duration.
    pub(super) fn expires(&self, default_duration: Duration) -> Instant {
        let seconds = self.lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok()).filter(|seconds| *seconds > 0);
        self.since + seconds.map_or(default_duration, Duration::from_secs)
    }
}

/// The holder of a lease. Older clients write an empty name if there is none.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// The lease with `identity` as its holder: renewed if it is the holder already, else acquired. Labels stay, and the
/// resource version, which detects other writers.
pub(super) fn held_by(before: Lease, identity: &str, duration: Duration, now: Timestamp) -> Lease {
    let renews = holder(&before) == Some(identity);
    let is_new = before.metadata.resource_version.is_none();
    let spec = before.spec.unwrap_or_default();
    let (acquire_time, transitions) = if renews {
        (spec.acquire_time.clone(), spec.lease_transitions)
    } else {
        let transitions = spec.lease_transitions.unwrap_or(0);
        (None, Some(if is_new { 0 } else { transitions.saturating_add(1) }))
    };
    // The Lease has whole seconds: round up.
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

/// The lease without a holder, so that another candidate can take it at once.
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parsed(lease: &Value) -> Lease {
        serde_json::from_value(lease.clone()).unwrap()
    }

    #[test]
    fn records_are_written_as_client_go_writes_them() {
        let start: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let later: Timestamp = "2026-01-02T03:04:06.123456789Z".parse().unwrap();
        let spec = |lease: &Lease| serde_json::to_value(lease).unwrap()["spec"].clone();
        let first = held_by(Lease::default(), "a", Duration::from_millis(4500), start);
        let expected = json!({
            "holderIdentity": "a", "leaseDurationSeconds": 5, "leaseTransitions": 0,
            "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.000000Z",
        });
        assert_eq!(spec(&first), expected);

        let mut stored = first;
        stored.metadata.resource_version = Some("7".into());
        stored.metadata.labels = Some([("team".to_owned(), "x".to_owned())].into());
        let renewed = held_by(stored, "a", Duration::from_mins(1), later);
        assert_eq!(renewed.metadata.resource_version.as_deref(), Some("7"));
        assert!(renewed.metadata.labels.is_some());
        let expected = json!({
            "holderIdentity": "a", "leaseDurationSeconds": 60, "leaseTransitions": 0,
            "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:06.123456Z",
        });
        assert_eq!(spec(&renewed), expected);

        let taken = held_by(renewed.clone(), "b", Duration::from_mins(1), later);
        assert_eq!(spec(&taken)["leaseTransitions"], 1);
        assert_eq!(spec(&taken)["acquireTime"], "2026-01-02T03:04:06.123456Z");

        let released = released(taken, later);
        assert_eq!(holder(&released), None);
        assert_eq!(
            (&spec(&released)["leaseDurationSeconds"], &spec(&released)["leaseTransitions"]),
            (&json!(1), &json!(1))
        );
        let by_older_clients = parsed(&json!({ "metadata": {}, "spec": { "holderIdentity": "" } }));
        assert_eq!(holder(&by_older_clients), None);
    }

    #[test]
    fn only_a_changed_record_extends_the_lease_of_another_holder() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let with = |renew: &str, label: &str| {
            parsed(&json!({
                "metadata": { "resourceVersion": label, "labels": { "l": label } },
                "spec": { "holderIdentity": "x", "leaseDurationSeconds": 9, "renewTime": renew },
            }))
        };
        let mut observed = None;
        ObservedLease::record(&mut observed, with("2090-01-01T00:00:00Z", "1"), start);
        assert_eq!(observed.as_ref().unwrap().expires(seconds(60)), start + seconds(9), "not by their clock");
        ObservedLease::record(&mut observed, with("2090-01-01T00:00:00Z", "2"), start + seconds(5));
        assert_eq!(
            observed.as_ref().unwrap().expires(seconds(60)),
            start + seconds(9),
            "a label does not count"
        );
        ObservedLease::record(&mut observed, with("1990-01-01T00:00:00Z", "3"), start + seconds(6));
        assert_eq!(observed.as_ref().unwrap().expires(seconds(60)), start + seconds(15));
        let without_duration = parsed(&json!({ "metadata": {}, "spec": { "holderIdentity": "x" } }));
        ObservedLease::record(&mut observed, without_duration, start);
        assert_eq!(observed.as_ref().unwrap().expires(seconds(60)), start + seconds(60));
    }
}
