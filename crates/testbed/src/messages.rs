//! Messages of the product that tests have seen, and the listing of them in the repository.
//!
//! With `KOLLECT_MESSAGES=DIRECTORY`, which `make test` sets, every control plane logs statuses, events and refusals of
//! Kollect's objects there, and tests add what programs print. `kollect-testbed messages` compares them with the
//! listing: a change of words is a difference that a reviewer sees. What differs from run to run (names of namespaces,
//! ports, numbers, times) is replaced first.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, PoisonError, atomic::AtomicU32, atomic::Ordering},
};

use regex::Regex;
use serde_json::Value;

use crate::{Error, Scratch};

/// Statuses and events with their text, and the answers to changes of our objects.
const AUDIT_POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Request
    verbs: [patch, update]
    resources: [{ group: kollect.dev, resources: ['*/status'] }]
  - level: Request
    verbs: [create, patch]
    resources: [{ group: '', resources: [events] }, { group: events.k8s.io, resources: [events] }]
  - level: Metadata
    verbs: [create, update, patch]
    resources: [{ group: kollect.dev }]
  - level: None
";

/// Where messages are recorded; `None`: they are not.
fn directory() -> Option<PathBuf> {
    env::var_os("KOLLECT_MESSAGES").filter(|text| !text.is_empty()).map(PathBuf::from)
}

/// A file of this process in the directory of messages.
fn file_in(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}-{}", std::process::id()))
}

/// Flags of an API server that logs messages; none if they are not recorded.
pub(crate) fn audit_flags(scratch: &Scratch) -> Result<Vec<String>, Error> {
    static SERVERS: AtomicU32 = AtomicU32::new(0);
    let Some(directory) = directory() else { return Ok(Vec::new()) };
    fs::create_dir_all(&directory).map_err(Error::io(format!("create {}", directory.display())))?;
    let policy = scratch.write("messages-policy.yaml", AUDIT_POLICY)?;
    let number = SERVERS.fetch_add(1, Ordering::Relaxed);
    let log = file_in(&directory, &format!("audit-{number}"));
    Ok(vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
    ])
}

/// Records what a program printed, such as the log of an operator. `source` is `log` or `cli`.
pub fn record(source: &str, text: &str) {
    static LOCK: Mutex<()> = Mutex::new(());
    let Some(directory) = directory() else { return };
    let _one_at_a_time = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = fs::create_dir_all(&directory)
        .and_then(|()| fs::OpenOptions::new().create(true).append(true).open(file_in(&directory, source)));
    // A message that cannot be recorded is not checked, and the next listing lacks it.
    if let Ok(mut file) = opened {
        file.write_all(text.as_bytes()).ok();
        file.write_all(b"\n").ok();
    }
}

