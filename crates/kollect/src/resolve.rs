//! Resolves the objects of Kollect together: which profile a target uses, what scopes allow of it, which targets
//! an inventory holds and where it is written.
//!
//! No I/O: the command line fills an object set from files, the operator from its watches, and admission
//! checks what would happen. Faults are reported per object, with the reason that its status shows.

mod floors;
mod inventories;
mod network;
mod secrets;
mod shown;
mod sinks;
mod targets;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use kollect_engine::{
    collect::Target,
    extract::{CompiledProfile, ExtractPolicy, OptIns},
    select::{Bounds, NamespaceDefaults},
};
use kollect_model::{
    SpecError,
    crd::{
        KollectClusterInventory, KollectClusterScope, KollectClusterTarget, KollectInventory, KollectProfile,
        KollectScope, KollectTarget,
        profile::KollectProfileSpec,
        scope::ScopeCeiling,
        target::{KollectClusterTargetSpec, KollectTargetSpec},
    },
    row::TargetId,
    sink::SinkSpec,
};
use kollect_sinks::FilePolicy;
use kube::ResourceExt;

use sinks::PlanAtOnce;

use crate::reason::Reason;

pub(crate) use inventories::{BoundSink, ResolvedInventory, RowsWanted};
pub(crate) use kollect_model::binding::{Family, InventoryName};
pub(crate) use network::{AllowedCidr, NetworkFlags, SinkNetwork, api_servers};
pub(crate) use secrets::{Secret, SecretContents, WEBHOOK_CERTIFICATE_TYPE, check_secret_type};
pub(crate) use sinks::{PlanRequest, PlanSinks, SinkKey, SinkPlan, check_sink};
pub(crate) use targets::ResolvedTarget;

/// Namespace (empty for cluster kinds) and name.
pub(crate) type ObjectName = (String, String);

/// Annotation of inventories, targets and sinks: whenever its value changes the object is reconciled at once.
pub(crate) const REQUESTED_AT: &str = "kollect.dev/requestedAt";

/// All objects that decisions depend on.
#[derive(Clone, Default)]
pub(crate) struct ObjectSet {
    pub(crate) profiles: BTreeMap<ObjectName, Arc<KollectProfile>>,
    pub(crate) targets: BTreeMap<ObjectName, Arc<KollectTarget>>,
    pub(crate) cluster_targets: BTreeMap<ObjectName, Arc<KollectClusterTarget>>,
    pub(crate) inventories: BTreeMap<ObjectName, Arc<KollectInventory>>,
    pub(crate) cluster_inventories: BTreeMap<ObjectName, Arc<KollectClusterInventory>>,
    pub(crate) sinks: BTreeMap<(Family, ObjectName), Arc<SinkSpec>>,
    /// Values of [`REQUESTED_AT`] of sinks.
    pub(crate) sink_requests: BTreeMap<(Family, ObjectName), String>,
    pub(crate) scopes: BTreeMap<ObjectName, Arc<KollectScope>>,
    pub(crate) cluster_scopes: BTreeMap<ObjectName, Arc<KollectClusterScope>>,
    pub(crate) secrets: BTreeMap<ObjectName, Secret>,
    /// Kind and name of objects that exist but are invalid: a reference to one is not reported as missing.
    pub(crate) refused: BTreeSet<(String, ObjectName)>,
    /// Scopes that may not be read: their kind, their namespace (`None`: all of them), and why.
    pub(crate) unseen_scopes: Vec<(String, Option<Arc<str>>, String)>,
}

/// Settings of the user or the administrator that apply to all objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorPolicy {
    pub(crate) policy: ExtractPolicy,
    pub(crate) defaults: NamespaceDefaults,
    /// What a KollectTarget reaches without a KollectScope that names it.
    pub(crate) reach: TargetReach,
    /// Namespaces whose targets may read Secret data, if their profile opts in. `None`: all.
    pub(crate) secret_extraction: Option<BTreeSet<String>>,
    /// The operator's own namespace; `None` on the command line.
    pub(crate) own_namespace: Option<String>,
    /// Pairs of a sink's namespace and a Secret's namespace that may be combined. `None`: any pair.
    pub(crate) secret_namespaces: Option<BTreeSet<(String, String)>>,
    /// Where sinks may connect to.
    pub(crate) network: SinkNetwork,
    /// Where sinks may keep files.
    pub(crate) files: FileRoot,
    /// Id of the cluster, for the digests of servers that statuses do not name; `None`: everything is named.
    pub(crate) cluster_id: Option<String>,
}

