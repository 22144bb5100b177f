//! NCCL: what ranks compute together on GPUs. The library is part of torch's CUDA wheels and found at run time; the dozen functions are
//! declared here. <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>
//!
//! A communicator cannot be waited for with a deadline, so none is waited for: calls are made non-blocking, on a stream of their own, with
//! an event behind each. A watchdog aborts the communicator when the oldest does not pass in time, and whoever waits is told.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tch::{Device, Kind, Tensor};

use super::collective::Store;
use super::device::{Event, Lane, use_by_default};
use super::library;

const LIBRARY: &str = "libnccl.so.2";

/// `ncclSuccess` and `ncclInProgress` of `ncclResult_t`.
const SUCCESS: c_int = 0;
/// See [`SUCCESS`].
const IN_PROGRESS: c_int = 7;
/// A call that does not settle.
const LATE: &str = "NCCL: the ranks did not connect in time";
/// `ncclSum` and `ncclMax` of `ncclRedOp_t`.
const SUM: c_int = 0;
/// See [`SUM`].
const MAX: c_int = 2;

/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);
/// For the device to let go of what was aborted.
const GRACE: Duration = Duration::from_secs(10);

/// `ncclUniqueId`: what the ranks of a communicator have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// A new one, to be made by rank 0.
    ///
    /// # Errors
    /// When NCCL is not there, or finds no network.
    pub fn make() -> Result<Self> {
        let functions = Functions::get()?;
        let mut id = Self([0; 128]);
        // SAFETY: a place for an id.
        let code = unsafe { (functions.get_unique_id)(&raw mut id) };
        ensure!(code == SUCCESS, functions.words(code, null_mut()));
        Ok(id)
    }

    /// That of rank 0, through the store.
    fn share(store: &Store, name: &str, rank: usize, deadline: Duration) -> Result<Self> {
        let key = format!("{name}/nccl");
        if rank == 0 {
            let id = Self::make()?;
            store.set(&key, &id.0)?;
            return Ok(id);
        }
        let told = store.wait(&key, deadline)?;
        let told = told.context("rank 0 did not say how to reach it by NCCL")?;
        let bytes = <[u8; 128]>::try_from(told).ok();
        Ok(Self(bytes.context("rank 0 speaks of another NCCL")?))
    }
}

/// `ncclConfig_t` as of NCCL 2.18; newer ones read as much of it as its size says.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster_size: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl Config {
    fn non_blocking() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: 0xcafe_beef,
            version: 21800,
            blocking: 0,
            cluster_size: c_int::MIN,
            least_blocks: c_int::MIN,
            most_blocks: c_int::MIN,
            net_name: null(),
            split_share: c_int::MIN,
        }
    }
}

type Comm = *mut c_void;
type Stream = *mut c_void;

/// The functions of nccl.h that are used.
struct Functions {
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int,
    comm_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int,
    broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int,
}

impl Functions {
    fn of(name: &str) -> Result<Self> {
        let library = library::open(name).map_err(|words| {
            anyhow!(
                "GPUs exchange tensors by NCCL, and it cannot be loaded ({words}): in a pod use the image whose tag ends in -cuda; \
                 on a machine `pip install torch==2.11.0` brings it (nvidia-nccl-cu13), and LD_LIBRARY_PATH has to name its folder"
            )
        })?;
        // SAFETY: the types are those of nccl.h, and the library is never closed.
        unsafe {
            Ok(Self {
                get_unique_id: *library.get(b"ncclGetUniqueId")?,
                comm_init: *library.get(b"ncclCommInitRankConfig")?,
                comm_error: *library.get(b"ncclCommGetAsyncError")?,
                comm_abort: *library.get(b"ncclCommAbort")?,
                error_string: *library.get(b"ncclGetErrorString")?,
                last_error: *library.get(b"ncclGetLastError")?,
                all_reduce: *library.get(b"ncclAllReduce")?,
                reduce: *library.get(b"ncclReduce")?,
                broadcast: *library.get(b"ncclBroadcast")?,
                all_gather: *library.get(b"ncclAllGather")?,
            })
        }
    }