/// Messages by section. A message that stands in an earlier section is not listed again.
type Listing = Vec<(&'static str, BTreeSet<String>)>;

/// The sections of the listing, in their order.
const SECTIONS: [&str; 9] = [
    "Profiles",
    "Targets and cluster targets",
    "Inventories and cluster inventories",
    "Sinks",
    "Connection tests",
    "Events",
    "Refused by admission",
    "Log of the operator",
    "Standard error of the command line",
];

/// All recorded messages, normalized.
fn recorded(directory: &Path) -> Result<Listing, Error> {
    let mut found: BTreeMap<&'static str, BTreeSet<String>> = BTreeMap::new();
    let mut add = |section, label: &str, text: &str| {
        let text = normalized(text);
        let line = if label.is_empty() { text } else { format!("{label}: {text}") };
        found.entry(section).or_default().insert(line);
    };
    let entries = fs::read_dir(directory).map_err(Error::io(format!("list {}", directory.display())))?;
    for entry in entries {
        let path = entry.map_err(Error::io(format!("list {}", directory.display())))?.path();
        let bytes = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
        let text = String::from_utf8_lossy(&bytes);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for line in text.lines() {
            match name.split('-').next() {
                // The last line of a server that was killed may be cut off.
                Some("audit") => {
                    if let Ok(event) = serde_json::from_str(line) {
                        audit_messages(&event, &mut add);
                    }
                }
                Some("log") => {
                    let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
                    // Libraries log too.
                    if text_at(&event, "/target").starts_with("kollect") {
                        add("Log of the operator", text_at(&event, "/level"), text_at(&event, "/message"));
                    }
                }
                Some("cli") if is_message(line) => add("Standard error of the command line", "", line),
                _ => {}
            }
        }
    }
    let sections = SECTIONS.into_iter();
    Ok(sections.filter_map(|section| found.remove(section).map(|lines| (section, lines))).collect())
}

/// Lines that continue a message (statements, positions in expressions) and progress that depends on time do not count.
fn is_message(line: &str) -> bool {
    let starts = [
        "error",
        "warning",
        "note",
        "requested",
        "waiting",
        "Ready",
        "not Ready",
        "blind",
        "seen again",
        "removed",
    ];
    starts.iter().any(|start| line.strip_prefix(start).is_some_and(|rest| rest.starts_with(':')))
        || line.ends_with("nothing was collected")
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn section_of(resource: &str) -> &'static str {
    match resource {
        "kollectprofiles" => SECTIONS[0],
        "kollecttargets" | "kollectclustertargets" => SECTIONS[1],
        "kollectinventories" | "kollectclusterinventories" => SECTIONS[2],
        "kollectconnectiontests" => SECTIONS[4],
        _ => SECTIONS[3],
    }
}

/// Texts of a status that are messages, besides those of conditions.
const STATUS_TEXTS: [&str; 3] = ["lastError", "cleanError", "lastExtractionError"];
/// Conditions that repeat the message of another one.
const REPEATING: [&str; 4] = ["Degraded", "ExportSucceeded", "Reconciling", "Stalled"];

fn audit_messages(event: &Value, add: &mut impl FnMut(&'static str, &str, &str)) {
    let resource = text_at(event, "/objectRef/resource");
    if resource == "events" {
        let request = &event["requestObject"];
        let object =
            ["/regarding/kind", "/involvedObject/kind"].map(|pointer| text_at(request, pointer)).concat();
        let text = ["/note", "/message"].map(|pointer| text_at(request, pointer)).concat();
        // The events of conditions have their messages.
        let repeats =
            ["Adopted", "CleanupTerminal", "Recovered"].iter().all(|own| *own != text_at(request, "/reason"));
        if object.starts_with("Kollect") && !repeats {
            add("Events", &format!("{} {}", text_at(request, "/type"), text_at(request, "/reason")), &text);
        }
    } else if text_at(event, "/objectRef/subresource") == "status" {
        status_messages(section_of(resource), &event["requestObject"]["status"], add);
    } else if let Some((_, text)) =
        text_at(event, "/responseStatus/message").split_once("denied the request: ")
    {
        add("Refused by admission", "", text);
    }
}

fn status_messages(section: &'static str, value: &Value, add: &mut impl FnMut(&'static str, &str, &str)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| status_messages(section, item, add)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if STATUS_TEXTS.contains(&name.as_str()) => add(section, name, text),
                    _ => status_messages(section, field, add),
                }
            }
            let condition = text_at(value, "/type");
            let message = text_at(value, "/message");
            // The messages of several sinks together: each of them is listed alone.
            let is_combined = message.contains("more: see condition Synced")
                || message.contains("SinkRefs[") && condition == "Synced";
            if fields.contains_key("message") && !REPEATING.contains(&condition) && !is_combined {
                let label =
                    format!("{condition} {} {}", text_at(value, "/status"), text_at(value, "/reason"));
                add(section, &label, message);
            }
        }
        _ => {}
    }
}

/// Replaces what differs from run to run, and names that tests have chosen.
fn normalized(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            // Statements, positions in expressions, and lists of known fields and values.
            (r"(?s)(run: (?:CREATE|ALTER)).*", "$1 …"),
            (r"(?s)\n.*", " …"),
            (r"(known (?:here|in [a-z0-9./]+|kinds)): .*", "$1: …"),
            (r"(resolve the host) \S+: .*", "$1 NAME: …"),
            (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
            (r"\d{4}-\d\d-\d\dT[0-9:.]+Z", "TIME"),
            (r#"\b[a-z]+://[^\s,;)"]*[^\s,;:)"]"#, "URL"),
            (r#"(^|[\s"'(:=])/[^\s"',;:)]+"#, "${1}PATH"),
            (r"\b[0-9a-f]{12,}\b", "DIGEST"),
            (r#""[^"]*"(?:\."[^"]*")?"#, "\"…\""),
            (r"= (?:\{.*?\}|-?\d[^ :]*)(:|$)", "= …$1"),
            (r"\b(database|snapshot|event)/[A-Za-z0-9.-]+", "$1/SINK"),
            (r"spec\.(?:database|snapshot|event)SinkRefs", "spec.…SinkRefs"),
            (
                r"\b(namespace|namespaces|Secret|target|inventory|stream|table|file|attribute|cluster|directory|KollectProfile|KollectTarget|KollectClusterTarget|KollectInventory|KollectClusterInventory|KollectScope|KollectClusterScope|KollectDatabaseSink|KollectSnapshotSink|KollectEventSink|KollectConnectionTest|(?:database|snapshot|event) sink) ([a-z0-9][A-Za-z0-9._/-]*)",
                "$1 <$2>",
            ),
            (r"(target \S+: (?:\d+ values? of )?)\S+ (has no value|failed|is redacted|are redacted)", "${1}ATTRIBUTE $2"),
            (r"(rows, such as) [^\s:]+", "$1 NAME"),
            (r"\b(?:[a-z0-9.-]+/)?v\d[a-z0-9]* [A-Z][A-Za-z]+", "KIND"),
            (r"\b(list|watch) [a-z]+(?:\.[a-z0-9.-]+)? in ", "$1 RESOURCE in "),
            (r"\b[a-z]+(?:\.[a-z0-9.-]+)? cannot be seen in ", "RESOURCE cannot be seen in "),
            (r"\b[a-z0-9-]*[a-z]-\d+(?:/[a-z0-9.-]+)?", "NAME"),
            (r"\b([a-z]+)_\d+\b", "${1}_N"),
            (r"\b\d+(?:\.\d+)?(?:ms|µs|ns|s|m|h)(?:\d+(?:ms|s|m))*\b", "DURATION"),
            (r"\b\d+[A-Z]?\d*(?:\.\d+)*\b", "N"),
        ]
        .into_iter()
        .map(|(pattern, name)| (Regex::new(pattern).expect("a valid pattern"), name))
        .collect()
    });
    let text = RULES
        .iter()
        .fold(text.trim().to_owned(), |text, (pattern, name)| pattern.replace_all(&text, *name).into_owned());
    without_names(&text)
}

/// Replaces the words in `<…>` by NAME, unless they are words of a sentence and no names.
fn without_names(text: &str) -> String {
    const WORDS: [&str; 39] = [
        "and",
        "another",
        "are",
        "at",
        "be",
        "before",
        "cannot",
        "collects",
        "could",
        "data",
        "does",
        "failed",
        "from",
        "go",
        "has",
        "have",
        "in",
        "inventories",
        "inventory",
        "is",
        "it",
        "its",
        "may",
        "name",
        "names",
        "of",
        "only",
        "or",
        "out",
        "selects",
        "target",
        "targets",
        "that",
        "the",
        "to",
        "uses",
        "was",
        "which",
        "with",
    ];
    let mut parts = text.split('<');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((name, rest)) = part.split_once('>') else {
            result.push('<');
            result.push_str(part);
            continue;
        };
        result.push_str(if WORDS.contains(&name) { name } else { "NAME" });
        result.push_str(rest);
    }
    result
}

