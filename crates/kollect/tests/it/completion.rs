//! `kollect version` and `kollect completion`.

use std::process::Command;

use crate::program::kollect;

#[test]
fn the_version_names_the_commit_and_the_date_of_the_build() {
    let printed = kollect(["version"]).ok();
    let expected = format!("{} (commit ", env!("CARGO_PKG_VERSION"));
    let rest = printed.strip_prefix(&expected).unwrap_or_else(|| unreachable!("{printed}"));
    let (commit, date) = rest.split_once(", built ").unwrap();
    assert!(!commit.is_empty() && date.ends_with(")\n"), "{printed}");
    assert_eq!(kollect(["--version"]).ok(), format!("kollect {printed}"));
}

#[test]
fn shells_get_their_completions() {
    for (shell, part) in [
        ("bash", "complete -F _kollect"),
        ("zsh", "#compdef kollect"),
        ("fish", "complete -c kollect"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = kollect(["completion", shell]).ok();
        assert!(script.contains(part) && script.contains("operator"), "{shell}: {script}");
    }
    // bash itself reads its script.
    let script = kollect(["completion", "bash"]).ok();
    let completed = Command::new("bash")
        .args(["-c", "eval \"$1\"; COMP_WORDS=(kollect comp); COMP_CWORD=1; _kollect kollect comp kollect; echo \"${COMPREPLY[@]}\""])
        .args(["-", &script])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "completion");
}
