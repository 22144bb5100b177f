//! c10d: a group of processes (Gloo for tensors of this machine's memory, NCCL for a GPU's), and gradients that leave backward at once
//! (`native/collective.cpp`).

use std::ffi::{CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tch::{Device, Tensor};

use super::nccl::{Begun, Nccl};
use super::store::{Store, milliseconds};
use super::training::checked;

type Take = unsafe extern "C" fn(*mut c_void, i64, *mut c_void) -> *mut c_char;

unsafe extern "C" {
    fn ppo_group_open(
        store: *mut c_void,
        name: *const c_char,
        host: *const c_char,
        rank: i32,
        count: i32,
        deadline_ms: i64,
        group: *mut *mut c_void,
    ) -> *mut c_char;
    fn ppo_group_close(group: *mut c_void);
    fn ppo_group_all_reduce(group: *mut c_void, tensor: *mut c_void, greatest: bool) -> *mut c_char;
    fn ppo_group_broadcast(group: *mut c_void, tensor: *mut c_void, root: i64) -> *mut c_char;
    fn ppo_group_all_gather(group: *mut c_void, whole: *mut c_void, part: *mut c_void) -> *mut c_char;
    fn ppo_group_reduce(group: *mut c_void, tensor: *mut c_void, root: i64, pending: *mut *mut c_void) -> *mut c_char;
    fn ppo_pending_wait(pending: *mut c_void) -> *mut c_char;
    fn ppo_pending_free(pending: *mut c_void);
    fn ppo_on_gradient(
        leaf: *mut c_void,
        parameter: i64,
        state: *mut c_void,
        take: Take,
        free_message: unsafe extern "C" fn(*mut c_char),
    ) -> *mut c_char;
}

fn handle(tensor: &Tensor) -> *mut c_void {
    tensor.as_ptr().cast_mut().cast()
}

/// Processes that compute together. All call the same functions in the same order, with tensors of the same shapes.
#[derive(Debug)]
pub struct Group {
    handle: *mut c_void,
    /// For tensors on this rank's GPU.
    gpus: Option<Arc<Nccl>>,
}

// SAFETY: ProcessGroupGloo guards its queue by a lock; that the ranks agree on the order of calls is the caller's to see to.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// Joins the `count` ranks that meet in `store` under `name`; `host` is this process' own address, as the others reach it.
    ///
    /// # Errors
    /// When a rank does not come within `deadline`, which is also that of every call.
    pub fn join(
        store: &Store,
        name: &str,
        host: &str,
        (rank, count): (usize, usize),
        device: Device,
        deadline: Duration,
    ) -> Result<Self> {
        let gpus = match device {
            Device::Cuda(number) => Some(Arc::new(Nccl::join(store, name, (rank, count), number, deadline)?)),
            _ => None,
        };
        let (name, host) = (CString::new(name)?, CString::new(host)?);
        let (rank, count) = (i32::try_from(rank)?, i32::try_from(count)?);
        // All ranks come within the deadline, or the last one to come is told so after it.
        let mut group = store.ask(2 * deadline, move |store| {
            let mut handle = null_mut();
            checked(unsafe {
                ppo_group_open(
                    store.as_ptr(),
                    name.as_ptr(),
                    host.as_ptr(),
                    rank,
                    count,
                    milliseconds(deadline),
                    &raw mut handle,
                )
            })?;
            Ok(Self { handle, gpus: None })
        })?;
        group.gpus = gpus;
        Ok(group)
    }

    /// Who exchanges this tensor between GPUs; None where it is in this machine's memory.
    fn gpus(&self, tensor: &Tensor) -> Result<Option<&Arc<Nccl>>> {
        match tensor.device() {
            Device::Cpu => Ok(None),
            _ => self
                .gpus
                .as_ref()
                .context("these ranks met to compute on CPUs")
                .map(Some),
        }
    }

    /// Adds up the tensors of all ranks, in place.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn sum(&self, tensor: &Tensor) -> Result<()> {
        match self.gpus(tensor)? {
            Some(gpus) => gpus.all_reduce(tensor, false),
            None => checked(unsafe { ppo_group_all_reduce(self.handle, handle(tensor), false) }),
        }
    }

    /// The greatest of the tensors of all ranks, element by element, in place.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn greatest(&self, tensor: &Tensor) -> Result<()> {
        match self.gpus(tensor)? {
            Some(gpus) => gpus.all_reduce(tensor, true),
            None => checked(unsafe { ppo_group_all_reduce(self.handle, handle(tensor), true) }),
        }
    }

    /// The tensor of `root`, in place of everybody's.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<()> {
        match self.gpus(tensor)? {
            Some(gpus) => gpus.broadcast(tensor, root),
            None => checked(unsafe { ppo_group_broadcast(self.handle, handle(tensor), root as i64) }),
        }
    }

    /// The parts of all ranks one after the other, in `whole`; all parts have the same length.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn gather(&self, whole: &Tensor, part: &Tensor) -> Result<()> {
        match self.gpus(whole)? {
            Some(gpus) => gpus.all_gather(whole, part),
            None => checked(unsafe { ppo_group_all_gather(self.handle, handle(whole), handle(part)) }),
        }
    }

    /// Begins to add up the tensors of all ranks in that of `root`.
    ///
    /// # Errors
    /// When a rank is gone.
    pub fn begin_sum_at(&self, root: usize, tensor: Tensor) -> Result<Pending> {
        if let Some(gpus) = self.gpus(&tensor)? {
            let work = Work::OnGpu(gpus.begin_sum_at(root, &tensor)?);
            return Ok(Pending { work, tensor });
        }
        let mut pending = null_mut();
        checked(unsafe { ppo_group_reduce(self.handle, handle(&tensor), root as i64, &raw mut pending) })?;
        let work = Work::InMemory(pending);
        Ok(Pending { work, tensor })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: joined once, closed once.
        unsafe { ppo_group_close(self.handle) };
    }
}

