//! c10d: a group of processes (Gloo for tensors of this machine's memory, NCCL for a GPU's), and gradients that leave backward at once
//! (`native/collective.cpp`).

use std::ffi::{CString, c_char, c_void};
use std::fmt::Display;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use tch::{Device, Tensor};

use super::message::{answer, checked, free_message};
use super::nccl::{Begun, Nccl};
use super::store::{Store, milliseconds};
use super::training::{Handle, handle};

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
    fn ppo_group_give_up(group: *mut c_void);
    fn ppo_group_close(group: *mut c_void);
    fn ppo_group_all_reduce(group: *mut c_void, tensor: Handle, greatest: bool) -> *mut c_char;
    fn ppo_group_broadcast(group: *mut c_void, tensor: Handle, root: i64) -> *mut c_char;
    fn ppo_group_all_gather(group: *mut c_void, whole: Handle, part: Handle) -> *mut c_char;
    fn ppo_group_reduce(group: *mut c_void, tensor: Handle, root: i64, pending: *mut *mut c_void) -> *mut c_char;
    fn ppo_pending_wait(pending: *mut c_void) -> *mut c_char;
    fn ppo_pending_free(pending: *mut c_void);
    fn ppo_on_gradient(
        leaf: Handle,
        parameter: i64,
        state: *mut c_void,
        take: Take,
        drop: unsafe extern "C" fn(*mut c_void),
        free_message: unsafe extern "C" fn(*mut c_char),
    ) -> *mut c_char;
}

/// Why processes could not compute together.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{words}")]
pub struct Failure {
    /// What is said of it.
    pub words: String,
    /// Whether others were not reached, or not in time; else it is this process that failed.
    pub of_others: bool,
}

impl Failure {
    /// Others were not reached, or not in time. An error comes with its causes.
    pub fn of_others(words: impl Display) -> Self {
        Self {
            words: format!("{words:#}"),
            of_others: true,
        }
    }

    /// This process failed. An error comes with its causes.
    pub fn own(words: impl Display) -> Self {
        Self {
            words: format!("{words:#}"),
            of_others: false,
        }
    }

    /// Whether an error says that others were not reached. Any that is no failure of this kind is this process' own.
    pub fn is_of_others(error: &anyhow::Error) -> bool {
        error.downcast_ref::<Self>().is_some_and(|failure| failure.of_others)
    }
}

