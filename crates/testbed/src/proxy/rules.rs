//! The log of requests, and the rules for requests that the proxy answers itself or lets fail.
//!
//! Called once per request.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether a rule applies to a request line.
pub(super) type RequestMatch = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// When a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMoment {
    /// The API server never receives the request.
    BeforeServer,
    /// The API server has handled the request, and the client gets no response.
    AfterServer,
}

/// A planned failure of one request.
pub(super) struct PlannedFailure {
    pub(super) moment: FailureMoment,
    pub(super) on_failure: Box<dyn FnOnce() + Send>,
}

/// How a request is handled.
pub(super) enum RequestHandling {
    Forward,
    Answer(Answer),
    Fail(PlannedFailure),
}

/// The requests so far and the rules that still apply.
#[derive(Default)]
pub(super) struct Rules(Mutex<RulesState>);

#[derive(Default)]
struct RulesState {
    requests: Vec<String>,
    rules: Vec<ProxyRule>,
    traps: Vec<RequestTrap>,
}

struct RequestTrap {
    /// Number of matching requests up to and including the one that fails; never 0.
    countdown: usize,
    when: RequestMatch,
    failure: PlannedFailure,
}

struct ProxyRule {
    /// Never 0.
    times: usize,
    when: RequestMatch,
    answer: Answer,
}

/// How a request that is not forwarded is answered.
#[derive(Clone)]
pub(super) enum Answer {
    Response(Vec<u8>),
    /// The client waits until it disconnects or is cut off.
    NoResponse,
}

impl Rules {
    pub(super) fn add(&self, times: usize, when: RequestMatch, answer: Answer) {
        if times > 0 {
            self.state().rules.push(ProxyRule { times, when, answer });
        }
    }

    pub(super) fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    pub(super) fn plan_failure(&self, number: usize, when: RequestMatch, failure: PlannedFailure) {
        self.state().traps.push(RequestTrap { countdown: number.max(1), when, failure });
    }

    /// Logs a request, and decides how it is handled.
    pub(super) fn handling_of(&self, request: &str) -> RequestHandling {
        let mut state = self.state();
        state.requests.push(request.to_owned());
        // Every matching trap counts the request, also if another trap is due.
        state.traps.iter_mut().filter(|trap| (trap.when)(request)).for_each(|trap| trap.countdown -= 1);
        let due: Vec<RequestTrap> = state.traps.extract_if(.., |trap| trap.countdown == 0).collect();
        if let Some(trap) = due.into_iter().next() {
            return RequestHandling::Fail(trap.failure);
        }
        let Some(position) = state.rules.iter().position(|rule| (rule.when)(request)) else {
            return RequestHandling::Forward;
        };
        let rule = &mut state.rules[position];
        rule.times -= 1;
        if rule.times > 0 {
            return RequestHandling::Answer(rule.answer.clone());
        }
        RequestHandling::Answer(state.rules.remove(position).answer)
    }

    fn state(&self) -> MutexGuard<'_, RulesState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