/// A sum that is being made.
#[derive(Debug)]
pub struct Pending {
    work: Work,
    tensor: Tensor,
}

#[derive(Debug)]
enum Work {
    InMemory(*mut c_void),
    OnGpu(Begun),
}

// SAFETY: c10d's Work guards its state by a lock.
unsafe impl Send for Pending {}

impl Pending {
    /// Waits for it: the sum, at the rank that gets it.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn wait(self) -> Result<Tensor> {
        match &self.work {
            Work::InMemory(handle) => checked(unsafe { ppo_pending_wait(*handle) })?,
            Work::OnGpu(begun) => begun.wait()?,
        }
        Ok(self.tensor.shallow_clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Work::InMemory(handle) = self.work {
            // SAFETY: begun once, freed once.
            unsafe { ppo_pending_free(handle) };
        }
    }
}

/// Takes gradients as backward computes them.
pub trait TakeGradient: Send {
    /// The gradient of a parameter, whole. It is not kept anywhere else.
    ///
    /// # Errors
    /// Ends backward with this error.
    fn take(&mut self, parameter: usize, gradient: &Tensor) -> Result<()>;
}

/// Gives the gradients of `leaf`, the parameter of this number, to `taker`. The taker lives as long as backward is called.
///
/// # Errors
/// When it is not a leaf that takes part in backward.
pub fn on_gradient<T: TakeGradient>(leaf: &Tensor, parameter: usize, taker: &Mutex<T>) -> Result<()> {
    let state: *const Mutex<T> = taker;
    checked(unsafe {
        ppo_on_gradient(
            handle(leaf),
            parameter as i64,
            state.cast_mut().cast(),
            take_gradient::<T>,
            free_message,
        )
    })
    .context("cannot watch a parameter's gradient")
}

unsafe extern "C" fn take_gradient<T: TakeGradient>(
    state: *mut c_void,
    parameter: i64,
    gradient: *mut c_void,
) -> *mut c_char {
    // SAFETY: the taker of `on_gradient`, which lives; a tensor that the C++ side keeps through the call.
    let taker = unsafe { &*state.cast::<Mutex<T>>() };
    let taken = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `clone_from_ptr` makes a handle of its own.
        let gradient = unsafe { Tensor::clone_from_ptr(gradient.cast()) };
        taker.lock().take(parameter as usize, &gradient)
    }));
    let message = match taken {
        Ok(Ok(())) => return null_mut(),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => "the taker of a gradient panicked".to_owned(),
    };
    CString::new(message.replace('\0', " ")).unwrap_or_default().into_raw()
}

unsafe extern "C" fn free_message(message: *mut c_char) {
    // SAFETY: a message of `take_gradient`, once.
    drop(unsafe { CString::from_raw(message) });
}
