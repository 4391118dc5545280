//! Conditions of a status: `lastTransitionTime` changes only when the status of the condition changes.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kollect_model::crd::shapes::{Condition, ConditionStatus};

use crate::reason::Reason;

/// Builds the conditions of a status. A condition that is not set is removed from the status.
pub(crate) struct Conditions<'a> {
    before: &'a [Condition],
    generation: Option<i64>,
    now: Timestamp,
    set: Vec<Condition>,
}

/// Longer messages are cut. The API server refuses messages that are much longer.
const LONGEST_MESSAGE: usize = 1024;

/// The message of conditions that hold for the reason that Ready names.
pub(crate) const SEE_READY: &str = "see condition Ready";

impl<'a> Conditions<'a> {
    /// Starts from the current conditions of the object, which provide the transition times.
    pub(crate) fn after(before: &'a [Condition], generation: Option<i64>, now: Timestamp) -> Self {
        Self { before, generation, now, set: Vec::new() }
    }

    /// Sets a condition.
    pub(crate) fn set(&mut self, type_: &str, holds: bool, reason: Reason, message: impl Into<String>) {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        self.put(type_, status, reason, message.into(), self.generation);
    }

    /// Sets a condition to Unknown.
    pub(crate) fn unknown(&mut self, type_: &str, reason: Reason, message: impl Into<String>) {
        self.put(type_, ConditionStatus::Unknown, reason, message.into(), self.generation);
    }

    /// Sets a condition that is about another generation than the newest one.
    pub(crate) fn set_of(
        &mut self,
        generation: Option<i64>,
        (type_, holds): (&str, bool),
        reason: Reason,
        message: impl Into<String>,
    ) {
        let status = if holds { ConditionStatus::True } else { ConditionStatus::False };
        self.put(type_, status, reason, message.into(), generation);
    }

    fn put(
        &mut self,
        type_: &str,
        status: ConditionStatus,
        reason: Reason,
        message: String,
        observed_generation: Option<i64>,
    ) {
        let before = self.before.iter().find(|before| before.type_ == type_ && before.status == status);
        let last_transition_time =
            before.map_or_else(|| Time(self.now), |before| before.last_transition_time.clone());
        self.set.push(Condition {
            type_: type_.to_owned(),
            status,
            reason: reason.as_str().to_owned(),
            message: shortened(message),
            last_transition_time,
            observed_generation,
        });
    }

    /// Sets Ready to True.
    pub(crate) fn ready(&mut self, reason: Reason, message: impl Into<String>) {
        self.set("Ready", true, reason, message);
    }

    /// Sets Ready to False and Reconciling to True: work is in progress.
    pub(crate) fn progressing(&mut self, reason: Reason, message: impl Into<String>) {
        let message = message.into();
        self.set("Ready", false, reason, message.clone());
        self.set("Reconciling", true, reason, message);
    }

    /// Sets Ready to False and Degraded to True. Stalled: nothing happens until a user changes something.
    pub(crate) fn degraded(&mut self, reason: Reason, message: impl Into<String>, stalled: bool) {
        let message = message.into();
        self.set("Ready", false, reason, message.clone());
        self.set("Degraded", true, reason, SEE_READY);
        if stalled {
            self.set("Stalled", true, reason, message);
        }
    }

    /// Begins a message that goes on with that of a condition which was set before.
    pub(crate) fn because(&self, begin: &str, type_: &str) -> String {
        let message =
            self.set.iter().find(|condition| condition.type_ == type_).map(|condition| &condition.message);
        message.map_or_else(|| begin.to_owned(), |message| format!("{begin}: {message}"))
    }

    /// The conditions, sorted by type.
    pub(crate) fn done(mut self) -> Vec<Condition> {
        self.set.sort_by(|a, b| a.type_.cmp(&b.type_));
        self.set
    }
}

/// Cuts a long message; `…` marks the cut.
fn shortened(message: String) -> String {
    if message.chars().count() <= LONGEST_MESSAGE {
        return message;
    }
    message.chars().take(LONGEST_MESSAGE - 1).chain(['…']).collect()
}

/// Conditions that are set only while a problem exists.
const PROBLEMS: [&str; 7] = [
    "AttributesNull",
    "Blind",
    "LeftBehind",
    "MatchUndecided",
    "RemovalsHeld",
    "TargetsMissing",
    "Unmatched",
];

/// Whether a condition is set only while a problem exists.
pub(crate) fn is_problem(type_: &str) -> bool {
    PROBLEMS.contains(&type_)
}

/// Problem conditions that were set before and are not set any more.
pub(crate) fn recoveries<'a>(before: &'a [Condition], after: &'a [Condition]) -> Vec<&'a Condition> {
    let is_over = |condition: &&Condition| {
        is_problem(&condition.type_) && !after.iter().any(|now| now.type_ == condition.type_)
    };
    before.iter().filter(is_over).collect()
}

/// Conditions that are new, or whose status or reason has changed.
pub(crate) fn transitions<'a>(before: &'a [Condition], after: &'a [Condition]) -> Vec<&'a Condition> {
    let is_new = |condition: &&Condition| {
        !before.iter().any(|earlier| {
            earlier.type_ == condition.type_
                && earlier.status == condition.status
                && earlier.reason == condition.reason
        })
    };
    after.iter().filter(is_new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_ends_with_a_sign_that_it_was_cut() {
        assert_eq!(shortened("ä".repeat(LONGEST_MESSAGE)), "ä".repeat(LONGEST_MESSAGE));
        let cut = shortened("ä".repeat(LONGEST_MESSAGE + 1));
        assert!(cut.ends_with("ä…"));
        assert_eq!(cut.chars().count(), LONGEST_MESSAGE);
    }
}
