//! `ppo-operator`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ppo_operator::cli::main()
}
