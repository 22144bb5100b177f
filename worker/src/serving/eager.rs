//! A task that wakes itself goes on at once, on the thread that it is on. hyper wakes its connection's task for every piece of a body that a
//! handler has taken; tokio puts a task that was woken while it ran behind the others and wakes an idle thread, which then takes it over. Of
//! weights that arrive each 64 KiB changed threads so, and lay in the other processor's cache.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;
use tokio::task::coop;

/// Polls of one turn, at the most: other tasks of the thread wait meanwhile.
const MOST: usize = 32;

/// It is being polled: a wake is left to whoever polls.
const POLLED: u8 = 1;
/// It was woken since its last poll began.
const WOKEN: u8 = 2;

/// A future that is polled again where it was woken during a poll.
pub struct Eager<F> {
    inner: Pin<Box<F>>,
    wakes: Arc<Wakes>,
    waker: Waker,
}

#[derive(Default)]
struct Wakes {
    /// Of the bits above. It only changes by exchanges, so that a poll sees what was done before any wake that it makes up for.
    state: AtomicU8,
    task: AtomicWaker,
}

impl<F> Eager<F> {
    pub fn new(inner: F) -> Self {
        let wakes = Arc::<Wakes>::default();
        Self {
            inner: Box::pin(inner),
            waker: wakes.clone().into(),
            wakes,
        }
    }

    /// The future itself.
    pub fn inner(&mut self) -> Pin<&mut F> {
        self.inner.as_mut()
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.fetch_or(WOKEN, Ordering::AcqRel) & POLLED == 0 {
            self.task.wake();
        }
    }
}

impl<F: Future> Future for Eager<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let state = &this.wakes.state;
        this.wakes.task.register(context.waker());
        for _ in 0..MOST {
            state.swap(POLLED, Ordering::AcqRel);
            let polled = this.inner.as_mut().poll(&mut Context::from_waker(&this.waker));
            let was_woken = state.swap(0, Ordering::AcqRel) & WOKEN != 0;
            if polled.is_ready() || !was_woken {
                return polled;
            }
            if !coop::has_budget_remaining() {
                break;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::poll_fn;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls once, and says how often the task was woken since.
    fn poll<F: Future>(future: &mut Eager<F>, count: &Arc<Count>) -> (bool, usize) {
        let waker = Waker::from(count.clone());
        let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
        (polled.is_ready(), count.0.swap(0, Ordering::Relaxed))
    }

    #[test]
    fn a_future_that_wakes_itself_ends_in_one_turn_and_its_task_is_not_woken() {
        let mut left = 10;
        let mut future = Eager::new(poll_fn(move |context| {
            context.waker().wake_by_ref();
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        }));
        assert_eq!(poll(&mut future, &Arc::default()), (true, 0));
    }

    #[test]
    fn one_that_never_stops_waking_itself_lets_others_run() {
        let mut polls = 0;
        let mut future = Eager::new(poll_fn(|context| {
            context.waker().wake_by_ref();
            polls += 1;
            Poll::<()>::Pending
        }));
        let count = Arc::default();
        assert_eq!(poll(&mut future, &count), (false, 1));
        assert_eq!(poll(&mut future, &count), (false, 1));
        drop(future);
        assert_eq!(polls, 2 * MOST);
    }

    #[test]
    fn what_wakes_it_between_its_turns_wakes_its_task() {
        let woken = Arc::new(AtomicWaker::new());
        let mut future = Eager::new({
            let woken = woken.clone();
            poll_fn(move |context| {
                woken.register(context.waker());
                Poll::<()>::Pending
            })
        });
        let count = Arc::default();
        assert_eq!(poll(&mut future, &count), (false, 0));
        woken.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn it_ends_whoever_wakes_it_and_whenever() {
        // A channel of one place: either side waits for the other at every number.
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let sent = tokio::spawn(Eager::new(async move {
            for number in 0..20_000 {
                sender.send(number).await.unwrap();
            }
        }));
        let received = tokio::spawn(Eager::new(async move {
            let mut sum = 0u64;
            while let Some(number) = receiver.recv().await {
                sum += number;
            }
            sum
        }));
        let sum = tokio::time::timeout(std::time::Duration::from_secs(60), received);
        assert_eq!(sum.await.unwrap().unwrap(), 19_999 * 20_000 / 2);
        sent.await.unwrap();
    }
}
