//! The documentation, checked: its commands run as they stand and print what it shows, its links lead somewhere, its YAML is
//! accepted, and what it says about flags, faults, guarantees and words agrees with the code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, BufReader, Write as _},
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use kollect_testbed::{Playground, demo};

use crate::program::{kollect, root};

/// All pages, the READMEs and CONTRIBUTING included.
fn pages() -> Vec<PathBuf> {
    fn add_below(directory: &Path, pages: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_below(&path, pages);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    let mut pages =
        ["README.md", "CONTRIBUTING.md", "charts/kollect/README.md"].map(|page| root().join(page)).to_vec();
    add_below(&root().join("docs"), &mut pages);
    pages.sort();
    pages
}

/// A command of a page, and the output that the page shows for it.
struct Step {
    command: String,
    shown: Option<String>,
}

/// Lines that start with `$` in blocks marked `console`. A block marked `text` that follows at once is the output of the
/// last of them.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut blocks = page.split("\n```");
    let mut follows_console = false;
    // Every second part is text between blocks.
    while let (Some(between), block) = (blocks.next(), blocks.next()) {
        let is_next = steps.is_empty() || between.trim().is_empty();
        let Some(block) = block else { break };
        let (language, content) = block.split_once('\n').unwrap_or((block, ""));
        match language {
            "console" => {
                let commands = content.lines().filter_map(|line| line.strip_prefix("$ "));
                steps.extend(commands.map(|command| Step { command: command.into(), shown: None }));
            }
            "text" if follows_console && is_next => {
                steps.last_mut().expect("there was a command").shown = Some(content.into());
            }
            _ => {}
        }
        follows_console = language == "console";
    }
    steps
}

/// A shell in which the commands of a page run one after the other. Dropping it ends everything that it started.
struct Shell {
    bash: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Ends the output of a command.
const END: &str = "--end-of-output--";

impl Shell {
    /// In a directory that looks like the repository after `make`, where a page may leave files.
    fn start(playground: &Playground, directory: &Path) -> Self {
        for name in ["config", "docs", "crates", "charts"] {
            symlink(root().join(name), directory.join(name)).unwrap();
        }
        fs::create_dir_all(directory.join("target/debug")).unwrap();
        symlink(env!("CARGO_BIN_EXE_kollect"), directory.join("target/debug/kollect")).unwrap();
        symlink(playground.directory(), directory.join("target/playground")).unwrap();
        let path = format!("{}:{}", playground.programs().display(), std::env::var("PATH").unwrap());
        let mut bash = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(directory)
            .env("PATH", path)
            .env("HOME", directory)
            .envs(playground.variables())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (bash.stdin.take().unwrap(), BufReader::new(bash.stdout.take().unwrap()));
        let mut shell = Self { bash, input, output };
        shell.run("exec 2>&1; set -o pipefail").unwrap();
        shell
    }

