//! The `kollect` program: process setup and subcommands.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests start tasks and dial servers as they like")
)]

mod cli;
mod cluster;
mod documents;
mod error_chain;
mod files;
mod object_schemas;
mod operator;
mod reason;
mod resolve;
mod schema;
mod signals;
mod version;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Turns selected live Kubernetes state into a durable, queryable inventory.
#[derive(Parser)]
#[command(version = version::text(), max_term_width = 100)]
struct ProgramArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Read objects once, with manifests from files: nothing is installed anywhere.
    Collect(Box<cli::collect::CollectArgs>),
    /// Follow objects and print every row that changes: nothing is installed anywhere.
    Watch(Box<cli::watch::WatchArgs>),
    /// Ask the operator to reconcile an inventory, a target or a sink now, and wait for the result.
    Reconcile(cli::reconcile::ReconcileArgs),
    /// Keep the inventories of a cluster up to date: what runs in the cluster.
    Operator(Box<operator::OperatorArgs>),
    /// Print the custom resource definitions of the eleven kinds.
    Crds(cli::CrdsArgs),
    /// Print a script that completes commands and flags in a shell.
    Completion(cli::completion::CompletionArgs),
    /// Print the version, the commit and the date of the build.
    Version,
}

fn main() -> ExitCode {
    let args = ProgramArgs::parse();
    // Several libraries link rustls with different providers; the process needs one answer.
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("error: a TLS provider is already installed");
        return ExitCode::FAILURE;
    }
    match args.command {
        Command::Collect(args) => cli::collect::run(*args),
        Command::Watch(args) => cli::watch::run(&args),
        Command::Reconcile(args) => cli::reconcile::run(&args),
        Command::Operator(args) => operator::run(*args),
        Command::Crds(args) => cli::crds(&args),
        Command::Completion(args) => cli::completion::run(&args, ProgramArgs::command()),
        Command::Version => {
            cli::print_bytes(format!("{}\n", version::text()).as_bytes(), "print the version")
        }
    }
}
