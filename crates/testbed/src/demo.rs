//! `make demo`: a real control plane with a small shop on it, the operator beside it, a database that
//! goes away and comes back, and a history in Git.
//!
//! It shows the commands that it runs, so that a reader can repeat them on a cluster of their own.

use std::{
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use crate::{ControlPlane, Error, Helm, Postgres, Scratch, programs};

const WORKLOADS: &str = include_str!("../demo/workloads.yaml");
const KOLLECT_MANIFESTS: &str = "crates/testbed/demo/kollect.yaml";
const SELECT_ROWS: &str = "SELECT namespace, name, payload #>> '{attributes,image}' AS image, \
                    payload #>> '{attributes,replicas}' AS replicas FROM inventory ORDER BY 1, 2";
const SELECT_CHANGED_ROWS: &str = "SELECT namespace, name, payload #>> '{attributes,image}' AS image, \
                       payload #>> '{attributes,replicas}' AS replicas FROM inventory \
                       WHERE changed_at > first_seen_at ORDER BY 1, 2";
const TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the demo with a built program, in the root of the repository. It leaves nothing behind.
pub fn run(kollect: &Path, out: &mut dyn Write) -> Result<(), Error> {
    let mut screen = Screen(out);
    screen.heading("Starting a throw-away Kubernetes control plane, and a PostgreSQL for the inventory")?;
    programs::build_for_install()?;
    let started = Instant::now();
    let plane = ControlPlane::start_with_node(kollect, &[], &[])?;
    let postgres = Postgres::start()?;
    screen.show(&format!("{} is ready after {:.1} s", plane.url(), started.elapsed().as_secs_f32()))?;
    let scratch = Scratch::new()?;
    let mut demo = Demo { plane, postgres, scratch, screen };

    demo.screen.heading("A small shop of eight Deployments to look at, and the operator from its chart")?;
    demo.plane.apply(WORKLOADS)?;
    demo.install()?;

    demo.screen.heading("What is wanted: a profile, a target, two sinks, an inventory for each")?;
    demo.kubectl(&["apply", "-f", KOLLECT_MANIFESTS])?;
    let dsn = demo.postgres.dsn();
    let secret = ["create", "secret", "generic", "portal", "-n", "inventory"];
    demo.kubectl(&[&secret[..], &[&format!("--from-literal=dsn={dsn}")]].concat())?;

    demo.screen.heading("Soon everything is in the database")?;
    demo.wait_for_condition("Ready=true")?;
    demo.kubectl(&["get", "kollect", "-A"])?;
    demo.show_rows(SELECT_ROWS)?;

    demo.screen.heading("A new version of the cart is deployed: one row is written, at once")?;
    let image = "main=registry.example.com/shop/cart:2.8.0";
    demo.kubectl(&["set", "image", "deployment/cart", "-n", "shop", image])?;
    demo.wait_for_changed_rows(1)?;
    demo.show_rows(SELECT_CHANGED_ROWS)?;

    demo.screen.heading("The database goes away, and meanwhile the search is scaled")?;
    demo.postgres.crash();
    demo.kubectl(&["scale", "deployment/search", "-n", "shop", "--replicas=5"])?;
    demo.wait_for_condition("Degraded=true")?;
    let message = "-o=jsonpath={.status.sinkExports[0].lastError}{\"\\n\"}";
    demo.kubectl(&["get", "kinv", "-n", "inventory"])?;
    demo.kubectl(&["get", "kinv/deployments", "-n", "inventory", message])?;

    demo.screen.heading("It comes back: nothing was lost, and nothing is written twice")?;
    demo.postgres.resume()?;
    demo.wait_for_condition("Ready=true")?;
    demo.wait_for_changed_rows(2)?;
    demo.kubectl(&["get", "kinv", "-n", "inventory"])?;
    demo.show_rows(SELECT_CHANGED_ROWS)?;

    demo.screen.heading("An auditor reads the same in Git: one commit per change")?;
    demo.show_git_history()?;

    let Demo { mut screen, .. } = demo;
    screen.heading("Now your own cluster. This only reads, and installs nothing")?;
    screen.show(&format!("$ {} collect -f docs/examples/deployments", kollect.display()))?;
    screen.heading(
        "And this is the operator, for good, once your registry has the image: see docs/use/install.md",
    )?;
    screen.show(
        "$ make image\n$ crane push --index target/image REGISTRY/kollect:v0.1.0\n\
         $ helm install kollect charts/kollect -n kollect-system --create-namespace --wait --set image.repository=REGISTRY/kollect",
    )
}

/// The servers and the output of a demo.
struct Demo<'a> {
    plane: ControlPlane,
    postgres: Postgres,
    scratch: Scratch,
    screen: Screen<'a>,
}

