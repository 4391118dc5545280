//! Which cargo features of the workspace must compile alone: the sinks, but not features that sinks share.
//!
//! `make check-features` uses it, so that no second list of sinks has to be maintained.

use std::{io, process::Command};

use serde_json::Value;

use crate::Error;

/// Every package with each of its sinks, from `cargo metadata`.
pub fn of_workspace() -> Result<Vec<(String, String)>, Error> {
    Ok(in_metadata(&cargo_metadata(&["--no-deps"])?))
}

/// What `cargo metadata` prints with these arguments.
pub(crate) fn cargo_metadata(arguments: &[&str]) -> Result<Value, Error> {
    let action = "ask cargo for the metadata of the workspace";
    let output = Command::new("cargo")
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .map_err(Error::io(action))?;
    let other = |why: String| Error::Io { action: action.to_owned(), source: io::Error::other(why) };
    if !output.status.success() {
        return Err(other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| other(error.to_string()))
}

/// The features that `default` enables: the sinks. A feature whose name begins with `all-` is
/// replaced by those that it enables.
fn in_metadata(metadata: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let enabled_by = |feature: &str| -> Vec<String> {
            let enables = package["features"][feature].as_array().into_iter().flatten();
            enables.filter_map(Value::as_str).map(ToOwned::to_owned).collect()
        };
        let sinks = enabled_by("default").into_iter().flat_map(|feature| {
            if feature.starts_with("all-") { enabled_by(&feature) } else { vec![feature] }
        });
        let mut sinks: Vec<String> = sinks.collect();
        sinks.sort();
        found.extend(sinks.into_iter().map(|sink| (name.to_owned(), sink)));
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn features_that_group_or_support_others_are_left_out() {
        let metadata = json!({ "packages": [
            { "name": "sinks", "features": {
                "default": ["git", "files", "sqlite"], "git": ["tls", "dep:git2"], "files": [], "sqlite": ["dep:rusqlite"],
                "tls": ["dep:rustls"],
            } },
            { "name": "program", "features": {
                "default": ["all-sinks"], "all-sinks": ["git"], "git": ["sinks/git"],
            } },
            { "name": "plain", "features": {} },
        ] });
        let found = in_metadata(&metadata);
        let found: Vec<_> = found.iter().map(|(package, feature)| (&**package, &**feature)).collect();
        assert_eq!(found, [("sinks", "files"), ("sinks", "git"), ("sinks", "sqlite"), ("program", "git")]);
    }

    #[test]
    fn every_sink_of_the_program_has_a_feature_of_its_own() {
        let found = of_workspace().unwrap();
        let features_of = |name: &str| -> Vec<&str> {
            found.iter().filter(|(package, _)| package == name).map(|(_, feature)| &**feature).collect()
        };
        assert!(features_of("kollect-sinks").contains(&"sqlite"), "{found:?}");
        assert_eq!(
            features_of("kollect"),
            features_of("kollect-sinks"),
            "each sink of the sinks crate has a feature in the program"
        );
    }
}
