//! GPUs, as far as tch does not bind them (`native/device.cpp`).

use std::ffi::{c_char, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

use anyhow::{Context, Result};
use tch::{Device, Kind, Tensor};

use super::message::checked;
use super::training::{handle, one};

unsafe extern "C" {
    fn ppo_device_prepare() -> *mut c_char;
    fn ppo_device_use(number: i64) -> *mut c_char;
    fn ppo_device_synchronize(number: i64, shared: bool) -> *mut c_char;
    fn ppo_device_memory(number: i64, now: *mut i64, most: *mut i64, held: *mut i64) -> *mut c_char;
    fn ppo_to_device(tensor: *const c_void, number: i64, output: *mut *mut c_void) -> *mut c_char;
    fn ppo_staging(count: i64, pinned: bool, output: *mut *mut c_void) -> *mut c_char;
    fn ppo_copy(target: *const c_void, source: *const c_void) -> *mut c_char;
    fn ppo_fill(target: *const c_void, bytes: *const u8, like: *const c_void, piece: i64) -> *mut c_char;
    fn ppo_lane_open(number: i64, lane: *mut *mut c_void, stream: *mut *mut c_void) -> *mut c_char;
    fn ppo_lane_close(lane: *mut c_void);
    fn ppo_lane_enter(lane: *mut c_void, tensor: *const c_void) -> *mut c_char;
    fn ppo_lane_mark(lane: *mut c_void, event: *mut *mut c_void) -> *mut c_char;
    fn ppo_event_passed(event: *mut c_void, passed: *mut bool) -> *mut c_char;
    fn ppo_event_free(event: *mut c_void);
    fn ppo_operators_hold();
    fn ppo_operators_release();
}

/// Bytes that pass through pinned memory at once on their way to a GPU.
const PIECE_BYTES: usize = 32 << 20;

/// Chooses how this process computes on GPUs (float32 as float32), and GPU `number` as where this thread's new tensors go by default.
///
/// # Errors
/// When the driver refuses.
pub fn prepare(number: usize) -> Result<()> {
    checked(unsafe { ppo_device_prepare() })?;
    use_by_default(number)
}

/// GPU `number` is where this thread's new tensors go by default, and where NCCL computes.
///
/// # Errors
/// When the driver refuses.
pub fn use_by_default(number: usize) -> Result<()> {
    checked(unsafe { ppo_device_use(number as i64) })
}

/// Waits until the device has done what this thread gave it to do: threads that compute on other streams may read it then, and change
/// what it read.
///
/// # Errors
/// What failed on the device.
pub fn synchronize(device: Device) -> Result<()> {
    wait_for(device, false)
}

/// Waits until the device has done what it was given on the stream that all threads share which have none of their own.
///
/// # Errors
/// What failed on the device.
pub fn synchronize_shared(device: Device) -> Result<()> {
    wait_for(device, true)
}

fn wait_for(device: Device, shared: bool) -> Result<()> {
    match device {
        Device::Cuda(number) => checked(unsafe { ppo_device_synchronize(number as i64, shared) }),
        _ => Ok(()),
    }
}

/// While it lives no thread requires deterministic operators: a backward pass that needs them waits. Whoever holds it must wait for
/// no such thread, and hold it once.
#[derive(Debug)]
pub struct UsualOperators {
    /// It ends in the thread where it began.
    _thread: PhantomData<*const ()>,
}

impl UsualOperators {
    /// Waits until no backward pass requires them.
    pub fn hold() -> Self {
        // SAFETY: it is released once, by the same thread.
        unsafe { ppo_operators_hold() };
        Self { _thread: PhantomData }
    }
}

impl Drop for UsualOperators {
    fn drop(&mut self) {
        // SAFETY: held since it was made, by this thread.
        unsafe { ppo_operators_release() };
    }
}

/// Memory of a GPU that tensors of this process take, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Now.
    pub now: u64,
    /// At most since it was last asked.
    pub most: u64,
    /// What libtorch holds for them.
    pub held: u64,
}

