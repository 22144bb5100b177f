//! CUDA graphs, streams and memory, and the engine's own kernels: the library `libppo_cuda.so` (`native/cuda`), loaded at run time
//! where there is a GPU. It calls libtorch_cuda, which the worker is not linked to, so that the same binary runs on machines without.

pub mod fused;

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Result, anyhow, ensure};
use libloading::Library;

/// The library's file.
pub const LIBRARY: &str = "libppo_cuda.so";
/// Of the signatures below; `ppo_cuda_abi` of the library must answer the same.
const ABI: i32 = 4;

type Message = *mut c_char;
type RawGraph = *mut c_void;

/// The library's functions.
#[derive(Debug)]
pub struct Shim {
    free_error: unsafe extern "C" fn(Message),
    own_stream: unsafe extern "C" fn(i32) -> Message,
    memory: unsafe extern "C" fn(i32, *mut u64, *mut u64) -> Message,
    empty_cache: unsafe extern "C" fn() -> Message,
    pool: unsafe extern "C" fn(*mut u64) -> Message,
    graph_begin: unsafe extern "C" fn(*const u64, *mut RawGraph) -> Message,
    graph_end: unsafe extern "C" fn(RawGraph) -> Message,
    graph_replay: unsafe extern "C" fn(RawGraph) -> Message,
    graph_free: unsafe extern "C" fn(RawGraph),
    fused: fused::Functions,
    /// The functions are its own.
    _library: Library,
}

/// Memory of a device, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What the driver can still hand out.
    pub free: u64,
    /// All.
    pub total: u64,
}

/// The library, loaded at the first call: beside the executable, else where the loader looks (`LD_LIBRARY_PATH`).
///
/// # Errors
/// When it is not there, lacks libtorch_cuda, or is of another version.
pub fn shim() -> Result<&'static Shim> {
    static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();
    SHIM.get_or_init(|| load().map_err(|error| format!("{error:#}")))
        .as_ref()
        .map_err(|error| anyhow!("{error}"))
}

fn load() -> Result<Shim> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|executable| Some(executable.parent()?.join(LIBRARY)))
        .filter(|path| path.is_file());
    let path = beside.unwrap_or_else(|| PathBuf::from(LIBRARY));
    // SAFETY: loading runs the initialisers of our own library and of libtorch_cuda, which have no requirements.
    let library = unsafe { Library::new(&path) }.map_err(|error| {
        anyhow!("cannot load {LIBRARY} ({error}): `make cuda-shim` builds it; it needs libtorch_cuda of torch 2.11.0")
    })?;
    // SAFETY: (all below) each symbol has the type that shim.cpp declares, which `ppo_cuda_abi` vouches for.
    unsafe {
        let abi = library.get::<unsafe extern "C" fn() -> i32>(b"ppo_cuda_abi\0")?;
        let abi = abi();
        ensure!(
            abi == ABI,
            "{} is of version {abi}, this worker needs version {ABI}: build it anew with `make cuda-shim`",
            path.display()
        );
        Ok(Shim {
            free_error: *library.get(b"ppo_cuda_free_error\0")?,
            own_stream: *library.get(b"ppo_cuda_own_stream\0")?,
            memory: *library.get(b"ppo_cuda_memory\0")?,
            empty_cache: *library.get(b"ppo_cuda_empty_cache\0")?,
            pool: *library.get(b"ppo_cuda_pool\0")?,
            graph_begin: *library.get(b"ppo_cuda_graph_begin\0")?,
            graph_end: *library.get(b"ppo_cuda_graph_end\0")?,
            graph_replay: *library.get(b"ppo_cuda_graph_replay\0")?,
            graph_free: *library.get(b"ppo_cuda_graph_free\0")?,
            fused: fused::Functions::of(&library)?,
            _library: library,
        })
    }
}

impl Shim {
    /// Gives the calling thread a stream of its own on the device: what it asks for is computed beside other threads' work, and
    /// can be captured. What it shares with other threads must be ordered by [`device::synchronize`](super::device::synchronize) and
    /// [`device::synchronize_shared`](super::device::synchronize_shared).
    ///
    /// # Errors
    /// When CUDA fails.
    pub fn own_stream(&self, device: i32) -> Result<()> {
        // SAFETY: (here and below) the functions take plain numbers and live pointers.
        self.checked(unsafe { (self.own_stream)(device) })
    }

