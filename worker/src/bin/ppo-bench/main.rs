//! Drives the rollout engine for `make bench` (worker/bench/workload.py has the workload and the protocol).
//!
//! By hand: `ppo-bench rollout --model DIR --prompts FILE --batch 8 --runs 5` prints one JSON line,
//! `ppo-bench http --model DIR --prompts FILE` one for each batch, with the engine's rate through HTTP over that without,
//! `ppo-bench weights --model DIR` what new weights take through the server's door.

mod http;
mod rollout;
mod server;
mod weights;
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
    /// New weights through the server's door, in turns with a plain copy through a socket.
    Weights(weights::WeightsArgs),
}

fn main() -> ExitCode {
    let ended = match Command::parse() {
        Command::Rollout(args) => rollout::rollout(&args),
        Command::Http(args) => http::http(&args),
        Command::Weights(args) => weights::weights(&args),
    };
    let Err(error) = ended else {
        return ExitCode::SUCCESS;
    };
    eprintln!("ppo-bench: {error:#}");
    ExitCode::FAILURE
}