/// What tensors take on a GPU; None on a CPU.
///
/// # Errors
/// When libtorch fails.
pub fn memory(device: Device) -> Result<Option<Memory>> {
    let Device::Cuda(number) = device else { return Ok(None) };
    let (mut now, mut most, mut held) = (0, 0, 0);
    checked(unsafe { ppo_device_memory(number as i64, &raw mut now, &raw mut most, &raw mut held) })?;
    let bytes = |number: i64| number.unsigned_abs();
    Ok(Some(Memory {
        now: bytes(now),
        most: bytes(most),
        held: bytes(held),
    }))
}

/// A small tensor of the host on a device. To a GPU it goes by itself, through pinned memory; the tensor may be dropped at once.
///
/// # Errors
/// When memory runs out.
pub fn send(tensor: &Tensor, device: Device) -> Result<Tensor> {
    match device {
        Device::Cuda(number) => one(|output| unsafe { ppo_to_device(handle(tensor), number as i64, output) }),
        _ => Ok(tensor.f_to_device(device)?),
    }
}

/// Memory of the host through which small numbers go to a device and come from it, again and again.
#[derive(Debug)]
pub struct Staging {
    device: Device,
    /// Int64; pinned where the device is a GPU.
    host: Tensor,
    /// Whether the device may still read it.
    is_read: bool,
}

impl Staging {
    /// # Errors
    /// When memory runs out.
    pub fn new(count: usize, device: Device) -> Result<Self> {
        let count = i64::try_from(count)?;
        let pinned = matches!(device, Device::Cuda(_));
        Ok(Self {
            host: one(|output| unsafe { ppo_staging(count, pinned, output) })?,
            device,
            is_read: false,
        })
    }

    /// How many numbers it has room for.
    pub fn count(&self) -> usize {
        self.host.numel()
    }

    /// Puts `numbers` into `target`, which is contiguous, int64 and as long; does not wait until they are there.
    ///
    /// # Errors
    /// When it has no room for as many, or the device fails.
    pub fn send(&mut self, numbers: &[i64], target: &Tensor) -> Result<()> {
        if std::mem::replace(&mut self.is_read, true) {
            synchronize(self.device)?;
        }
        let part = self.host.f_narrow(0, 0, i64::try_from(numbers.len())?)?;
        part.shallow_clone().f_copy_(&Tensor::f_from_slice(numbers)?)?;
        // SAFETY: both live through the call, and the pinned memory as long as this.
        checked(unsafe { ppo_copy(handle(target), handle(&part)) }).context("numbers for the device")
    }

    /// The numbers of `source`, one dimension of int64, once the device has done all that this thread gave it to do.
    ///
    /// # Errors
    /// When it has no room for as many, or what failed on the device.
    pub fn fetch(&mut self, source: &Tensor) -> Result<Vec<i64>> {
        let mut part = self.host.f_narrow(0, 0, source.size1()?)?;
        part.f_copy_(source)?;
        self.is_read = false;
        Ok(Vec::try_from(&part)?)
    }
}

/// Fills `target`, which is contiguous and on any device, with the numbers of `kind` in `bytes`.
///
/// # Errors
/// When they are not as many, or memory runs out.
pub fn fill(target: &Tensor, bytes: &[u8], kind: Kind) -> Result<()> {
    fill_by(target, bytes, kind, PIECE_BYTES)
}

fn fill_by(target: &Tensor, bytes: &[u8], kind: Kind, piece: usize) -> Result<()> {
    let size = kind.elt_size_in_bytes();
    anyhow::ensure!(
        bytes.len() == target.numel() * size,
        "{} bytes for {} numbers of {size} bytes",
        bytes.len(),
        target.numel()
    );
    let like = Tensor::f_empty([0], (kind, Device::Cpu))?;
    let piece = (piece / size).max(1) as i64;
    // SAFETY: as many bytes as the target's numbers need, checked above.
    checked(unsafe { ppo_fill(handle(target), bytes.as_ptr(), handle(&like), piece) }).context("filling a tensor")
}

/// A stream of a GPU for collectives, beside the one that libtorch computes on.
#[derive(Debug)]
pub struct Lane {
    handle: *mut c_void,
    /// `cudaStream_t`.
    stream: *mut c_void,
}

