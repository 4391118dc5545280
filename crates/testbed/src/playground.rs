//! `make playground`: two clusters with the operator as the chart installs it, one in which only the kinds are installed, a
//! PostgreSQL and a NATS server, until it is dropped. The walkthroughs in `docs/start` run in it, and a test runs their
//! commands in it.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
};

use crate::{ControlPlane, Error, Helm, Nats, Postgres, Programs, free_port, programs};

const WORKLOADS: &str = include_str!("../demo/workloads.yaml");
const RELEASE: &str = include_str!("../demo/release.yaml");
/// Running servers, and a directory with the files that sinks write.
#[derive(Debug)]
pub struct Playground {
    east: ControlPlane,
    west: ControlPlane,
    /// Only the kinds are installed.
    team: ControlPlane,
    postgres: Postgres,
    nats: Nats,
    nats_monitor: u16,
    kubectl: PathBuf,
    helm: PathBuf,
    directory: PathBuf,
}

impl Playground {
    /// Starts everything, in the root of the repository. `directory` is emptied first.
    pub fn start(kollect: &Path, directory: &Path) -> Result<Self, Error> {
        programs::build_for_install()?;
        let programs = Programs::find_or_build()?;
        if directory.exists() {
            fs::remove_dir_all(directory).map_err(Error::io(format!("remove {}", directory.display())))?;
        }
        fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
        let directory =
            directory.canonicalize().map_err(Error::io(format!("find {}", directory.display())))?;
        let nats_monitor = free_port()?;
        let team = ControlPlane::start_with_node(kollect, &[], &[])?;
        team.kubectl(&["apply", "-k", "config/crd"])?;
        team.wait(&["crd", "--for=condition=Established", "--all"])?;
        let playground = Self {
            team,
            east: start_cluster(kollect, &directory.join("files"))?,
            west: start_cluster(kollect, &directory.join("files-west"))?,
            postgres: Postgres::start()?,
            nats: Nats::start_with(&format!("http: \"127.0.0.1:{nats_monitor}\""))?,
            nats_monitor,
            kubectl: programs.kubectl,
            helm: programs::helm()?,
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
            ("KUBECONFIG", self.east.kubeconfig().display().to_string()),
            ("KUBECONFIG_WEST", self.west.kubeconfig().display().to_string()),
            ("KUBECONFIG_TEAM", self.team.kubeconfig().display().to_string()),
            ("DATABASE_URL", self.postgres.dsn()),
            ("NATS_URL", self.nats.url()),
            ("NATS_MONITOR", format!("http://127.0.0.1:{}", self.nats_monitor)),
            ("FILES", self.directory.join("files").display().to_string()),
        ]
    }

    /// Directory with `kubectl`, `helm` and `kollect`.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    fn write_environment(&self, kollect: &Path) -> Result<(), Error> {
        let bin = self.programs();
        fs::create_dir_all(&bin).map_err(Error::io(format!("create {}", bin.display())))?;
        let kollect = kollect.canonicalize().map_err(Error::io(format!("find {}", kollect.display())))?;
        for (program, name) in [(&self.kubectl, "kubectl"), (&self.helm, "helm"), (&kollect, "kollect")] {
            std::os::unix::fs::symlink(program, bin.join(name)).map_err(Error::io(format!("link {name}")))?;
        }
        let variables = self.variables().into_iter().map(|(name, value)| format!("export {name}={value}\n"));
        let text = format!("export PATH={}:$PATH\n{}", bin.display(), variables.collect::<String>());
        let file = self.directory.join("env");
        let written = fs::File::create(&file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(Error::io(format!("write {}", file.display())))
    }
}

/// A cluster with the operator, as `helm install` makes it.
fn start_cluster(kollect: &Path, files: &Path) -> Result<ControlPlane, Error> {
    let plane = ControlPlane::start_with_node(kollect, &[], &[])?;
    plane.apply(WORKLOADS)?;
    plane.apply(RELEASE)?;
    fs::create_dir_all(files).map_err(Error::io(format!("create {}", files.display())))?;
    let install =
        ["install", "kollect", "charts/kollect", "-n", "kollect-system", "--create-namespace", "--wait"];
    // The sinks are on this machine, which needs these two values.
    let files = format!("--set=fileSinkRoot={}", files.display());
    Helm::of(&plane)?
        .run(&[&install[..], &["--set-string=allowSinkCidrs={127.0.0.0/8}", &files]].concat())?;
    Ok(plane)
}