    /// Memory of the device.
    ///
    /// # Errors
    /// When CUDA fails.
    pub fn memory(&self, device: i32) -> Result<Memory> {
        let mut memory = Memory { free: 0, total: 0 };
        self.checked(unsafe { (self.memory)(device, &raw mut memory.free, &raw mut memory.total) })?;
        Ok(memory)
    }

    /// Gives the driver what libtorch holds and no tensor takes, on all devices, and waits for them. Not while anything is captured.
    ///
    /// # Errors
    /// When CUDA fails.
    pub fn empty_cache(&self) -> Result<()> {
        self.checked(unsafe { (self.empty_cache)() })
    }

    /// Memory that graphs share. They are replayed one after another, and nothing that one leaves there outlives the next. Once no
    /// graph is left in it, also because a capture failed, nothing can be captured into it any more.
    ///
    /// # Errors
    /// When CUDA fails.
    pub fn pool(&self) -> Result<Pool> {
        let mut pool = Pool([0; 2]);
        self.checked(unsafe { (self.pool)(pool.0.as_mut_ptr()) })?;
        Ok(pool)
    }

    /// Captures what `work` asks of the calling thread's own stream; nothing of it is computed yet. `work` must not wait for
    /// the device, and all it reads and writes must outlive the graph.
    ///
    /// # Errors
    /// When `work` fails, or asks for what cannot be captured.
    pub fn capture(&'static self, pool: Pool, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mut raw = std::ptr::null_mut();
        self.checked(unsafe { (self.graph_begin)(pool.0.as_ptr(), &raw mut raw) })?;
        let graph = Graph { raw, shim: self };
        let worked = work();
        // The stream must leave the capture, whatever `work` came to.
        let ended = self.checked(unsafe { (self.graph_end)(graph.raw) });
        worked.and(ended).map(|()| graph)
    }

    fn checked(&self, message: Message) -> Result<()> {
        if message.is_null() {
            return Ok(());
        }
        // SAFETY: a message is a zero-terminated string that the library allocated for us to free.
        let text = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
        unsafe { (self.free_error)(message) };
        Err(anyhow!("CUDA: {}", text.lines().next().unwrap_or_default()))
    }
}

/// Names memory that graphs share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool([u64; 2]);

/// Work that was captured once and can be asked for again as one.
#[derive(Debug)]
pub struct Graph {
    raw: RawGraph,
    shim: &'static Shim,
}

impl Graph {
    /// Asks the calling thread's stream for the captured work; does not wait.
    ///
    /// # Errors
    /// When CUDA fails.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: the graph lives until this is dropped.
        self.shim.checked(unsafe { (self.shim.graph_replay)(self.raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it came from `graph_begin` and is freed once.
        unsafe { (self.shim.graph_free)(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Names of the library's functions in a source.
    fn names(source: &str) -> BTreeSet<&str> {
        let words = source.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words
            .filter(|word| word.starts_with(concat!("ppo_", "cuda_")))
            .collect()
    }

    #[test]
    fn what_is_looked_up_is_what_the_library_defines_in_the_same_version() {
        let library = include_str!("../../native/cuda/shim.cpp");
        assert_eq!(names(library), names(include_str!("cuda.rs")));
        let kernels = names(include_str!("../../native/cuda/fused.cpp"));
        let freed = concat!("ppo_", "cuda_free_error");
        assert_eq!(kernels, &names(include_str!("cuda/fused.rs")) | &[freed].into());
        assert!(library.contains(&format!("_abi() {{ return {ABI}; }}")));
    }

    #[test]
    fn without_the_library_the_error_says_what_builds_it() {
        // Where it was built beside the tests' binary and finds libtorch_cuda, it loads.
        if let Err(error) = shim() {
            let text = error.to_string();
            assert!(text.contains(LIBRARY) && text.contains("make cuda-shim"), "{text}");
        }
    }
}
