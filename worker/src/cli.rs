//! The command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::local::{self, RunArgs};
use crate::math::MathArgs;
use crate::native::allocator;
use crate::plan::PlanArgs;
use crate::report::ReportArgs;
use crate::reward::serve::RewardArgs;
use crate::sft::SftArgs;
use crate::telemetry::OutputMode;
use crate::telemetry::log::{self, LogFormat};
use crate::trainer::Diverged;

/// PPO post-training of language models: one manifest, on this machine or on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "ppo-worker", version, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    machine: MachineArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
struct MachineArgs {
    /// Threads that tensor operations use. Default: the cores this process may use.
    #[arg(long, global = true, env = "PPO_THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Form of the log on standard error.
    #[arg(long, global = true, env = "PPO_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    /// No progress: errors and the result only.
    #[arg(long, global = true, conflicts_with = "json")]
    quiet: bool,
    /// Machine-readable standard output: one JSON object per step, or the plan as JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl MachineArgs {
    fn output(&self) -> OutputMode {
        match (self.quiet, self.json) {
            (true, _) => OutputMode::Quiet,
            (_, true) => OutputMode::Json,
            _ => OutputMode::Auto,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a PpoJob here: all roles in this process.
    Run(RunArgs),
    /// Show what a PpoJob would take (pods, GPUs, batch arithmetic, memory) and every default; changes nothing.
    Plan(PlanArgs),
    /// Supervised warm start: train a model on prompts and responses.
    Sft(SftArgs),
    /// Serve the reward role of a PpoJob over HTTP (OpenRLHF's remote reward protocol).
    Reward(RewardArgs),
    /// Turn a run's folder into one HTML file with curves and samples.
    Report(ReportArgs),
    /// The PPO maths on given numbers (JSON in, JSON out).
    Math(MathArgs),
}

/// A manifest and where it came from.
#[derive(Clone, Debug, Args)]
pub struct ManifestArgs {
    /// The PpoJob manifest (YAML); `-` reads standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: PathBuf,
}

/// Exit status of a run that diverged: it would diverge again, so nobody should restart it.
const EXIT_DIVERGED: u8 = 3;
/// Exit status of bad input: a restart does not help either.
const EXIT_INVALID: u8 = 2;

/// Runs the command; the exit status is 0, 1 (failed), 2 (bad input) or 3 (diverged).
pub fn run(cli: Cli) -> ExitCode {
    if matches!(cli.command, Command::Run(_) | Command::Sft(_)) {
        allocator::keep_memory();
    }
    let output = cli.machine.output();
    if let Err(error) = log::init(cli.machine.log_format, output) {
        eprintln!("ppo-worker: {error:#}");
        return ExitCode::FAILURE;
    }
    if let Some(threads) = cli.machine.threads {
        tch::set_num_threads(i32::from(threads));
    }
    let outcome = match cli.command {
        Command::Run(args) => local::main(args, output),
        Command::Plan(args) => crate::plan::main(args, output),
        Command::Sft(args) => crate::sft::main(args, output),
        Command::Reward(args) => crate::reward::serve::main(args),
        Command::Report(args) => crate::report::main(&args),
        Command::Math(args) => crate::math::main(&args),
    };
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    eprintln!("ppo-worker: {error:#}");
    if error.is::<Diverged>() {
        ExitCode::from(EXIT_DIVERGED)
    } else if error.is::<crate::manifest::Invalid>() {
        ExitCode::from(EXIT_INVALID)
    } else {
        ExitCode::FAILURE
    }
}
