//! Requests that have no answer yet: how many samples they are, and which tickets of the engine bear their names.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::Engine;
use crate::serving::error::ApiError;

/// Tickets of requests, one for each prompt, by the requests' names; a name may be used more than once.
type Tickets = HashMap<String, Vec<Arc<[u64]>>>;

/// The requests inside.
#[derive(Debug)]
pub struct InFlight {
    room: Arc<Semaphore>,
    most: usize,
    tickets: Arc<Mutex<Tickets>>,
}

impl InFlight {
    /// Room for `most` samples.
    pub fn new(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        Self {
            room: Arc::new(Semaphore::new(most)),
            most,
            tickets: Arc::default(),
        }
    }

    /// Takes room for a request's samples, which are no more than there is room for at all: a checked request has no more.
    ///
    /// # Errors
    /// 429 when there is too little now.
    pub fn enter(&self, samples: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let count = u32::try_from(samples).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(count).map_err(|_| {
            ApiError::new(
                axum::http::StatusCode::TOO_MANY_REQUESTS,
                format!(
                    "{} of {} samples are waiting or running, no room for {samples} more: try again",
                    self.most - self.room.available_permits(),
                    self.most
                ),
            )
        })
    }

    /// Registers the tickets of a request's prompts under its name until the guard is dropped; then what is unfinished is withdrawn.
    pub fn register(&self, name: String, numbers: Vec<u64>, engine: Engine) -> Registered {
        let numbers: Arc<[u64]> = numbers.into();
        let mut tickets = self.tickets.lock();
        tickets.entry(name.clone()).or_default().push(numbers.clone());
        drop(tickets);
        Registered {
            tickets: self.tickets.clone(),
            name,
            numbers,
            engine,
            is_answered: false,
        }
    }

    /// Tickets of what each of the names stands for, or of all requests.
    pub fn find(&self, names: Option<&[String]>) -> Vec<Vec<u64>> {
        let tickets = self.tickets.lock();
        match names {
            None => tickets.values().map(|requests| of_all(requests)).collect(),
            Some(names) => names.iter().filter_map(|name| named(&tickets, name)).collect(),
        }
    }
}

fn of_all(requests: &[Arc<[u64]>]) -> Vec<u64> {
    requests.iter().flat_map(|numbers| numbers.iter().copied()).collect()
}

/// Tickets of the requests of that name, which may carry the prefix that answers have, else of the one prompt that vLLM calls so
/// (`cmpl-<request>-<index>`).
fn named(tickets: &Tickets, name: &str) -> Option<Vec<u64>> {
    let plain = name.strip_prefix("cmpl-").or_else(|| name.strip_prefix("chatcmpl-"));
    if let Some(requests) = tickets.get(name).or_else(|| tickets.get(plain?)) {
        return Some(of_all(requests));
    }
    let (request, index) = name.strip_prefix("cmpl-")?.rsplit_once('-')?;
    let index: usize = index.parse().ok()?;
    let requests = tickets.get(request)?.iter();
    let of_prompt: Vec<u64> = requests.filter_map(|numbers| numbers.get(index).copied()).collect();
    Some(of_prompt).filter(|numbers| !numbers.is_empty())
}

/// A request's entry; dropped with the request, whether it was answered or its client has gone.
pub struct Registered {
    tickets: Arc<Mutex<Tickets>>,
    name: String,
    numbers: Arc<[u64]>,
    engine: Engine,
    is_answered: bool,
}

impl Registered {
    /// The engine has answered everything: there is nothing left to withdraw.
    pub fn answered(&mut self) {
        self.is_answered = true;
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut tickets = self.tickets.lock();
        if let Some(known) = tickets.get_mut(&self.name) {
            known.retain(|numbers| !Arc::ptr_eq(numbers, &self.numbers));
            if known.is_empty() {
                tickets.remove(&self.name);
            }
        }
        drop(tickets);
        // Dropped tickets are noticed by the next pass; a frozen engine has none. One that rests is not woken for nothing.
        if !self.is_answered {
            self.engine.abort(self.numbers.to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::hash_runner::{HashRunner, request};
    use crate::engine::{EngineConfig, FinishReason};

    #[test]
    fn a_request_that_goes_is_withdrawn_unless_the_engine_has_answered_it() {
        let make = || {
            let mut runner = HashRunner::new(100, 16, 1000);
            runner.pace = Duration::from_millis(1);
            Ok(runner)
        };
        let engine = Engine::start(make, EngineConfig::default()).unwrap();
        let in_flight = InFlight::new(1);
        for (is_answered, reason) in [(false, FinishReason::Abort), (true, FinishReason::Length)] {
            let ticket = engine.submit(request(5, 0..1, 200)).unwrap();
            let mut registered = in_flight.register("r".to_owned(), vec![ticket.number()], engine.clone());
            if is_answered {
                registered.answered();
            }
            drop(registered);
            assert!(in_flight.find(None).is_empty());
            let completions = ticket.wait(Duration::from_secs(60)).unwrap();
            assert_eq!(completions[0].finish_reason, reason);
        }
    }

    fn tickets(requests: &[(&str, &[u64])]) -> Tickets {
        let mut tickets = Tickets::new();
        for (name, numbers) in requests {
            tickets.entry((*name).to_owned()).or_default().push((*numbers).into());
        }
        tickets
    }

    #[test]
    fn a_request_is_found_by_its_name_and_by_its_answers_and_each_prompt_by_its_own() {
        let tickets = tickets(&[("r", &[1, 2, 3]), ("other", &[4])]);
        for name in ["r", "cmpl-r", "chatcmpl-r"] {
            assert_eq!(named(&tickets, name), Some(vec![1, 2, 3]), "{name}");
        }
        assert_eq!(named(&tickets, "cmpl-r-0"), Some(vec![1]));
        assert_eq!(named(&tickets, "cmpl-r-2"), Some(vec![3]));
        for name in [
            "cmpl-r-3",
            "cmpl-r-",
            "cmpl-r-x",
            "r-0",
            "chatcmpl-r-0",
            "cmpl-0",
            "cmpl-",
            "",
        ] {
            assert_eq!(named(&tickets, name), None, "{name}");
        }
    }

    #[test]
    fn a_name_that_ends_like_a_prompts_is_a_request_first_and_one_used_twice_means_both() {
        let tickets = tickets(&[("r", &[1, 2]), ("r", &[3, 4]), ("r-1", &[5, 6])]);
        assert_eq!(named(&tickets, "cmpl-r-1"), Some(vec![5, 6]));
        assert_eq!(named(&tickets, "cmpl-r-1-0"), Some(vec![5]));
        assert_eq!(named(&tickets, "r"), Some(vec![1, 2, 3, 4]));
        assert_eq!(named(&tickets, "cmpl-r-0"), Some(vec![1, 3]));
    }
}
