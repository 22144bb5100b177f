//! NCCL: what ranks compute together on GPUs. The library is part of torch's CUDA wheels and found at run time (`nccl/functions.rs`).
//! <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>
//!
//! A communicator cannot be waited for with a deadline, so none is waited for: calls are made non-blocking, on a stream of their own, with
//! an event behind each. A watchdog aborts the communicator when the oldest does not pass in time, and whoever waits is told.

mod functions;
mod given;
mod unique_id;
mod watchdog;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::{Mutex, MutexGuard};
use tch::Tensor;

use self::functions::{Comm, Config, Functions, MAX, SUM, Stream};
use self::given::Given;
pub use self::unique_id::UniqueId;
use self::watchdog::{Flight, Shared, watch};
use super::collective::Failure;
use super::device::{Lane, use_by_default};
use super::store::Store;

/// A call that does not settle.
const LATE: &str = "NCCL: the ranks did not connect in time";
/// For the device to let go of what was aborted.
const GRACE: Duration = Duration::from_secs(10);

/// Ranks that compute together on a GPU each. All call the same functions in the same order, with tensors of the same shapes.
pub struct Nccl {
    functions: &'static Functions,
    shared: Arc<Mutex<Shared>>,
    /// Held while a call begins: one at a time.
    turn: Mutex<()>,
    lane: Lane,
    number: usize,
    deadline: Duration,
    watchdog: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Nccl(cuda:{})", self.number)
    }
}

impl Nccl {
    /// Joins the `count` ranks that meet in `store` under `name`, on GPU `number`.
    ///
    /// # Errors
    /// When NCCL is not there, or a rank does not come within `deadline`, which is also that of every call.
    pub fn join(
        store: &Store,
        name: &str,
        (rank, count): (usize, usize),
        number: usize,
        deadline: Duration,
    ) -> Result<Self> {
        let ends = Instant::now() + deadline;
        let id = UniqueId::share(store, name, rank, deadline)?;
        Self::meet(id, (rank, count), number, deadline, || Instant::now() < ends)
    }

    /// Joins the `count` ranks that have `id`, on GPU `number`, for as long as it `goes_on`.
    ///
    /// # Errors
    /// When NCCL is not there, or a rank does not come. `deadline` is that of every later call.
    pub fn meet(
        id: UniqueId,
        (rank, count): (usize, usize),
        number: usize,
        deadline: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Self> {
        let functions = Functions::get()?;
        use_by_default(number)?;
        let lane = Lane::open(number)?;
        let (mut comm, mut config) = (null_mut(), Config::non_blocking());
        let (ranks, place) = (c_int::try_from(count)?, c_int::try_from(rank)?);
        // SAFETY: pointers to values that live through the call.
        let code = unsafe { (functions.comm_init)(&raw mut comm, ranks, id, place, &raw mut config) };
        let settled = functions.settle(code, || {
            ensure!(goes_on(), Failure::of_others(LATE));
            functions.state(comm)
        });
        if let Err(error) = settled {
            if !comm.is_null() {
                // SAFETY: a communicator that nobody else knows.
                unsafe { (functions.comm_abort)(comm) };
            }
            return Err(error.context(format!("rank {rank} of {count} on cuda:{number}")));
        }
        let shared = Arc::new(Mutex::new(Shared {
            comm,
            failed: None,
            over: false,
            flights: VecDeque::new(),
        }));
        let watched = shared.clone();
        // Dropped, it aborts the communicator: also where there is no thread to be had.
        let mut joined = Self {
            functions,
            shared,
            turn: Mutex::default(),
            lane,
            number,
            deadline,
            watchdog: None,
        };
        let watchdog = std::thread::Builder::new().name("nccl watchdog".into());
        let watchdog = watchdog.spawn(move || {
            // To ask for an event and to free it makes a context on the thread's GPU, which would be the first one in every rank: half a
            // GiB of its memory for each.
            match use_by_default(number) {
                Ok(()) => watch(functions, &watched),
                Err(error) => watched.lock().fail(functions, Failure::own(error)),
            }
        });
        joined.watchdog = Some(watchdog.context("cannot start a thread")?);
        Ok(joined)
    }

    /// Adds up the tensors of all ranks (or takes the greatest, element by element), in place.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn all_reduce(&self, tensor: &Tensor, greatest: bool) -> Result<()> {
        let operation = if greatest { MAX } else { SUM };
        let flight = self.begin(tensor, |functions, Given { data, count, kind }, comm, stream| unsafe {
            (functions.all_reduce)(data, data, count, kind, operation, comm, stream)
        })?;
        self.wait(&flight)
    }

