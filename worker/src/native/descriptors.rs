//! How many files and connections this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A server's connections and the calls that they lead to.
const ENOUGH: u64 = 4096;

/// Raises the soft limit to the hard one. A limit of 1024, which shells and containers (containerd 2) start with, is for programs
/// that wait in `select`; here a step's requests are a connection each, and so is each client of a server.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let given = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!("cannot raise the limit of open files (ulimit -n): {error}");
            limit.current
        }
    };
    if let Some(most) = given.filter(|most| *most < ENOUGH) {
        tracing::warn!(
            "this process may have {most} files and connections open, and a server or a step of many requests takes up to {ENOUGH}: \
             raise ulimit -Hn, or LimitNOFILE of the container runtime"
        );
    }
}
