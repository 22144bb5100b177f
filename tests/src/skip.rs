//! Tests that a machine cannot run. The worker's own tests hold this file as a module too.

use std::io::Write as _;

/// Set to `never` a test fails that this machine cannot run.
const SKIP: &str = "PPO_TEST_SKIP";

/// Says in one line that `tests` do not run on this machine, and why: past the test runner, which shows what a test prints
/// only when it fails.
///
/// # Panics
/// Where `PPO_TEST_SKIP` is `never`.
pub fn skipped(tests: &str, why: &str) {
    let allowed = std::env::var_os(SKIP).is_none_or(|skip| skip != "never");
    assert!(allowed, "{tests}: not skipped, as {SKIP} is never: {why}");
    // Whether anybody reads it does not matter.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {tests}: {why}");
}
