//! Who may write an inventory in a sink.
//!
//! A sink keeps one record per inventory. Whoever claims the inventory gets the next epoch; a write with
//! an older one comes too late. Every sink decides by [`Claimant::take`] and [`Holder::admits`], and keeps
//! others from claiming in between.

use serde::{Deserialize, Serialize};

use crate::{
    batch::InventoryId,
    sink::{SinkError, SinkReason},
};

/// The right to write an inventory in a sink, until somebody else claims it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The cluster that owns the inventory; `None` for a run that knows no cluster. Such a run writes
    /// unowned inventories only.
    pub owner: Option<String>,
    /// Grows with every claim.
    pub epoch: i64,
}

/// Which program writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Writer {
    /// A run of the command line.
    #[default]
    Cli,
    /// An operator, which expects to be alone.
    Operator,
}

impl Writer {
    /// The word that sinks store.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Operator => "operator",
        }
    }

    /// The writer that a stored word means.
    pub fn stored(word: &str) -> Self {
        if word == "operator" { Self::Operator } else { Self::Cli }
    }
}

/// Whose inventory may be taken over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TakeOver {
    /// Nobody's.
    #[default]
    Never,
    /// That of the cluster with this id, such as one that has been rebuilt.
    From(String),
    /// Anybody's.
    Always,
}

/// Who wants to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimant {
    /// Id of the cluster: the UID of its kube-system namespace. `None` for rows from files.
    pub owner: Option<String>,
    /// Which program.
    pub writer: Writer,
    /// Whose inventory it may take.
    pub take_over: TakeOver,
}

/// What a sink records about an inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The cluster that owns it.
    #[serde(default)]
    pub owner: Option<String>,
    /// The program that claimed it last.
    #[serde(default)]
    pub writer: Writer,
    /// Number of the last claim.
    pub epoch: i64,
}

impl Claimant {
    /// The record of a successful claim, or why it is refused.
    pub fn take(&self, inventory: &InventoryId, held: Option<&Holder>) -> Result<Holder, SinkError> {
        let next = |epoch| Holder { owner: self.owner.clone(), writer: self.writer, epoch };
        let Some(held) = held else { return Ok(next(1)) };
        let taken_over = match &self.take_over {
            TakeOver::Never => false,
            TakeOver::From(old) => held.owner.as_ref() == Some(old),
            TakeOver::Always => true,
        };
        let refuse = |why: String| {
            Err(SinkError::new(SinkReason::OwnedByOther, format!("write inventory {inventory}: {why}")))
        };
        match (&held.owner, &self.owner) {
            _ if taken_over => {}
            (Some(known), None) => {
                return refuse(format!(
                    "it belongs to cluster {known}, and rows from files would mix with its own; \
                     use another destination or another cluster name"
                ));
            }
            (Some(known), Some(owner)) if known != owner => {
                return refuse(format!(
                    "it belongs to cluster {known}, this is cluster {owner}; give each cluster its own name \
                     (spec.cluster of the sink, or --cluster), or take it over"
                ));
            }
            _ if held.writer == Writer::Operator && self.writer == Writer::Cli => {
                return refuse(
                    "an operator keeps it up to date; use another destination, or --take-over to stop the \
                     operator from writing it"
                        .into(),
                );
            }
            _ => {}
        }
        Ok(next(held.epoch + 1))
    }
}

impl Holder {
    /// The claim that this record stands for.
    pub fn claim(&self) -> Claim {
        Claim { owner: self.owner.clone(), epoch: self.epoch }
    }

    /// Makes sure that nobody has claimed the inventory since `claim`.
    pub fn admits(held: Option<&Self>, inventory: &InventoryId, claim: &Claim) -> Result<(), SinkError> {
        if held.map(Self::claim).as_ref() == Some(claim) {
            return Ok(());
        }
        let attempt = format!("write inventory {inventory}: another writer has taken it over");
        Err(SinkError::new(SinkReason::Fenced, attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimant(owner: Option<&str>, writer: Writer, take_over: TakeOver) -> Claimant {
        Claimant { owner: owner.map(Into::into), writer, take_over }
    }

    #[test]
    fn who_may_take_what() {
        use TakeOver::{Always, From, Never};
        use Writer::{Cli, Operator};
        let inventory =
            InventoryId { cluster: String::new(), namespace: Some("team".into()), name: "all".into() };
        let held = |owner: Option<&str>, writer| Holder { owner: owner.map(Into::into), writer, epoch: 7 };
        for (held, owner, writer, take_over, taken) in [
            (None, None, Cli, Never, true),
            (Some(held(None, Cli)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Cli)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Operator)), Some("a"), Operator, Never, true),
            (Some(held(Some("a"), Operator)), Some("a"), Cli, Never, false),
            (Some(held(Some("a"), Operator)), Some("a"), Cli, Always, true),
            (Some(held(Some("a"), Cli)), None, Cli, Never, false),
            (Some(held(Some("a"), Cli)), Some("b"), Operator, Never, false),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, From("c".into()), false),
            (Some(held(Some("a"), Operator)), Some("b"), Operator, From("a".into()), true),
        ] {
            let claimant = claimant(owner, writer, take_over);
            let record = claimant.take(&inventory, held.as_ref());
            assert_eq!(record.is_ok(), taken, "{held:?} {claimant:?}");
            if let Ok(record) = record {
                assert_eq!(record.epoch, held.as_ref().map_or(1, |held| held.epoch + 1));
                assert!(Holder::admits(Some(&record), &inventory, &record.claim()).is_ok());
                assert!(Holder::admits(held.as_ref(), &inventory, &record.claim()).is_err());
            }
        }
    }
}
