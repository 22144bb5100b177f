//! What a command prints: results on standard output, messages on standard error. A reader that has gone away is no reason to panic,
//! as `println!` would.

use std::io::{self, Write};

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

/// Writes a line to `out` of something that goes on.
///
/// # Errors
/// When nobody reads it any more.
pub fn write_line(out: &mut dyn Write, line: &str) -> Result<()> {
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot print the progress (is the reader gone?)")
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
    fn a_reader_that_has_read_enough_is_no_error_to_a_result_and_one_to_progress() {
        print_to(&mut Fails(io::ErrorKind::BrokenPipe), "result").unwrap();
        print_to(&mut Fails(io::ErrorKind::StorageFull), "result").unwrap_err();
        write_line(&mut Fails(io::ErrorKind::BrokenPipe), "step 1").unwrap_err();
    }
}
