//! Answers that are not there yet, for threads and for async code alike.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::handle::{EngineError, Shared};
use super::request::Completion;

/// An answer to come: await it, or block for it with a deadline.
pub struct Answer<T> {
    pub(super) answer: oneshot::Receiver<Result<T, EngineError>>,
    pub(super) shared: Arc<Shared>,
}

impl<T> Answer<T> {
    /// Blocks this thread until the answer is there. Not for async code: await the answer there.
    ///
    /// # Errors
    /// The engine's, or [`EngineError::Deadline`].
    pub fn wait(mut self, deadline: Duration) -> Result<T, EngineError> {
        block_on(Pin::new(&mut self), "an answer", deadline)
    }
}

/// Blocks this thread until `future` has an answer. Not for async code: await it there.
///
/// # Errors
/// The future's, or [`EngineError::Deadline`], which says what was waited for.
pub(super) fn block_on<T>(
    mut future: Pin<&mut impl Future<Output = Result<T, EngineError>>>,
    waited_for: &'static str,
    deadline: Duration,
) -> Result<T, EngineError> {
    let ends = after(deadline);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(answer) = future.as_mut().poll(&mut context) {
            return answer;
        }
        let left = ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(EngineError::Deadline { waited_for, deadline });
        }
        std::thread::park_timeout(left);
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer)
            .poll(context)
            .map(|answer| answer.unwrap_or_else(|_| Err(self.shared.ended())))
    }
}

/// The instant at which a wait of `deadline` ends; as good as never for what no clock can hold.
fn after(deadline: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(deadline)
        .unwrap_or_else(|| now + Duration::from_secs(u64::from(u32::MAX)))
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A request's completions to come, one for each seed: await them, or block with a deadline. Dropping it withdraws the request.
pub struct Ticket {
    pub(super) number: u64,
    pub(super) answer: Answer<Vec<Completion>>,
}

impl Ticket {
    /// The request's number, for [`Engine::abort`].
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Blocks this thread until the completions are there. Not for async code: await the ticket there.
    ///
    /// # Errors
    /// The engine's, or [`EngineError::Deadline`].
    pub fn wait(mut self, deadline: Duration) -> Result<Vec<Completion>, EngineError> {
        block_on(Pin::new(&mut self.answer), "completions", deadline)
    }
}

impl Future for Ticket {
    type Output = Result<Vec<Completion>, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context)
    }
}
