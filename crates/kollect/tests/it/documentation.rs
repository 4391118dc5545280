//! The commands of the documentation, run as they stand.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use kollect_testbed::{ControlPlane, demo};

use crate::{
    crds::with_kinds,
    program::{kollect, root},
};

fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/adr", "docs/sinks"].map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let docs = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|e| e == "md"));
    pages.chain([root().join("README.md")]).collect()
}

/// Lines that start with `$` in blocks marked `console`.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(Into::into).collect()
}

/// A directory that looks like the repository after `make demo`, where a page may leave files.
fn workplace(plane: &ControlPlane) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config", "docs", "crates"] {
        symlink(root().join(name), dir.path().join(name)).unwrap();
    }
    fs::create_dir_all(dir.path().join("target/debug")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kollect"), dir.path().join("target/debug/kollect")).unwrap();
    symlink(env!("CARGO_BIN_EXE_kollect"), dir.path().join("kollect")).unwrap();
    let programs = kollect_testbed::Programs::find_or_build().unwrap();
    symlink(programs.kubectl, dir.path().join("kubectl")).unwrap();
    plane.apply("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").unwrap();
    dir
}

fn run(command: &str, dir: &Path, plane: &ControlPlane) {
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", command])
        .current_dir(dir)
        .env("PATH", path)
        .env("HOME", dir)
        .env("KUBECONFIG", plane.kubeconfig())
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "$ {command}\n{}", String::from_utf8_lossy(&text));
}

#[test]
fn every_command_in_the_documentation_works() {
    let plane = with_kinds();
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut count = 0;
    for page in pages() {
        let dir = workplace(plane);
        for command in commands(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            match command.split_whitespace().collect::<Vec<_>>()[..] {
                // These run everything, or have a test of their own.
                ["make", target, ..] => {
                    assert!(makefile.contains(&format!("\n{target}:")), "{}: {command}", page.display());
                }
                ["cargo", "test", ..] => {}
                // These run until they are stopped.
                [program, "watch", ..] if program.ends_with("kollect") => {
                    run(&format!("timeout --preserve-status -s INT 5 {command}"), dir.path(), plane);
                }
                _ => run(&command, dir.path(), plane),
            }
        }
    }
    assert!(count > 5, "the pages were found");
}

/// Everything that CI runs can be run by hand.
#[test]
fn ci_runs_targets_of_the_makefile_that_the_readme_explains() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (makefile, readme) = (read("Makefile"), read("README.md"));
    for (file, target) in [
        (".ci/run", "test"),
        (".github/workflows/ci.yml", "test"),
        (".github/workflows/nightly.yml", "test-all"),
    ] {
        let text = read(file);
        let ran: Vec<&str> =
            text.lines().filter_map(|line| line.split_once("make ")).map(|(_, rest)| rest).collect();
        let ran: Vec<&str> =
            ran.into_iter().filter(|rest| makefile.contains(&format!("\n{rest}:"))).collect();
        assert_eq!(ran, [target], "{file}");
        assert!(readme.contains(&format!("\n$ make {target}\n")), "{target}");
    }
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let local = !link.is_empty() && !link.starts_with("http");
            assert!(!local || page.with_file_name(link).exists(), "{}: {link}", page.display());
        }
    }
}

#[test]
fn the_demo_shows_the_changed_row() {
    let mut screen = Vec::new();
    std::env::set_current_dir(root()).unwrap();
    demo::run(Path::new(env!("CARGO_BIN_EXE_kollect")), &mut screen).unwrap();
    let screen = String::from_utf8(screen).unwrap();
    let lines: Vec<Vec<&str>> = screen.lines().map(|line| line.split_whitespace().collect()).collect();
    let shown = |expected: &[&str]| lines.iter().filter(|line| line.starts_with(expected)).count();
    // Before the change, after it, and after the fault.
    let cart = |version: &str| format!("registry.example.com/shop/cart:{version}");
    assert_eq!(shown(&["shop", "|", "cart", "|", &cart("2.7.1")]), 1, "{screen}");
    assert_eq!(shown(&["shop", "|", "cart", "|", &cart("2.8.0")]), 2, "{screen}");
    let search = "registry.example.com/shop/search:1.9.3";
    assert_eq!(shown(&["shop", "|", "search", "|", search, "|", "5"]), 1, "{screen}");
    // The dashboard: all is well, the database is gone, all is well again.
    let name = "kollectinventory.kollect.dev/deployments";
    assert_eq!(shown(&["inventory", name, "True", "Exported", "8"]), 1, "{screen}");
    assert_eq!(shown(&["deployments", "False", "Progressing", "8"]), 1, "{screen}");
    assert_eq!(shown(&["deployments", "True", "Exported", "8"]), 1, "{screen}");
}

