//! Who may write an inventory in a destination.
//!
//! A destination keeps one claim per inventory: which cluster owns the rows, who wrote last, and the random id
//! of the destination. A writer claims the inventory before it writes; each claim gets a higher epoch, and a write
//! is admitted only under the claim that the destination holds. Every sink decides by [`Claimant::take`] and
//! [`Claim::admits`], and keeps other writers out between the decision and its effect.

use serde::{Deserialize, Serialize};

use crate::{
    batch::InventoryId,
    sink::{SinkError, SinkReason},
};

/// The record of a destination about one inventory. A writer keeps a copy of the claim that it was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The cluster that owns the rows; `None` after a run that knows no cluster.
    #[serde(default)]
    pub owner: Option<String>,
    /// The program that claimed it.
    #[serde(default)]
    pub writer: WriterProgram,
    /// Grows with every claim.
    pub epoch: i64,
    /// Random id of the writer, another one for each claim. `None`: an older version claimed it, or the destination
    /// has no room for it. The same holds for the fields below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer_id: Option<String>,
    /// Random id of the destination: it stays the same from claim to claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination_id: Option<String>,
    /// When it was claimed, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<String>,
    /// The cluster that owned the rows before this one took them over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_from: Option<String>,
    /// How many writes were made under this claim, where the destination counts them: one that was restored from a
    /// backup has counted fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<i64>,
}

impl Claim {
    /// Checks that a writer may write: the destination holds the claim that it was granted. Another owner or a
    /// higher epoch fences the writer. A claim that is gone, or older than its own, means that the destination was
    /// restored or emptied: the writer must claim it again.
    pub fn admits(held: Option<&Self>, inventory: &InventoryId, granted: &Self) -> Result<(), SinkError> {
        let error =
            |reason, why: &str| Err(SinkError::new(reason, format!("write inventory {inventory}: {why}")));
        let Some(held) = held else {
            return error(SinkReason::ClaimLost, "its claim is gone from the destination");
        };
        if held.owner != granted.owner || held.epoch > granted.epoch {
            return error(SinkReason::Fenced, &held.described(granted.owner.as_deref()));
        }
        if held.is_same_writer(granted) && held.writes == granted.writes {
            return Ok(());
        }
        error(SinkReason::ClaimLost, "the destination was restored to an earlier state")
    }

    /// Whether both were granted to the same writer.
    pub fn is_same_writer(&self, other: &Self) -> bool {
        (&self.owner, self.epoch, &self.writer_id) == (&other.owner, other.epoch, &other.writer_id)
    }

    /// Counts a write under this claim, if the destination counts writes.
    pub fn count_write(&mut self) {
        self.writes.iter_mut().for_each(|writes| *writes += 1);
    }

    /// Message about the holder of the claim; `reader` is the id of the cluster whose users read it.
    fn described(&self, reader: Option<&str>) -> String {
        let program = match self.writer {
            WriterProgram::Operator => "an operator",
            WriterProgram::Cli => "the command line",
        };
        let (cluster, advice) = match self.owner.as_deref() {
            Some(owner) if Some(owner) == reader => ("this cluster".to_owned(), ""),
            Some(owner) => {
                let advice = "; if that is intended, remove the sink from the inventory in this cluster";
                (format!("cluster {owner}"), advice)
            }
            None => ("no cluster".to_owned(), ""),
        };
        let at = self.claimed_at.as_ref().map(|at| format!(" at {at}")).unwrap_or_default();
        format!("{program} of {cluster} has claimed it{at} (epoch {}){advice}", self.epoch)
    }
}

/// Which program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WriterProgram {
    /// A run of the command line.
    #[default]
    Cli,
    /// An operator: it expects to be the only writer.
    Operator,
}

impl WriterProgram {
    /// The text that sinks store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Operator => "operator",
        }
    }

    /// Parses the text that a sink has stored; an unknown text is [`Self::Cli`].
    pub fn stored(word: &str) -> Self {
        if word == "operator" { Self::Operator } else { Self::Cli }
    }
}

/// Which inventories a writer may take over from their present owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TakeOver {
    /// No inventory.
    #[default]
    Never,
    /// Those of one cluster, such as the old one after a rebuild, once for each destination.
    Once {
        /// Id of the cluster.
        from: String,
        /// Ids of the destinations where this has happened already.
        done: Vec<String>,
    },
    /// Every inventory.
    Always,
}

/// A writer that asks for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    /// Id of the cluster: the UID of its kube-system namespace. `None` for rows from files.
    pub owner: Option<String>,
    /// Which program.
    pub writer: WriterProgram,
    /// Which inventories it may take over.
    pub take_over: TakeOver,
    /// The sink as the annotation for take-overs names it, such as `database/portal`; empty on the command line.
    pub sink: String,
    /// Random text, another one for each attempt: the id of the writer, and of a destination that has none.
    pub id: String,
    /// Now, in RFC 3339.
    pub at: String,
    /// Epoch of the last claim that it was granted here; 0: none.
    pub last_epoch: i64,
    /// Ids of other destinations. A destination with one of them is a copy, and gets an id of its own.
    pub copy_of: Vec<String>,
}

