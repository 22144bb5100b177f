//! Drives the rollout engine for `make bench` (worker/bench/workload.py has the workload and the protocol).
//!
//! By hand: `ppo-bench rollout --model DIR --prompts FILE --batch 8 --runs 5` prints one JSON line,
//! `ppo-bench http --model DIR --prompts FILE` one for each batch, with the engine's rate through HTTP over that without.

mod http;
mod rollout;
mod workload;

use std::process::ExitCode;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(name = "ppo-bench", version, max_term_width = 110)]
enum Command {
    /// Generate from random weights as fast as the engine can, end of sequence ignored.
    Rollout(rollout::RolloutArgs),
    /// The same through the rollout server and the trainer's client, in turns with the engine alone: what HTTP costs.
    Http(http::HttpArgs),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Rollout(args) => rollout::rollout(&args),
        Command::Http(args) => http::http(&args),
    };
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    eprintln!("ppo-bench: {error:#}");
    ExitCode::FAILURE
}
