//! The functions of nccl.h that are used, found in the library at run time.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::unique_id::UniqueId;
use crate::native::collective::Failure;
use crate::native::library;

const LIBRARY: &str = "libnccl.so.2";

/// `ncclSuccess` and `ncclInProgress` of `ncclResult_t`.
pub(super) const SUCCESS: c_int = 0;
/// See [`SUCCESS`].
pub(super) const IN_PROGRESS: c_int = 7;
/// `ncclUnhandledCudaError`, `ncclInvalidArgument` and `ncclInvalidUsage`: this process failed, and no other.
const OWN: [c_int; 3] = [1, 4, 5];
/// How NCCL says that `/dev/shm` is full, as an error of the system (`ncclShmOpen` in its `misc/shmutils.cc`), like those of the network.
const NO_ROOM: &str = "shared memory segment";
/// `ncclSum` and `ncclMax` of `ncclRedOp_t`.
pub(super) const SUM: c_int = 0;
/// See [`SUM`].
pub(super) const MAX: c_int = 2;

/// `ncclConfig_t` as of NCCL 2.18; newer ones read as much of it as its size says.
#[repr(C)]
pub(super) struct Config {
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
    pub(super) fn non_blocking() -> Self {
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

pub(super) type Comm = *mut c_void;
pub(super) type Stream = *mut c_void;

/// The functions of nccl.h that are used.
pub(super) struct Functions {
    pub(super) get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    pub(super) comm_init: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int,
    pub(super) comm_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    pub(super) comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    pub(super) error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    pub(super) last_error: unsafe extern "C" fn(Comm) -> *const c_char,
    pub(super) all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    pub(super) reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int,
    pub(super) broadcast: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int,
    pub(super) all_gather: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int,
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
    pub(super) fn get() -> Result<&'static Self> {
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
    pub(super) fn words(&self, code: c_int, comm: Comm) -> String {
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

    /// What a result that is no success means, and whose failure it is.
    pub(super) fn failure(&self, code: c_int, comm: Comm) -> Failure {
        let words = self.words(code, comm);
        Failure {
            of_others: is_of_others(code, &words),
            words,
        }
    }

    /// The end of a call: a non-blocking communicator may still be at it, and is [asked](Self::state) until it is not.
    pub(super) fn settle(&self, mut code: c_int, mut ask: impl FnMut() -> Result<c_int>) -> Result<()> {
        while code == IN_PROGRESS {
            std::thread::sleep(Duration::from_millis(1));
            code = ask()?;
        }
        match code {
            SUCCESS => Ok(()),
            code => Err(self.failure(code, null_mut()).into()),
        }
    }

    /// What a communicator that lives is at.
    pub(super) fn state(&self, comm: Comm) -> Result<c_int> {
        let mut code = SUCCESS;
        // SAFETY: the caller's word that it lives.
        let asked = unsafe { (self.comm_error)(comm, &raw mut code) };
        match asked {
            SUCCESS => Ok(code),
            asked => Err(self.failure(asked, comm).into()),
        }
    }
}

/// Whether others were not reached, by a result and what NCCL says of it; else this process failed.
fn is_of_others(code: c_int, words: &str) -> bool {
    !OWN.contains(&code) && !words.contains(NO_ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_is_gone_is_others_failure_and_memory_that_ran_out_is_this_process_own() {
        // ncclRemoteError and ncclSystemError.
        assert!(is_of_others(6, "remote process exited or there was a network error"));
        assert!(is_of_others(2, "Connection refused"));
        let full = "Error while creating shared memory segment /dev/shm/nccl-VPyhzw (size 21823872), error: No space left on device (28)";
        assert!(!is_of_others(2, full));
        assert!(!is_of_others(1, "Cuda failure 2 'out of memory'"));
    }

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
    fn the_configuration_has_the_layout_of_nccls_header() {
        // ncclConfig_t in nccl.h of NCCL 2.18, on a 64-bit machine.
        assert_eq!(size_of::<Config>(), 48);
        assert_eq!(std::mem::offset_of!(Config, blocking), 16);
        assert_eq!(std::mem::offset_of!(Config, net_name), 32);
        assert_eq!(std::mem::offset_of!(Config, split_share), 40);
    }
}