/// The last section of the listing. Its lines are written by hand: whether a test sees them depends on time.
const SEEN_SOMETIMES: &str = "\n## Seen in some runs only (kept by hand)\n";

/// Writes the listing of all recorded messages. Its last section stays as it is.
pub fn write_listing(directory: &Path, listing: &Path) -> Result<(), Error> {
    let header = String::from(
        "# What users of Kollect read: the messages that the integration tests have seen, one per line. Names, numbers and times\n\
         # are replaced. `make messages` writes this file after `make test`. Read the difference before you commit it.\n",
    );
    let old = fs::read_to_string(listing).unwrap_or_default();
    let by_hand = old.split_once(SEEN_SOMETIMES).map_or("", |(_, lines)| lines);
    let listed: BTreeSet<&str> = by_hand.lines().collect();
    let sections = recorded(directory)?.into_iter().map(|(section, messages)| {
        let new = messages.iter().filter(|message| !listed.contains(message.as_str()));
        let lines: String = new.flat_map(|message| [message.as_str(), "\n"]).collect();
        format!("\n## {section}\n\n{lines}")
    });
    let text = header + &sections.collect::<String>() + SEEN_SOMETIMES + by_hand;
    fs::write(listing, text).map_err(Error::io(format!("write {}", listing.display())))
}

/// The parts of a message. Which of them come together depends on time: two sinks may fail in either order.
fn phrases(line: &str) -> impl Iterator<Item = &str> {
    line.split([':', ';', ',', '(', ')', '=']).map(str::trim).filter(|phrase| phrase.len() > 1)
}

/// Recorded messages with words that the listing does not have.
pub fn unlisted(directory: &Path, listing: &Path) -> Result<Vec<String>, Error> {
    let text = fs::read_to_string(listing).map_err(Error::io(format!("read {}", listing.display())))?;
    let listed: BTreeSet<&str> = text.lines().flat_map(phrases).collect();
    let recorded = recorded(directory)?.into_iter().flat_map(|(_, messages)| messages);
    Ok(recorded.filter(|message| phrases(message).any(|phrase| !listed.contains(phrase))).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{normalized, unlisted};

    #[test]
    fn names_and_numbers_are_replaced_and_words_are_not() {
        for (text, expected) in [
            ("no Secret none in namespace shop-17: add it", "no Secret NAME in namespace NAME: add it"),
            ("the namespace of the sink", "the namespace of the sink"),
            (
                "2 of 3 sinks; database/portal (spec.databaseSinkRefs[0]): 1.5s",
                "N of N sinks; database/SINK (spec.…SinkRefs[N]): DURATION",
            ),
            (r#"spec.type = "kafka": is not available"#, r#"spec.type = "…": is not available"#),
        ] {
            assert_eq!(normalized(text), expected);
        }
    }

    #[test]
    fn changed_words_are_found_and_another_order_of_known_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let listing = directory.path().join("listing");
        fs::write(&listing, "error: cannot write; table NAME is missing\nerror: no answer\n").unwrap();
        let recorded = directory.path().join("recorded");
        fs::create_dir(&recorded).unwrap();
        fs::write(recorded.join("cli-1"), "error: no answer; cannot write\n").unwrap();
        assert_eq!(unlisted(&recorded, &listing).unwrap(), Vec::<String>::new());
        fs::write(recorded.join("cli-2"), "error: cannot store\n").unwrap();
        assert_eq!(unlisted(&recorded, &listing).unwrap(), ["error: cannot store"]);
    }
}
