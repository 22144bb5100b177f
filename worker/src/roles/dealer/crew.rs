//! How many engines a step has, as each engine sees it, and how many of the step's requests one engine may take.

use tokio::sync::watch;

/// Where there are several engines, each takes at most this part of its even share at once; the rest goes to whoever is done
/// first, or comes late.
const SHARE: f64 = 0.75;

/// How many engines there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Crew {
    /// Have an address, or had one when the job was made.
    pub(super) expected: usize,
    /// Were asked to take part and have not failed since.
    pub(super) at_work: usize,
    /// Have the weights that this step draws with.
    pub(super) ready: usize,
}

impl Crew {
    /// Of `count` requests those that one engine may have at once. An engine that still fetches weights counts: whoever is
    /// ready a moment earlier does not take what it would draw.
    pub(super) fn share(self, count: usize) -> usize {
        if self.expected <= 1 {
            return count;
        }
        let even = count as f64 / self.at_work.max(1) as f64;
        (even * SHARE).ceil() as usize
    }
}

/// Counts an engine as ready for as long as it lives.
pub(super) struct Ready<'a>(&'a watch::Sender<Crew>);

impl<'a> Ready<'a> {
    pub(super) fn count(crew: &'a watch::Sender<Crew>) -> Self {
        crew.send_modify(|crew| crew.ready += 1);
        Self(crew)
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|crew| crew.ready -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(expected: usize, at_work: usize) -> usize {
        let crew = Crew {
            expected,
            at_work,
            ready: 1,
        };
        crew.share(128)
    }

    #[test]
    fn the_only_engine_takes_everything_and_of_several_each_leaves_some_for_the_fastest() {
        assert_eq!([share(1, 1), share(2, 2), share(4, 4)], [128, 48, 24]);
    }

    #[test]
    fn who_is_left_takes_more_and_leaves_some_for_one_that_comes_back() {
        assert_eq!(share(2, 1), 96);
    }

    #[test]
    fn an_engine_is_ready_until_its_work_ends() {
        let crew = watch::Sender::new(Crew::default());
        let ready = Ready::count(&crew);
        assert_eq!(crew.borrow().ready, 1);
        drop(ready);
        assert_eq!(crew.borrow().ready, 0);
    }
}