impl Claimant {
    /// The claim that is granted, or why it is refused. A refused claim changes nothing.
    pub fn take(&self, inventory: &InventoryId, held: Option<&Claim>) -> Result<Claim, SinkError> {
        let takes_over = held.is_some_and(|held| self.takes_over(held));
        if let Some(held) = held.filter(|_| !takes_over) {
            self.refusal(held).map_or(Ok(()), |why| {
                let attempt = format!("write inventory {inventory}: {why}");
                Err(SinkError::new(SinkReason::OwnedByOther, attempt))
            })?;
        }
        let is_own = |held: &&Claim| held.owner == self.owner;
        let taken_from = match held {
            Some(held) if takes_over && held.owner != self.owner => held.owner.clone(),
            held => held.filter(is_own).and_then(|held| held.taken_from.clone()),
        };
        let known_id = held.and_then(|held| held.destination_id.clone());
        let destination_id = known_id.filter(|id| !self.copy_of.contains(id));
        Ok(Claim {
            owner: self.owner.clone(),
            writer: self.writer,
            epoch: held.map_or(0, |held| held.epoch).max(self.last_epoch) + 1,
            writer_id: Some(self.id.clone()),
            destination_id: Some(destination_id.unwrap_or_else(|| self.id.clone())),
            claimed_at: Some(self.at.clone()),
            taken_from,
            writes: None,
        })
    }

    fn takes_over(&self, held: &Claim) -> bool {
        match &self.take_over {
            TakeOver::Never => false,
            TakeOver::Always => true,
            TakeOver::Once { from, done } => held.owner.as_ref() == Some(from) && !held.is_at_one_of(done),
        }
    }

    /// Why the held claim may not be replaced; `None` if it may.
    fn refusal(&self, held: &Claim) -> Option<String> {
        match (&held.owner, &self.owner) {
            (Some(known), None) => Some(format!(
                "it belongs to cluster {known}, and rows from files would mix with its own; use another \
                 destination or another cluster name"
            )),
            (Some(known), Some(owner)) if known != owner => {
                let done = match &self.take_over {
                    TakeOver::Once { from, done } if from == known && held.is_at_one_of(done) => {
                        "; it was taken over from that cluster before, and a take-over is done once: remove its line \
                         from status.takeOvers to allow it again"
                    }
                    _ => "",
                };
                let take_over = match self.sink.as_str() {
                    "" => "--take-over".to_owned(),
                    sink => format!("the annotation kollect.dev/take-over: {sink}={known} on the inventory"),
                };
                Some(format!(
                    "it belongs to cluster {known}, this is cluster {owner}; give each cluster its own name \
                     (spec.cluster of the sink, or --cluster), or take it over once with {take_over}{done}"
                ))
            }
            _ if held.writer == WriterProgram::Operator && self.writer == WriterProgram::Cli => Some(
                "an operator keeps it up to date; use another destination, or --take-over to stop the operator \
                 from writing it"
                    .into(),
            ),
            _ => None,
        }
    }
}

