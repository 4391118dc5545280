//! Reasons of conditions and events. Automation depends on them, so each is listed in docs/reference/conditions.md and
//! covered by a test.

macro_rules! reasons {
    ($($name:ident,)*) => {
        /// The reason of a condition or an event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Reason {
            $($name,)*
        }

        impl Reason {
            /// The reason as statuses and events show it.
            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

reasons! {
    Adopted,
    BeyondReach,
    Cleaning,
    CleanupTerminal,
    ClusterScopedKind,
    Collecting,
    Comparing,
    Compiled,
    ConditionsIgnored,
    ConnectionOK,
    ConnectionTestFailed,
    ExportFailed,
    ExportTerminal,
    Exported,
    ExtractionFailed,
    HeldBack,
    InformerRegistrationFailed,
    InsecureSkipVerify,
    InvalidSpec,
    KindNotServed,
    Listing,
    NamespaceNotFound,
    NamespaceNotListed,
    NoExport,
    NoNamespaceMatches,
    NoSinksConfigured,
    NotAttempted,
    NotSeen,
    NotTested,
    NotUsed,
    NothingSelected,
    PartiallySynced,
    Pending,
    ProbeSucceeded,
    Probing,
    ProfileInvalid,
    ProfileNotFound,
    Progressing,
    Reconciling,
    Recovered,
    RedactedValue,
    RemovalsHeld,
    RowsRefused,
    ScopeForbidden,
    ScopeGVKDenied,
    ScopeNamespaceDenied,
    ScopeSinkDenied,
    ScopeUnreadable,
    SecretResolveFailed,
    SinkNamespaceDenied,
    SinkNotFound,
    SinksReachable,
    Suspended,
    TakeOverInvalid,
    TargetNotFound,
    TypeMismatch,
    ValueMissing,
    Writing,
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::Reason;

    /// Condition, status and reason of the lines of the page, and the reasons that are retired.
    fn documented(page: &str) -> (Vec<[String; 3]>, BTreeSet<String>) {
        let (current, retired) = page.split_once("\n## Retired\n").unwrap();
        let lines = current.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (condition, (status, reason)) = (cells.next()?, cells.next()?.split_once(" `")?);
            Some([condition, status, reason.strip_suffix('`')?].map(ToOwned::to_owned))
        });
        let cells = retired.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
        let words = cells.flat_map(|cell| cell.split(", ")).map(|word| word.trim_matches('`').to_owned());
        (lines.collect(), words.collect())
    }

    /// Appends the text of all tests, with each run of white space as one space.
    fn tests_below(path: &Path, text: &mut String) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                tests_below(&path, text);
            } else {
                let code = fs::read_to_string(path).unwrap();
                text.push_str(&code.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }

    #[test]
    fn every_reason_is_documented_and_seen_by_a_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (current, retired) =
            documented(&fs::read_to_string(root.join("../../docs/reference/conditions.md")).unwrap());
        let reasons: BTreeSet<String> = current.iter().map(|[_, _, reason]| reason.clone()).collect();
        let known: BTreeSet<String> = Reason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
        assert_eq!(reasons, known, "what the page lists, and what the operator can report");
        assert!(retired.is_disjoint(&known) && retired.contains("Debounced"), "{retired:?}");
        let mut tests = String::new();
        tests_below(&root.join("tests/it"), &mut tests);
        for [condition, status, reason] in current {
            let seen = match condition.as_str() {
                "Event" => format!("\"{status} {reason}\""),
                condition => format!("\"{condition}\", \"{status} {reason}\""),
            };
            assert!(tests.contains(&seen), "no test sees {seen}");
        }
    }
}
