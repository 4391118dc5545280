//! What was built, from which commit, and when. `make dist` and `make image` set the variables; other builds do not know.

use std::sync::LazyLock;

/// `0.1.0 (commit 1a2b3c4, built 2026-11-18T04:00:00Z)`
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("KOLLECT_COMMIT").unwrap_or("unknown");
        let date = option_env!("KOLLECT_BUILD_DATE").unwrap_or("unknown");
        format!("{} (commit {commit}, built {date})", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}
