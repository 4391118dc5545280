//! Paths of the Go programs: the control plane, the NATS server, and tools for alerts, charts and images.
//!
//! [`Programs::find_or_build`] and [`nats_server`] are called when a server is started, the tools by the tests that
//! use them, [`all`] by `kollect-testbed build`. Programs live in a cache directory whose layout names their versions:
//! `$KOLLECT_TESTBED_CACHE`, else `$XDG_CACHE_HOME/kollect-testbed`, else
//! `$HOME/.cache/kollect-testbed`. Only the files `go.mod` below `servers` define the
//! versions. A program in the cache is always complete, because builds are renamed into place.

mod build;

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::Error;

/// A Go module of ours that pins what is built: a directory with `go.mod` and `go.sum`.
#[derive(Debug, Clone, Copy)]
struct Pins {
    go_mod: &'static str,
    directory: &'static str,
}

/// The directory exists, because this crate is always built from its repository.
const CONTROL_PLANE_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers"),
};

const NATS_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/nats/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/nats"),
};

const VERSITYGW_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/versitygw/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/versitygw"),
};

const PROMTOOL_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/promtool/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/promtool"),
};

const HELM_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/helm/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/helm"),
};

const CHART_MODULE: Pins = Pins {
    go_mod: include_str!("../servers/chart/go.mod"),
    directory: concat!(env!("CARGO_MANIFEST_DIR"), "/servers/chart"),
};

/// Paths of the programs; all files exist.
#[derive(Debug, Clone)]
pub struct Programs {
    /// The API server.
    pub kube_apiserver: PathBuf,
    /// The controllers.
    pub kube_controller_manager: PathBuf,
    /// The command line client.
    pub kubectl: PathBuf,
    /// The API server's store.
    pub etcd: PathBuf,
}

/// Programs of one Go module: built by one command, kept in one directory.
#[derive(Debug, Clone, Copy)]
struct Bundle {
    name: &'static str,
    pins: Pins,
    module: &'static str,
    /// File name and Go package of each program.
    programs: &'static [(&'static str, &'static str)],
    /// Source of ours, if the program is: another text is another program.
    source: &'static str,
    /// Build tags.
    tags: &'static str,
    /// Flags of the linker that set the version which the program reports; `{version}`, `{major}` and `{minor}` stand for
    /// that of the module.
    version_flags: &'static str,
    /// Duration of a build without any cache, on two cores.
    minutes: u32,
}

