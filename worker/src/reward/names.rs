//! Names of the further logs that a remote reward adds to a run: each is a metric of its own for as long as the run goes, so they are few.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Names that a run may have.
pub(super) const MOST_NAMES: usize = 64;
/// Bytes of a name.
const LONGEST_NAME: usize = 128;
/// The further log that every server may give, beside its own names.
pub(super) const SCORES: &str = "scores";

/// Those that a run has.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: Mutex<BTreeSet<String>>,
    /// Whether the log has that some are left out.
    told: AtomicBool,
    /// Whether it has why one is none.
    told_why: AtomicBool,
}

impl Names {
    /// Says once why a further log is left out that has no numbers for the samples.
    pub(super) fn tell(&self, why: &str) {
        if !self.told_why.swap(true, Ordering::Relaxed) {
            tracing::warn!("remote reward: {why}: it is left out, and so is every further log that does not fit");
        }
    }

    /// Leaves what there is room for, and says once that something is left out: further logs are no reason to end a run.
    pub(super) fn keep(&self, extra: &mut BTreeMap<String, Vec<f32>>) {
        let mut known = self.known.lock();
        let mut left_out = None;
        extra.retain(|name, _| {
            let has_room = known.len() < MOST_NAMES && name.len() <= LONGEST_NAME;
            let is_kept = name == SCORES || known.contains(name) || (has_room && known.insert(name.clone()));
            if !is_kept {
                left_out.get_or_insert_with(|| name.chars().take(LONGEST_NAME).collect::<String>());
            }
            is_kept
        });
        if let Some(name) = left_out.filter(|_| !self.told.swap(true, Ordering::Relaxed)) {
            tracing::warn!(
                "remote reward: extra_logs has {name:?}, which is left out, as all further names are: a run has at most {MOST_NAMES} of \
                 them, of at most {LONGEST_NAME} bytes each"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(names: impl IntoIterator<Item = String>) -> BTreeMap<String, Vec<f32>> {
        names.into_iter().map(|name| (name, vec![1.0])).collect()
    }

    #[test]
    fn a_run_keeps_the_names_that_it_has_and_takes_no_more_than_there_is_room_for() {
        let names = Names::default();
        let mut first = logs((0..2 * MOST_NAMES).map(|number| format!("{number:03}")));
        names.keep(&mut first);
        assert_eq!(first.len(), MOST_NAMES);
        assert!(names.told.load(Ordering::Relaxed));
        let mut next = logs(["000".into(), "new".into(), SCORES.into()]);
        names.keep(&mut next);
        assert_eq!(next.keys().collect::<Vec<_>>(), ["000", SCORES]);
    }

    #[test]
    fn a_log_that_does_not_fit_is_told_of_beside_a_name_without_room() {
        let names = Names::default();
        names.tell("extra_logs.a has null");
        assert!(names.told_why.load(Ordering::Relaxed) && !names.told.load(Ordering::Relaxed));
        let mut extra = logs(["x".repeat(LONGEST_NAME + 1)]);
        names.keep(&mut extra);
        assert!(names.told.load(Ordering::Relaxed));
    }

    #[test]
    fn a_name_that_is_too_long_is_left_out() {
        let names = Names::default();
        let mut extra = logs(["x".repeat(LONGEST_NAME), "x".repeat(LONGEST_NAME + 1)]);
        names.keep(&mut extra);
        assert_eq!(extra.len(), 1);
    }
}
