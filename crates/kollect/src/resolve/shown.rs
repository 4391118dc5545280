//! Destinations as the operator knows and shows them: a server that only a Secret names is known by a digest of its
//! address, which says nothing to people who may read statuses and not Secrets.
//!
//! The digest is long enough to tell servers apart, so it is the identity of the destination everywhere in the
//! operator. Only a plan, which has read the Secret, leads from it to the server.

use std::borrow::Cow;

use kollect_model::{
    crd::inventory::{ExportPlace, InventoryStatus, SinkExport},
    destination::Destination,
};
use kollect_sinks::{Plan, Policy};

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
        let is_shown = |place: &ExportPlace| self.shown(&place.destination) == place.destination;
        let places = |export: &'a SinkExport| export.place.iter().chain(&export.claiming).chain(&export.left);
        if status.sink_exports.iter().flat_map(places).all(is_shown) {
            return Cow::Borrowed(status);
        }
        let mut status = status.clone();
        for export in &mut status.sink_exports {
            for place in export.place.iter_mut().chain(&mut export.claiming).chain(&mut export.left) {
                place.destination = self.shown(&place.destination);
            }
        }
        Cow::Owned(status)
    }

    /// The plan of a sink at a destination as it is shown, if its access leads there.
    pub(crate) fn plan_at(&self, plan: &Plan, shown: &Destination, policy: &Policy) -> Option<Plan> {
        let here = plan.destination(policy);
        if self.shown(&here).server() == shown.server() {
            plan.at(&shown.with_server(here.server()), policy)
        } else {
            plan.at(shown, policy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> ExportPlace {
        ExportPlace::new(text.into(), "one")
    }

    fn operator() -> OperatorPolicy {
        OperatorPolicy { cluster_id: Some("0000".into()), ..OperatorPolicy::default() }
    }

    #[test]
    fn statuses_of_older_versions_mean_the_same_places() {
        let operator_policy = operator();
        let old = SinkExport {
            place: Some(place("postgres://db:5432/shop \"public\".\"new\"")),
            left: vec![
                place("postgres://old:5432/shop \"public\".\"rows\""),
                place("nats://host:4222 stream subject"),
                place("an unknown place"),
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
    fn a_plan_leads_from_what_is_shown_to_its_own_server_only() {
        let (operator_policy, policy) = (operator(), Policy::default());
        let plan = |url: &str| kollect_sinks::plan_out(url).unwrap();
        let here = plan("postgres://db/shop?table=new");
        let table = |url: &str| operator_policy.shown(&plan(url).destination(&policy));
        let there = operator_policy.plan_at(&here, &table("postgres://db/shop?table=old"), &policy).unwrap();
        assert_eq!(there.destination(&policy), plan("postgres://db/shop?table=old").destination(&policy));
        for elsewhere in ["postgres://db/other?table=new", "postgres://db2/shop?table=new"] {
            assert!(operator_policy.plan_at(&here, &table(elsewhere), &policy).is_none(), "{elsewhere}");
        }
    }
}
