//! What a command prints: results on standard output, messages on standard error. A reader that has gone away is no reason to panic,
//! as `println!` would.

use std::io::{self, Write};
use std::sync::Once;

use anyhow::{Context, Result};

/// Writes a result. Whoever read enough of it, as `head` does, is done.
///
/// # Errors
/// When standard output cannot be written for another reason.
pub fn print(text: &str) -> Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut dyn Write, text: &str) -> Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Writes a line to `out` of work that goes on, which it does also where nobody reads any more or there is no room: that is told of once.
pub fn show(out: &mut dyn Write, line: &str) {
    static TOLD: Once = Once::new();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        TOLD.call_once(|| {
            tracing::warn!("the progress cannot be printed, and what is under way goes on without: {error}")
        });
    }
}

/// Writes a line to standard error, where somebody reads it.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(io::ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_has_read_enough_is_no_error_and_a_full_disk_is_one_to_a_result_alone() {
        print_to(&mut Fails(io::ErrorKind::BrokenPipe), "result").unwrap();
        print_to(&mut Fails(io::ErrorKind::StorageFull), "result").unwrap_err();
        show(&mut Fails(io::ErrorKind::BrokenPipe), "step 1");
        show(&mut Fails(io::ErrorKind::StorageFull), "step 2");
    }
}
