//! `make playground`: two clusters with the operator as `config/default` installs it, one in which only the kinds are
//! installed, a PostgreSQL and a NATS server, until it is dropped. The walkthroughs in `docs/start` run in it, and a test runs their commands in it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{ControlPlane, Error, Nats, Postgres, Programs, Server, Stop, free_port, guard::Scratch};

const WORKLOADS: &str = include_str!("../demo/workloads.yaml");
const RELEASE: &str = include_str!("../demo/release.yaml");
/// Namespace of the operator in `config/default`.
const OPERATOR_NAMESPACE: &str = "kollect-system";

/// Running servers, and a directory with the files that sinks write.
#[derive(Debug)]
pub struct Playground {
    east: Cluster,
    west: Cluster,
    /// Only the kinds are installed.
    team: ControlPlane,
    postgres: Postgres,
    nats: Nats,
    nats_monitor: u16,
    kubectl: PathBuf,
    directory: PathBuf,
}

#[derive(Debug)]
struct Cluster {
    // Ends before the control plane does.
    _operator: Server,
    plane: ControlPlane,
}

impl Playground {
    /// Starts everything, in the root of the repository. `directory` is emptied first.
    pub fn start(kollect: &Path, directory: &Path) -> Result<Self, Error> {
        let programs = Programs::find_or_build()?;
        if directory.exists() {
            fs::remove_dir_all(directory).map_err(Error::io(format!("remove {}", directory.display())))?;
        }
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let directory =
            directory.canonicalize().map_err(Error::io(format!("find {}", directory.display())))?;
        let nats_monitor = free_port()?;
        let team = ControlPlane::start()?;
        install(&team, "config/crd")?;
        let playground = Self {
            team,
            east: Cluster::start(kollect, &directory.join("files"))?,
            west: Cluster::start(kollect, &directory.join("files-west"))?,
            postgres: Postgres::start()?,
            nats: Nats::start_with(&format!("http: \"127.0.0.1:{nats_monitor}\""))?,
            nats_monitor,
            kubectl: programs.kubectl,
            directory,
        };
        playground.write_environment(kollect)?;
        Ok(playground)
    }

    /// Directory with the programs, the files that sinks write, and `env`, which a shell reads to use the playground.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The variables of `env`, without `PATH`.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        vec![
            ("KUBECONFIG", self.east.plane.kubeconfig().display().to_string()),
            ("KUBECONFIG_WEST", self.west.plane.kubeconfig().display().to_string()),
            ("KUBECONFIG_TEAM", self.team.kubeconfig().display().to_string()),
            ("DATABASE_URL", self.postgres.dsn()),
            ("NATS_URL", self.nats.url()),
            ("NATS_MONITOR", format!("http://127.0.0.1:{}", self.nats_monitor)),
            ("FILES", self.directory.join("files").display().to_string()),
        ]
    }

    /// Directory with `kubectl` and `kollect`.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    fn write_environment(&self, kollect: &Path) -> Result<(), Error> {
        let bin = self.programs();
        fs::create_dir_all(&bin).map_err(Error::io(format!("create {}", bin.display())))?;
        let kollect = kollect.canonicalize().map_err(Error::io(format!("find {}", kollect.display())))?;
        for (program, name) in [(&self.kubectl, "kubectl"), (&kollect, "kollect")] {
            std::os::unix::fs::symlink(program, bin.join(name)).map_err(Error::io(format!("link {name}")))?;
        }
        let variables = self.variables().into_iter().map(|(name, value)| format!("export {name}={value}\n"));
        let text = format!("export PATH={}:$PATH\n{}", bin.display(), variables.collect::<String>());
        let file = self.directory.join("env");
        let written = fs::File::create(&file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(Error::io(format!("write {}", file.display())))
    }
}

fn install(plane: &ControlPlane, kustomization: &str) -> Result<(), Error> {
    plane.kubectl(&["apply", "-k", kustomization])?;
    plane.wait(&["crd", "--for=condition=Established", "--all"]).map(drop)
}

impl Cluster {
    fn start(kollect: &Path, files: &Path) -> Result<Self, Error> {
        let plane = ControlPlane::start()?;
        install(&plane, "config/default")?;
        plane.apply(WORKLOADS)?;
        plane.apply(RELEASE)?;
        let scratch = Scratch::new()?;
        let kubeconfig = plane.pod_kubeconfig(OPERATOR_NAMESPACE, "kollect")?;
        fs::create_dir_all(files).map_err(Error::io(format!("create {}", files.display())))?;
        let program = kollect.canonicalize().map_err(Error::io(format!("find {}", kollect.display())))?;
        let mut command = Command::new(program);
        command
            .args([
                "operator",
                "--leader-elect",
                "--validating-webhooks-enabled=false",
                "--health-probe-bind-address=0",
            ])
            // The sinks are on this machine, which needs these two flags.
            .arg("--allow-sink-cidrs=127.0.0.0/8")
            .arg(format!("--file-sink-root={}", files.display()))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .envs([
                ("POD_NAMESPACE", OPERATOR_NAMESPACE),
                ("POD_NAME", "kollect-0"),
                ("POD_UID", "playground"),
            ])
            .env("KOLLECT_GIT_MIRROR_DIR", scratch.path().join("mirrors"));
        let operator = Server::start(&scratch, "operator", Stop::Terminate, &command)?;
        Ok(Self { _operator: operator, plane })
    }
}
