//! A Kubernetes control plane: etcd, kube-apiserver and kube-controller-manager.
//!
//! Called by tests, the demo and benches. Authentication, RBAC, admission webhooks, namespace
//! deletion and garbage collection are the real ones. Pods are stored and never run, except those of operators on a
//! control plane with a [`Node`]. etcd listens on a socket in the scratch directory, so the API server's port is the only one.
//! Every server is stopped by SIGKILL: its state is not needed any more, and after SIGTERM an API server
//! never ends if its etcd is gone.

mod access;
mod etcd;
mod kubectl;
mod users;

use std::fmt::Display;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub(crate) use access::Access;
pub(crate) use kubectl::Kubectl;
pub use users::Grant;

use crate::node::{Node, NodeNetwork};
use crate::ports::on_free_port;
use crate::{Error, Programs, Scratch, Server, Stop, messages};

/// Many times what a start takes, because the machine may be busy.
const START_LIMIT: Duration = Duration::from_mins(1);

/// Only the controllers that tests need; each one costs start time. Without the service account controllers
/// there are no bound tokens, and without aggregation the rules of an aggregated ClusterRole stay empty.
const CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,\
                           serviceaccount-controller,serviceaccount-token-controller,\
                           clusterrole-aggregation-controller";
/// Controllers that make Pods of Deployments, for a control plane with a node that runs them.
const POD_CONTROLLERS: &str = "deployment-controller,replicaset-controller";

/// A running control plane; dropping it stops all of it.
#[derive(Debug)]
pub struct ControlPlane {
    // Ends before the control plane does.
    node: Option<Node>,
    programs: Programs,
    scratch: Scratch,
    access: Access,
    kubectl: Kubectl,
    /// Flags that log messages of the product, if they are recorded.
    audit_flags: Vec<String>,
    /// Flags of the caller, in addition to those of [`Self::api_server_command`].
    api_server_flags: Vec<String>,
    /// Numbers the namespaces, so that their names are unique.
    namespaces: AtomicU32,
    api_server: Option<Server>,
    /// etcd and the controllers, held because dropping them stops them.
    others: Vec<Server>,
}

impl ControlPlane {
    /// Starts a control plane of its own for one test, and returns when it is ready. Builds the
    /// programs first if this machine has never done so.
    pub fn start() -> Result<Self, Error> {
        Self::start_with(&[])
    }

    /// Starts one whose API server has additional flags, such as `--feature-gates=WatchList=false`.
    pub fn start_with(api_server_flags: &[&str]) -> Result<Self, Error> {
        let programs = Programs::find_or_build()?;
        on_free_port(|port| Self::start_on(port, &programs, api_server_flags, None))
    }

    /// Starts one with a [`Node`] that runs the Pods of operators with `kollect`, each with `more_args`.
    pub fn start_with_node(
        kollect: &Path,
        more_args: &[&str],
        api_server_flags: &[&str],
    ) -> Result<Self, Error> {
        let programs = Programs::find_or_build()?;
        let network = NodeNetwork::listen()?;
        let mut plane =
            on_free_port(|port| Self::start_on(port, &programs, api_server_flags, Some(&network)))?;
        let access = plane.access.clone();
        plane.node = Some(Node::start(plane.kubectl.clone(), access, network, kollect, more_args)?);
        Ok(plane)
    }

