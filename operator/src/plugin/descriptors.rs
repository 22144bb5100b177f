//! How many connections the plugin may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// More than pods of any job; macOS takes no more, and no infinity.
const ENOUGH: u64 = 10_240;

/// Raises the soft limit as far as the hard one lets it: each log that is followed is a connection, and shells start programs with 1024
/// on Linux and 256 on macOS. Where that is refused, a log that does not open says so.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
    if limit.current.is_some_and(|current| current < most) {
        let raised = Rlimit {
            current: Some(most),
            ..limit
        };
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        raise();
        let after = getrlimit(Resource::Nofile);
        let number = |limit: Rlimit| limit.current.unwrap_or(u64::MAX);
        let most = before.maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
        assert_eq!(number(after), number(before).max(most));
        assert_eq!(after.maximum, before.maximum);
    }
}
