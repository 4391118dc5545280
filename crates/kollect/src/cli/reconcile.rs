//! `kollect reconcile`: asks the operator to reconcile an object now, and waits for the result.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, bail};
use kollect_engine::clock;
use kollect_model::crd::{self, shapes::is_namespace_name};
use kube::{
    Client,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::{self, Instant};

use super::common_args::finish;
use crate::{
    cluster::{self, innermost_cause},
    operator::{LEASE, api},
    resolve::REQUESTED_AT,
};

/// How often the status is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Kinds that can be reconciled on request, and what is done then.
const KINDS: [(&str, &str); 7] = [
    ("KollectInventory", "its sinks are compared"),
    ("KollectClusterInventory", "its sinks are compared"),
    ("KollectTarget", "its objects are read"),
    ("KollectClusterTarget", "its objects are read"),
    ("KollectSnapshotSink", "it is probed, and its inventories are compared"),
    ("KollectDatabaseSink", "it is probed, and its inventories are compared"),
    ("KollectEventSink", "it is probed, and its inventories are compared"),
];

/// Arguments of `kollect reconcile`.
#[derive(clap::Args)]
#[command(
    after_help = "It sets the annotation kollect.dev/requestedAt, and waits until status.lastHandledRequestedAt has \
        its value and\nthe object is Ready. Exit codes: 0 Ready, 1 not Ready or not handled in time."
)]
pub(crate) struct ReconcileArgs {
    /// What to reconcile: inventory/NAME, target/NAME, databasesink/NAME, or any name of a kind that kubectl knows.
    #[arg(value_name = "KIND/NAME")]
    object: String,
    /// Namespace of the object; default: that of the context.
    #[arg(long, short = 'n', value_parser = namespace_name)]
    namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Kubeconfig file; default: $KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Seconds to wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
}

fn namespace_name(text: &str) -> Result<String, String> {
    let valid = is_namespace_name(text).then(|| text.to_owned());
    valid.ok_or_else(|| "must be the name of a namespace: lower-case letters, digits and -".into())
}

/// `kollect reconcile`
pub(crate) fn run(args: &ReconcileArgs) -> ExitCode {
    finish(reconcile(args))
}

/// The kind and the name of `KIND/NAME`, and whether the kind is in namespaces.
fn parse(text: &str) -> anyhow::Result<(&'static str, &'static str, &str, bool)> {
    let known = KINDS.map(|(kind, _)| kind.trim_start_matches("Kollect").to_lowercase()).join(", ");
    let Some((requested, name)) =
        text.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty())
    else {
        bail!("{text:?} must be KIND/NAME, such as inventory/all; kinds: {known}");
    };
    let requested = requested.to_lowercase();
    let is_requested = |names: &Value| {
        let short = names["shortNames"].as_array().into_iter().flatten();
        let all = [&names["plural"], &names["singular"]].into_iter().chain(short).filter_map(Value::as_str);
        let all: Vec<String> = all.map(ToOwned::to_owned).collect();
        all.iter().any(|name| *name == requested || name.trim_start_matches("kollect") == requested)
    };
    let definitions = crd::all();
    let found = definitions.iter().find(|definition| is_requested(&definition["spec"]["names"]));
    let kind = found.and_then(|definition| definition["spec"]["names"]["kind"].as_str());
    let Some((kind, effect)) = KINDS.into_iter().find(|(known, _)| Some(*known) == kind) else {
        bail!("{requested:?} is not a kind that can be reconciled; kinds: {known}");
    };
    let namespaced = found.is_some_and(|definition| definition["spec"]["scope"] == "Namespaced");
    Ok((kind, effect, name, namespaced))
}

