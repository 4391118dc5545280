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

use super::Rules;

impl Rules {
    /// The destination as statuses, events and logs name it. The command line names it as it is.
    pub(crate) fn shown(&self, destination: &Destination) -> Destination {
        match &self.cluster_id {
            Some(cluster_id) => kollect_sinks::shown_destination(destination, cluster_id),
            None => destination.clone(),
        }
    }

    /// What a status says about sinks. Statuses of older versions name every server.
    pub(crate) fn shown_exports<'a>(&self, exports: &'a [SinkExport]) -> Cow<'a, [SinkExport]> {
        let is_shown = |place: &ExportPlace| self.shown(&place.destination) == place.destination;
        let places = |export: &'a SinkExport| export.place.iter().chain(&export.left);
        if exports.iter().flat_map(places).all(is_shown) {
            return Cow::Borrowed(exports);
        }
        let mut exports = exports.to_vec();
        for export in &mut exports {
            for place in export.place.iter_mut().chain(&mut export.left) {
                place.destination = self.shown(&place.destination);
            }
        }
        Cow::Owned(exports)
    }

    /// The status with servers as they are shown.
    pub(crate) fn shown_status<'a>(&self, status: &'a InventoryStatus) -> Cow<'a, InventoryStatus> {
        match self.shown_exports(&status.sink_exports) {
            Cow::Borrowed(_) => Cow::Borrowed(status),
            Cow::Owned(sink_exports) => Cow::Owned(InventoryStatus { sink_exports, ..status.clone() }),
        }
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
        ExportPlace { destination: text.into(), cluster: "one".into() }
    }

    fn operator() -> Rules {
        Rules { cluster_id: Some("0000".into()), ..Rules::default() }
    }

    #[test]
    fn statuses_of_older_versions_mean_the_same_places() {
        let rules = operator();
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
        let shown = rules.shown_exports(std::slice::from_ref(&old)).into_owned();
        let text = format!("{shown:?}");
        assert!(!text.contains("db:5432") && !text.contains("old:5432") && !text.contains("shop"), "{text}");
        assert_eq!(shown[0].place.as_ref().unwrap().destination.names(), Some(["public", "new"]));
        assert_eq!(shown[0].left[1..], old.left[1..], "what a spec names stays");
        assert_eq!(shown[0].rows, Some(3));
        assert!(matches!(rules.shown_exports(&shown), Cow::Borrowed(_)), "the new form stays as it is");
        let exports = [old];
        assert!(matches!(Rules::default().shown_exports(&exports), Cow::Borrowed(_)), "the command line");
    }

    #[test]
    fn a_plan_leads_from_what_is_shown_to_its_own_server_only() {
        let (rules, policy) = (operator(), Policy::default());
        let plan = |url: &str| kollect_sinks::plan_out(url).unwrap();
        let here = plan("postgres://db/shop?table=new");
        let table = |url: &str| rules.shown(&plan(url).destination(&policy));
        let there = rules.plan_at(&here, &table("postgres://db/shop?table=old"), &policy).unwrap();
        assert_eq!(there.destination(&policy), plan("postgres://db/shop?table=old").destination(&policy));
        for elsewhere in ["postgres://db/other?table=new", "postgres://db2/shop?table=new"] {
            assert!(rules.plan_at(&here, &table(elsewhere), &policy).is_none(), "{elsewhere}");
        }
    }
}
