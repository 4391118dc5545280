//! One Pod: what its spec says, and the process that runs it.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::NodeState;
use crate::{Error, Scratch, Server, Stop, free_port, messages};

/// Pause before a process that has ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a node needs to know of a Pod.
#[derive(Debug, Clone)]
pub(super) struct PodSpec {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) is_being_deleted: bool,
    account: String,
    /// The container of the operator.
    container: Value,
    grace_period: Duration,
}

/// A Pod with its process.
#[derive(Debug)]
pub(super) struct Pod {
    spec: PodSpec,
    command: Command,
    /// Ports of this machine, by the names of the container's ports.
    ports: BTreeMap<String, u16>,
    scratch: Scratch,
    server: Option<Server>,
    ended: Option<Instant>,
    restarts: u32,
    is_ready: bool,
    /// The status that the API server has.
    reported: Option<(bool, u32)>,
}

impl PodSpec {
    /// The Pod, if it is one of an operator.
    pub(super) fn of_operator(pod: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        let containers = pod["spec"]["containers"].as_array()?;
        let container = containers.iter().find(|container| container["args"][0] == "operator")?.clone();
        let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
        let labels = metadata["labels"].as_object().into_iter().flatten();
        Some(Self {
            namespace: text(&metadata["namespace"])?,
            name: text(&metadata["name"])?,
            uid: text(&metadata["uid"])?,
            labels: labels.filter_map(|(key, value)| Some((key.clone(), text(value)?))).collect(),
            is_being_deleted: metadata["deletionTimestamp"].is_string(),
            account: text(&spec["serviceAccountName"]).unwrap_or_else(|| "default".into()),
            container,
            grace_period: Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30)),
        })
    }

    /// A field of the Pod that a variable refers to.
    fn field(&self, path: &str) -> &str {
        match path {
            "metadata.namespace" => &self.namespace,
            "metadata.name" => &self.name,
            "metadata.uid" => &self.uid,
            _ => "",
        }
    }

    /// Environment variables of the container, with `/tmp` as `directory`.
    fn variables(&self, directory: &str) -> Vec<(String, String)> {
        let variables = self.container["env"].as_array().into_iter().flatten();
        variables
            .filter_map(|variable| {
                let name = variable["name"].as_str()?.to_owned();
                let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                    Some(path) => self.field(path).to_owned(),
                    None => variable["value"].as_str().unwrap_or_default().replacen("/tmp", directory, 1),
                };
                Some((name, value))
            })
            .collect()
    }
}

