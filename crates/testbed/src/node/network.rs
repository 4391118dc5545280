//! Connections of API servers to Services: an HTTP proxy that API servers use for everything inside of the cluster, and
//! that forwards each connection to a Pod of the Service that is ready.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::NodeState;
use crate::{Error, Scratch};

const ACCEPT_INTERVAL: Duration = Duration::from_millis(20);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Where API servers connect to for addresses inside of the cluster: a socket.
#[derive(Debug)]
pub struct NodeNetwork {
    listener: UnixListener,
    socket: PathBuf,
    _scratch: Scratch,
}

impl NodeNetwork {
    pub(crate) fn listen() -> Result<Self, Error> {
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("services.socket");
        let listener = UnixListener::bind(&socket).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(Error::io("listen for connections to Services"))?;
        Ok(Self { listener, socket, _scratch: scratch })
    }

    /// The file of `--egress-selector-config-file`.
    pub(crate) fn egress_configuration(&self) -> String {
        format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n\
             - name: cluster\n  connection:\n    proxyProtocol: HTTPConnect\n    transport:\n      uds:\n        \
             udsName: {}\n",
            self.socket.display()
        )
    }

    /// Forwards connections until the node stops.
    pub(super) fn forward(self, node: &NodeState) {
        thread::scope(|scope| {
            while !node.is_stopping() {
                match self.listener.accept() {
                    // The client sees a connection that ends.
                    Ok((client, _)) => drop(scope.spawn(move || tunnel(client, node).ok())),
                    Err(_) => thread::sleep(ACCEPT_INTERVAL),
                }
            }
        });
    }
}

/// Answers one `CONNECT`, and copies bytes in both directions.
fn tunnel(mut client: UnixStream, node: &NodeState) -> io::Result<()> {
    client.set_nonblocking(false)?;
    let mut head = BufReader::new(client.try_clone()?);
    let mut request = String::new();
    head.read_line(&mut request)?;
    let mut line = String::new();
    while head.read_line(&mut line)? > 2 {
        line.clear();
    }
    let address =
        request.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
    let Some(server) = pod_port(node, address).and_then(|port| TcpStream::connect(("127.0.0.1", port)).ok())
    else {
        return client.write_all(b"HTTP/1.1 503 no Pod is ready\r\n\r\n");
    };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut to_server, mut from_server) = (server.try_clone()?, server);
    let mut from_client = client.try_clone()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            io::copy(&mut from_client, &mut to_server).ok();
            to_server.shutdown(Shutdown::Write).ok();
        });
        let copied = io::copy(&mut from_server, &mut client);
        client.shutdown(Shutdown::Both).ok();
        copied.map(drop)
    })
}

/// The port of a Pod that is ready, of the Service with this address. Each call chooses another Pod.
fn pod_port(node: &NodeState, address: &str) -> Option<u16> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let (ip, port) = address.rsplit_once(':')?;
    let services = node.kubectl.run(&["get", "services", "--all-namespaces", "--output=json"]).ok()?;
    let services: Value = serde_json::from_str(&services).ok()?;
    let service = services["items"].as_array()?.iter().find(|service| service["spec"]["clusterIP"] == ip)?;
    let ports = service["spec"]["ports"].as_array()?;
    let port: u16 = port.parse().ok()?;
    let target = ports.iter().find(|found| found["port"] == port)?["targetPort"].as_str()?;
    let selector = service["spec"]["selector"].as_object()?;
    let pods = node.pods();
    let candidates: Vec<u16> = pods
        .values()
        .filter(|pod| pod.is_ready() && service["metadata"]["namespace"] == pod.spec().namespace)
        .filter(|pod| {
            selector.iter().all(|(key, value)| pod.spec().labels.get(key).is_some_and(|l| value == l))
        })
        .filter_map(|pod| pod.port(target))
        .collect();
    candidates.get(TURN.fetch_add(1, Ordering::Relaxed).checked_rem(candidates.len())?).copied()
}

/// The answer to a GET on a port of this machine, with its head; `None` if there is none.
pub(super) fn get(port: u16, path: &str) -> Option<String> {
    let request = || -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: kollect\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    request().ok()
}

/// Whether a readiness probe succeeds.
pub(super) fn is_ready(port: u16, path: &str) -> bool {
    get(port, path).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}