// SAFETY: it names a stream, which any thread may use; the order of uses is the caller's to see to.
unsafe impl Send for Lane {}
// SAFETY: as above.
unsafe impl Sync for Lane {}

impl Lane {
    /// On GPU `number`.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn open(number: usize) -> Result<Self> {
        let (mut handle, mut stream) = (null_mut(), null_mut());
        checked(unsafe { ppo_lane_open(number as i64, &raw mut handle, &raw mut stream) })?;
        Ok(Self { handle, stream })
    }

    /// Its `cudaStream_t`.
    pub fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// What comes next on the lane uses `tensor`, after all that libtorch was given to do so far.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn enter(&self, tensor: &Tensor) -> Result<()> {
        checked(unsafe { ppo_lane_enter(self.handle, handle(tensor)) })
    }

    /// An event behind all that is on the lane.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn mark(&self) -> Result<Event> {
        let mut event = null_mut();
        checked(unsafe { ppo_lane_mark(self.handle, &raw mut event) })?;
        Ok(Event(event))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { ppo_lane_close(self.handle) };
    }
}

/// A point in what a lane was given to do.
#[derive(Debug)]
pub struct Event(*mut c_void);

// SAFETY: CUDA's events may be asked from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Whether all before it is done.
    ///
    /// # Errors
    /// What failed on the device.
    pub fn passed(&self) -> Result<bool> {
        let mut passed = false;
        checked(unsafe { ppo_event_passed(self.0, &raw mut passed) })?;
        Ok(passed)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, freed once.
        unsafe { ppo_event_free(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_filled_piece_by_piece_and_converted_on_its_way() {
        let values: Vec<f32> = (0..10).map(|number| number as f32 * 0.3).collect();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let given = Tensor::from_slice(&values);
        for kind in [Kind::Float, Kind::BFloat16] {
            for piece in [4, 12, 1 << 20] {
                let target = Tensor::zeros([2, 5], (kind, Device::Cpu));
                fill_by(&target, &bytes, Kind::Float, piece).unwrap();
                assert!(
                    target.equal(&given.to_kind(kind).view([2, 5])),
                    "{kind:?} by {piece} bytes"
                );
            }
        }
        let error = fill(&Tensor::zeros([3], (Kind::Float, Device::Cpu)), &bytes, Kind::Float);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("40 bytes for 3 numbers of 4 bytes")
        );
    }

    #[test]
    fn a_prepared_process_chooses_no_deterministic_operators_outside_of_backward_passes() {
        unsafe extern "C" {
            fn ppo_device_is_deterministic() -> bool;
        }
        checked(unsafe { ppo_device_prepare() }).unwrap();
        assert!(!unsafe { ppo_device_is_deterministic() });
    }

    #[test]
    fn numbers_are_staged_on_their_way_to_a_device_and_back() {
        let mut staging = Staging::new(4, Device::Cpu).unwrap();
        let target = Tensor::zeros([3], (Kind::Int64, Device::Cpu));
        for numbers in [[1, 2, 3], [-1, i64::MAX, i64::MIN]] {
            staging.send(&numbers, &target).unwrap();
            assert_eq!(staging.fetch(&target).unwrap(), numbers);
        }
        assert_eq!(staging.count(), 4);
        assert!(staging.send(&[0; 5], &target).is_err());
    }

    #[test]
    fn operators_are_held_by_one_thread_at_a_time() {
        let held = UsualOperators::hold();
        let (sender, receiver) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _held = UsualOperators::hold();
            sender.send(()).unwrap();
        });
        let early = receiver.recv_timeout(std::time::Duration::from_millis(20));
        assert!(early.is_err());
        drop(held);
        receiver.recv().unwrap();
        other.join().unwrap();
    }

    #[test]
    fn a_cpu_has_nothing_to_wait_for_and_no_memory_of_its_own() {
        synchronize(Device::Cpu).unwrap();
        synchronize_shared(Device::Cpu).unwrap();
        assert_eq!(memory(Device::Cpu).unwrap(), None);
        let tensor = Tensor::from_slice(&[1i64, 2]);
        assert!(send(&tensor, Device::Cpu).unwrap().equal(&tensor));
    }
}
