//! Where the sinks of each namespace may connect to, according to the flags of the operator.

use std::str::FromStr;

use kollect_model::crd::shapes::is_namespace_name;
use kollect_sinks::{AddressGuard, ApiServer, Cidr, Network};

/// Where sinks may connect to.
#[derive(Clone, Debug, Default)]
pub(crate) enum SinkNetwork {
    /// Anywhere: the command line acts for its user.
    #[default]
    Open,
    /// Public addresses, and what the operator's flags open.
    Guarded(NetworkFlags),
}

/// The flags of the operator about addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkFlags {
    /// `--allow-private-sinks`
    pub(crate) allow_private: bool,
    /// `--allow-sink-cidrs`
    pub(crate) allowed: Vec<AllowedCidr>,
    /// `--deny-sink-cidrs`
    pub(crate) denied: Vec<Cidr>,
    /// Where the API server is.
    pub(crate) api_servers: Vec<ApiServer>,
}

/// An entry of `--allow-sink-cidrs`: `CIDR` or `NAMESPACE=CIDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedCidr {
    /// Whose sinks may connect there; `None`: those of all namespaces.
    namespace: Option<String>,
    range: Cidr,
}

impl FromStr for AllowedCidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((namespace, range)) = text.split_once('=') else {
            return Ok(Self { namespace: None, range: text.parse()? });
        };
        if !is_namespace_name(namespace) {
            return Err(format!(
                "{namespace:?} is not the name of a namespace; write CIDR or NAMESPACE=CIDR, such as \
                 team-a=10.0.0.0/8"
            ));
        }
        Ok(Self { namespace: Some(namespace.to_owned()), range: range.parse()? })
    }
}

impl SinkNetwork {
    /// What sinks of a namespace may connect to.
    pub(super) fn of(&self, namespace: &str) -> Network {
        let Self::Guarded(NetworkFlags { allow_private, allowed, denied, api_servers }) = self else {
            return Network::Open;
        };
        let applies = |entry: &&AllowedCidr| entry.namespace.as_deref().is_none_or(|name| name == namespace);
        Network::Guarded(AddressGuard {
            namespace: namespace.to_owned(),
            allow_private: *allow_private,
            allowed: allowed.iter().filter(applies).map(|entry| entry.range).collect(),
            denied: denied.clone(),
            api_servers: api_servers.clone(),
        })
    }

    /// Keeps sinks away from the API server.
    pub(crate) fn deny_api_servers(&mut self, servers: Vec<ApiServer>) {
        if let Self::Guarded(flags) = self {
            flags.api_servers = servers;
        }
    }
}

/// Where the API server is: the URL that the operator uses, and the Service in a cluster. `variable` returns
/// the value of an environment variable.
pub(crate) fn api_servers(url: &http::Uri, variable: impl Fn(&str) -> Option<String>) -> Vec<ApiServer> {
    let default = if url.scheme_str() == Some("http") { 80 } else { 443 };
    let host = url.host().map(|host| host.trim_start_matches('[').trim_end_matches(']').to_owned());
    let used = host.map(|host| ApiServer { host, port: url.port_u16().unwrap_or(default) });
    let service = variable("KUBERNETES_SERVICE_HOST").filter(|host| !host.is_empty()).map(|host| {
        let port = variable("KUBERNETES_SERVICE_PORT").and_then(|port| port.parse().ok());
        ApiServer { host, port: port.unwrap_or(443) }
    });
    let mut servers: Vec<ApiServer> = used.into_iter().chain(service).collect();
    servers.dedup();
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(allowed: &[&str]) -> SinkNetwork {
        let allowed = allowed.iter().map(|text| text.parse().unwrap()).collect();
        SinkNetwork::Guarded(NetworkFlags { allowed, ..NetworkFlags::default() })
    }

    #[test]
    fn a_range_of_a_namespace_is_for_its_sinks_only() {
        let network = flags(&["127.0.0.1/32", "team-a=127.0.0.2/32", "team-a=fd12::/16", "team-b=127.0.0.3"]);
        for (namespace, open, closed) in [
            ("team-a", &["127.0.0.1", "127.0.0.2", "fd12::1"][..], &["127.0.0.3", "127.0.0.4"][..]),
            ("team-b", &["127.0.0.1", "127.0.0.3"], &["127.0.0.2", "fd12::1"]),
            ("team-c", &["127.0.0.1"], &["127.0.0.2", "127.0.0.3", "fd12::1"]),
        ] {
            for host in open {
                assert_eq!(network.of(namespace).check_server(host, 1), Ok(()), "{namespace} {host}");
            }
            for host in closed {
                let refusal = network.of(namespace).check_server(host, 1).unwrap_err().to_string();
                let form = format!("--allow-sink-cidrs {namespace}={host}/");
                assert!(refusal.contains(&form), "{refusal}");
            }
        }
        assert_eq!(SinkNetwork::Open.of("team-a"), Network::Open);
    }

    #[test]
    fn wrong_entries_are_refused_with_the_right_form() {
        for text in ["Team_A=10.0.0.0/8", "=10.0.0.0/8", "a=b=10.0.0.0/8", "team-a=", "team-a=10.1.2.3/8", ""]
        {
            let problem = text.parse::<AllowedCidr>().unwrap_err();
            assert!(problem.contains("write "), "{text}: {problem}");
        }
    }

    #[test]
    fn the_api_server_is_found_by_url_and_by_service() {
        let server = |host: &str, port| ApiServer { host: host.into(), port };
        let none = |_: &str| None;
        for (url, expected) in [
            ("https://api.example:6443/x", server("api.example", 6443)),
            ("https://kubernetes.default.svc/", server("kubernetes.default.svc", 443)),
            ("https://[::1]:6443", server("::1", 6443)),
            ("http://127.0.0.1", server("127.0.0.1", 80)),
        ] {
            assert_eq!(api_servers(&url.parse().unwrap(), none), [expected], "{url}");
        }
        let pod = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => Some("192.0.2.1".to_owned()),
            "KUBERNETES_SERVICE_PORT" => Some("8443".to_owned()),
            _ => None,
        };
        let found = api_servers(&"https://kubernetes.default.svc".parse().unwrap(), pod);
        assert_eq!(found, [server("kubernetes.default.svc", 443), server("192.0.2.1", 8443)]);
    }
}
