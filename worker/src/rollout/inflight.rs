//! Requests that have no answer yet: how many samples they are, and which tickets of the engine bear their names.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::Engine;
use crate::serving::error::ApiError;

/// The requests inside.
#[derive(Debug)]
pub struct InFlight {
    room: Arc<Semaphore>,
    most: usize,
    /// Tickets by name; a name may be used more than once.
    tickets: Arc<Mutex<HashMap<String, Vec<u64>>>>,
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

    /// Registers tickets under a name until the guard is dropped; then what is unfinished is withdrawn.
    pub fn register(&self, name: String, numbers: Vec<u64>, engine: Engine) -> Registered {
        self.tickets.lock().entry(name.clone()).or_default().extend(&numbers);
        Registered {
            tickets: self.tickets.clone(),
            name,
            numbers,
            engine,
        }
    }

    /// Tickets of the named requests, or all of them. A name may carry the prefix that answers have.
    pub fn find(&self, names: Option<&[String]>) -> Vec<Vec<u64>> {
        let tickets = self.tickets.lock();
        let Some(names) = names else {
            return tickets.values().cloned().collect();
        };
        let plain = |name: &str| {
            let name = name.strip_prefix("cmpl-").or_else(|| name.strip_prefix("chatcmpl-"));
            name.map(str::to_owned)
        };
        names
            .iter()
            .filter_map(|name| tickets.get(name).or_else(|| tickets.get(&plain(name)?)))
            .cloned()
            .collect()
    }
}

/// A request's entry; dropped with the request, whether it was answered or its client has gone.
pub struct Registered {
    tickets: Arc<Mutex<HashMap<String, Vec<u64>>>>,
    name: String,
    numbers: Vec<u64>,
    engine: Engine,
}

impl Drop for Registered {
    fn drop(&mut self) {
        let numbers = std::mem::take(&mut self.numbers);
        let mut tickets = self.tickets.lock();
        if let Some(known) = tickets.get_mut(&self.name) {
            known.retain(|number| !numbers.contains(number));
            if known.is_empty() {
                tickets.remove(&self.name);
            }
        }
        drop(tickets);
        // Dropped tickets are noticed by the next pass; a frozen engine has none.
        self.engine.abort(numbers);
    }
}