const KUBERNETES: Bundle = Bundle {
    name: "kubernetes",
    pins: CONTROL_PLANE_MODULE,
    module: "k8s.io/kubernetes",
    programs: &[
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    source: "",
    tags: "",
    // Without its version kubectl refuses to work.
    version_flags: "-X k8s.io/component-base/version.gitVersion={version} \
                    -X k8s.io/component-base/version.gitMajor={major} \
                    -X k8s.io/component-base/version.gitMinor={minor}",
    minutes: 6,
};

const ETCD: Bundle = Bundle {
    name: "etcd",
    pins: CONTROL_PLANE_MODULE,
    module: "go.etcd.io/etcd/server/v3",
    programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    source: "",
    tags: "",
    version_flags: "",
    minutes: 1,
};

/// Kubernetes' own CEL, for tests of expressions.
const CEL: Bundle = Bundle {
    name: "cel",
    pins: CONTROL_PLANE_MODULE,
    module: "k8s.io/apiserver",
    programs: &[("cel", "./cel")],
    source: include_str!("../servers/cel/main.go"),
    tags: "",
    version_flags: "",
    minutes: 1,
};

const NATS: Bundle = Bundle {
    name: "nats",
    pins: NATS_MODULE,
    module: "github.com/nats-io/nats-server/v2",
    programs: &[("nats-server", "github.com/nats-io/nats-server/v2")],
    source: "",
    tags: "",
    version_flags: "",
    minutes: 1,
};

const VERSITYGW: Bundle = Bundle {
    name: "versitygw",
    pins: VERSITYGW_MODULE,
    module: "github.com/versity/versitygw",
    programs: &[("versitygw", "github.com/versity/versitygw/cmd/versitygw")],
    source: "",
    tags: "",
    version_flags: "",
    minutes: 2,
};

const PROMTOOL: Bundle = Bundle {
    name: "promtool",
    pins: PROMTOOL_MODULE,
    module: "github.com/prometheus/prometheus",
    programs: &[("promtool", "github.com/prometheus/prometheus/cmd/promtool")],
    source: "",
    // Leaves out service discovery, which is most of the code and not needed to test rules.
    tags: "remove_all_sd",
    version_flags: "",
    minutes: 2,
};

const HELM: Bundle = Bundle {
    name: "helm",
    pins: HELM_MODULE,
    module: "helm.sh/helm/v4",
    programs: &[("helm", "helm.sh/helm/v4/cmd/helm")],
    source: "",
    tags: "",
    version_flags: "-X helm.sh/helm/v4/internal/version.version={version}",
    minutes: 4,
};

/// Checks of rendered charts, and the registry for images.
const CHART_TOOLS: Bundle = Bundle {
    name: "chart-tools",
    pins: CHART_MODULE,
    module: "github.com/google/go-containerregistry",
    programs: &[
        ("crane", "github.com/google/go-containerregistry/cmd/crane"),
        ("kube-score", "github.com/zegl/kube-score/cmd/kube-score"),
        ("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
    ],
    source: "",
    tags: "",
    version_flags: "",
    minutes: 2,
};

const BUNDLES: [Bundle; 8] = [KUBERNETES, ETCD, CEL, NATS, VERSITYGW, PROMTOOL, HELM, CHART_TOOLS];

/// Paths of all programs in the cache, those of the control plane first. Missing ones are built.
pub fn all() -> Result<Vec<PathBuf>, Error> {
    let cache = cache()?;
    build::build_missing(&BUNDLES, &cache)?;
    let files = |bundle: Bundle| {
        let directory = bundle.directory(&cache);
        bundle.programs.iter().map(move |(file, _)| directory.join(file))
    };
    Ok(BUNDLES.into_iter().flat_map(files).collect())
}

/// Builds what installs the chart on a control plane, if it is missing: all at once, which is quicker.
pub fn build_for_install() -> Result<(), Error> {
    build::build_missing(&[KUBERNETES, ETCD, HELM], &cache()?)
}

/// The program that evaluates expressions with Kubernetes' own CEL, from the cache; built first if it is missing.
pub(crate) fn cel() -> Result<PathBuf, Error> {
    CEL.program("cel")
}

/// The NATS server from the cache; built first if it is missing.
pub fn nats_server() -> Result<PathBuf, Error> {
    NATS.program("nats-server")
}

/// The S3 server from the cache; built first if it is missing.
pub(crate) fn versitygw() -> Result<PathBuf, Error> {
    VERSITYGW.program("versitygw")
}

/// promtool from the cache; built first if it is missing.
pub fn promtool() -> Result<PathBuf, Error> {
    PROMTOOL.program("promtool")
}

/// helm from the cache; built first if it is missing.
pub fn helm() -> Result<PathBuf, Error> {
    HELM.program("helm")
}

/// crane, kube-score or kubeconform from the cache; built first if it is missing.
pub fn chart_tool(name: &str) -> Result<PathBuf, Error> {
    CHART_TOOLS.program(name)
}

impl Programs {
    /// The programs from the cache; those that are missing are built first, which takes minutes and
    /// is reported on standard error.
    pub fn find_or_build() -> Result<Self, Error> {
        Self::find_or_build_in(&cache()?)
    }

    fn find_or_build_in(cache: &Path) -> Result<Self, Error> {
        build::build_missing(&[KUBERNETES, ETCD], cache)?;
        let kubernetes = KUBERNETES.directory(cache);
        Ok(Self {
            kube_apiserver: kubernetes.join("kube-apiserver"),
            kube_controller_manager: kubernetes.join("kube-controller-manager"),
            kubectl: kubernetes.join("kubectl"),
            etcd: ETCD.directory(cache).join("etcd"),
        })
    }
}

impl Bundle {
    /// The version that `go.mod` pins, such as `v1.36.3`.
    fn version(self) -> &'static str {
        self.pins.value(self.module).expect("go.mod requires every bundle's module")
    }

    fn directory(self, cache: &Path) -> PathBuf {
        let name = format!("{}-{}", self.name, self.version());
        if self.source.is_empty() {
            return cache.join(name);
        }
        let mut hasher = DefaultHasher::new();
        self.source.hash(&mut hasher);
        cache.join(format!("{name}-{:x}", hasher.finish()))
    }

    /// A program from the cache; the bundle is built first if it is missing.
    fn program(self, name: &str) -> Result<PathBuf, Error> {
        let cache = cache()?;
        build::build_missing(&[self], &cache)?;
        Ok(self.directory(&cache).join(name))
    }

    fn is_complete(self, cache: &Path) -> bool {
        let directory = self.directory(cache);
        self.programs.iter().all(|(file, _)| is_program(&directory.join(file)))
    }
}

impl Pins {
    /// The word after `key` in `go.mod`.
    fn value(self, key: &str) -> Option<&'static str> {
        self.go_mod.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word == "require");
            if words.next() == Some(key) { words.next() } else { None }
        })
    }
}

/// Directory of the programs.
pub(crate) fn cache() -> Result<PathBuf, Error> {
    cache_directory(|name| std::env::var_os(name)).ok_or_else(|| Error::Io {
        action: "choose a cache directory".to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "HOME is not set"),
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.len() > 0 && file.permissions().mode() & 0o111 != 0)
}

fn cache_directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    path("KOLLECT_TESTBED_CACHE")
        .or_else(|| Some(path("XDG_CACHE_HOME")?.join("kollect-testbed")))
        .or_else(|| Some(path("HOME")?.join(".cache/kollect-testbed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        for bundle in BUNDLES {
            assert!(bundle.version().starts_with('v'), "{bundle:?}");
            assert!(bundle.pins.value("go").is_some());
        }
    }

    #[test]
    fn the_cache_directory_can_be_chosen() {
        let with = |set: &'static [(&str, &str)]| {
            cache_directory(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        let all = &[("KOLLECT_TESTBED_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(with(all), Some("/a".into()));
        assert_eq!(with(&all[1..]), Some("/b/kollect-testbed".into()));
        let empty = &[("XDG_CACHE_HOME", ""), ("HOME", "/c")];
        assert_eq!(with(empty), Some("/c/.cache/kollect-testbed".into()));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn an_empty_or_plain_file_is_no_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("etcd");
        assert!(!is_program(&path));
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!is_program(&path));
        fs::write(&path, "x").unwrap();
        assert!(is_program(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(!is_program(&path));
    }
}