impl Claim {
    fn is_at_one_of(&self, destinations: &[String]) -> bool {
        self.destination_id.as_ref().is_some_and(|id| destinations.contains(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inventory() -> InventoryId {
        InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "all".into() }
    }

    fn claimant(owner: Option<&str>, writer: WriterProgram, take_over: TakeOver) -> Claimant {
        let (id, at) = ("own".into(), "2026-01-01T00:00:00Z".into());
        Claimant { owner: owner.map(Into::into), writer, take_over, id, at, ..Claimant::default() }
    }

    fn held(owner: Option<&str>, writer: WriterProgram) -> Claim {
        let (writer_id, destination_id) = (Some("earlier".into()), Some("d1".into()));
        Claim {
            owner: owner.map(Into::into),
            writer,
            epoch: 7,
            writer_id,
            destination_id,
            ..Claim::default()
        }
    }

    fn once(from: &str, done: &[&str]) -> TakeOver {
        TakeOver::Once { from: from.into(), done: done.iter().map(|id| (*id).to_owned()).collect() }
    }

    #[test]
    fn a_claim_is_granted_by_owner_program_and_take_over() {
        use TakeOver::{Always, Never};
        use WriterProgram::{Cli, Operator};
        for (held, owner, writer, take_over, taken) in [
            (None, None, Cli, Never, true),
            (Some(held(None, Cli)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Cli)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Operator)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Operator)), Some("a"), Cli, Never, false),
            (Some(held(Some("a"), Operator)), Some("a"), Cli, Always, true),
            (Some(held(Some("a"), Cli)), None, Cli, Never, false),
            (Some(held(Some("a"), Cli)), Some("b"), Operator, Never, false),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, once("c", &[]), false),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, once("a", &[]), true),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, once("a", &["d2"]), true),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, once("a", &["d1"]), false),
        ] {
            let claimant = claimant(owner, writer, take_over);
            let granted = claimant.take(&inventory(), held.as_ref());
            assert_eq!(granted.is_ok(), taken, "{held:?} {claimant:?}");
            if let Ok(granted) = granted {
                assert_eq!(granted.epoch, held.as_ref().map_or(1, |held| held.epoch + 1));
                assert!(Claim::admits(Some(&granted), &inventory(), &granted).is_ok());
                assert!(Claim::admits(held.as_ref(), &inventory(), &granted).is_err());
            }
        }
    }

    #[test]
    fn a_destination_keeps_its_id_unless_it_is_a_copy() {
        let own = claimant(Some("a"), WriterProgram::Operator, TakeOver::Never);
        let id = |claimant: &Claimant, held: Option<&Claim>| {
            claimant.take(&inventory(), held).unwrap().destination_id.unwrap()
        };
        let known = held(Some("a"), WriterProgram::Operator);
        assert_eq!(id(&own, None), "own", "the first claim makes it");
        assert_eq!(id(&own, Some(&known)), "d1");
        let of_an_older_version = Claim { destination_id: None, ..known.clone() };
        assert_eq!(id(&own, Some(&of_an_older_version)), "own");
        let copy = Claimant { copy_of: vec!["d1".into()], ..own };
        assert_eq!(id(&copy, Some(&known)), "own");
    }

    #[test]
    fn a_take_over_is_remembered_until_the_next_owner() {
        let new = claimant(Some("b"), WriterProgram::Operator, once("a", &[]));
        let taken = new.take(&inventory(), Some(&held(Some("a"), WriterProgram::Operator))).unwrap();
        assert_eq!(taken.taken_from.as_deref(), Some("a"));
        let again =
            claimant(Some("b"), WriterProgram::Operator, TakeOver::Never).take(&inventory(), Some(&taken));
        assert_eq!(again.unwrap().taken_from.as_deref(), Some("a"));
        let back =
            claimant(Some("a"), WriterProgram::Operator, once("b", &[])).take(&inventory(), Some(&taken));
        assert_eq!(back.unwrap().taken_from.as_deref(), Some("b"));
    }

    #[test]
    fn the_epoch_of_a_claim_never_decreases() {
        let restored = held(Some("a"), WriterProgram::Operator);
        let own = claimant(Some("a"), WriterProgram::Operator, TakeOver::Never);
        let later = Claimant { last_epoch: 12, ..own };
        assert_eq!(later.take(&inventory(), Some(&restored)).unwrap().epoch, 13);
        assert_eq!(later.take(&inventory(), None).unwrap().epoch, 13);
    }

    #[test]
    fn another_owner_or_a_higher_epoch_fences_and_everything_else_is_claimed_again() {
        use SinkReason::{ClaimLost, Fenced};
        let granted = Claim { writes: Some(3), ..held(Some("a"), WriterProgram::Operator) };
        for (held, expected) in [
            (Some(granted.clone()), None),
            (None, Some(ClaimLost)),
            (Some(Claim { epoch: 8, writer_id: Some("other".into()), ..granted.clone() }), Some(Fenced)),
            (Some(Claim { epoch: 6, writer_id: Some("other".into()), ..granted.clone() }), Some(ClaimLost)),
            // Restored, and claimed by another writer since.
            (Some(Claim { writer_id: Some("other".into()), ..granted.clone() }), Some(ClaimLost)),
            (Some(Claim { writes: Some(2), ..granted.clone() }), Some(ClaimLost)),
            (Some(Claim { owner: Some("b".into()), epoch: 1, ..granted.clone() }), Some(Fenced)),
            (Some(Claim { owner: None, ..granted.clone() }), Some(Fenced)),
        ] {
            let admitted = Claim::admits(held.as_ref(), &inventory(), &granted);
            assert_eq!(admitted.err().map(|error| error.reason), expected, "{held:?}");
        }
        let other = Claim {
            owner: Some("b".into()),
            epoch: 9,
            claimed_at: Some("2026-11-17T05:00:00Z".into()),
            ..granted.clone()
        };
        let error = Claim::admits(Some(&other), &inventory(), &granted).unwrap_err().to_string();
        assert_eq!(
            error,
            "write inventory team/all: an operator of cluster b has claimed it at 2026-11-17T05:00:00Z (epoch 9); if that \
             is intended, remove the sink from the inventory in this cluster"
        );
    }

    #[test]
    fn claims_of_older_versions_are_read() {
        let old: Claim = serde_json::from_str(r#"{"owner":"a","writer":"operator","epoch":3}"#).unwrap();
        assert_eq!(
            old,
            Claim { owner: Some("a".into()), writer: WriterProgram::Operator, epoch: 3, ..Claim::default() }
        );
        let older: Claim = serde_json::from_str(r#"{"epoch":3,"nonce":"00"}"#).unwrap();
        assert_eq!(older, Claim { epoch: 3, ..Claim::default() });
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"owner":"a","writer":"operator","epoch":3}"#);
    }
}