impl Pod {
    /// Assigns the Pod to this node and starts its process.
    pub(super) fn start(spec: PodSpec, node: &NodeState) -> Result<Self, Error> {
        let PodSpec { namespace, name, .. } = &spec;
        // Without a node a Pod is deleted at once, and its process gets no time to stop.
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": "kollect-testbed" },
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        // A Pod that another process of the testbed has bound stays bound.
        node.kubectl.run_with_input(&["create", "--raw", &path, "-f", "-"], &binding.to_string()).ok();
        let token =
            node.kubectl.run(&["create", "token", &spec.account, "-n", namespace, "--duration=24h"])?;
        let scratch = Scratch::new()?;
        let kubeconfig = node.access.write_kubeconfig(&scratch, "pod", token.trim(), Some(namespace))?;
        let variables = spec.variables(&scratch.path().display().to_string());
        let (args, ports) = arguments(&spec.container, &variables)?;
        let mut command = Command::new(&node.program);
        command.args(args).args(&node.more_args).envs(variables).env("KUBECONFIG", kubeconfig);
        // For a program that runs in the root of its image, where the kubeconfig is not.
        let account = write_account(&scratch, token.trim(), &node.access.certificate, namespace)?;
        let in_image = spec.variables("/tmp").into_iter().map(|(name, value)| format!("{name}={value}\0"));
        command
            .env("KOLLECT_TESTBED_ENVIRONMENT", scratch.write("environment", in_image.collect::<String>())?);
        let (host, port) = node.access.host_and_port();
        command.env("KOLLECT_TESTBED_ACCOUNT", account);
        command.envs([("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)]);
        let server = Server::start(&scratch, "operator", Stop::Terminate, &command)?;
        let (ended, restarts, is_ready, reported) = (None, 0, false, None);
        Ok(Self { spec, command, ports, scratch, server: Some(server), ended, restarts, is_ready, reported })
    }

    pub(super) fn spec(&self) -> &PodSpec {
        &self.spec
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    pub(super) fn port(&self, name: &str) -> Option<u16> {
        self.ports.get(name).copied()
    }

    /// The port that the readiness probe uses.
    pub(super) fn probe_port(&self) -> Option<u16> {
        self.port(self.spec.container["readinessProbe"]["httpGet"]["port"].as_str()?)
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("operator.log")).unwrap_or_default()
    }

    /// Starts the process again if it has ended. Returns port and path of its readiness probe if it runs.
    pub(super) fn restart_if_ended(&mut self) -> Option<(u16, String)> {
        if self.server.as_mut().is_some_and(|server| !matches!(server.running(), Ok(true))) {
            self.server = None;
            self.ended = Some(Instant::now());
        }
        if self.server.is_none() && self.ended.is_none_or(|ended| ended.elapsed() >= RESTART_PAUSE) {
            self.restarts += 1;
            self.server = Server::start(&self.scratch, "operator", Stop::Terminate, &self.command).ok();
        }
        let path = self.spec.container["readinessProbe"]["httpGet"]["path"].as_str()?;
        self.server.as_ref().and(self.probe_port()).map(|port| (port, path.to_owned()))
    }

    /// Records whether the probe succeeded. Returns namespace, name and status of the Pod if the status has changed;
    /// controllers compute that of the Deployment from it.
    pub(super) fn set_ready(&mut self, is_ready: bool) -> Option<(String, String, String)> {
        self.is_ready = is_ready;
        let reported = Some((is_ready, self.restarts));
        if self.reported == reported {
            return None;
        }
        self.reported = reported;
        let container = json!({
            "name": self.spec.container["name"], "image": self.spec.container["image"], "imageID": "",
            "ready": is_ready, "restartCount": self.restarts, "started": true, "state": { "running": {} },
        });
        let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(|type_| {
            let is_true = is_ready || !type_.ends_with("Ready");
            json!({ "type": type_, "status": if is_true { "True" } else { "False" } })
        });
        let status = json!({ "status": {
            "phase": "Running", "conditions": conditions, "containerStatuses": [container],
        }});
        Some((self.spec.namespace.clone(), self.spec.name.clone(), status.to_string()))
    }

    /// The status could not be written: the next call of [`Self::set_ready`] returns it again.
    pub(super) fn report_again(&mut self) {
        self.reported = None;
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) {
        let pid = fs::read_to_string(self.scratch.path().join("operator.pid")).unwrap_or_default();
        Command::new("kill").args(["-KILL", pid.trim()]).status().ok();
    }

    /// Stops the process as a kubelet does: SIGTERM, and SIGKILL after the grace period.
    pub(super) fn stop(mut self) {
        let deadline = Instant::now() + self.spec.grace_period;
        if let Some(server) = &mut self.server {
            server.terminate().ok();
            while matches!(server.running(), Ok(true)) {
                if Instant::now() > deadline {
                    return self.kill();
                }
                sleep(POLL_INTERVAL);
            }
        }
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.server = None;
        messages::record("log", &self.log());
    }
}

/// The files that a Pod finds in `/var/run/secrets/kubernetes.io/serviceaccount`; all users may read them.
fn write_account(scratch: &Scratch, token: &str, authority: &str, namespace: &str) -> Result<PathBuf, Error> {
    let directory = scratch.path().join("account");
    let action = || format!("write {}", directory.display());
    fs::create_dir(&directory).map_err(Error::io(action()))?;
    for (name, content) in [("token", token), ("ca.crt", authority), ("namespace", namespace)] {
        scratch.write(&format!("account/{name}"), content)?;
    }
    Ok(directory)
}

/// Arguments of the container with `$(VARIABLE)` replaced and free ports of this machine, and these ports by name.
fn arguments(
    container: &Value,
    variables: &[(String, String)],
) -> Result<(Vec<String>, BTreeMap<String, u16>), Error> {
    let mut ports = BTreeMap::new();
    let mut replaced = Vec::new();
    for port in container["ports"].as_array().into_iter().flatten() {
        let (name, number) = (port["name"].as_str().unwrap_or_default(), &port["containerPort"]);
        let free = free_port()?;
        ports.insert(name.to_owned(), free);
        replaced.push((format!("=:{number}"), format!("=127.0.0.1:{free}")));
    }
    let args = container["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let args = args
        .map(|arg| {
            let arg = variables
                .iter()
                .fold(arg.to_owned(), |arg, (name, value)| arg.replace(&format!("$({name})"), value));
            replaced.iter().fold(arg, |arg, (port, free)| match arg.strip_suffix(port.as_str()) {
                Some(flag) => format!("{flag}{free}"),
                None => arg,
            })
        })
        .collect();
    Ok((args, ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gets_the_arguments_and_variables_of_its_pod() {
        let field = |path: &str| json!({ "fieldRef": { "fieldPath": path } });
        let pod = json!({
            "metadata": { "name": "kollect-0", "namespace": "team-a", "uid": "u", "labels": { "a": "b" } },
            "spec": { "serviceAccountName": "kollect", "containers": [{
                "args": ["operator", "--watch-namespaces=$(POD_NAMESPACE)", "--metrics-bind-address=:8443", "--x=:9"],
                "env": [
                    { "name": "POD_NAMESPACE", "valueFrom": field("metadata.namespace") },
                    { "name": "DIR", "value": "/tmp/mirrors" },
                ],
                "ports": [{ "name": "metrics", "containerPort": 8443 }],
            }] },
        });
        let spec = PodSpec::of_operator(&pod).unwrap();
        let variables = spec.variables("/scratch");
        let expected = [("POD_NAMESPACE", "team-a"), ("DIR", "/scratch/mirrors")];
        assert_eq!(variables, expected.map(|(name, value)| (name.into(), value.into())));
        let (args, ports) = arguments(&spec.container, &variables).unwrap();
        assert_eq!(
            args,
            [
                "operator".to_owned(),
                "--watch-namespaces=team-a".to_owned(),
                format!("--metrics-bind-address=127.0.0.1:{}", ports["metrics"]),
                "--x=:9".to_owned(),
            ]
        );
        assert!(!spec.is_being_deleted && spec.labels["a"] == "b");
        assert!(
            PodSpec::of_operator(&json!({ "spec": { "containers": [{ "args": ["serve"] }] } })).is_none()
        );
    }
}
