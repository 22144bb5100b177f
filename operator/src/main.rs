//! `ppo-operator`.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A quarter of the operator's time went into the C library's allocator while hundreds of jobs started.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    ppo_operator::cli::main()
}
