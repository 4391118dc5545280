//! Which requests have come, and which of them the proxy answers itself.
//!
//! Called once per request.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Says whether a request line is meant.
pub(super) type Condition = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// The requests so far and the rules that are not used up.
#[derive(Default)]
pub(super) struct Rules(Mutex<State>);

#[derive(Default)]
struct State {
    requests: Vec<String>,
    rules: Vec<Rule>,
}

struct Rule {
    /// More than none.
    times: usize,
    when: Condition,
    answer: Answer,
}

/// What becomes of a request that is not forwarded.
#[derive(Clone)]
pub(super) enum Answer {
    Say(Vec<u8>),
    /// The client waits until it leaves or is cut off.
    Nothing,
}

impl Rules {
    pub(super) fn add(&self, times: usize, when: Condition, answer: Answer) {
        if times > 0 {
            self.state().rules.push(Rule { times, when, answer });
        }
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// Logs a request; returns the answer if it is not to be forwarded.
    pub(super) fn answer(&self, request: &str) -> Option<Answer> {
        let mut state = self.state();
        state.requests.push(request.to_owned());
        let position = state.rules.iter().position(|rule| (rule.when)(request))?;
        let rule = &mut state.rules[position];
        rule.times -= 1;
        if rule.times > 0 {
            return Some(rule.answer.clone());
        }
        Some(state.rules.remove(position).answer)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
