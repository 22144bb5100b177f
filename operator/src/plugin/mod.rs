//! `kubectl ppo`: lists jobs, tells what they wait for, merges their logs, suspends and resumes them. It asks the API server
//! alone, with the rights of whoever runs it. Under the name `kubectl_complete-ppo` it completes command lines.
//!
//! Exit codes: 0 done (`why`: nothing holds the job up), 1 an error, 2 wrong arguments or a manifest that cannot be used, 3 (`why`
//! only) something holds the job up.

mod age;
mod checkpoints;
mod cli;
mod completion;
mod connection;
mod descriptors;
mod duration;
pub mod explain;
mod gang;
mod job;
mod kubeconfig;
mod list;
mod logs;
mod merge;
mod name;
mod output;
mod plan;
mod pods;
mod printer;
mod proxy;
mod refusal;
mod restart_role;
mod situation;
mod status;
mod suspend;
mod table;
mod timeout;
mod unreadable;
mod why;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use connection::Connection;

/// Exit code when what was given cannot be used, as `clap` has it for arguments.
const UNUSABLE: u8 = 2;

/// Runs the command of the process's arguments.
pub async fn main() -> ExitCode {
    if completion::is_asked_for() {
        return completion::main().await;
    }
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        // Whoever read our output has seen enough: `kubectl ppo list | head -1` is not an error.
        Err(error) if printer::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("error: {}", printer::visible(&format!("{error:#}")));
            match error.is::<plan::Unusable>() {
                true => ExitCode::from(UNUSABLE),
                false => ExitCode::FAILURE,
            }
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let Cli { connection, command } = cli;
    match command {
        Command::List(args) => list::main(&Connection::open(&connection).await?, &args).await?,
        Command::Status(args) => status::main(&Connection::open(&connection).await?, &args).await?,
        Command::Why(args) => return why::main(&Connection::open(&connection).await?, &args).await,
        Command::Logs(args) => {
            let open = match args.follow {
                true => Connection::open_for_streaming(&connection).await?,
                false => Connection::open(&connection).await?,
            };
            descriptors::raise();
            logs::main(&open, &args).await?;
        }
        Command::Plan(args) => plan::main(&connection, &args).await?,
        Command::Suspend(args) => suspend::suspend(&Connection::open(&connection).await?, &args).await?,
        Command::Resume(args) => suspend::resume(&Connection::open(&connection).await?, &args).await?,
        Command::RestartRole(args) => restart_role::main(&Connection::open(&connection).await?, &args).await?,
    }
    Ok(ExitCode::SUCCESS)
}
