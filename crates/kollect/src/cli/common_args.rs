//! What the subcommands that run the engine have in common: where manifests and objects come from, and
//! what is printed about objects that cannot be seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::Context;
use kollect_engine::{
    collect::{CollectProblem, CollectSettings, Collector, Target},
    extract::{ExtractPolicy, RedactedPlace},
    names,
    select::NamespaceDefaults,
    store::{StoreReader, store},
    tasks::Tasks,
    watch::{BlindReason, WatchSource},
};
use kollect_model::{
    crd::shapes::{Gvk, is_namespace_name},
    row::TargetId,
};

use super::{
    manifests::{self, LabelledProfile, RequestedRun},
    print::{OUTPUT_CLOSED, OutputClosed},
};
use crate::{
    cluster::ClusterSource, error_chain::chain_text, object_schemas::ObjectSchemas, resolve::OperatorPolicy,
};

/// The input is wrong; nothing was collected.
const BAD_INPUT: u8 = 2;
/// Something that the manifests select could not be seen, or has no row because an attribute failed; everything else was collected.
pub(crate) const BLIND: u8 = 3;
/// The user interrupted the run, for example with Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// Manifests, the cluster, and what applies to all targets.
#[derive(clap::Args)]
pub(crate) struct CommonArgs {
    /// Files or directories with Kollect manifests.
    #[arg(short = 'f', long = "filename", required = true, value_name = "DIR|FILE", num_args = 1..)]
    manifests: Vec<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Look at one namespace and at cluster-scoped kinds; nothing else is touched in a sink.
    #[arg(long, short = 'n', value_parser = namespace_name)]
    namespace: Option<String>,
    /// More names of credentials, separated by commas: values whose key ends in one are redacted.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    scrub_keys: Vec<String>,
    /// Names that are no credentials, separated by commas: whole names, whatever the table of names says.
    #[arg(long, value_name = "KEY,…", value_delimiter = ',')]
    scrub_allow_keys: Vec<String>,
    /// Mask credentials inside of texts: in URLs, files, arguments, and tokens by their shape.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", default_value_t = true, action = clap::ArgAction::Set)]
    scrub_texts: bool,
    /// More kinds whose data and stringData are treated like those of Secrets, as GROUP/KIND or KIND.
    #[arg(long, value_name = "KIND,…", value_delimiter = ',')]
    sensitive_kinds: Vec<String>,
    /// Most bytes of JSON that an attribute may have; one with more fails.
    #[arg(long, value_name = "BYTES", default_value_t = ExtractPolicy::MAX_ATTRIBUTE_BYTES)]
    max_attribute_bytes: usize,
    /// Namespaces of targets that include none by name.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = namespace_name)]
    default_included_namespaces: Vec<String>,
    /// Namespaces that every target excludes.
    #[arg(long, value_name = "NAMESPACE,…", value_delimiter = ',', value_parser = namespace_name)]
    default_excluded_namespaces: Vec<String>,
}

fn namespace_name(text: &str) -> Result<String, String> {
    let valid = is_namespace_name(text).then(|| text.to_owned());
    valid.ok_or_else(|| "must be the name of a namespace: lower-case letters, digits and -".into())
}

