//! `kollect completion`: scripts for shells.

use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate};

/// Arguments of `kollect completion`.
#[derive(clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell. To load the script now: source <(kollect completion bash)
    #[arg(value_enum)]
    shell: CompletedShell,
}

#[derive(Clone, Copy, ValueEnum)]
enum CompletedShell {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

/// `kollect completion`
pub(crate) fn run(args: &CompletionArgs, mut program: Command) -> ExitCode {
    let shell = match args.shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
        CompletedShell::Powershell => Shell::PowerShell,
    };
    let mut script = Vec::new();
    generate(shell, &mut program, "kollect", &mut script);
    super::print_bytes(&script, "print the script")
}
