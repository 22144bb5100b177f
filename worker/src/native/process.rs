//! Ends this process.

use std::io::Write as _;

unsafe extern "C" {
    fn _exit(status: i32) -> !;
}

/// Ends the process with `code`, once all that was printed is out.
///
/// Other threads may still compute: an engine finishes the pass that it is in, whoever waits for it or not. Returning from `main` would
/// run the destructors of C++'s static objects, libtorch's among them, beneath those threads.
pub fn end(code: u8) -> ! {
    // Where standard output is gone there is nobody to tell.
    let _ = std::io::stdout().flush();
    // SAFETY: POSIX's; it does not return, and nothing of ours is left to be run.
    unsafe { _exit(i32::from(code)) }
}
