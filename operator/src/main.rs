//! `ppo-operator`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A task that is gone must not leave the process running without it.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    ppo_operator::cli::main()
}
