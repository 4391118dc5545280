//! The log of requests, and the rules for requests that the proxy answers itself or lets fail.
//!
//! Called once per request.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether a rule applies to a request line.
pub(super) type Condition = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The API server never receives the request.
    BeforeServer,
    /// The API server has handled the request, and the client gets no response.
    AfterServer,
}

/// A planned failure of one request.
pub(super) struct Accident {
    pub(super) moment: Moment,
    pub(super) happen: Box<dyn FnOnce() + Send>,
}

/// How a request is handled.
pub(super) enum Fate {
    Passes,
    Answered(Answer),
    Meets(Accident),
}

/// The requests so far and the rules that are not used up.
#[derive(Default)]
pub(super) struct Rules(Mutex<State>);

#[derive(Default)]
struct State {
    requests: Vec<String>,
    rules: Vec<Rule>,
    traps: Vec<Trap>,
}

struct Trap {
    /// Number of matching requests up to and including the one that fails; never 0.
    countdown: usize,
    when: Condition,
    accident: Accident,
}

struct Rule {
    /// Never 0.
    times: usize,
    when: Condition,
    answer: Answer,
}

/// How a request that is not forwarded is answered.
#[derive(Clone)]
pub(super) enum Answer {
    Say(Vec<u8>),
    /// No response: the client waits until it disconnects or is cut off.
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

    pub(super) fn set_trap(&self, number: usize, when: Condition, accident: Accident) {
        self.state().traps.push(Trap { countdown: number.max(1), when, accident });
    }

    /// Logs a request, and decides how it is handled.
    pub(super) fn meet(&self, request: &str) -> Fate {
        let mut state = self.state();
        state.requests.push(request.to_owned());
        // Every matching trap counts the request, also if another trap is due.
        state.traps.iter_mut().filter(|trap| (trap.when)(request)).for_each(|trap| trap.countdown -= 1);
        let due: Vec<Trap> = state.traps.extract_if(.., |trap| trap.countdown == 0).collect();
        if let Some(trap) = due.into_iter().next() {
            return Fate::Meets(trap.accident);
        }
        let Some(position) = state.rules.iter().position(|rule| (rule.when)(request)) else {
            return Fate::Passes;
        };
        let rule = &mut state.rules[position];
        rule.times -= 1;
        if rule.times > 0 {
            return Fate::Answered(rule.answer.clone());
        }
        Fate::Answered(state.rules.remove(position).answer)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
