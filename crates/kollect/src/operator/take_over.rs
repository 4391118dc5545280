//! Take-over of a destination that another cluster owns: once per destination, and only if the annotation requests it.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kollect_model::{
    binding::SinkName,
    claim::{Claim, TakeOver},
    crd::inventory::TakeOverRecord,
};

/// Annotation of an inventory: `<sink>=<id of the old cluster>[,…]`.
pub(crate) const ANNOTATION: &str = "kollect.dev/take-over";

/// The take-overs that the annotation requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakeOverRequests {
    requests: Vec<TakeOverRequest>,
    /// Entries that name no sink of the inventory.
    unknown: Vec<String>,
    /// Messages about these entries; each one shows what to write instead.
    pub(crate) problems: Vec<String>,
}

/// A request to take over the destination of one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TakeOverRequest {
    sink: SinkName,
    from: String,
}

impl fmt::Display for TakeOverRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.sink, self.from)
    }
}

impl TakeOverRequests {
    /// Reads the annotation of an inventory that has these sinks.
    pub(crate) fn of<'a>(metadata: &ObjectMeta, sinks: impl Iterator<Item = &'a SinkName> + Clone) -> Self {
        let mut parsed = Self::default();
        let text = metadata
            .annotations
            .as_ref()
            .and_then(|annotations| annotations.get(ANNOTATION))
            .map_or("", |text| text);
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (sink, from) = entry.split_once('=').unwrap_or(("", entry));
            let sink = SinkName::from(sink.trim());
            if sinks.clone().any(|known| *known == sink) && !from.trim().is_empty() {
                parsed.requests.push(TakeOverRequest { sink, from: from.trim().to_owned() });
                continue;
            }
            let forms: Vec<String> = sinks.clone().map(|sink| format!("{sink}={}", from.trim())).collect();
            let forms = if forms.is_empty() { "<family>/<name>=<id>".to_owned() } else { forms.join(" or ") };
            parsed.unknown.push(entry.to_owned());
            parsed
                .problems
                .push(format!("{ANNOTATION}: {entry:?} names no sink of this inventory: write {forms}"));
        }
        parsed
    }

    /// Which take-over a sink may do. Destinations that are in `done` are not taken over again.
    pub(crate) fn for_sink(&self, sink: &SinkName, done: &[TakeOverRecord]) -> TakeOver {
        let Some(request) = self.requests.iter().find(|request| request.sink == *sink) else {
            return TakeOver::Never;
        };
        let done = done.iter().filter(|record| record.from == request.from);
        TakeOver::Once {
            from: request.from.clone(),
            done: done.map(|record| record.destination_id.clone()).collect(),
        }
    }

    /// The annotation without complete requests: a claim was granted, and the take-over is in `done` or there was
    /// nothing to take over. `None`: no request is complete, and the annotation stays as it is.
    pub(crate) fn without_granted(
        &self,
        claim: impl Fn(&SinkName) -> Option<Claim>,
        done: &[TakeOverRecord],
    ) -> Option<String> {
        let is_complete = |request: &&TakeOverRequest| {
            claim(&request.sink).is_some_and(|claim| {
                claim.taken_from.as_ref() != Some(&request.from)
                    || done.iter().any(|record| is_record_of(record, &claim))
            })
        };
        if !self.requests.iter().any(|request| is_complete(&request)) {
            return None;
        }
        let remaining = self.requests.iter().filter(|request| !is_complete(request)).map(ToString::to_string);
        Some(remaining.chain(self.unknown.iter().cloned()).collect::<Vec<_>>().join(","))
    }
}

fn is_record_of(record: &TakeOverRecord, claim: &Claim) -> bool {
    Some(&record.destination_id) == claim.destination_id.as_ref()
        && Some(&record.from) == claim.taken_from.as_ref()
}

/// The record of a claim that took a destination over; `None` if it took nothing over, or `known` has the record.
pub(crate) fn record(sink: &SinkName, claim: &Claim, known: &[TakeOverRecord]) -> Option<TakeOverRecord> {
    if known.iter().any(|record| is_record_of(record, claim)) {
        return None;
    }
    Some(TakeOverRecord {
        sink: sink.clone(),
        destination_id: claim.destination_id.clone()?,
        from: claim.taken_from.clone()?,
        time: claim.claimed_at.as_ref().and_then(|time| serde_json::from_value(time.as_str().into()).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(text: &str) -> ObjectMeta {
        let annotations = Some([(ANNOTATION.to_owned(), text.to_owned())].into());
        ObjectMeta { annotations, ..ObjectMeta::default() }
    }

    fn requests(text: &str) -> TakeOverRequests {
        let sinks = [SinkName::from("database/portal"), SinkName::from("snapshot/git")];
        TakeOverRequests::of(&annotated(text), sinks.iter())
    }

    fn claim(id: &str, from: Option<&str>) -> Claim {
        let (destination_id, taken_from) = (Some(id.to_owned()), from.map(ToOwned::to_owned));
        let claimed_at = Some("2026-11-17T05:00:00Z".to_owned());
        Claim { destination_id, taken_from, claimed_at, ..Claim::default() }
    }

    #[test]
    fn a_request_names_its_sink() {
        let both = requests("database/portal=old, snapshot/git=older");
        assert_eq!(both.problems, [""; 0]);
        let once = |from: &str, done: &[&str]| TakeOver::Once {
            from: from.into(),
            done: done.iter().map(|id| (*id).to_owned()).collect(),
        };
        assert_eq!(both.for_sink(&"database/portal".into(), &[]), once("old", &[]));
        assert_eq!(both.for_sink(&"snapshot/git".into(), &[]), once("older", &[]));
        assert_eq!(both.for_sink(&"event/nats".into(), &[]), TakeOver::Never);
        let done = record(&"database/portal".into(), &claim("d1", Some("old")), &[]).unwrap();
        assert_eq!(both.for_sink(&"database/portal".into(), &[done]), once("old", &["d1"]));
    }

    #[test]
    fn an_id_without_a_sink_does_nothing_and_the_message_shows_the_right_form() {
        let bare = requests("old");
        assert_eq!(bare.for_sink(&"database/portal".into(), &[]), TakeOver::Never);
        assert_eq!(
            bare.problems,
            ["kollect.dev/take-over: \"old\" names no sink of this inventory: write database/portal=old or \
              snapshot/git=old"]
        );
        assert_eq!(requests("database/other=old").problems.len(), 1);
        assert_eq!(requests("").problems, [""; 0]);
        assert_eq!(
            bare.without_granted(|_| Some(claim("d1", None)), &[]),
            None,
            "it stays so that a user sees it"
        );
    }

    #[test]
    fn a_request_is_removed_when_it_is_complete_and_recorded() {
        let both = requests("database/portal=old,snapshot/git=old");
        let portal = |claim: Claim| {
            move |sink: &SinkName| (*sink == SinkName::from("database/portal")).then(|| claim.clone())
        };
        assert_eq!(both.without_granted(|_| None, &[]), None);
        let taken = claim("d1", Some("old"));
        assert_eq!(both.without_granted(portal(taken.clone()), &[]), None, "not before it is remembered");
        let done = record(&"database/portal".into(), &taken, &[]).unwrap();
        assert_eq!(record(&"database/portal".into(), &taken, std::slice::from_ref(&done)), None);
        let remaining = both.without_granted(portal(taken), &[done]);
        assert_eq!(remaining.as_deref(), Some("snapshot/git=old"));
        // Nothing to take over: this cluster already owned the destination.
        assert_eq!(both.without_granted(|_| Some(claim("d1", None)), &[]).as_deref(), Some(""));
    }
}