    /// Those of this process.
    fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Functions> = OnceLock::new();
        match FOUND.get() {
            Some(found) => Ok(found),
            None => {
                let found = Self::of(LIBRARY)?;
                Ok(FOUND.get_or_init(|| found))
            }
        }
    }

    /// What a result means, and what NCCL says besides.
    fn words(&self, code: c_int, comm: Comm) -> String {
        // SAFETY: both are constant or NCCL's own texts; a communicator may be null.
        let text = |text: *const c_char| match text.is_null() {
            true => String::new(),
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        };
        let (kind, last) = unsafe { (text((self.error_string)(code)), text((self.last_error)(comm))) };
        match last.is_empty() {
            true => format!("NCCL: {kind}"),
            false => format!("NCCL: {kind} ({last})"),
        }
    }

    /// The end of a call: a non-blocking communicator may still be at it, and is [asked](Self::state) until it is not.
    fn settle(&self, mut code: c_int, mut ask: impl FnMut() -> Result<c_int>) -> Result<()> {
        while code == IN_PROGRESS {
            std::thread::sleep(Duration::from_millis(1));
            code = ask()?;
        }
        ensure!(code == SUCCESS, self.words(code, null_mut()));
        Ok(())
    }

    /// What a communicator that lives is at.
    fn state(&self, comm: Comm) -> Result<c_int> {
        let mut code = SUCCESS;
        // SAFETY: the caller's word that it lives.
        let asked = unsafe { (self.comm_error)(comm, &raw mut code) };
        ensure!(asked == SUCCESS, self.words(asked, comm));
        Ok(code)
    }
}

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

struct Shared {
    /// Null after it was aborted.
    comm: Comm,
    failed: Option<String>,
    over: bool,
    flights: VecDeque<Flight>,
}

// SAFETY: NCCL's calls for one communicator are made under the lock around it.
unsafe impl Send for Shared {}

impl Shared {
    /// The first failure is the one that is told.
    fn fail(&mut self, functions: &Functions, words: String) {
        if self.failed.is_none() {
            // Said before the abort lets events pass.
            self.failed = Some(words);
            let comm = std::mem::replace(&mut self.comm, null_mut());
            // SAFETY: nobody uses it after `failed` is set.
            unsafe { (functions.comm_abort)(comm) };
        }
    }
}