/// What a KollectTarget reaches without a KollectScope that names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TargetReach {
    /// Everything.
    #[default]
    All,
    /// All namespaces, and no cluster-scoped kinds.
    AllNamespaces,
    /// Its own namespace.
    OwnNamespace,
}

/// Where sinks may keep files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileRoot {
    /// Anywhere that the user may write.
    #[default]
    Anywhere,
    /// Below a directory, each namespace in its own.
    Directory(PathBuf),
    /// Nowhere.
    Refused,
}

impl OperatorPolicy {
    /// How far a target may reach: one of a namespace, or a cluster target.
    pub(crate) fn bounds(&self, namespace: Option<&str>, ceilings: Vec<ScopeCeiling>) -> Bounds {
        let Some(own_namespace) = namespace else { return Bounds { ceilings, ..Bounds::default() } };
        let reached = self.defaults.included.iter().map(String::as_str).chain([own_namespace]);
        Bounds {
            ceilings,
            namespaces: (self.reach == TargetReach::OwnNamespace).then(|| reached.map(Into::into).collect()),
            cluster_scoped_by_name: self.reach != TargetReach::All,
        }
    }

    /// What a profile with these annotations may do for targets of a namespace, or for cluster targets.
    fn opt_ins(&self, annotations: &BTreeMap<String, String>, namespace: Option<&str>) -> OptIns {
        let mut opt_ins = OptIns::of(annotations);
        if let Some(allowed) = &self.secret_extraction {
            let deciding = namespace.or(self.own_namespace.as_deref()).unwrap_or_default();
            opt_ins.secret_extraction &= allowed.contains(deciding);
            opt_ins.operator_must_name = Some(deciding.to_owned());
        }
        opt_ins
    }

    /// What sinks of a namespace may touch.
    pub(crate) fn sink_policy(&self, namespace: &str) -> kollect_sinks::SinkPolicy {
        let files = match &self.files {
            FileRoot::Anywhere => FilePolicy::Anywhere,
            FileRoot::Directory(root) => FilePolicy::Below(root.join(namespace)),
            FileRoot::Refused => FilePolicy::Refused,
        };
        kollect_sinks::SinkPolicy { network: self.network.of(namespace), files }
    }
}

/// A problem of an object, with the reason that its status shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectFault {
    pub(crate) reason: Reason,
    pub(crate) error: SpecError,
}

impl ObjectFault {
    pub(crate) fn new(reason: Reason, error: SpecError) -> Self {
        Self { reason, error }
    }
}

impl fmt::Display for ObjectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// Profiles, compiled, or what is wrong with them.
pub(crate) type Profiles = BTreeMap<ObjectName, Result<Arc<CompiledProfile>, Vec<SpecError>>>;

/// The result of resolving an [`ObjectSet`].
#[derive(Default)]
pub(crate) struct Resolved {
    /// Profiles as targets of their own namespace use them.
    pub(crate) profiles: Profiles,
    pub(crate) targets: BTreeMap<TargetId, ResolvedTarget>,
    /// How to open each sink.
    pub(crate) sinks: BTreeMap<(Family, ObjectName), Arc<SinkPlan>>,
    pub(crate) inventories: BTreeMap<InventoryName, ResolvedInventory>,
}

/// Cache of compiled definitions. Unchanged definitions keep their `Arc`, so that their objects are not read again.
pub(crate) struct CompiledObjects {
    profiles: BTreeMap<ObjectName, CachedProfile>,
    /// Profiles as cluster targets use them, where that differs from `profiles`.
    cluster_profiles: BTreeMap<ObjectName, CachedProfile>,
    targets: BTreeMap<TargetId, CachedTarget>,
    planner: Box<dyn PlanSinks>,
}

impl CompiledObjects {
    /// An empty cache. Plans of sinks are made by `planner`.
    pub(crate) fn planned_by(planner: Box<dyn PlanSinks>) -> Self {
        let (profiles, cluster_profiles) = (BTreeMap::new(), BTreeMap::new());
        Self { profiles, cluster_profiles, targets: BTreeMap::new(), planner }
    }
}

