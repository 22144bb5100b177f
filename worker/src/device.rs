//! The device that this process computes on: chosen once, at its start; everything that loads a model asks here.
//!
//! The binary is linked to libtorch's CPU part alone. Where there is a GPU it loads the CUDA part too, so one binary runs on both,
//! and an error can say what is missing instead of the loader refusing to start the process.

mod choice;
mod decision;
mod missing;

use std::fmt;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use parking_lot::Mutex;
use ppo_crds::pod::env;
use tch::Device;

use crate::manifest::Invalid;
use crate::native::device::{prepare, use_by_default};
use crate::native::driver::{Driver, Gpu};
use crate::native::library::load_torch_cuda;

use self::decision::{Surroundings, decide};

pub use self::choice::Choice;
pub use self::missing::Missing;

/// The option of every command that loads a model.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DeviceArgs {
    /// What to compute on: auto (a GPU where there is one), cpu, cuda, or cuda:N for a certain GPU.
    #[arg(long, env = env::DEVICE, value_name = "DEVICE", default_value_t)]
    device: Choice,
}

/// The device of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// For tensors.
    pub device: Device,
    /// The GPU; None on a CPU.
    pub gpu: Option<Gpu>,
    /// GPUs that this process may compute on, from the first: those of its pod, where it is the pod's only process. 0 on a CPU.
    pub gpus: usize,
    /// Why a GPU was looked for and not taken.
    pub missing: Option<Missing>,
}

impl Settled {
    /// All that this process may compute on, its own first.
    fn devices(&self) -> Vec<Device> {
        match self.gpus {
            0 | 1 => vec![self.device],
            several => (0..several).map(Device::Cuda).collect(),
        }
    }
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match (self.device, &self.gpu) {
            (Device::Cuda(number), Some(Gpu { name, bytes, .. })) => {
                write!(f, "cuda:{number} ({name}, {} GiB)", bytes >> 30)
            }
            _ => f.write_str("the CPU"),
        }
    }
}

static SETTLED: Mutex<Option<Settled>> = Mutex::new(None);

impl DeviceArgs {
    /// Settles the device of this process and says in the log which it is; `who` computes there. To be called before libtorch is
    /// asked for anything.
    ///
    /// # Errors
    /// [`Invalid`] when a GPU was asked for, or promised by the operator, and none can be used: what is missing and what would fix it.
    pub fn settle(self, who: &str) -> Result<Settled> {
        let settled = settle(self.device)?;
        let why = match settled.missing {
            Some(Missing::Driver(_)) => " (no NVIDIA driver found)",
            Some(_) | None => "",
        };
        tracing::info!("{who} computes on {settled}{why}");
        // Of a machine with a driver somebody means to use its GPUs.
        if let Some(missing) = settled
            .missing
            .as_ref()
            .filter(|missing| !matches!(missing, Missing::Driver(_)))
        {
            tracing::warn!("no usable GPU: {missing}");
        }
        Ok(settled)
    }
}

/// The device of this process: what [`DeviceArgs::settle`] settled, else what the environment says.
///
/// # Errors
/// As [`DeviceArgs::settle`].
pub fn here() -> Result<Device> {
    Ok(settled()?.device)
}

/// The GPU of this process; None on a CPU.
///
/// # Errors
/// As [`DeviceArgs::settle`].
pub fn gpu() -> Result<Option<Gpu>> {
    Ok(settled()?.gpu)
}

/// What `load` makes for each of this process' devices, side by side: a role that only reads its model has a copy of it on each.
///
/// # Errors
/// As [`DeviceArgs::settle`] and `load`.
pub fn on_each<T: Send>(load: impl Fn(Device) -> Result<T> + Sync) -> Result<Vec<T>> {
    on_all(&settled()?.devices(), load)
}

fn on_all<T: Send>(devices: &[Device], load: impl Fn(Device) -> Result<T> + Sync) -> Result<Vec<T>> {
    if let [only] = devices {
        return Ok(vec![load(*only)?]);
    }
    let load = |device| {
        enter(device)?;
        load(device).with_context(|| format!("on {device:?}"))
    };
    std::thread::scope(|scope| {
        let loading: Vec<_> = devices.iter().map(|device| scope.spawn(|| load(*device))).collect();
        let loaded = loading.into_iter().map(|thread| thread.join());
        loaded
            .map(|end| end.map_err(|_| anyhow!("loading panicked"))?)
            .collect()
    })
}

/// This thread computes on `device` from now on.
///
/// # Errors
/// When the driver refuses.
pub fn enter(device: Device) -> Result<()> {
    match device {
        Device::Cuda(number) => use_by_default(number),
        _ => Ok(()),
    }
}

fn settled() -> Result<Settled> {
    let choice = std::env::var(env::DEVICE).unwrap_or_default();
    let choice = choice.parse();
    let choice = choice.map_err(|words| Invalid::new(format!("{}: {words}", env::DEVICE)))?;
    settle(choice)
}

fn settle(choice: Choice) -> Result<Settled> {
    let mut settled = SETTLED.lock();
    if let Some(settled) = &*settled {
        return Ok(settled.clone());
    }
    let decided = decide(choice, Surroundings::read()?, look)?;
    if let Device::Cuda(number) = decided.device {
        prepare(number).with_context(|| format!("cuda:{number} cannot be used"))?;
    }
    Ok(settled.insert(decided).clone())
}

/// The GPUs that libtorch can use, in order of their numbers.
fn look() -> Result<Vec<Gpu>, Missing> {
    let driver = Driver::open()?;
    let gpus = driver.gpus()?;
    if gpus.is_empty() {
        return Err(Missing::Gpu);
    }
    load_torch_cuda().map_err(Missing::Torch)?;
    if tch::Cuda::device_count() == 0 {
        return Err(Missing::OldDriver(driver.cuda_version()?));
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_loaded_for_each_device_comes_in_their_order_and_a_failure_names_its_device() {
        let devices = [Device::Cpu, Device::Mps, Device::Cpu];
        assert_eq!(on_all(&devices, Ok).unwrap(), devices);
        let refuse = |device| match device {
            Device::Mps => Err(anyhow!("no room")),
            _ => Ok(()),
        };
        assert_eq!(
            format!("{:#}", on_all(&devices, refuse).unwrap_err()),
            "on Mps: no room"
        );
    }
}
