//! `ppo-worker`: everything that runs in the pods of a PpoJob, and the same on a laptop.

use std::process::ExitCode;

use clap::Parser;
use ppo_worker::cli::Cli;

fn main() -> ExitCode {
    ppo_worker::contained::abort_on_panic();
    ppo_worker::cli::run(Cli::parse())
}
