//! Why something failed: in one line, and logged once.

use std::error::Error;

/// The chain of causes. Some libraries repeat the cause in the text of the error; it is shown once.
pub(crate) fn chain_text(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// The last problem of something that is tried again and again, so that each problem is logged once and
/// not with every try.
#[derive(Debug, Default)]
pub(crate) struct LastProblem(Option<String>);

impl LastProblem {
    /// Remembers the problem. Returns whether it differs from the last one.
    pub(crate) fn replace(&mut self, problem: &str) -> bool {
        let new = self.0.as_deref() != Some(problem);
        if new {
            self.0 = Some(problem.to_owned());
        }
        new
    }

    /// Forgets the last problem. Returns whether there was one.
    pub(crate) fn clear(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::LastProblem;

    #[test]
    fn each_problem_is_new_once_until_it_is_solved() {
        let mut problem = LastProblem::default();
        assert!(!problem.clear());
        assert!(problem.replace("no answer"));
        assert!(!problem.replace("no answer"));
        assert!(problem.replace("forbidden"));
        assert!(problem.clear());
        assert!(problem.replace("forbidden"));
    }
}