/// What Gloo answers. A tensor that it would not take was found before: what fails is the way to the others.
fn exchanged(answer: *mut c_char) -> Result<()> {
    checked(answer).map_err(|error| Failure::of_others(error).into())
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
        let joined = store.ask(2 * deadline, move |store| {
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
        });
        let mut group = joined.map_err(Failure::of_others)?;
        group.gpus = gpus;
        Ok(group)
    }

    /// Ends it: whoever waits here is told that a rank is lost, and so is whoever would begin anything.
    pub fn give_up(&self) {
        // SAFETY: it lives until this is dropped, and its state is guarded by a lock.
        unsafe { ppo_group_give_up(self.handle) };
        if let Some(gpus) = &self.gpus {
            gpus.abort("NCCL: a rank is lost");
        }
    }

    /// Who exchanges this tensor between GPUs; None where it is in this machine's memory.
    fn gpus(&self, tensor: &Tensor) -> Result<Option<&Arc<Nccl>>> {
        ensure!(tensor.is_contiguous(), "a tensor with gaps cannot be exchanged");
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
            None => exchanged(unsafe { ppo_group_all_reduce(self.handle, handle(tensor), false) }),
        }
    }

    /// The greatest of the tensors of all ranks, element by element, in place.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn greatest(&self, tensor: &Tensor) -> Result<()> {
        match self.gpus(tensor)? {
            Some(gpus) => gpus.all_reduce(tensor, true),
            None => exchanged(unsafe { ppo_group_all_reduce(self.handle, handle(tensor), true) }),
        }
    }

    /// The tensor of `root`, in place of everybody's.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<()> {
        match self.gpus(tensor)? {
            Some(gpus) => gpus.broadcast(tensor, root),
            None => exchanged(unsafe { ppo_group_broadcast(self.handle, handle(tensor), root as i64) }),
        }
    }

    /// The parts of all ranks one after the other, in `whole`; all parts have the same length. `part` may be this rank's place in `whole`:
    /// Gloo gathers aside, and NCCL leaves a part where it is.
    ///
    /// # Errors
    /// When a rank is gone or late.
    pub fn gather(&self, whole: &Tensor, part: &Tensor) -> Result<()> {
        ensure!(part.is_contiguous(), "a part with gaps cannot be exchanged");
        match self.gpus(whole)? {
            Some(gpus) => gpus.all_gather(whole, part),
            None => exchanged(unsafe { ppo_group_all_gather(self.handle, handle(whole), handle(part)) }),
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
        exchanged(unsafe { ppo_group_reduce(self.handle, handle(&tensor), root as i64, &raw mut pending) })?;
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
            Work::InMemory(handle) => exchanged(unsafe { ppo_pending_wait(*handle) })?,
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

/// Gives the gradients of `leaf`, the parameter of this number, to `taker`, which lives as long as the leaf, or until another takes its place.
///
/// # Errors
/// When it is not a leaf that takes part in backward.
pub fn on_gradient<T: TakeGradient + 'static>(leaf: &Tensor, parameter: usize, taker: &Arc<Mutex<T>>) -> Result<()> {
    let state = Arc::into_raw(taker.clone());
    // SAFETY: the C++ side calls `drop_taker` exactly once, when the hook goes, or on an error.
    checked(unsafe {
        ppo_on_gradient(
            handle(leaf),
            parameter as i64,
            state.cast_mut().cast(),
            take_gradient::<T>,
            drop_taker::<T>,
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
    // SAFETY: the taker of `on_gradient`, of which the hook has a count; a tensor that the C++ side keeps through the call, and
    // `clone_from_ptr` makes a handle of its own.
    let (taker, gradient) = unsafe { (&*state.cast::<Mutex<T>>(), Tensor::clone_from_ptr(gradient.cast())) };
    answer(taker.lock().take(parameter as usize, &gradient))
}

unsafe extern "C" fn drop_taker<T: TakeGradient>(state: *mut c_void) {
    // SAFETY: what `on_gradient` took out of an Arc, given back once.
    drop(unsafe { Arc::from_raw(state.cast_const().cast::<Mutex<T>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl TakeGradient for Nobody {
        fn take(&mut self, _: usize, _: &Tensor) -> Result<()> {
            anyhow::bail!("nobody wants it")
        }
    }

    #[test]
    fn a_leaf_holds_its_taker_until_another_takes_its_place_or_it_goes() {
        let leaf = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        let (first, second) = (Arc::new(Mutex::new(Nobody)), Arc::new(Mutex::new(Nobody)));
        on_gradient(&leaf, 0, &first).unwrap();
        assert_eq!(Arc::strong_count(&first), 2);
        on_gradient(&leaf, 0, &second).unwrap();
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (1, 2));
        drop(leaf);
        assert_eq!(Arc::strong_count(&second), 1);
    }

    #[test]
    fn a_taker_that_fails_ends_backward_with_its_words() {
        let leaf = Tensor::from_slice(&[1f32]).set_requires_grad(true);
        on_gradient(&leaf, 0, &Arc::new(Mutex::new(Nobody))).unwrap();
        let loss = (&leaf * 2.0).sum(tch::Kind::Float);
        let error = loss.f_backward().unwrap_err().to_string();
        assert!(error.contains("nobody wants it"), "{error}");
    }

    #[test]
    fn a_tensor_that_takes_no_part_in_backward_has_no_taker() {
        let taker = Arc::new(Mutex::new(Nobody));
        assert!(on_gradient(&(Tensor::from_slice(&[1f32]).set_requires_grad(true) * 2.0), 0, &taker).is_err());
        assert_eq!(Arc::strong_count(&taker), 1);
    }
}
