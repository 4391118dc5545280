//! What the objects of Kollect mean together: which profile a target uses, what scopes leave of it,
//! which targets an inventory holds and where it goes.
//!
//! No I/O: the command line fills a world from files, the operator from its watches, and admission asks
//! what would happen. What is wrong is told per object, with the reason that its status shows.

mod floors;
mod inventories;
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
    extract::{CompiledProfile, OptIns, Policy},
    select::NamespaceDefaults,
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
use kollect_sinks::{Files, Network};
use kube::ResourceExt;

use crate::reason::Reason;

pub(crate) use inventories::{BoundSink, ResolvedInventory, RowsWanted};
pub(crate) use kollect_model::binding::{Family, InventoryName};
pub(crate) use sinks::{SinkPlan, check_sink};
pub(crate) use targets::ResolvedTarget;

/// Namespace (empty for cluster kinds) and name.
pub(crate) type Name = (String, String);

/// What a Secret holds.
pub(crate) type Contents = BTreeMap<String, Vec<u8>>;

/// All objects that decisions depend on.
#[derive(Clone, Default)]
pub(crate) struct World {
    pub(crate) profiles: BTreeMap<Name, Arc<KollectProfile>>,
    pub(crate) targets: BTreeMap<Name, Arc<KollectTarget>>,
    pub(crate) cluster_targets: BTreeMap<Name, Arc<KollectClusterTarget>>,
    pub(crate) inventories: BTreeMap<Name, Arc<KollectInventory>>,
    pub(crate) cluster_inventories: BTreeMap<Name, Arc<KollectClusterInventory>>,
    pub(crate) sinks: BTreeMap<(Family, Name), Arc<SinkSpec>>,
    pub(crate) scopes: BTreeMap<Name, Arc<KollectScope>>,
    pub(crate) cluster_scopes: BTreeMap<Name, Arc<KollectClusterScope>>,
    pub(crate) secrets: BTreeMap<Name, Secret>,
    /// Kind and name of objects that exist and are wrong in themselves: whoever names them is not told
    /// that they do not exist.
    pub(crate) refused: BTreeSet<(String, Name)>,
}

/// What is known about a Secret that somebody names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    /// It is being looked up.
    Awaited,
    /// What it holds.
    Known(Arc<Contents>),
    /// Why it cannot be read.
    Unreadable(String),
}

/// What whoever runs the program decides for all objects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) policy: Policy,
    pub(crate) defaults: NamespaceDefaults,
    /// Pairs of a sink's namespace and a Secret's namespace that may be combined. `None`: any pair.
    pub(crate) secret_namespaces: Option<BTreeSet<(String, String)>>,
    /// Where sinks may connect to.
    pub(crate) network: Network,
    /// Where sinks may keep files.
    pub(crate) files: FileRoot,
}

/// Where sinks may keep files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileRoot {
    /// Wherever the user may.
    #[default]
    Anywhere,
    /// Below a directory, each namespace in its own.
    Directory(PathBuf),
    /// Nowhere.
    Refused,
}

impl Rules {
    /// What sinks of a namespace may touch.
    pub(crate) fn sink_policy(&self, namespace: &str) -> kollect_sinks::Policy {
        let files = match &self.files {
            FileRoot::Anywhere => Files::Anywhere,
            FileRoot::Directory(root) => Files::Below(root.join(namespace)),
            FileRoot::Refused => Files::Refused,
        };
        kollect_sinks::Policy { network: self.network.clone(), files }
    }
}

/// Something wrong with an object, with the word that its status shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) reason: Reason,
    pub(crate) error: SpecError,
}