    /// The output of a command that succeeded, or of one that failed.
    fn run(&mut self, command: &str) -> Result<String, String> {
        writeln!(self.input, "{command}\nstatus=$?; echo; echo \"{END}$status\"").unwrap();
        let mut text = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the shell has ended: {text}");
            if let Some(status) = line.strip_prefix(END) {
                return if status.trim() == "0" { Ok(text) } else { Err(text) };
            }
            text.push_str(&line);
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Also what it started in the background: all are in one group.
        Command::new("kill").args(["-TERM", "--", &format!("-{}", self.bash.id())]).status().ok();
        self.bash.wait().ok();
    }
}

/// Words of a line with ages, times and digests left out: these differ from run to run.
fn words(line: &str) -> Vec<String> {
    let is_time = |word: &str| {
        word.starts_with(|letter: char| letter.is_ascii_digit())
            && word.chars().all(|letter| letter.is_ascii_digit() || "smhd.".contains(letter))
            && word.ends_with(['s', 'm', 'h', 'd'])
    };
    let is_date = |word: &str| word.contains('T') && word.ends_with('Z');
    let words =
        line.split_whitespace().filter(|word| !word.chars().all(|letter| letter == '-' || letter == '+'));
    words
        .map(|word| if is_time(word) || is_date(word) || word == "…" { "…" } else { word }.to_owned())
        .collect()
}

fn compared(text: &str) -> Vec<Vec<String>> {
    // psql counts its rows, which pages leave out.
    let lines = text.lines().map(words).filter(|words| !words.is_empty());
    lines
        .filter(|words| !(words[0].starts_with('(') && words.len() == 2 && words[1].starts_with("row")))
        .collect()
}

/// Rows reach a sink some milliseconds after a change; a busy machine needs longer.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(30);

fn run_step(shell: &mut Shell, step: &Step, page: &Path) {
    let deadline = Instant::now() + ARRIVAL_LIMIT;
    // Commands that only read may be repeated until they show what the page shows.
    let reads = ["psql", "git", "kubectl get", "curl", "sqlite3"];
    let may_repeat = reads.iter().any(|program| step.command.starts_with(program));
    loop {
        let output = shell.run(&step.command);
        let output =
            output.unwrap_or_else(|text| unreachable!("{}\n$ {}\n{text}", page.display(), step.command));
        let Some(shown) = &step.shown else { return };
        if compared(&output) == compared(shown) {
            return;
        }
        let is_over = !may_repeat || Instant::now() > deadline;
        assert!(!is_over, "{}\n$ {}\nshows\n{shown}\nand prints\n{output}", page.display(), step.command);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn every_command_in_the_documentation_works_and_prints_what_is_shown() {
    std::env::set_current_dir(root()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let playground =
        Playground::start(Path::new(env!("CARGO_BIN_EXE_kollect")), &scratch.path().join("playground"))
            .unwrap();
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let mut count = 0;
    for page in pages() {
        let directory = tempfile::tempdir().unwrap();
        let mut shell = Shell::start(&playground, directory.path());
        for step in steps(&fs::read_to_string(&page).unwrap()) {
            count += 1;
            match step.command.split_whitespace().collect::<Vec<_>>()[..] {
                // These run everything, or have a test of their own.
                ["make", target, ..] => {
                    assert!(
                        makefile.contains(&format!("\n{target}:")),
                        "{}: {}",
                        page.display(),
                        step.command
                    );
                }
                // These run until they are stopped.
                [program, "watch", ..] if program.ends_with("kollect") => {
                    let command = format!("timeout --preserve-status -s INT 5 {}", step.command);
                    run_step(&mut shell, &Step { command, shown: None }, &page);
                }
                _ => run_step(&mut shell, &step, &page),
            }
        }
    }
    assert!(count > 100, "the pages were found: {count} commands");
}

/// Everything that CI runs can be run by hand.
#[test]
fn workflows_run_targets_of_the_makefile_and_nothing_else_of_the_project() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (makefile, readme) = (read("Makefile"), read("README.md"));
    for (file, targets) in [
        (".ci/run", &["test"][..]),
        (".github/workflows/ci.yml", &["test", "deny"]),
        (".github/workflows/nightly.yml", &["test-all", "test-image", "docs"]),
        (".github/workflows/release.yml", &["test", "test-image", "dist", "publish"]),
    ] {
        let text = read(file);
        assert!(!text.contains("cargo "), "{file} calls make, and make calls cargo");
        let code =
            text.lines().map(|line| line.split(" #").next().unwrap()).filter(|line| !line.starts_with('#'));
        let run = code.filter_map(|line| line.split_once("make ")).map(|(_, rest)| rest);
        let run: Vec<&str> = run.filter_map(|rest| rest.split_whitespace().next()).collect();
        assert_eq!(run, targets, "{file}");
        for target in targets {
            assert!(makefile.contains(&format!("\n{target}:")), "{file}: {target}");
        }
    }
    for target in ["test", "test-all"] {
        assert!(readme.contains(&format!("\n$ make {target}\n")), "{target}");
    }
}

/// The names by which links find the headings of a page.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut in_block = false;
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        in_block ^= line.starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !in_block) else { continue };
        let letters = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = letters.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        anchors.insert(letters.collect::<String>().replace(' ', "-"));
    }
    anchors
}

#[test]
fn links_of_the_documentation_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.is_empty() {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if !anchor.is_empty() {
                let headings = anchors(&fs::read_to_string(&target).unwrap());
                assert!(headings.contains(anchor), "{}: {link}: {headings:?}", page.display());
            }
        }
    }
}

