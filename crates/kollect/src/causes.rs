//! Why something failed, in one line.

use std::error::Error;

/// The chain of causes. Some libraries repeat a cause in the text of its effect; it is told once.
pub(crate) fn told_once(error: &(dyn Error + 'static)) -> String {
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
