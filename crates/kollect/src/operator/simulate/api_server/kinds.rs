//! The kinds that clusters can serve.

/// A kind of the cluster.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) struct SimulatedKind {
    pub(in super::super) group: &'static str,
    pub(in super::super) version: &'static str,
    pub(in super::super) kind: &'static str,
    pub(in super::super) plural: &'static str,
    pub(in super::super) namespaced: bool,
}

const fn kind(
    (group, version): (&'static str, &'static str),
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> SimulatedKind {
    SimulatedKind { group, version, kind, plural, namespaced }
}

const KOLLECT: (&str, &str) = ("kollect.dev", "v1alpha1");

/// All kinds that the cluster can serve. A plural is enough to tell them apart.
pub(in super::super) static KINDS: &[SimulatedKind] = &[
    kind(("", "v1"), "Namespace", "namespaces", false),
    kind(("", "v1"), "Secret", "secrets", true),
    kind(("coordination.k8s.io", "v1"), "Lease", "leases", true),
    kind(("apps", "v1"), "Deployment", "deployments", true),
    kind(("example.com", "v1"), "Widget", "widgets", true),
    kind(("apiextensions.k8s.io", "v1"), "CustomResourceDefinition", "customresourcedefinitions", false),
    kind(("apiregistration.k8s.io", "v1"), "APIService", "apiservices", false),
    kind(KOLLECT, "KollectProfile", "kollectprofiles", true),
    kind(KOLLECT, "KollectTarget", "kollecttargets", true),
    kind(KOLLECT, "KollectInventory", "kollectinventories", true),
    kind(KOLLECT, "KollectScope", "kollectscopes", true),
    kind(KOLLECT, "KollectConnectionTest", "kollectconnectiontests", true),
    kind(KOLLECT, "KollectSnapshotSink", "kollectsnapshotsinks", true),
    kind(KOLLECT, "KollectDatabaseSink", "kollectdatabasesinks", true),
    kind(KOLLECT, "KollectEventSink", "kollecteventsinks", true),
    kind(KOLLECT, "KollectClusterTarget", "kollectclustertargets", false),
    kind(KOLLECT, "KollectClusterInventory", "kollectclusterinventories", false),
    kind(KOLLECT, "KollectClusterScope", "kollectclusterscopes", false),
];

/// The kind with this plural.
pub(in super::super) fn kind_of(plural: &str) -> Option<&'static SimulatedKind> {
    KINDS.iter().find(|kind| kind.plural == plural)
}

/// The number of the kind with this plural.
pub(super) fn number_of(plural: &str) -> usize {
    KINDS.iter().position(|kind| kind.plural == plural).unwrap()
}
