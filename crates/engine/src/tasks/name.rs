//! Names of tasks in the log, in errors, and in labels of metrics.

use std::{fmt, sync::Arc};

use kollect_model::{binding::BindingName, crd::shapes::Gvk};
use tracing::{Span, field::Empty};

/// What a task does. This is the value of the label `task`, so it is a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    /// Watches the objects of a kind and makes rows of them.
    Watch,
    /// Writes the rows of an inventory to a sink.
    Binding,
    /// Removes what a binding wrote.
    Cleaning,
    /// Probes a sink.
    Probe,
    /// Follows a Secret that a sink names.
    Secret,
    /// Makes the plans of the sinks of a namespace.
    Plan,
    /// Compares profiles with the schemas of their kinds.
    Schema,
    /// The loop that reconciles all objects of the operator.
    Loop,
    /// Finds out which kinds the cluster serves.
    Discovery,
    /// Follows one of the operator's own kinds.
    Objects,
    /// Sums up the series of profiles.
    Sampling,
    /// Serves HTTP.
    Server,
    /// Holds the lease, or waits for it.
    Lease,
    /// Keeps the certificate of the webhooks.
    Certificate,
}

impl TaskKind {
    /// Those that are started again after a panic; the others are core tasks.
    pub const RESTARTED: [Self; 7] =
        [Self::Watch, Self::Binding, Self::Cleaning, Self::Probe, Self::Secret, Self::Plan, Self::Schema];

    /// The text in labels and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Binding => "binding",
            Self::Cleaning => "cleaning",
            Self::Probe => "probe",
            Self::Secret => "secret",
            Self::Plan => "plan",
            Self::Schema => "schema",
            Self::Loop => "loop",
            Self::Discovery => "discovery",
            Self::Objects => "objects",
            Self::Sampling => "sampling",
            Self::Server => "server",
            Self::Lease => "lease",
            Self::Certificate => "certificate",
        }
    }
}

/// The name of a task: what it does, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// What it does.
    pub task: TaskKind,
    subject: TaskSubject,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TaskSubject {
    Program,
    Kind { kind: Arc<str>, namespace: Option<Arc<str>> },
    Binding { binding: Arc<str>, sink: Arc<str> },
    Sink(Arc<str>),
    Object(Arc<str>),
}

impl From<TaskKind> for TaskName {
    /// The name of a task that exists once.
    fn from(task: TaskKind) -> Self {
        Self { task, subject: TaskSubject::Program }
    }
}

impl TaskName {
    /// A task for a kind, in one namespace or in all.
    pub fn of_kind(task: TaskKind, kind: &Gvk, namespace: Option<&Arc<str>>) -> Self {
        let kind = kind.to_string().into();
        Self { task, subject: TaskSubject::Kind { kind, namespace: namespace.cloned() } }
    }

    /// A task for a binding.
    pub fn of_binding(task: TaskKind, name: &BindingName) -> Self {
        let (binding, sink) = (name.to_string().into(), name.sink.to_string().into());
        Self { task, subject: TaskSubject::Binding { binding, sink } }
    }

    /// A task for a sink.
    pub fn of_sink(task: TaskKind, sink: impl fmt::Display) -> Self {
        Self { task, subject: TaskSubject::Sink(sink.to_string().into()) }
    }

    /// A task for anything else that has a name.
    pub fn of_object(task: TaskKind, object: impl fmt::Display) -> Self {
        Self { task, subject: TaskSubject::Object(object.to_string().into()) }
    }

    /// The span of all events of the task. It exists at every log level, and has no parent.
    pub(super) fn span(&self) -> Span {
        let span = tracing::error_span!(
            parent: None,
            "task",
            task = self.task.label(),
            kind = Empty,
            namespace = Empty,
            binding = Empty,
            sink = Empty,
            object = Empty,
        );
        match &self.subject {
            TaskSubject::Program => {}
            TaskSubject::Kind { kind, namespace } => {
                span.record("kind", &**kind);
                if let Some(namespace) = namespace {
                    span.record("namespace", &**namespace);
                }
            }
            TaskSubject::Binding { binding, sink } => {
                span.record("binding", &**binding);
                span.record("sink", &**sink);
            }
            TaskSubject::Sink(sink) => {
                span.record("sink", &**sink);
            }
            TaskSubject::Object(object) => {
                span.record("object", &**object);
            }
        }
        span
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.task.label())?;
        match &self.subject {
            TaskSubject::Program => Ok(()),
            TaskSubject::Kind { kind, namespace: None } => write!(f, " {kind}"),
            TaskSubject::Kind { kind, namespace: Some(namespace) } => write!(f, " {kind} in {namespace}"),
            TaskSubject::Binding { binding: name, .. }
            | TaskSubject::Sink(name)
            | TaskSubject::Object(name) => {
                write!(f, " {name}")
            }
        }
    }
}
