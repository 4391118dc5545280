//! `kollect-testbed`: the testbed from a shell, for `make` and for developers.
//!
//! `build` fills the cache of Go programs, so that the first test run is as quick as the second.
//! `up` starts a control plane for manual use. `features`, `messages` and `sbom` are for targets of the Makefile. Ctrl-C needs no
//! handler: the guards clean up when this process ends in any way.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use kollect_testbed::image::{self, ImageLabels, ImageProgram};
use kollect_testbed::{ControlPlane, Error, Playground, demo, features, messages, programs, sbom};

const USAGE: &str = "\
usage: kollect-testbed COMMAND

  build     find or build the control plane, the NATS server and the tools of tests
  up        start a control plane and keep it until Ctrl-C or the end of standard input
  demo      show what the given kollect program does, on a control plane of its own
  features  list the features of the workspace that must compile alone, with their packages
  playground KOLLECT
            two clusters with the operator, PostgreSQL and NATS, until Ctrl-C or the end of standard input
  messages check|write RECORDED LISTING
            compare the messages that tests have recorded with the listing, or write it
  program NAME
            print the path of crane, kube-score, kubeconform or helm, which is built if it is missing
  sbom      print the bill of materials of the program, as CycloneDX JSON
  image DIRECTORY VERSION REVISION CREATED ARCHITECTURE=PROGRAM...
            write an OCI image layout of static programs
  image-settings
            print user, program and environment of the image whose configuration is on standard input
";
/// Directory of the playground, below the root of the repository.
const PLAYGROUND: &str = "target/playground";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["build"] => build(),
        ["up"] => up(),
        ["features"] => print_features(),
        ["demo", kollect] => demo::run(Path::new(kollect), &mut io::stdout()),
        ["playground", kollect] => play(Path::new(kollect)),
        ["messages", "check", recorded, listing] => check_messages(Path::new(recorded), Path::new(listing)),
        ["messages", "write", recorded, listing] => {
            messages::write_listing(Path::new(recorded), Path::new(listing))
        }
        ["image", directory, version, revision, created, programs @ ..] => {
            let [version, revision, created] = [version, revision, created].map(|text| (*text).to_owned());
            write_image(Path::new(directory), &ImageLabels { version, revision, created }, programs)
        }
        ["image-settings"] => io::read_to_string(io::stdin())
            .map_err(Error::io("read standard input"))
            .and_then(|config| print(&image::settings(&config)?)),
        ["program", "helm"] => programs::helm().and_then(|path| print(&format!("{}\n", path.display()))),
        ["program", name] => {
            programs::chart_tool(name).and_then(|path| print(&format!("{}\n", path.display())))
        }
        ["sbom"] => sbom::of_program().and_then(|text| print(&text)),
        ["help" | "-h" | "--help"] => print(USAGE),
        _ => {
            writeln!(io::stderr(), "{}", USAGE.trim_end()).ok();
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(io::stderr(), "kollect-testbed: {}", error.with_causes()).ok();
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Error> {
    programs::all()?.iter().try_for_each(|program| print(&format!("{}\n", program.display())))
}

/// Prints one line per package and feature, for a shell loop.
fn print_features() -> Result<(), Error> {
    let features = features::of_workspace()?;
    features.iter().try_for_each(|(package, feature)| print(&format!("{package} {feature}\n")))
}

fn up() -> Result<(), Error> {
    let control_plane = ControlPlane::start()?;
    print(&format!("export KUBECONFIG={}\n", control_plane.kubeconfig().display()))?;
    let standard_input = io::copy(&mut io::stdin(), &mut io::sink());
    standard_input.map(drop).map_err(Error::io("read standard input"))
}

fn play(kollect: &Path) -> Result<(), Error> {
    print("Starting three control planes, PostgreSQL, NATS and two operators\n")?;
    let playground = Playground::start(kollect, Path::new(PLAYGROUND))?;
    print(&format!(
        "\nThe playground is ready. In another terminal, in this directory:\n\n  . {PLAYGROUND}/env\n  kubectl get deployments -A\n\n\
         Ctrl-C ends it and removes everything.\n"
    ))?;
    let standard_input = io::copy(&mut io::stdin(), &mut io::sink());
    print("The standard input was closed: the playground ends\n")?;
    fs::remove_file(playground.directory().join("env")).map_err(Error::io("remove the environment"))?;
    drop(playground);
    standard_input.map(drop).map_err(Error::io("read standard input"))
}

fn check_messages(recorded: &Path, listing: &Path) -> Result<(), Error> {
    let unlisted = messages::unlisted(recorded, listing)?;
    if unlisted.is_empty() {
        return Ok(());
    }
    let (count, lines) = (unlisted.len(), unlisted.join("\n  "));
    Err(Error::UnlistedMessages { count, lines, listing: listing.display().to_string() })
}

fn write_image(directory: &Path, labels: &ImageLabels, programs: &[&str]) -> Result<(), Error> {
    let programs =
        programs.iter().filter_map(|program| program.split_once('=')).map(|(architecture, file)| {
            ImageProgram { architecture: architecture.to_owned(), file: file.into() }
        });
    let (digest, sizes) = image::write(directory, &programs.collect::<Vec<_>>(), labels)?;
    for (architecture, bytes) in sizes {
        if bytes > image::MAX_BYTES {
            return Err(Error::ImageTooLarge { architecture, bytes });
        }
        print(&format!(
            "linux/{architecture}: {:.1} MB compressed\n",
            f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1e6
        ))?;
    }
    print(&format!("{digest}\n"))
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::io("write to standard output"))
}