impl Fault {
    fn new(reason: Reason, error: SpecError) -> Self {
        Self { reason, error }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// What everything means.
#[derive(Default)]
pub(crate) struct Resolved {
    /// Profiles, compiled, or what is wrong with them.
    pub(crate) profiles: BTreeMap<Name, Result<Arc<CompiledProfile>, Vec<SpecError>>>,
    pub(crate) targets: BTreeMap<TargetId, ResolvedTarget>,
    /// How to open each sink.
    pub(crate) sinks: BTreeMap<(Family, Name), Arc<SinkPlan>>,
    pub(crate) inventories: BTreeMap<InventoryName, ResolvedInventory>,
}

/// What was compiled before. Unchanged definitions stay the same values, so that nothing is read again.
#[derive(Default)]
pub(crate) struct Compiled {
    profiles: BTreeMap<Name, CachedProfile>,
    targets: BTreeMap<TargetId, CachedTarget>,
}

struct CachedProfile {
    spec: KollectProfileSpec,
    opt_ins: OptIns,
    compiled: Result<Arc<CompiledProfile>, Vec<SpecError>>,
}

struct CachedTarget {
    asked: AskedSpec,
    ceilings: Vec<ScopeCeiling>,
    profile: Arc<CompiledProfile>,
    target: Result<Arc<Target>, Vec<SpecError>>,
}

/// The spec of a target of either kind.
#[derive(Clone, PartialEq)]
enum AskedSpec {
    Target(Box<KollectTargetSpec>),
    ClusterTarget(Box<KollectClusterTargetSpec>),
}

/// Scopes that apply together: their names for messages, and what they allow.
#[derive(Default)]
struct Ceilings<'a> {
    scopes: Vec<(String, &'a ScopeCeiling)>,
    /// Namespaces from which profiles and sinks may be taken; each list must allow it.
    static_namespaces: Vec<(String, &'a [String])>,
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
}

impl World {
    /// What the objects mean together.
    pub(crate) fn resolve(&self, rules: &Rules, compiled: &mut Compiled) -> Resolved {
        let profiles = self.compile_profiles(rules, compiled);
        let targets = self.resolve_targets(rules, &profiles, compiled);
        let sinks = self.plan_sinks(rules);
        let inventories = self.resolve_inventories(&targets, &sinks, rules);
        Resolved { profiles, targets, sinks, inventories }
    }

    fn compile_profiles(
        &self,
        rules: &Rules,
        compiled: &mut Compiled,
    ) -> BTreeMap<Name, Result<Arc<CompiledProfile>, Vec<SpecError>>> {
        compiled.profiles.retain(|name, _| self.profiles.contains_key(name));
        for (name, profile) in &self.profiles {
            let opt_ins = OptIns::of(profile.annotations());
            let known = compiled.profiles.get(name);
            if known.is_some_and(|known| known.spec == profile.spec && known.opt_ins == opt_ins) {
                continue;
            }
            let result = CompiledProfile::compile(&profile.spec, opt_ins, &rules.policy).map(Arc::new);
            let cached = CachedProfile { spec: profile.spec.clone(), opt_ins, compiled: result };
            compiled.profiles.insert(name.clone(), cached);
        }
        compiled.profiles.iter().map(|(name, cached)| (name.clone(), cached.compiled.clone())).collect()
    }

    /// The scopes of a namespace.
    fn scopes_of(&self, namespace: &str) -> Ceilings<'_> {
        let from = self.scopes.range((namespace.to_owned(), String::new())..);
        let own = from.take_while(|((scope, _), _)| scope == namespace);
        let scopes = own.map(|((_, name), scope)| (format!("KollectScope {name}"), &scope.spec.ceiling));
        Ceilings { scopes: scopes.collect(), static_namespaces: Vec::new() }
    }

    /// The scopes of the cluster kinds.
    fn cluster_scopes(&self) -> Ceilings<'_> {
        let mut ceilings = Ceilings::default();
        for ((_, name), scope) in &self.cluster_scopes {
            let who = format!("KollectClusterScope {name}");
            ceilings.scopes.push((who.clone(), &scope.spec.ceiling));
            ceilings.static_namespaces.push((who, &scope.spec.allowed_static_ref_namespaces));
        }
        ceilings
    }

    fn is_refused(&self, kind: &str, name: &Name) -> bool {
        self.refused.contains(&(kind.to_owned(), name.clone()))
    }
}

/// Something that an object names does not exist.
fn dangling(field: &str, value: &str, what: &str, namespace: &str) -> SpecError {
    let place = if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
    SpecError::new(field, &value.into(), format!("no {what}{place}: add it or correct the name"))
}