    /// The node; `None` unless it was started with one.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The control plane that all tests of this process share; started by the first caller.
    ///
    /// # Panics
    ///
    /// If it cannot be started: a missing component is a failing test.
    #[expect(clippy::panic, reason = "a missing component must fail the test, with the reason")]
    pub fn shared() -> &'static Self {
        // A failure is kept too, so that not every test waits for the same failure.
        static SHARED: OnceLock<Result<ControlPlane, Error>> = OnceLock::new();
        match SHARED.get_or_init(Self::start) {
            Ok(control_plane) => control_plane,
            Err(error) => panic!("the shared control plane did not start: {}", error.with_causes()),
        }
    }

    /// The address of the API server.
    pub fn url(&self) -> String {
        self.access.url()
    }

    /// The bearer token of a member of `system:masters`.
    pub fn admin_token(&self) -> &str {
        &self.access.admin_token
    }

    /// The certificate of the API server, which is its own authority, as PEM.
    pub fn ca_pem(&self) -> &str {
        &self.access.certificate
    }

    /// The kubeconfig of the administrator, complete in one file; its context is `kollect-testbed`.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// Kills the API server and nothing else.
    pub fn stop_api_server(&mut self) {
        self.api_server = None;
    }

    /// Starts the API server again, on the same port and with the same objects.
    pub fn start_api_server(&mut self) -> Result<(), Error> {
        // The port is free only when the old server has ended.
        self.stop_api_server();
        let mut server = kill_on_drop(&self.scratch, "kube-apiserver", &self.api_server_command())?;
        server.wait_until(START_LIMIT, || self.is_ready())?;
        self.api_server = Some(server);
        Ok(())
    }

    /// Like [`start_api_server`](Self::start_api_server), with these flags instead of those that were
    /// asked for before.
    pub fn restart_api_server(&mut self, flags: &[&str]) -> Result<(), Error> {
        self.api_server_flags = flags.iter().map(ToString::to_string).collect();
        self.start_api_server()
    }

    fn start_on(
        port: u16,
        programs: &Programs,
        api_server_flags: &[&str],
        network: Option<&NodeNetwork>,
    ) -> Result<Self, Error> {
        let scratch = Scratch::new()?;
        let mut etcd = kill_on_drop(&scratch, "etcd", &etcd::command(programs, &scratch))?;
        let access = Access::create(&scratch, port)?;
        let kubeconfig = access.write_kubeconfig(&scratch, "admin", &access.admin_token, None)?;
        // An API server that finds no etcd waits for a whole second before it tries again.
        etcd.wait_until(START_LIMIT, || etcd::socket(&scratch).exists())?;
        let mut api_server_flags: Vec<String> = api_server_flags.iter().map(ToString::to_string).collect();
        if let Some(network) = network {
            let config = scratch.write("egress.yaml", network.egress_configuration())?;
            api_server_flags.push(flag("egress-selector-config-file", config.display()));
        }
        let home = scratch.path().to_owned();
        let mut control_plane = Self {
            node: None,
            programs: programs.clone(),
            audit_flags: messages::audit_flags(&scratch)?,
            scratch,
            access,
            kubectl: Kubectl { program: programs.kubectl.clone(), home, kubeconfig },
            api_server_flags,
            namespaces: AtomicU32::new(0),
            api_server: None,
            others: vec![etcd],
        };
        control_plane.start_api_server()?;
        control_plane.start_controllers(network.is_some())?;
        Ok(control_plane)
    }

    /// Requires that the API server is ready: the controllers exit if they wait for it too long.
    fn start_controllers(&mut self, with_pods: bool) -> Result<(), Error> {
        let command = self.controllers_command(with_pods);
        let mut server = kill_on_drop(&self.scratch, "kube-controller-manager", &command)?;
        // They serve no port. This account is the first object that they create.
        let account = ["get", "serviceaccount", "default", "--namespace=default"];
        server.wait_until(START_LIMIT, || self.kubectl(&account).is_ok())?;
        self.others.push(server);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        self.kubectl(&["get", "--raw=/readyz", "--request-timeout=1s"]).is_ok()
    }

    fn api_server_command(&self) -> Command {
        let access = &self.access;
        let certificate = access.certificate_file.display();
        let key = access.key_file.display();
        let mut command = Command::new(&self.programs.kube_apiserver);
        command.args([
            flag("etcd-servers", format_args!("unix://{}", etcd::socket(&self.scratch).display())),
            flag("bind-address", "127.0.0.1"),
            flag("advertise-address", "127.0.0.1"),
            flag("secure-port", access.port),
            flag("tls-cert-file", &certificate),
            flag("tls-private-key-file", &key),
            flag("service-account-key-file", &certificate),
            flag("service-account-signing-key-file", &key),
            flag("service-account-issuer", "https://kubernetes.default.svc"),
            flag("token-auth-file", access.tokens_file.display()),
            flag("authorization-mode", "RBAC"),
            // Lets Pods be created in a namespace before its default service account is there.
            flag("disable-admission-plugins", "ServiceAccount"),
            flag("service-cluster-ip-range", "10.0.0.0/24"),
            // Without it the API server tries endlessly to publish a loopback address, which is not allowed.
            flag("endpoint-reconciler-type", "none"),
        ]);
        // The caller may ask for an audit log of its own, which then replaces ours.
        command.args(&self.audit_flags).args(&self.api_server_flags);
        command
    }

    fn controllers_command(&self, with_pods: bool) -> Command {
        let controllers =
            if with_pods { format!("{CONTROLLERS},{POD_CONTROLLERS}") } else { CONTROLLERS.to_owned() };
        let mut command = Command::new(&self.programs.kube_controller_manager);
        command.args([
            flag("kubeconfig", self.kubeconfig().display()),
            flag("controllers", controllers),
            flag("leader-elect", false),
            flag("secure-port", 0),
            flag("service-account-private-key-file", self.access.key_file.display()),
        ]);
        command
    }
}

fn kill_on_drop(scratch: &Scratch, name: &str, command: &Command) -> Result<Server, Error> {
    Server::start(scratch, name, Stop::Kill, command)
}

fn flag(name: &str, value: impl Display) -> String {
    format!("--{name}={value}")
}

#[cfg(test)]
mod tests;
