//! The command line.

use clap::{Args, Parser, Subcommand};
use ppo_crds::report::exit_code;

use crate::convert::ConvertArgs;
use crate::math::MathArgs;
use crate::native::{allocator, descriptors, instructions, threads};
use crate::outcome::{self, Ended};
use crate::output::tell;
use crate::plan::PlanArgs;
use crate::reference::pod::ReferenceArgs;
use crate::report::ReportArgs;
use crate::reward::serve::RewardArgs;
use crate::rollout::RolloutArgs;
use crate::run::pod::{self, ActorArgs};
use crate::run::{self, RunArgs};
use crate::supervised::{self, SupervisedArgs};
use crate::telemetry::OutputMode;
use crate::telemetry::log::{self, LogFormat};

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
    /// Threads that tensor operations use. Default: the cores that this process may use, no more than its container's CPU limit.
    #[arg(long, global = true, env = "PPO_THREADS", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// Form of the log on standard error.
    #[arg(long, global = true, env = "PPO_LOG_FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
    /// No progress: errors and the result only.
    #[arg(long, global = true, conflicts_with = "json")]
    quiet: bool,
    /// Machine-readable standard output: one JSON object per step (ten a run of `sft` and `rm`), or the plan, or the converted manifest
    /// with its notes.
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
    /// The actor of a PpoJob: what its pod runs, told of its place by the operator.
    Actor(ActorArgs),
    /// The reference of a PpoJob: what its pod runs, told of its place by the operator.
    Reference(ReferenceArgs),
    /// Show what a PpoJob would take (pods, GPUs, batch arithmetic, memory) and every default; changes nothing.
    Plan(PlanArgs),
    /// Turn a command line of OpenRLHF, verl or TRL into a PpoJob manifest.
    Convert(ConvertArgs),
    /// Supervised warm start: train a model on prompts and responses.
    Sft(SupervisedArgs),
    /// Train a reward model on pairs of a better and a worse response.
    Rm(SupervisedArgs),
    /// Serve a model over HTTP (vLLM's dialect of the OpenAI API): the rollout role of a PpoJob, or a model of your own.
    Rollout(RolloutArgs),
    /// Serve the reward role of a PpoJob over HTTP (OpenRLHF's remote reward protocol).
    Reward(RewardArgs),
    /// Turn a run's folder into one HTML file with curves and samples.
    Report(ReportArgs),
    /// The PPO maths on given numbers (JSON in, JSON out).
    #[command(long_about = crate::math::HELP)]
    Math(MathArgs),
}

/// Exit status of what failed for no reason that has one of its own.
const FAILED: u8 = 1;

/// Runs the command; the exit status is 0, 1 (failed), 2 (bad input) or 3 (diverged), and 75 for a pod that was asked to stop.
pub fn run(cli: Cli) -> u8 {
    // What multiplies through libtorch for long. An engine's threads have a way to wait of their own, and it is to be ready soon.
    if let Command::Run(_)
    | Command::Actor(_)
    | Command::Reference(_)
    | Command::Reward(_)
    | Command::Sft(_)
    | Command::Rm(_) = cli.command
    {
        threads::spin_briefly();
    }
    if let Command::Run(_) | Command::Actor(_) | Command::Sft(_) | Command::Rm(_) | Command::Rollout(_) = cli.command {
        allocator::keep_memory();
    }
    let output = cli.machine.output();
    if let Err(error) = log::init(cli.machine.log_format, output).and_then(|()| instructions::check()) {
        tell(&format!("ppo-worker: {error:#}"));
        return u8::try_from(outcome::code(&error)).unwrap_or(FAILED);
    }
    descriptors::raise();
    threads::set_count(cli.machine.threads);
    let done = |outcome: anyhow::Result<()>| outcome.map(|()| 0);
    let outcome = match cli.command {
        // Interrupted or not, it did what the person at the terminal asked for.
        Command::Run(args) => done(run::main(args, output).map(drop)),
        Command::Actor(args) => pod::main(&args, output).map(|ended| match ended {
            Ended::Completed => exit_code::COMPLETED,
            Ended::Interrupted => exit_code::INTERRUPTED,
        }),
        Command::Reference(args) => done(crate::reference::pod::main(&args)),
        Command::Plan(args) => done(crate::plan::main(args, output)),
        Command::Convert(args) => done(crate::convert::main(&args, output)),
        Command::Sft(args) => done(supervised::sft(&args, output)),
        Command::Rm(args) => done(supervised::rm(&args, output)),
        Command::Rollout(args) => done(crate::rollout::main(args, crate::vllm::main)),
        Command::Reward(args) => done(crate::reward::serve::main(args)),
        Command::Report(args) => done(crate::report::main(&args)),
        Command::Math(args) => done(crate::math::main(&args)),
    };
    let code = outcome.unwrap_or_else(|error| {
        tell(&format!("ppo-worker: {}", outcome::words(&error)));
        outcome::code(&error)
    });
    u8::try_from(code).unwrap_or(FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_options_may_follow_the_role_as_a_pod_template_gives_them() {
        let cli = Cli::try_parse_from(["ppo-worker", "actor", "--threads", "8"]).unwrap();
        assert_eq!(cli.machine.threads, Some(8));
        assert!(matches!(cli.command, Command::Actor(_)));
    }
}