/// A collective that the device was given.
#[derive(Clone)]
struct Flight {
    passed: Arc<Event>,
    ends: Instant,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "Nccl(cuda:{})", self.number)
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (mut comm, mut config) = (null_mut(), Config::non_blocking());
        let (ranks, place) = (c_int::try_from(count)?, c_int::try_from(rank)?);
        // SAFETY: pointers to values that live through the call.
        let code = unsafe { (functions.comm_init)(&raw mut comm, ranks, id, place, &raw mut config) };
        let settled = functions.settle(code, || {
            ensure!(goes_on(), LATE);
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
        let watchdog = std::thread::Builder::new().name("nccl watchdog".into());
        let watchdog = watchdog.spawn(move || watch(functions, &watched));
        Ok(Self {
            functions,
            shared,
            turn: Mutex::default(),
            lane: Lane::open(number)?,
            number,
            deadline,
            watchdog: Some(watchdog.context("cannot start a thread")?),
        })
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

    /// The parts of all ranks one after the other, in `whole`; all parts have the same length.
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
        lock(&self.shared).fail(self.functions, words.to_owned());
    }

    fn begin(&self, tensor: &Tensor, call: impl FnOnce(&Functions, Given, Comm, Stream) -> c_int) -> Result<Flight> {
        let given = Given::of(tensor, self.number)?;
        // Backward calls from a thread of its own.
        use_by_default(self.number)?;
        self.lane.enter(tensor)?;
        let ends = Instant::now() + self.deadline;
        // The communicator itself is not held meanwhile, so that it can be aborted.
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let code = call(self.functions, given, self.living()?.comm, self.lane.stream());
        self.functions.settle(code, || {
            ensure!(Instant::now() < ends, LATE);
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
        let shared = lock(&self.shared);
        match &shared.failed {
            Some(words) => bail!("{words}"),
            None => Ok(shared),
        }
    }

    /// Waits until it is done: what libtorch is given to do from then on sees the result.
    fn wait(&self, flight: &Flight) -> Result<()> {
        let mut looks = 0u32;
        loop {
            let passed = flight.passed.passed();
            // Asked after the event: one of a communicator that was aborted passes, too, or fails.
            let failed = lock(&self.shared).failed.clone();
            match (failed, passed) {
                (Some(words), Ok(false)) if Instant::now() < flight.ends + GRACE => drop(words),
                (Some(words), _) => bail!("{words}"),
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
        let mut shared = lock(&self.shared);
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

/// Aborts the communicator when a collective does not pass in time or NCCL finds a peer gone. Host code that waits on the device for
/// anything goes on then.
fn watch(functions: &Functions, shared: &Mutex<Shared>) {
    loop {
        std::thread::sleep(LOOK);
        let mut shared = lock(shared);
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
        let words = match (asked, code) {
            (SUCCESS, SUCCESS | IN_PROGRESS) => {
                let late = shared
                    .flights
                    .front()
                    .is_some_and(|flight| Instant::now() > flight.ends);
                late.then(|| "NCCL: the other ranks did not come to a collective in time".to_owned())
            }
            (SUCCESS, code) | (code, _) => Some(functions.words(code, shared.comm)),
        };
        if let Some(words) = words {
            shared.fail(functions, words);
            return;
        }
    }
}

/// A tensor as NCCL takes it.
#[derive(Debug)]
struct Given {
    data: *mut c_void,
    count: usize,
    kind: c_int,
}

impl Given {
    fn of(tensor: &Tensor, number: usize) -> Result<Self> {
        ensure!(
            tensor.device() == Device::Cuda(number),
            "a tensor on {:?} for ranks on cuda:{number}",
            tensor.device()
        );
        ensure!(tensor.is_contiguous(), "a tensor with gaps cannot be exchanged");
        Ok(Self {
            data: tensor.data_ptr(),
            count: tensor.numel(),
            kind: data_type(tensor.kind())?,
        })
    }
}

/// `ncclDataType_t`.
fn data_type(kind: Kind) -> Result<c_int> {
    Ok(match kind {
        Kind::Int8 => 0,
        Kind::Uint8 => 1,
        Kind::Int => 2,
        Kind::Int64 => 4,
        Kind::Half => 6,
        Kind::Float => 7,
        Kind::Double => 8,
        Kind::BFloat16 => 9,
        other => bail!("tensors of {other:?} are not exchanged between ranks"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_missing_is_an_error_that_says_where_it_comes_from() {
        let Err(error) = Functions::of("libnccl-of-nobody.so.2") else {
            panic!("there is no such library");
        };
        let error = error.to_string();
        assert!(
            error.contains("libnccl-of-nobody.so.2") && error.contains("-cuda"),
            "{error}"
        );
    }

    #[test]
    fn only_contiguous_tensors_of_known_kinds_on_the_ranks_gpu_are_exchanged() {
        let error = Given::of(&Tensor::zeros([2], (Kind::Float, Device::Cpu)), 1).unwrap_err();
        assert_eq!(error.to_string(), "a tensor on Cpu for ranks on cuda:1");
        assert!(data_type(Kind::Bool).unwrap_err().to_string().contains("Bool"));
        assert_eq!(data_type(Kind::BFloat16).unwrap(), 9);
    }

    #[test]
    fn the_configuration_has_the_layout_of_nccls_header() {
        // ncclConfig_t in nccl.h of NCCL 2.18, on a 64-bit machine.
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
    }

    #[test]
    fn where_nccl_is_installed_ranks_get_the_id_of_the_first() {
        // It needs no GPU for that. Where it is not installed there is nothing to share.
        if Functions::get().is_err() {
            return;
        }
        let patience = Duration::from_secs(20);
        let store = Store::serve(0, patience).unwrap();
        let other = Store::connect("127.0.0.1", store.port(), patience).unwrap();
        let follower = std::thread::spawn(move || UniqueId::share(&other, "attempt-1", 1, patience).unwrap());
        let first = UniqueId::share(&store, "attempt-1", 0, patience).unwrap();
        assert_eq!(follower.join().unwrap(), first);
        assert_ne!(first.0, [0; 128]);
    }
}
