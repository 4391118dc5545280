//! `make demo`: a real control plane with a small shop on it, the operator beside it, a database that
//! goes away and comes back, and a history in Git.
//!
//! It shows the commands that it runs, so that a reader can repeat them on a cluster of their own.

use std::{
    io::Write,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::{ControlPlane, Error, Postgres, Programs, Scratch, Server, Stop};

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
    Programs::find_or_build()?;
    let started = Instant::now();
    let plane = ControlPlane::start()?;
    let postgres = Postgres::start()?;
    screen.show(&format!("{} is ready after {:.1} s", plane.url(), started.elapsed().as_secs_f32()))?;
    let scratch = Scratch::new()?;
    let mut demo = Demo { kollect, plane, postgres, scratch, screen };

    demo.screen.heading("Installing the eleven kinds, and a small shop of eight Deployments to look at")?;
    demo.kubectl_quietly(&["apply", "-k", "config/crd"])?;
    demo.plane.wait(&["crd", "--for=condition=Established", "--all"])?;
    demo.plane.apply(WORKLOADS)?;

    demo.screen.heading("What is wanted: a profile, a target, two sinks, an inventory for each")?;
    demo.kubectl(&["apply", "-f", KOLLECT_MANIFESTS])?;
    let dsn = demo.postgres.dsn();
    let secret = ["create", "secret", "generic", "portal", "-n", "inventory"];
    demo.kubectl(&[&secret[..], &[&format!("--from-literal=dsn={dsn}")]].concat())?;

    demo.screen.heading("The operator starts, and soon everything is in the database")?;
    let operator = demo.start_operator()?;
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
    drop(operator);

    let Demo { mut screen, .. } = demo;
    screen.heading("Now your own cluster. This only reads, and installs nothing")?;
    screen.show(&format!("$ {} collect -f docs/examples/deployments", kollect.display()))?;
    screen.heading("And this is the operator: see docs/use/install.md")?;
    screen.show("$ kubectl apply -k config/default")
}

/// The servers, the program and the output of a demo.
struct Demo<'a> {
    kollect: &'a Path,
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

    /// Starts the operator with the kubeconfig of the administrator.
    fn start_operator(&mut self) -> Result<Server, Error> {
        // Loopback addresses and local files need these flags; in a cluster sinks are on other machines.
        let root = format!("--file-sink-root={}", self.scratch.path().display());
        let args = ["operator", "--allow-sink-cidrs=127.0.0.0/8", &root];
        // The demo uses neither probes nor webhooks.
        let disabled = ["--health-probe-bind-address=0", "--validating-webhooks-enabled=false"];
        self.screen.show(&format!("$ kollect {} {} &", args.join(" "), disabled.join(" ")))?;
        let program = self.kollect.canonicalize();
        let program = program.map_err(Error::io(format!("find {}", self.kollect.display())))?;
        let mut command = Command::new(program);
        command.args(args).args(disabled).env("KUBECONFIG", self.plane.kubeconfig());
        command.env("KOLLECT_GIT_MIRROR_DIR", self.scratch.path().join("mirrors"));
        Server::start(&self.scratch, "operator", Stop::Terminate, &command)
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