/// The text of all Rust files below a directory.
fn sources(directory: &Path, text: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_fault_has_a_test_that_exists_or_a_reason() {
    let page = fs::read_to_string(root().join("docs/faults.md")).unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let mut faults = Vec::new();
    for line in page.lines().filter(|line| line.starts_with("| W") || line.starts_with("| ⚠")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [number, _, _, shown] = cells[..] else { unreachable!("four cells: {line}") };
        let tests: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty() || shown.starts_with("Cannot occur: "), "{line}");
        for test in &tests {
            assert!(code.contains(&format!("fn {test}(")), "{number}: there is no test {test}");
        }
        let named = |test: &&str| test.split('_').any(|word| word == number.to_lowercase());
        assert!(number.starts_with('⚠') || tests.iter().any(named), "no test carries the number: {line}");
        faults.push(number.to_owned());
    }
    let wanted = [6, 13, 14, 17, 18, 21, 22, 23, 24, 36, 39, 40, 41, 44, 54, 60, 61, 62, 63, 64, 66];
    let wanted = wanted.map(|number| format!("W{number}"));
    let wanted: Vec<String> = wanted.into_iter().chain((1..=31).map(|number| format!("⚠{number}"))).collect();
    assert_eq!(faults, wanted);
}

#[test]
fn every_word_of_the_glossary_stands_once_and_names_types_that_exist() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let mut words = std::collections::BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Word")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [word, _, types] = cells[..] else { unreachable!("three cells: {line}") };
        assert!(words.insert(word.to_owned()), "{word} stands twice");
        for name in types.split('`').skip(1).step_by(2) {
            let is_defined = ["struct", "enum", "trait", "type"].iter().any(|what| {
                let definition = format!("{what} {name}");
                code.match_indices(&definition).any(|(at, _)| {
                    let next = code.get(at + definition.len()..).and_then(|rest| rest.chars().next());
                    !next.is_some_and(|next| next.is_alphanumeric() || next == '_')
                })
            });
            assert!(is_defined, "{word}: there is no type {name}");
        }
    }
    assert!(words.len() > 40);
}

/// `make demo` builds less than the tests do.
#[test]
fn the_demo_is_built_with_the_sinks_that_it_shows() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let build = makefile.lines().find(|line| line.contains("cargo build -p kollect ")).unwrap();
    let features: Vec<&str> = build.rsplit(' ').next().unwrap().split(',').collect();
    let shown = fs::read_to_string(root().join("crates/testbed/demo/kollect.yaml")).unwrap();
    let types: Vec<&str> = shown.lines().filter_map(|line| line.strip_prefix("  type: ")).collect();
    assert!(types.len() == 2 && types.iter().all(|type_| features.contains(type_)), "{types:?} {features:?}");
}

#[test]
fn every_flag_of_the_operator_is_documented() {
    let page = fs::read_to_string(root().join("docs/operator.md")).unwrap();
    let help = kollect(["operator", "--help"]).ok();
    let flags = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let flags: Vec<&str> = flags.filter_map(|rest| rest.split([' ', '[']).next()).collect();
    assert!(flags.contains(&"leader-elect"), "the flags were found: {help}");
    for flag in flags {
        assert!(page.contains(&format!("`--{flag}`")), "--{flag}");
    }
}

#[test]
fn yaml_in_the_documentation_and_the_examples_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for block in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            count += 1;
            let whole = block.starts_with("apiVersion:");
            // A list of attributes is shown without the profile around it.
            let attributes = if whole {
                "  attributes: [{ name: a, path: $.metadata.name }]".to_owned()
            } else {
                format!("  {}", block.trim_end().replace('\n', "\n  "))
            };
            let profile = "apiVersion: kollect.dev/v1alpha1\nkind: KollectProfile\nmetadata: {name: p}\nspec:\n  targetGVK: {group: apps, version: v1, kind: Deployment}\n";
            let target = "---\napiVersion: kollect.dev/v1alpha1\nkind: KollectTarget\nmetadata: {name: t}\nspec: {profileRef: p}\n";
            let file = dir.path().join("block.yaml");
            let shown = if whole { format!("---\n{block}") } else { String::new() };
            fs::write(&file, format!("{profile}{attributes}\n{target}{shown}")).unwrap();
            kollect(["collect", "-f", file.to_str().unwrap(), "--from", "/dev/null", "-o", "json"]).ok();
        }
    }
    assert!(count > 0, "there is YAML in the documentation");
    for entry in fs::read_dir(root().join("docs/examples")).unwrap() {
        kollect(["collect", "-f", entry.unwrap().path().to_str().unwrap(), "--from", "/dev/null"]).ok();
    }
}