    /// The tensor of `root`, in place of everybody's.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<()> {
        let root = c_int::try_from(root)?;
        let flight = self.begin(tensor, |functions, Given { data, count, kind }, comm, stream| unsafe {
            (functions.broadcast)(data, data, count, kind, root, comm, stream)
        })?;
        self.wait(&flight)
    }

    /// The parts of all ranks one after the other, in `whole`; all parts have the same length. NCCL gathers in place where `part` is this
    /// rank's place in `whole`.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn all_gather(&self, whole: &Tensor, part: &Tensor) -> Result<()> {
        let given = Given::of(part, self.number)?;
        let flight = self.begin(whole, |functions, Given { data, .. }, comm, stream| unsafe {
            (functions.all_gather)(given.data, data, given.count, given.kind, comm, stream)
        })?;
        self.wait(&flight)
    }

    /// Begins to add up the tensors of all ranks in that of `root`.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn begin_sum_at(self: &Arc<Self>, root: usize, tensor: &Tensor) -> Result<Begun> {
        let root = c_int::try_from(root)?;
        let flight = self.begin(tensor, |functions, Given { data, count, kind }, comm, stream| unsafe {
            (functions.reduce)(data, data, count, kind, SUM, root, comm, stream)
        })?;
        let group = self.clone();
        Ok(Begun { group, flight })
    }

    /// Ends it: whoever waits here is told `words`, and the other ranks find the connection closed.
    pub fn abort(&self, words: &str) {
        self.shared.lock().fail(self.functions, Failure::of_others(words));
    }

    fn begin(&self, tensor: &Tensor, call: impl FnOnce(&Functions, Given, Comm, Stream) -> c_int) -> Result<Flight> {
        let given = Given::of(tensor, self.number)?;
        // Backward calls from a thread of its own.
        use_by_default(self.number)?;
        self.lane.enter(tensor)?;
        let ends = Instant::now() + self.deadline;
        // The communicator is held while it is called, so that nobody aborts it beneath the call, and not while the call settles,
        // so that somebody can.
        let _turn = self.turn.lock();
        let code = call(self.functions, given, self.living()?.comm, self.lane.stream());
        self.functions.settle(code, || {
            ensure!(Instant::now() < ends, Failure::of_others(LATE));
            self.functions.state(self.living()?.comm)
        })?;
        let flight = Flight {
            passed: Arc::new(self.lane.mark()?),
            ends,
        };
        self.living()?.flights.push_back(flight.clone());
        Ok(flight)
    }

    /// The communicator, unless it was aborted.
    fn living(&self) -> Result<MutexGuard<'_, Shared>> {
        let shared = self.shared.lock();
        match &shared.failed {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(shared),
        }
    }

    /// Waits until it is done: what libtorch is given to do from then on sees the result.
    fn wait(&self, flight: &Flight) -> Result<()> {
        let mut looks = 0u32;
        loop {
            let passed = flight.passed.passed();
            // Asked after the event: one of a communicator that was aborted passes, too, or fails.
            let failed = self.shared.lock().failed.clone();
            match (failed, passed) {
                (Some(_), Ok(false)) if Instant::now() < flight.ends + GRACE => {}
                (Some(failure), _) => return Err(failure.into()),
                (None, passed) => {
                    if passed? {
                        return Ok(());
                    }
                }
            }
            looks += 1;
            match looks {
                0..1000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let mut shared = self.shared.lock();
        shared.over = true;
        let comm = std::mem::replace(&mut shared.comm, null_mut());
        drop(shared);
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
        if !comm.is_null() {
            // Not destroyed, which would wait for the other ranks: nothing is under way that anybody waits for.
            // SAFETY: it was made once, and nobody else has it any more.
            unsafe { (self.functions.comm_abort)(comm) };
        }
    }
}

/// A sum that is being made.
pub struct Begun {
    group: Arc<Nccl>,
    flight: Flight,
}

impl std::fmt::Debug for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Begun({:?})", self.group)
    }
}

impl Begun {
    /// Waits for it.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn wait(&self) -> Result<()> {
        self.group.wait(&self.flight)
    }
}