/// An empty cache. Plans of sinks are made when they are requested.
impl Default for CompiledObjects {
    fn default() -> Self {
        Self::planned_by(Box::new(PlanAtOnce))
    }
}

struct CachedProfile {
    spec: KollectProfileSpec,
    opt_ins: OptIns,
    compiled: Result<Arc<CompiledProfile>, Vec<SpecError>>,
}

struct CachedTarget {
    spec: TargetSpec,
    requested: Option<String>,
    bounds: Bounds,
    profile: Arc<CompiledProfile>,
    target: Result<Arc<Target>, Vec<SpecError>>,
}

/// The spec of a target of either kind.
#[derive(Clone, PartialEq)]
enum TargetSpec {
    Target(Box<KollectTargetSpec>),
    ClusterTarget(Box<KollectClusterTargetSpec>),
}

/// Scopes that apply together: their names for messages, and what they allow.
#[derive(Default)]
struct Ceilings<'a> {
    scopes: Vec<(String, &'a ScopeCeiling)>,
    /// Namespaces from which profiles and sinks may be taken; each list must allow it.
    static_namespaces: Vec<(String, &'a [String])>,
    /// Why a scope that may forbid something cannot be read.
    unreadable: Option<String>,
}

impl Ceilings<'_> {
    fn values(&self) -> Vec<ScopeCeiling> {
        self.scopes.iter().map(|(_, ceiling)| (*ceiling).clone()).collect()
    }

    /// The scope that does not allow static references into a namespace.
    fn denies_static(&self, namespace: &str) -> Option<&str> {
        let denies = |list: &[String]| !list.is_empty() && !list.iter().any(|allowed| allowed == namespace);
        self.static_namespaces.iter().find(|(_, list)| denies(list)).map(|(name, _)| name.as_str())
    }

    /// Whether a scope names the namespace as one from which profiles and sinks may be taken.
    fn names_static(&self, namespace: &str) -> bool {
        self.static_namespaces.iter().any(|(_, list)| list.iter().any(|listed| listed == namespace))
    }

    /// A scope that cannot be read may forbid anything: nothing is collected or written until it can.
    fn unreadable(&self) -> Option<ObjectFault> {
        let problem = self.unreadable.as_ref()?;
        Some(ObjectFault::new(
            Reason::ScopeUnreadable,
            SpecError::absent("metadata.namespace", problem.clone()),
        ))
    }
}

impl ObjectSet {
    /// Resolves all objects.
    pub(crate) fn resolve(
        &self,
        operator_policy: &OperatorPolicy,
        compiled: &mut CompiledObjects,
    ) -> Resolved {
        let profiles = self.compile_profiles(operator_policy, compiled);
        let cluster_profiles = self.compile_cluster_profiles(operator_policy, &profiles, compiled);
        let targets = self.resolve_targets(operator_policy, [&profiles, &cluster_profiles], compiled);
        let sinks = self.plan_sinks(operator_policy, &mut *compiled.planner);
        let inventories = self.resolve_inventories(&targets, &sinks, operator_policy);
        Resolved { profiles, targets, sinks, inventories }
    }

    /// Profiles as targets of their own namespace use them.
    fn compile_profiles(&self, operator_policy: &OperatorPolicy, compiled: &mut CompiledObjects) -> Profiles {
        let wanted = self.profiles.iter().map(|(name, profile)| {
            (name, profile, operator_policy.opt_ins(profile.annotations(), Some(&name.0)))
        });
        compile(wanted, operator_policy, &mut compiled.profiles)
    }