impl CommonArgs {
    /// What the manifests ask for, and everything that is wrong with them. `records_places`: the places of redacted values are
    /// reported.
    pub(crate) fn load(&self, records_places: bool) -> (RequestedRun, Vec<String>) {
        let group_kind = |text: &String| match text.split_once('/') {
            Some((group, kind)) => (group.to_owned(), kind.to_owned()),
            None => (String::new(), text.clone()),
        };
        let sensitive_kinds = self.sensitive_kinds.iter().map(group_kind).collect();
        let policy = ExtractPolicy {
            scrub_keys: self.scrub_keys.clone(),
            scrub_allow_keys: self.scrub_allow_keys.clone(),
            scrub_texts: self.scrub_texts,
            records_places,
            sensitive_kinds,
            max_attribute_bytes: self.max_attribute_bytes,
        };
        let defaults = NamespaceDefaults {
            included: self.default_included_namespaces.clone(),
            excluded: self.default_excluded_namespaces.clone(),
        };
        // The default operator policy restricts nothing: the user of the command line can read all files anyway.
        let operator_policy = OperatorPolicy { policy, defaults, ..OperatorPolicy::default() };
        let (run, problems) = manifests::load(&self.manifests, &operator_policy);
        if problems.is_empty() {
            run.notes.iter().for_each(|note| eprintln!("note: {note}"));
        }
        (run, problems)
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<ClusterSource> {
        ClusterSource::connect(self.kubeconfig.as_deref(), self.context.as_deref()).await
    }

    /// Prints what the schemas of their kinds show about profiles.
    pub(crate) async fn warn_about(&self, profiles: &[LabelledProfile], source: &ClusterSource) {
        let schemas = ObjectSchemas::new(source.client());
        let checks = profiles.iter().map(|(_, spec)| schemas.warnings(spec));
        for ((label, _), warnings) in profiles.iter().zip(futures::future::join_all(checks).await) {
            warnings.iter().flatten().for_each(|warning| eprintln!("warning: {label}: {warning}"));
        }
    }

    pub(crate) fn settings(&self, follow: bool) -> CollectSettings {
        let within = self.namespace.as_deref().map(|namespace| [namespace.into()].into());
        CollectSettings { within, follow, ..CollectSettings::default() }
    }
}

/// Starts to collect the targets.
pub(crate) fn start(
    source: Arc<dyn WatchSource>,
    settings: CollectSettings,
    targets: &[Arc<Target>],
    problems: &Problems,
) -> (Collector, StoreReader) {
    let (writer, reader) = store();
    let recorded = problems.clone();
    let mut collector =
        Collector::start(source, writer, settings, Tasks::default(), move |problem| recorded.record(problem));
    collector.set_targets(targets, &BTreeSet::new());
    (collector, reader)
}

/// Runs the work to its end. If it fails, prints why.
pub(crate) fn finish(work: impl Future<Output = anyhow::Result<ExitCode>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.context("start the runtime").and_then(|runtime| runtime.block_on(work)) {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Prints why a run has failed; nothing if its standard output was closed.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    if error.is::<OutputClosed>() {
        return ExitCode::from(OUTPUT_CLOSED);
    }
    eprintln!("error: {}", chain_text(error.as_ref()));
    ExitCode::FAILURE
}

pub(crate) fn refuse(problems: &[String]) -> ExitCode {
    problems.iter().for_each(|problem| eprintln!("error: {problem}"));
    let noun = if problems.len() == 1 { "problem" } else { "problems" };
    eprintln!("{} {noun}; nothing was collected", problems.len());
    ExitCode::from(BAD_INPUT)
}

/// How many namespaces are named one by one.
const NAMED_NAMESPACES: usize = 3;

/// What could not be seen or read, printed at the end. Problems of single objects are counted.
#[derive(Clone, Default)]
pub(crate) struct Problems(Arc<Mutex<ReportedProblems>>);

#[derive(Default)]
struct ReportedProblems {
    /// Kinds that targets collect.
    collected_kinds: BTreeSet<Gvk>,
    /// The caller reads from the coverage what is blind: it is not reported here.
    skips_blind: bool,
    blind: bool,
    lines: Vec<String>,
    /// Kinds that may not be listed in these namespaces.
    forbidden: BTreeMap<Gvk, Vec<(String, String)>>,
    /// By target and attribute: how many objects, and a sentence about the first of them.
    mismatches: BTreeMap<(TargetId, Arc<str>), (usize, String)>,
    /// By target: how many objects, and the first of them.
    undecided: BTreeMap<TargetId, (usize, String)>,
}

impl Problems {
    pub(crate) fn of(targets: &[Arc<Target>]) -> Self {
        let collected_kinds = targets.iter().flat_map(|target| target.selection.kinds()).cloned().collect();
        Self(Arc::new(Mutex::new(ReportedProblems { collected_kinds, ..ReportedProblems::default() })))
    }

    /// For a run that reads the coverage itself, and prints problems of objects while it runs.
    pub(crate) fn of_objects() -> Self {
        Self(Arc::new(Mutex::new(ReportedProblems { skips_blind: true, ..ReportedProblems::default() })))
    }

    fn with<T>(&self, change: impl FnOnce(&mut ReportedProblems) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, problem: CollectProblem) {
        self.with(|reported| reported.record(problem));
    }

    /// Prints all problems since the last call. Returns whether something could not be seen.
    pub(crate) fn print_new(&self) -> bool {
        self.with(|reported| {
            for (gvk, namespaces) in std::mem::take(&mut reported.forbidden) {
                if namespaces.len() <= NAMED_NAMESPACES {
                    reported
                        .lines
                        .extend(namespaces.into_iter().map(|(_, message)| format!("forbidden: {message}")));
                } else {
                    let names = names::namespaces(namespaces.iter().map(|(name, _)| name), namespaces.len());
                    reported
                        .lines
                        .push(format!("forbidden: list {gvk} in {names}; grant the verb list on it"));
                }
            }
            reported.lines.sort();
            reported.lines.drain(..).for_each(|line| eprintln!("{line}"));
            for ((target, attribute), (count, example)) in std::mem::take(&mut reported.mismatches) {
                let objects = if count == 1 { "1 object".to_owned() } else { format!("{count} objects") };
                eprintln!("warning: target {target}: {attribute} is null in {objects}: {example}");
            }
            for (target, (count, example)) in std::mem::take(&mut reported.undecided) {
                let (objects, rows) = match count {
                    1 => (example, "its row is"),
                    _ => (format!("{count} objects, such as {example}"), "their rows are"),
                };
                eprintln!(
                    "undecided: target {target}: matchPolicy depends on redacted values of {objects}: {rows} neither added, changed nor \
                     removed; let matchPolicy read other fields, or give --scrub-allow-keys"
                );
            }
            reported.blind
        })
    }
}

impl ReportedProblems {
    fn record(&mut self, problem: CollectProblem) {
        let line = match problem {
            CollectProblem::Blind { .. } if self.skips_blind => return,
            CollectProblem::Blind { watched, blindness } if !self.collected_kinds.contains(&watched.gvk) => {
                self.lines.push(format!("warning: {}; their labels are not known", blindness.message));
                return;
            }
            CollectProblem::Blind { watched, blindness } if blindness.reason == BlindReason::Forbidden => {
                let namespace = watched.namespace.as_deref().unwrap_or_default().to_owned();
                self.forbidden.entry(watched.gvk).or_default().push((namespace, blindness.message));
                self.blind = true;
                return;
            }
            CollectProblem::Blind { blindness, .. } => format!("not seen: {}", blindness.message),
            CollectProblem::Undecided { target, gvk } => format!(
                "not seen: target {target}: which {gvk} it selects depends on namespaces that cannot be \
                 listed: grant the verb list on namespaces, or give --namespace"
            ),
            CollectProblem::TypeMismatch { target, object, attribute, found, types: (declared, kind) } => {
                let example = || {
                    let found = if found.is_empty() { found } else { format!(", {found}") };
                    (0, format!("declared {declared}, but {object} has {kind}{found}"))
                };
                self.mismatches.entry((target, attribute)).or_insert_with(example).0 += 1;
                return;
            }
            CollectProblem::Redacted { target, object, places } => {
                for RedactedPlace { path, cause } in places {
                    self.lines.push(format!("redacted: target {target}: {object}: {path}: {cause}"));
                }
                return;
            }
            CollectProblem::ObjectUndecided { target, object } => {
                self.undecided.entry(target).or_insert_with(|| (0, object)).0 += 1;
                self.blind = true;
                return;
            }
            CollectProblem::RowDropped { target, object, error } => {
                format!("dropped: target {target}: {object} has no row: {}", chain_text(&error))
            }
            CollectProblem::Crashed { gvk } => format!("not seen: {gvk}: internal error; please report it"),
        };
        self.blind = true;
        self.lines.push(line);
    }
}
