//! `ppo-worker`: everything that runs in the pods of a PpoJob, and the same on a laptop.

use clap::Parser;
use ppo_worker::cli::{self, Cli};
use ppo_worker::{contained, native};

fn main() {
    contained::abort_on_panic();
    let code = cli::run(Cli::parse());
    native::process::end(code)
}