    /// Profiles as cluster targets use them. What they may do with Secrets does not depend on the profile's namespace.
    fn compile_cluster_profiles(
        &self,
        operator_policy: &OperatorPolicy,
        namespaced: &Profiles,
        compiled: &mut CompiledObjects,
    ) -> Profiles {
        let references = self.cluster_targets.values().map(|target| &target.spec.profile_ref);
        let used: BTreeSet<ObjectName> =
            references.map(|reference| (reference.namespace.clone(), reference.name.clone())).collect();
        let wanted = used.iter().filter_map(|name| {
            let (name, profile) = self.profiles.get_key_value(name)?;
            let opt_ins = operator_policy.opt_ins(profile.annotations(), None);
            let as_own = operator_policy.opt_ins(profile.annotations(), Some(&name.0));
            let differs = opt_ins.secret_extraction != as_own.secret_extraction
                || namespaced.get(name).is_some_and(Result::is_err) && opt_ins != as_own;
            differs.then_some((name, profile, opt_ins))
        });
        let different = compile(wanted, operator_policy, &mut compiled.cluster_profiles);
        let same = used.into_iter().filter_map(|name| Some((name.clone(), namespaced.get(&name)?.clone())));
        let mut all: Profiles = same.collect();
        all.extend(different);
        all
    }

    /// The scopes of a namespace.
    fn scopes_of(&self, namespace: &str) -> Ceilings<'_> {
        let from_namespace = self.scopes.range((namespace.to_owned(), String::new())..);
        let in_namespace = from_namespace.take_while(|((scope, _), _)| scope == namespace);
        let scopes =
            in_namespace.map(|((_, name), scope)| (format!("KollectScope {name}"), &scope.spec.ceiling));
        let unreadable = self.unreadable_scope("KollectScope", namespace);
        Ceilings { scopes: scopes.collect(), static_namespaces: Vec::new(), unreadable }
    }

    /// Why a scope of a namespace, or one of the cluster kinds, cannot be read.
    fn unreadable_scope(&self, kind: &str, namespace: &str) -> Option<String> {
        let refused = self.refused.iter().find(|(other, (within, _))| other == kind && within == namespace);
        let refused = refused.map(|(_, (_, name))| {
            format!("{kind} {name} cannot be read: nothing is collected or written until it is corrected")
        });
        let unseen = || {
            let applies =
                |unseen: &Option<Arc<str>>| unseen.as_deref().is_none_or(|unseen| unseen == namespace);
            let (_, _, why) =
                self.unseen_scopes.iter().find(|(other, unseen, _)| other == kind && applies(unseen))?;
            Some(format!("{kind}s cannot be read, and nothing is collected or written until they can: {why}"))
        };
        refused.or_else(unseen)
    }

    /// The scopes of the cluster kinds.
    fn cluster_scopes(&self) -> Ceilings<'_> {
        let unreadable = self.unreadable_scope("KollectClusterScope", "");
        let mut ceilings = Ceilings { unreadable, ..Ceilings::default() };
        for ((_, name), scope) in &self.cluster_scopes {
            let scope_name = format!("KollectClusterScope {name}");
            ceilings.scopes.push((scope_name.clone(), &scope.spec.ceiling));
            ceilings.static_namespaces.push((scope_name, &scope.spec.allowed_static_ref_namespaces));
        }
        ceilings
    }

    fn is_refused(&self, kind: &str, name: &ObjectName) -> bool {
        self.refused.contains(&(kind.to_owned(), name.clone()))
    }
}

/// Compiles the profiles that have changed.
fn compile<'a>(
    wanted: impl Iterator<Item = (&'a ObjectName, &'a Arc<KollectProfile>, OptIns)>,
    operator_policy: &OperatorPolicy,
    cache: &mut BTreeMap<ObjectName, CachedProfile>,
) -> Profiles {
    let mut profiles = Profiles::new();
    for (name, profile, opt_ins) in wanted {
        let same = |known: &CachedProfile| known.spec == profile.spec && known.opt_ins == opt_ins;
        if !cache.get(name).is_some_and(same) {
            let compiled =
                CompiledProfile::compile(&profile.spec, &opt_ins, &operator_policy.policy).map(Arc::new);
            cache.insert(name.clone(), CachedProfile { spec: profile.spec.clone(), opt_ins, compiled });
        }
        profiles.extend(cache.get(name).map(|known| (name.clone(), known.compiled.clone())));
    }
    cache.retain(|name, _| profiles.contains_key(name));
    profiles
}

/// The error for a reference to an object that does not exist.
fn dangling(field: &str, value: &str, object: &str, namespace: &str) -> SpecError {
    let in_namespace =
        if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    SpecError::new(field, &value.into(), format!("no {object}{in_namespace}: add it or correct the name"))
}
