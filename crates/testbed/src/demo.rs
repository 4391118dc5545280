//! `make demo`: a real control plane, a small shop on it, and what kollect makes of it.
//!
//! It shows the commands that it runs, so that a reader can repeat them on a cluster of their own.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use crate::{ControlPlane, Error, Programs};

const WORKLOADS: &str = include_str!("../demo/workloads.yaml");
const MANIFESTS: &str = "docs/examples/deployments";
const QUERY: &str = "SELECT namespace, name, payload ->> '$.attributes.image' AS image, changed_at FROM inventory \
     WHERE changed_at > first_seen_at";

/// Runs the demo with a built program, in the root of the repository; the database stays.
pub fn run(kollect: &Path, database: &Path, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(dir) = database.parent() {
        fs::create_dir_all(dir).map_err(Error::io(format!("create {}", dir.display())))?;
    }
    if database.exists() {
        fs::remove_file(database).map_err(Error::io("remove the database of an earlier demo"))?;
    }
    let mut screen = Screen(out);
    screen.say(
        "Starting a throw-away Kubernetes control plane: etcd, kube-apiserver, kube-controller-manager",
    )?;
    Programs::find_or_build()?;
    let started = Instant::now();
    let plane = ControlPlane::start()?;
    let ready = format!("{} is ready after {:.1} s", plane.url(), started.elapsed().as_secs_f32());
    screen.show(&ready)?;

    screen.say("Installing the eleven kinds, and a small shop of eight Deployments to look at")?;
    plane.apply(&output(Command::new(kollect).arg("crds"))?)?;
    plane.apply(WORKLOADS)?;

    let run = |title: &str, screen: &mut Screen<'_>, args: &[&str]| -> Result<(), Error> {
        screen.say(title)?;
        screen.show(&format!("$ kollect {}", args.join(" ")))?;
        screen.show(&output(Command::new(kollect).args(args).env("KUBECONFIG", plane.kubeconfig()))?)
    };
    let file = database.display();
    let sink = format!("sqlite:{file}");
    run(
        "What runs where? One table, straight from the live objects",
        &mut screen,
        &["collect", "-f", MANIFESTS],
    )?;
    let refill = ["collect", "-f", MANIFESTS, "--out", &sink];
    run("The same rows in a database file", &mut screen, &refill)?;

    screen.say("Somebody deploys a new version of the cart")?;
    let image =
        ["set", "image", "deployment/cart", "-n", "shop", "main=registry.example.com/shop/cart:2.8.0"];
    screen.show(&format!("$ kubectl {}", image.join(" ")))?;
    screen.show(&plane.kubectl(&image)?)?;
    run("The next run writes the one row that changed", &mut screen, &refill)?;
    drop(plane);

    screen.say("Ask the file which rows have changed since they were first seen")?;
    screen.show(&format!("$ sqlite3 -box {file} \"{QUERY}\""))?;
    let rows = output(Command::new("sqlite3").arg("-box").arg(database).arg(QUERY));
    screen.show(&rows.unwrap_or_else(|_| "(install sqlite3 to run it)".into()))?;

    screen.say("Now your own cluster: it is only read, and nothing is installed on it")?;
    screen.show(&format!("$ {} collect -f {MANIFESTS}", kollect.display()))?;
    screen.say(&format!("The control plane is gone, the file {file} stays"))
}

/// What the reader sees.
struct Screen<'a>(&'a mut dyn Write);

impl Screen<'_> {
    fn say(&mut self, line: &str) -> Result<(), Error> {
        self.print(&format!("\n== {line}\n"))
    }

    fn show(&mut self, text: &str) -> Result<(), Error> {
        text.lines().try_for_each(|line| self.print(&format!("   {line}\n")))
    }

    fn print(&mut self, text: &str) -> Result<(), Error> {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).map_err(Error::io("print"))
    }
}

/// The standard output of a program; what it says on standard error is for the reader.
fn output(command: &mut Command) -> Result<String, Error> {
    let name = command.get_program().to_string_lossy().into_owned();
    let action = format!("run {name}");
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(Error::io(action))?;
    if !output.status.success() {
        return Err(Error::io(format!("run {name}"))(std::io::Error::other(output.status.to_string())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
