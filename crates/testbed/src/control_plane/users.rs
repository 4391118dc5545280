//! Users with real service accounts, real tokens and real RBAC.
//!
//! Called by tests that need a user with limited rights. [`ControlPlane::user`] returns only when the API
//! server's authorizer has seen every rule; until then it would refuse a permitted request.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::ControlPlane;
use crate::Error;

const RBAC_VERSION: &str = "rbac.authorization.k8s.io/v1";
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
const RBAC_LIMIT: Duration = Duration::from_secs(10);
const RBAC_POLL: Duration = Duration::from_millis(50);

/// Something that a user may do; everything else is forbidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    namespace: Option<String>,
    group: String,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Grant {
    /// In one namespace only: becomes a Role. The core group is `""`.
    pub fn in_namespace(namespace: &str, group: &str, resources: &[&str], verbs: &[&str]) -> Self {
        Self { namespace: Some(namespace.to_owned()), ..Self::cluster(group, resources, verbs) }
    }

    /// In all namespaces and for cluster-scoped kinds: becomes a `ClusterRole`.
    pub fn cluster(group: &str, resources: &[&str], verbs: &[&str]) -> Self {
        let owned = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        Self { namespace: None, group: group.to_owned(), resources: owned(resources), verbs: owned(verbs) }
    }

    fn role_and_binding(&self, name: &str, account: &Value) -> [Value; 2] {
        let prefix = if self.namespace.is_some() { "" } else { "Cluster" };
        // A null namespace is the same as an absent one.
        let metadata = json!({ "name": name, "namespace": self.namespace });
        let role = json!({
            "apiVersion": RBAC_VERSION,
            "kind": format!("{prefix}Role"),
            "metadata": metadata,
            "rules": [{
                "apiGroups": [self.group],
                "resources": self.resources,
                "verbs": self.verbs,
            }],
        });
        let binding = json!({
            "apiVersion": RBAC_VERSION,
            "kind": format!("{prefix}RoleBinding"),
            "metadata": metadata,
            "roleRef": {
                "apiGroup": RBAC_GROUP,
                "kind": format!("{prefix}Role"),
                "name": name,
            },
            "subjects": [account],
        });
        [role, binding]
    }

    /// A SubjectAccessReview that is allowed once this rule is in force. All parts of a rule take effect
    /// together, so it asks for one resource and one verb only.
    fn review(&self, user: &str) -> Option<Value> {
        let resource = self.resources.first()?;
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Some(json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": { "user": user, "resourceAttributes": {
                "namespace": self.namespace,
                "group": self.group,
                "resource": resource,
                "subresource": subresource,
                "verb": self.verbs.first()?,
            }},
        }))
    }
}

impl ControlPlane {
    /// Creates the service account `name` in `namespace` with exactly these rights, and returns its
    /// kubeconfig. The rules may be about other namespaces.
    pub fn user(&self, namespace: &str, name: &str, rules: &[Grant]) -> Result<PathBuf, Error> {
        let account = json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace });
        let mut objects = vec![json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": { "name": name, "namespace": namespace },
        })];
        let mut reviews = Vec::new();
        for (number, rule) in rules.iter().enumerate() {
            let role = format!("{namespace}-{name}-{number}");
            objects.extend(rule.role_and_binding(&role, &account));
            reviews.extend(rule.review(&format!("system:serviceaccount:{namespace}:{name}")));
        }
        self.apply(&list(&objects))?;
        if !reviews.is_empty() {
            self.wait_for_reviews(&list(&reviews))?;
        }
        self.write_account_kubeconfig(namespace, name, None)
    }

    /// A kubeconfig of a service account that exists, with what a Pod of it gets: a token, and its namespace.
    pub fn pod_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf, Error> {
        self.write_account_kubeconfig(namespace, name, Some(namespace))
    }

    fn write_account_kubeconfig(
        &self,
        namespace: &str,
        name: &str,
        default_namespace: Option<&str>,
    ) -> Result<PathBuf, Error> {
        let token = self.kubectl(&["create", "token", name, "-n", namespace, "--duration=24h"])?;
        let file = format!("{namespace}-{name}");
        self.access.write_kubeconfig(&self.scratch, &file, token.trim(), default_namespace)
    }

    fn wait_for_reviews(&self, reviews: &str) -> Result<(), Error> {
        let arguments = ["create", "-f", "-", "-o", "jsonpath={.status.allowed} "];
        let deadline = Instant::now() + RBAC_LIMIT;
        loop {
            let answers = self.kubectl_with_input(&arguments, reviews)?;
            if !answers.contains("false") {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::Command {
                    command: format!("kubectl {}", arguments.join(" ")),
                    stderr: format!("rules are still not in force: {answers}"),
                });
            }
            sleep(RBAC_POLL);
        }
    }
}

fn list(items: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}