impl Demo<'_> {
    /// Runs kubectl, and shows the command and its output.
    fn kubectl(&mut self, args: &[&str]) -> Result<(), Error> {
        let text = self.kubectl_quietly(args)?;
        self.screen.show(&text)
    }

    fn kubectl_quietly(&mut self, args: &[&str]) -> Result<String, Error> {
        self.screen.show(&format!("$ kubectl {}", args.join(" ")))?;
        self.plane.kubectl(args)
    }

    /// Shows a query and its rows.
    fn show_rows(&mut self, sql: &str) -> Result<(), Error> {
        self.screen.show(&format!("$ psql -c \"{sql}\""))?;
        let rows = self.postgres.table(sql)?;
        self.screen.show(rows.trim_end())
    }

    /// Waits for the commit that changes the Deployment `search`, and shows it.
    fn show_git_history(&mut self) -> Result<(), Error> {
        let source = self.scratch.path().join("inventory/history.git");
        let clone = self.scratch.path().join("audit");
        let deadline = Instant::now() + TIMEOUT;
        let git = crate::git::run_in;
        while !git(&source, &["log", "-1", "--format=%b"])?.contains("Deployment/search") {
            if Instant::now() > deadline {
                let (name, seconds) = ("the commit".into(), TIMEOUT.as_secs());
                return Err(Error::NotReady { name, seconds, log: git(&source, &["log"])? });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.screen.show(
            "$ git clone --quiet history.git audit && cd audit && git log --oneline && git log -p -1",
        )?;
        let paths = [source.display().to_string(), clone.display().to_string()];
        git(self.scratch.path(), &["clone", "--quiet", &paths[0], &paths[1]])?;
        let log = git(&clone, &["log", "--oneline"])?;
        self.screen.show(&log)?;
        let patch = git(&clone, &["log", "-p", "-1"])?;
        self.screen.show(&patch)
    }

    /// Installs the chart. There are no nodes here: the Pod of the operator runs as a process of this machine.
    fn install(&mut self) -> Result<(), Error> {
        // Loopback addresses and local files need these values; in a cluster sinks are on other machines.
        let root = format!("--set=fileSinkRoot={}", self.scratch.path().display());
        let command =
            ["install", "kollect", "charts/kollect", "-n", "kollect-system", "--create-namespace", "--wait"];
        let args = [&command[..], &["--set-string=allowSinkCidrs={127.0.0.0/8}", &root]].concat();
        self.screen.show(&format!("$ helm {}", args.join(" ")))?;
        Helm::of(&self.plane)?.run(&args)?;
        self.kubectl(&["get", "pods", "-n", "kollect-system"])?;
        self.screen.show("(A demo has no nodes: the Pod of the operator runs as a process of this machine.)")
    }

    /// Waits for a condition of the inventory.
    fn wait_for_condition(&mut self, condition: &str) -> Result<(), Error> {
        let wait = ["wait", "-n", "inventory", "kinv/deployments", "--timeout=60s"];
        let condition = format!("--for=condition={condition}");
        self.kubectl_quietly(&[&wait[..], &[&condition]].concat()).map(drop)
    }

    /// Waits until so many rows have changed since they were first seen.
    fn wait_for_changed_rows(&mut self, rows: usize) -> Result<(), Error> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let found = self.postgres.psql(SELECT_CHANGED_ROWS)?.lines().count();
            if found == rows {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (name, seconds) = ("the changed row".into(), TIMEOUT.as_secs());
                return Err(Error::NotReady { name, seconds, log: format!("{found} rows have changed") });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Output of the demo.
struct Screen<'a>(&'a mut dyn Write);

impl Screen<'_> {
    fn heading(&mut self, line: &str) -> Result<(), Error> {
        self.print(&format!("\n== {line}\n"))
    }

    fn show(&mut self, text: &str) -> Result<(), Error> {
        text.lines().try_for_each(|line| self.print(&format!("   {}\n", line.trim_end())))
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).map_err(Error::io("print"))
    }
}
