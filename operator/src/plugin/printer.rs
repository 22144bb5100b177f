//! Writes results to standard output.

use std::io::{self, Write as _};

use anyhow::Result;
use serde::Serialize;

/// Writes text. Colour is left out where nobody sees it: not a terminal, or NO_COLOR is set.
pub fn print(text: &str) -> Result<()> {
    let mut output = anstream::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()?;
    Ok(())
}

/// Writes a value for programs.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Whether the reader of our output has gone, as `head` does.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .map(io::Error::kind);
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}
