//! Aborts a communicator that fails or does not come to an end, so that nobody waits for it.

use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::functions::{Comm, Functions, IN_PROGRESS, SUCCESS};
use crate::native::collective::Failure;
use crate::native::device::Event;

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);

/// A communicator and what it is at.
pub(super) struct Shared {
    /// Null after it was aborted.
    pub(super) comm: Comm,
    pub(super) failed: Option<Failure>,
    pub(super) over: bool,
    pub(super) flights: VecDeque<Flight>,
}

// SAFETY: NCCL's calls for one communicator are made under the lock around it.
unsafe impl Send for Shared {}

impl Shared {
    /// The first failure is the one that is told.
    pub(super) fn fail(&mut self, functions: &Functions, failure: Failure) {
        if self.failed.is_none() {
            // Said before the abort lets events pass.
            self.failed = Some(failure);
            let comm = std::mem::replace(&mut self.comm, null_mut());
            // SAFETY: nobody uses it after `failed` is set.
            unsafe { (functions.comm_abort)(comm) };
        }
    }
}

/// A collective that the device was given.
#[derive(Clone)]
pub(super) struct Flight {
    pub(super) passed: Arc<Event>,
    pub(super) ends: Instant,
}

/// Aborts the communicator when a collective does not pass in time or NCCL finds a peer gone. Host code that waits on the device for
/// anything goes on then.
pub(super) fn watch(functions: &Functions, shared: &Mutex<Shared>) {
    loop {
        std::thread::sleep(LOOK);
        let mut shared = shared.lock();
        if shared.over || shared.failed.is_some() {
            return;
        }
        while shared
            .flights
            .front()
            .is_some_and(|flight| flight.passed.passed().unwrap_or(false))
        {
            shared.flights.pop_front();
        }
        let mut code = SUCCESS;
        // SAFETY: it lives until `failed` or `over` is set.
        let asked = unsafe { (functions.comm_error)(shared.comm, &raw mut code) };
        let failure = match (asked, code) {
            (SUCCESS, SUCCESS | IN_PROGRESS) => {
                let late = shared
                    .flights
                    .front()
                    .is_some_and(|flight| Instant::now() > flight.ends);
                late.then(|| Failure::of_others("NCCL: the other ranks did not come to a collective in time"))
            }
            (SUCCESS, code) | (code, _) => Some(functions.failure(code, shared.comm)),
        };
        if let Some(failure) = failure {
            shared.fail(functions, failure);
            return;
        }
    }
}