#[test]
fn the_book_has_every_page() {
    let summary = fs::read_to_string(root().join("docs/SUMMARY.md")).unwrap();
    for page in pages() {
        let Ok(path) = page.strip_prefix(root().join("docs")) else { continue };
        let path = path.to_str().unwrap();
        assert!(
            path == "SUMMARY.md" || summary.contains(&format!("]({path})")),
            "{path} is not in the summary"
        );
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

/// Cells of the lines of a table whose first cell is accepted.
fn table_lines(page: &str, is_first: impl Fn(&str) -> bool) -> Vec<Vec<&str>> {
    let lines = page.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix('|'));
    let cells = lines.map(|line| line.split(" | ").map(str::trim).collect::<Vec<_>>());
    cells.filter(|cells| is_first(cells[0])).collect()
}

/// Names in backticks.
fn code_names(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn every_fault_has_a_test_that_exists_or_a_reason() {
    let page = fs::read_to_string(root().join("docs/faults.md")).unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let mut faults = Vec::new();
    for cells in table_lines(&page, |first| first.starts_with(['W', '⚠'])) {
        let [number, _, _, shown] = cells[..] else { unreachable!("four cells: {cells:?}") };
        if !shown.starts_with("Cannot occur: ") {
            let tests = code_names(shown);
            assert!(!tests.is_empty(), "{number}: neither a test nor a reason");
            for test in tests {
                assert!(code.contains(&format!("fn {test}(")), "{number}: there is no test {test}");
            }
        }
        faults.push(number.to_owned());
    }
    let wanted = (1..=66).map(|number| format!("W{number}"));
    let wanted: Vec<String> = wanted.chain((1..=32).map(|number| format!("⚠{number}"))).collect();
    assert_eq!(faults, wanted);
}

#[test]
fn every_guarantee_and_decision_names_tests_that_exist() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    let page = |name: &str| fs::read_to_string(root().join("docs/understand").join(name)).unwrap();
    let guarantees = page("guarantees.md");
    let lines = table_lines(&guarantees, |first| first.parse::<u32>().is_ok());
    assert_eq!(lines.len(), 16);
    let decisions = page("decisions.md");
    let questions = table_lines(&decisions, |first| first.starts_with('Q'));
    assert_eq!(questions.len(), 14);
    for cells in lines.iter().chain(&questions) {
        for name in code_names(cells.last().unwrap()).into_iter().filter(|name| name.len() > 20) {
            assert!(code.contains(&format!("fn {name}(")), "{}: there is no test {name}", cells[0]);
        }
    }
    assert!(lines.iter().all(|cells| !code_names(cells[2]).is_empty()), "each guarantee has a test");
}

/// Names of tests say what they show. Numbers of faults, laws and questions are in the documentation.
#[test]
fn names_of_tests_have_no_numbers_of_faults() {
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    for name in code.split("fn ").skip(1).filter_map(|rest| rest.split('(').next()) {
        let is_number = |word: &str| {
            let number = word.strip_prefix(['w', 'q']);
            number.is_some_and(|number| {
                !number.is_empty() && number.chars().all(|digit| digit.is_ascii_digit())
            })
        };
        assert!(!name.split('_').any(is_number) && !name.contains("law_"), "{name}");
    }
}

#[test]
fn every_word_of_the_glossary_stands_once_and_names_types_that_exist() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let mut code = String::new();
    sources(&root().join("crates"), &mut code);
    // Macros define some types, so these do not begin their line.
    let is_defined = |name: &str| {
        let forms = ["struct", "enum", "trait", "type"].map(|form| format!("{form} {name}"));
        forms.iter().any(|form| {
            code.match_indices(form).any(|(start, _)| {
                let next = code.get(start + form.len()..).and_then(|rest| rest.chars().next());
                !next.is_some_and(|next| next.is_alphanumeric() || next == '_')
            })
        })
    };
    let mut words = BTreeSet::new();
    for cells in table_lines(&page, |first| first != "Word") {
        let [word, _, names] = cells[..] else { unreachable!("three cells: {cells:?}") };
        assert!(words.insert(word.to_owned()), "{word} stands twice");
        for name in code_names(names) {
            assert!(is_defined(name), "{word}: there is no type {name}");
        }
    }
    assert!(words.len() > 60, "the words were found");
}

/// By crate and name: the files that define a type of this name. Types inside of functions and of implementations of
/// traits do not count.
fn types_of_crates() -> BTreeMap<String, BTreeMap<String, Vec<PathBuf>>> {
    fn add_below(directory: &Path, types: &mut BTreeMap<String, Vec<PathBuf>>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                add_below(&path, types);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let code = fs::read_to_string(&path).unwrap();
                for line in code.lines() {
                    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
                    let is_type =
                        words.next().is_some_and(|word| ["struct", "enum", "trait", "type"].contains(&word));
                    if is_type && !line.starts_with(' ') {
                        let name =
                            words.next().unwrap().split(|letter: char| !letter.is_alphanumeric()).next();
                        types.entry(name.unwrap().to_owned()).or_default().push(path.clone());
                    }
                }
            }
        }
    }
    let mut crates = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let types: &mut BTreeMap<_, _> =
            crates.entry(path.file_name().unwrap().to_str().unwrap().to_owned()).or_default();
        add_below(&path.join("src"), types);
    }
    crates
}

#[test]
fn type_names_are_unique_within_their_crate() {
    for (name, types) in types_of_crates() {
        for (type_, files) in types {
            assert_eq!(files.len(), 1, "crate {name} has several types {type_}: {files:?}");
        }
    }
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
    let page = fs::read_to_string(root().join("docs/reference/flags.md")).unwrap();
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
    // Pages of kinds show the samples, which are applied together by other tests.
    for page in pages().into_iter().filter(|page| !page.starts_with(root().join("docs/reference/kinds"))) {
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
    // The walkthroughs apply the other examples to a cluster.
    for example in ["docs/examples/deployments", "docs/examples/pods.yaml"] {
        kollect(["collect", "-f", example, "--from", "/dev/null"]).ok();
    }
}
