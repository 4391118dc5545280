//! The subcommands that people run by hand.

pub(crate) mod collect;
mod common_args;
pub(crate) mod completion;
mod deliver;
mod manifests;
mod notes;
mod print;
mod progress;
pub(crate) mod reconcile;
pub(crate) mod watch;

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use kollect_model::crd;

/// Arguments of `kollect crds`.
#[derive(clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write one file per kind into this directory instead of printing them.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// `kollect crds`
pub(crate) fn crds(args: &CrdsArgs) -> ExitCode {
    match &args.dir {
        Some(dir) => exit_code(write_crds(dir)),
        None => {
            let text: String = crd::all().iter().map(crd::yaml).collect();
            print_bytes(text.as_bytes(), "print the definitions")
        }
    }
}

/// Prints to standard output. `attempt` names it in an error.
pub(crate) fn print_bytes(bytes: &[u8], attempt: &'static str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    let result = stdout.write_all(bytes).and_then(|()| stdout.flush());
    exit_code(print::printed(result, attempt))
}

fn exit_code(done: anyhow::Result<()>) -> ExitCode {
    done.map_or_else(|error| common_args::fail(&error), |()| ExitCode::SUCCESS)
}

fn write_crds(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    for crd in crd::all() {
        let file = dir.join(crd::file_name(&crd));
        fs::write(&file, crd::yaml(&crd)).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}
