//! Secrets that sinks name: what is known of each, and which types sinks may not use.

use std::{collections::BTreeMap, sync::Arc};

/// What a Secret holds.
pub(crate) type SecretContents = BTreeMap<String, Vec<u8>>;

/// What is known about a Secret that a sink names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Secret {
    /// It is being looked up.
    Awaited,
    /// What it holds.
    Contents(Arc<SecretContents>),
    /// Why it cannot be read.
    Unreadable(String),
}

/// The type of the Secret in which the operator keeps the certificate of its webhooks.
pub(crate) const WEBHOOK_CERTIFICATE_TYPE: &str = "kollect.dev/webhook-certificate";

/// Types whose contents belong to the cluster, and what they are. A sink sends what is in its Secret to a server that
/// the author of the sink chooses.
const REFUSED_TYPES: [(&str, &str); 4] = [
    ("kubernetes.io/service-account-token", "a credential of this cluster"),
    ("bootstrap.kubernetes.io/token", "a credential of this cluster"),
    ("helm.sh/release.v1", "the values of a Helm release"),
    (WEBHOOK_CERTIFICATE_TYPE, "the private key of the operator's webhooks"),
];

/// Refuses a Secret whose type sinks may not use.
pub(crate) fn check_secret_type(type_: Option<&str>) -> Result<(), String> {
    match REFUSED_TYPES.iter().find(|(refused, _)| Some(*refused) == type_) {
        None => Ok(()),
        Some((refused, contents)) => Err(format!(
            "sinks do not use Secrets of type {refused}, because these hold {contents}: make a Secret of type \
             Opaque with the keys that this sink needs"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_cluster_itself_are_refused_with_advice() {
        for refused in [
            "kubernetes.io/service-account-token",
            "bootstrap.kubernetes.io/token",
            "helm.sh/release.v1",
            "kollect.dev/webhook-certificate",
        ] {
            let problem = check_secret_type(Some(refused)).unwrap_err();
            assert!(problem.contains(refused) && problem.contains("type Opaque"), "{problem}");
        }
        for allowed in [
            None,
            Some("Opaque"),
            Some("kubernetes.io/basic-auth"),
            Some("kubernetes.io/ssh-auth"),
            Some("kubernetes.io/tls"),
            Some("example.com/own"),
        ] {
            assert_eq!(check_secret_type(allowed), Ok(()));
        }
    }
}
