//! The requests of one step on their way through the engines: those that wait, and those that are done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::engine::{Completion, Request};
use crate::pods::CallError;

/// Requests that any engine may take. Each is answered once, by whoever answers first: a request is a pure function of its
/// seeds, so it does not matter who.
pub struct Work {
    requests: Vec<Request>,
    /// When all have to be answered.
    ends: Instant,
    state: Mutex<State>,
    /// Requests that are not answered yet.
    left: watch::Sender<usize>,
    /// Told of samples that an engine held when it failed: others draw them again.
    again: Arc<AtomicU64>,
}

struct State {
    waiting: VecDeque<usize>,
    answers: Vec<Option<Vec<Completion>>>,
    refused: Option<CallError>,
}

impl Work {
    /// All requests wait, and have to be answered when it `ends`. Samples that have to be drawn again are added to `again`.
    pub fn new(requests: Vec<Request>, ends: Instant, again: Arc<AtomicU64>) -> Self {
        let state = State {
            waiting: (0..requests.len()).collect(),
            answers: requests.iter().map(|_| None).collect(),
            refused: None,
        };
        Self {
            left: watch::Sender::new(requests.len()),
            requests,
            ends,
            state: Mutex::new(state),
            again,
        }
    }

    /// What is left of its time.
    pub fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.requests.len()
    }

    /// How many are answered.
    pub fn answered(&self) -> u64 {
        self.requests.len().saturating_sub(*self.left.borrow()) as u64
    }

    /// A request, by its number.
    pub fn request(&self, number: usize) -> &Request {
        &self.requests[number]
    }

    /// The next request that waits.
    pub fn take(&self) -> Option<usize> {
        self.state.lock().waiting.pop_front()
    }

    /// Hands a request back unanswered; it is the next to be taken.
    pub fn put_back(&self, number: usize) {
        self.state.lock().waiting.push_front(number);
        let samples = self.requests[number].seeds.len();
        self.again.fetch_add(samples as u64, Ordering::Relaxed);
        // Engines that ran out of requests look again.
        self.left.send_modify(|_| {});
    }

    /// The answer to a request.
    pub fn answer(&self, number: usize, completions: Vec<Completion>) {
        self.state.lock().answers[number] = Some(completions);
        self.left.send_modify(|left| *left -= 1);
    }

    /// A request that was understood and refused: every engine would.
    pub fn refuse(&self, error: CallError) {
        self.state.lock().refused.get_or_insert(error);
        self.left.send_modify(|_| {});
    }

    /// Told of every change.
    pub fn watch(&self) -> watch::Receiver<usize> {
        self.left.subscribe()
    }

    /// Why it cannot be completed.
    pub fn refusal(&self) -> Option<CallError> {
        self.state.lock().refused.clone()
    }

    /// All answers in the order of the requests, once none is missing.
    pub fn answers(&self) -> Option<Vec<Vec<Completion>>> {
        let mut state = self.state.lock();
        if state.answers.iter().any(Option::is_none) {
            return None;
        }
        Some(state.answers.iter_mut().filter_map(Option::take).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hash_runner::request;

    #[test]
    fn a_request_that_is_handed_back_is_the_next_to_be_taken_and_its_samples_and_answers_are_counted() {
        let again = Arc::new(AtomicU64::new(0));
        let work = Work::new(
            vec![request(1, 0..3, 1), request(2, 0..2, 1)],
            Instant::now(),
            again.clone(),
        );
        assert_eq!((work.take(), work.take(), work.take()), (Some(0), Some(1), None));
        work.put_back(0);
        assert_eq!(again.load(Ordering::Relaxed), 3);
        assert_eq!((work.take(), work.take()), (Some(0), None));
        assert_eq!(work.answered(), 0);
        work.answer(0, Vec::new());
        assert_eq!(work.answered(), 1);
    }
}
