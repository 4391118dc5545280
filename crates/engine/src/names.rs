//! Names of namespaces in messages: their number, and at most two examples.

/// `namespace a`, `2 namespaces (a and b)`, `37 namespaces (a, b and 35 more)`. There are `all` of them; `names` has
/// at least the first two.
pub fn namespaces<N: AsRef<str>>(names: impl IntoIterator<Item = N>, all: usize) -> String {
    let mut names = names.into_iter();
    match (names.next(), names.next()) {
        (Some(one), None) if all <= 1 => format!("namespace {}", one.as_ref()),
        (Some(one), Some(two)) if all <= 2 => format!("2 namespaces ({} and {})", one.as_ref(), two.as_ref()),
        (Some(one), Some(two)) => {
            format!("{all} namespaces ({}, {} and {} more)", one.as_ref(), two.as_ref(), all - 2)
        }
        _ => format!("{all} namespaces"),
    }
}

#[cfg(test)]
mod tests {
    use super::namespaces;

    #[test]
    fn many_namespaces_are_a_count_and_two_examples() {
        let names = ["a", "b", "c"];
        assert_eq!(namespaces(&names[..0], 0), "0 namespaces");
        assert_eq!(namespaces(&names[..1], 1), "namespace a");
        assert_eq!(namespaces(&names[..2], 2), "2 namespaces (a and b)");
        assert_eq!(namespaces(names, 3), "3 namespaces (a, b and 1 more)");
        assert_eq!(namespaces(names, 37), "37 namespaces (a, b and 35 more)");
    }
}
