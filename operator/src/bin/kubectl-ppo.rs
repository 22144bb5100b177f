//! `kubectl ppo`: a kubectl plugin for PpoJobs.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    ppo_operator::plugin::main().await
}