async fn reconcile(args: &ReconcileArgs) -> anyhow::Result<ExitCode> {
    let (kind, effect, name, namespaced) = parse(&args.object)?;
    let client = cluster::client(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
    let namespace = match (namespaced, &args.namespace) {
        (false, _) => String::new(),
        (true, Some(namespace)) => namespace.clone(),
        (true, None) => client.default_namespace().to_owned(),
    };
    let in_namespace = if namespaced { format!(" in namespace {namespace}") } else { String::new() };
    let requested = clock::timestamp().to_string();
    let patch = json!({ "metadata": { "annotations": { REQUESTED_AT: requested } } });
    let objects = api(&client, kind, &namespace);
    objects
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(innermost_cause)
        .with_context(|| format!("annotate {kind} {name}{in_namespace}"))?;
    eprintln!("requested: {kind} {name}{in_namespace}: {effect}");
    let deadline = Instant::now() + Duration::from_secs(args.timeout);
    let mut printed_message = String::new();
    loop {
        let object = objects
            .get(name)
            .await
            .map_err(innermost_cause)
            .with_context(|| format!("get {kind} {name}{in_namespace}"))?;
        if object.metadata.deletion_timestamp.is_some() {
            bail!("{kind} {name}{in_namespace} is being deleted: the operator only cleans its sinks now");
        }
        let progress = ReconcileProgress::of(&object, &requested);
        if progress.is_handled && !progress.is_reconciling {
            let line = format!("{kind} {name}{in_namespace}: {}", progress.message);
            if progress.is_ready {
                println!("Ready: {line}");
                return Ok(ExitCode::SUCCESS);
            }
            bail!("not Ready: {line}");
        }
        if progress.message != printed_message {
            eprintln!("waiting: {}", progress.message);
            printed_message = progress.message;
        }
        if Instant::now() >= deadline {
            return Err(timeout_error(&client, args.timeout, progress.is_handled).await);
        }
        time::sleep(POLL_INTERVAL).await;
    }
}

/// How far a request has come, according to the status of the object.
struct ReconcileProgress {
    /// The operator has handled the request.
    is_handled: bool,
    is_reconciling: bool,
    is_ready: bool,
    message: String,
}

impl ReconcileProgress {
    fn of(object: &DynamicObject, requested: &str) -> Self {
        let status = &object.data["status"];
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let condition = |type_: &str| conditions.iter().find(|condition| condition["type"] == type_);
        let holds = |type_: &str| condition(type_).is_some_and(|condition| condition["status"] == "True");
        let is_current = status["observedGeneration"].as_i64() == object.metadata.generation;
        let text = |key: &str| condition("Ready").and_then(|ready| ready[key].as_str()).unwrap_or_default();
        let is_handled = status["lastHandledRequestedAt"] == requested && is_current;
        let message = match (is_handled, condition("Ready")) {
            (_, None) => "it has no status yet".to_owned(),
            (false, Some(_)) => "the operator has not handled it yet".to_owned(),
            (true, Some(_)) => format!("{}: {}", text("reason"), text("message")),
        };
        Self { is_handled, is_reconciling: holds("Reconciling"), is_ready: holds("Ready"), message }
    }
}

/// Why the request was not done in time, as far as is known.
async fn timeout_error(client: &Client, seconds: u64, is_handled: bool) -> anyhow::Error {
    let version = client.apiserver_version().await.map(|_| ());
    let why = match (is_handled, version) {
        (true, _) => "the operator has handled it, and it is still Reconciling".to_owned(),
        (false, Err(_)) => "the API server does not answer".to_owned(),
        (false, Ok(())) => format!(
            "no operator has handled it: check that one runs (its Lease is {LEASE} in its namespace) and watches this \
             namespace"
        ),
    };
    anyhow::anyhow!("not done after {seconds} s: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_all_their_names() {
        for text in ["inventory/a", "inventories/a", "kinv/a", "KollectInventory/a", "kollectinventories/a"] {
            let (kind, _, name, namespaced) = parse(text).unwrap();
            assert_eq!((kind, name, namespaced), ("KollectInventory", "a", true), "{text}");
        }
        let kind = |text| parse(text).map(|(kind, _, _, namespaced)| (kind, namespaced)).unwrap();
        assert_eq!(kind("kcinv/a"), ("KollectClusterInventory", false));
        assert_eq!(kind("databasesink/a"), ("KollectDatabaseSink", true));
        assert_eq!(kind("ktgt/a"), ("KollectTarget", true));
        for (text, expected) in [
            ("inventory", "must be KIND/NAME, such as inventory/all"),
            ("inventory/", "must be KIND/NAME"),
            (
                "profile/a",
                "\"profile\" is not a kind that can be reconciled; kinds: inventory, clusterinventory",
            ),
            ("pods/a", "\"pods\" is not a kind that can be reconciled"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
