//! Destinations as the operator knows and shows them: a server that only a Secret names is known by a digest of its
//! address, which reveals nothing to users who may read statuses and not Secrets.
//!
//! The digest is long enough to distinguish servers, so it is the identity of the destination everywhere in the
//! operator. Only a plan, which has read the Secret, leads from it to the server.

use std::borrow::Cow;

use kollect_model::{
    crd::inventory::{InventoryStatus, RecordedDestination, SinkExport},
    destination::Destination,
};
use kollect_sinks::{Plan, SinkPolicy};

use super::OperatorPolicy;

impl OperatorPolicy {
    /// The destination as statuses, events and logs name it. The command line names it as it is.
    pub(crate) fn shown(&self, destination: &Destination) -> Destination {
        match &self.cluster_id {
            Some(cluster_id) => kollect_sinks::shown_destination(destination, cluster_id),
            None => destination.clone(),
        }
    }

    /// The status with servers as they are shown. Statuses of older versions name every server.
    pub(crate) fn shown_status<'a>(&self, status: &'a InventoryStatus) -> Cow<'a, InventoryStatus> {
        let is_shown = |destination: &RecordedDestination| {
            self.shown(&destination.destination) == destination.destination
        };
        let destinations =
            |export: &'a SinkExport| export.place.iter().chain(&export.claiming).chain(&export.left);
        if status.sink_exports.iter().flat_map(destinations).all(is_shown) {
            return Cow::Borrowed(status);
        }
        let mut status = status.clone();
        for export in &mut status.sink_exports {
            for destination in export.place.iter_mut().chain(&mut export.claiming).chain(&mut export.left) {
                destination.destination = self.shown(&destination.destination);
            }
        }
        Cow::Owned(status)
    }

    /// The plan of a sink at a destination as it is shown, if its access leads there.
    pub(crate) fn plan_at(&self, plan: &Plan, shown: &Destination, policy: &SinkPolicy) -> Option<Plan> {
        let current = plan.destination(policy);
        if self.shown(&current).server() == shown.server() {
            plan.at(&shown.with_server(current.server()), policy)
        } else {
            plan.at(shown, policy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export_destination(text: &str) -> RecordedDestination {
        RecordedDestination::new(text.into(), "one")
    }

    fn operator() -> OperatorPolicy {
        OperatorPolicy { cluster_id: Some("0000".into()), ..OperatorPolicy::default() }
    }

    #[test]
    fn statuses_of_older_versions_mean_the_same_destinations() {
        let operator_policy = operator();
        let old = SinkExport {
            place: Some(export_destination("postgres://db:5432/shop \"public\".\"new\"")),
            left: vec![
                export_destination("postgres://old:5432/shop \"public\".\"rows\""),
                export_destination("nats://host:4222 stream subject"),
                export_destination("an unknown place"),
            ],
            rows: Some(3),
            ..SinkExport::default()
        };
        let status = InventoryStatus { sink_exports: vec![old.clone()], ..InventoryStatus::default() };
        let status_shown = operator_policy.shown_status(&status).into_owned();
        let shown = &status_shown.sink_exports;
        let text = format!("{shown:?}");
        assert!(!text.contains("db:5432") && !text.contains("old:5432") && !text.contains("shop"), "{text}");
        assert_eq!(shown[0].place.as_ref().unwrap().destination.names(), Some(["public", "new"]));
        assert_eq!(shown[0].left[1..], old.left[1..], "what a spec names stays");
        assert_eq!(shown[0].rows, Some(3));
        assert!(
            matches!(operator_policy.shown_status(&status_shown), Cow::Borrowed(_)),
            "the new form stays as it is"
        );
        assert!(
            matches!(OperatorPolicy::default().shown_status(&status), Cow::Borrowed(_)),
            "the command line"
        );
    }

    #[test]
    fn a_plan_leads_from_a_shown_destination_to_its_own_server_only() {
        let (operator_policy, policy) = (operator(), SinkPolicy::default());
        let plan = |url: &str| kollect_sinks::plan_out(url).unwrap();
        let current = plan("postgres://db/shop?table=new");
        let table = |url: &str| operator_policy.shown(&plan(url).destination(&policy));
        let moved =
            operator_policy.plan_at(&current, &table("postgres://db/shop?table=old"), &policy).unwrap();
        assert_eq!(moved.destination(&policy), plan("postgres://db/shop?table=old").destination(&policy));
        for other_server in ["postgres://db/other?table=new", "postgres://db2/shop?table=new"] {
            assert!(
                operator_policy.plan_at(&current, &table(other_server), &policy).is_none(),
                "{other_server}"
            );
        }
    }
}
