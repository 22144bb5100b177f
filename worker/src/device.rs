//! The device that this process computes on: chosen once, at its start; everything that loads a model asks here.
//!
//! The binary is linked to libtorch's CPU part alone. Where there is a GPU it loads the CUDA part too, so one binary runs on both,
//! and an error can say what is missing instead of the loader refusing to start the process.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use parking_lot::Mutex;
use ppo_crds::pod::env;
use ppo_crds::spec::Role;
use tch::Device;

use crate::manifest::Invalid;
use crate::native::device::{prepare, use_by_default};
use crate::native::driver::{Driver, Gpu, Unusable};
use crate::native::library::load_torch_cuda;

/// The CUDA that libtorch 2.11.0's wheel is built for, and the first driver that runs it.
/// <https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/>
const CUDA: (i32, i32) = (13, 0);
/// See [`CUDA`].
const DRIVER: &str = "580";

/// The first GPUs that compute with bfloat16, and that FlashAttention-2 runs on.
const CAPABILITY: (i32, i32) = (8, 0);

/// The option of every command that loads a model.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct DeviceArgs {
    /// What to compute on: auto (a GPU where there is one), cpu, cuda, or cuda:N for a certain GPU.
    #[arg(long, env = env::DEVICE, value_name = "DEVICE", default_value_t)]
    device: Choice,
}

/// What a person asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// A GPU where there is one.
    #[default]
    Auto,
    /// The CPU, whatever else is there.
    Cpu,
    /// A GPU: that of the process' number in its pod, or a certain one.
    Cuda(Option<usize>),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "" | "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(None)),
            _ => number(text)
                .map(|number| Self::Cuda(Some(number)))
                .ok_or_else(|| "want auto, cpu, cuda, or cuda:N with the number of a GPU".to_owned()),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(number)) => write!(f, "cuda:{number}"),
        }
    }
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

/// Why no GPU can be used, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// No libcuda.so.1.
    #[error(
        "there is no NVIDIA driver here ({0}). On a machine: install it. In a pod: its node needs the driver and NVIDIA's \
         container toolkit, and where that is not the node's default, the role's template needs runtimeClassName: nvidia; where a \
         device plugin mounts the driver into a folder of its own, LD_LIBRARY_PATH of the container has to name it"
    )]
    Driver(String),
    /// The driver is there and refuses.
    #[error(
        "the NVIDIA driver refuses: {0}. No device (error 100) means that none was given to this container or is hidden by \
         CUDA_VISIBLE_DEVICES; anything else, that driver and GPUs of the node are out of order (nvidia-smi there says more)"
    )]
    Refused(String),
    /// No GPU is visible.
    #[error(
        "the NVIDIA driver is here and shows no GPU: none was given to this container, or CUDA_VISIBLE_DEVICES hides them"
    )]
    Gpu,
    /// A GPU that libtorch's attention does not run on.
    #[error(
        "{name} has compute capability {}.{}, and {}.{} (A100) or newer is needed; CUDA_VISIBLE_DEVICES hides a GPU",
        capability.0, capability.1, CAPABILITY.0, CAPABILITY.1
    )]
    OldGpu {
        /// The GPU.
        name: String,
        /// Its compute capability.
        capability: (i32, i32),
    },
    /// libtorch has no CUDA part.
    #[error(
        "libtorch's CUDA part cannot be loaded ({0}). In a pod: use the image whose tag ends in -cuda. On a machine: \
         pip install torch==2.11.0, and LD_LIBRARY_PATH=<site-packages>/torch/lib"
    )]
    Torch(String),
    /// libtorch's CUDA part finds none of the driver's GPUs.
    #[error(
        "libtorch's CUDA part cannot use the GPU: it is built for CUDA {}.{}, the driver runs CUDA up to {}.{}; driver \
         {DRIVER} or newer is needed",
        CUDA.0, CUDA.1, .0.0, .0.1
    )]
    OldDriver((i32, i32)),
}

impl From<Unusable> for Missing {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Absent(words) => Self::Driver(words),
            Unusable::Refuses(words) => Self::Refused(words),
        }
    }
}

/// What of this process' surroundings decides.
#[derive(Clone, Copy, Debug, Default)]
struct Surroundings {
    /// GPUs that the operator asked for; None outside a pod.
    promised: Option<u32>,
    /// Number of this process in its pod.
    local_rank: usize,
    /// The pod has a process for each of its GPUs.
    has_siblings: bool,
}

impl Surroundings {
    fn read() -> Result<Self> {
        let number = |name: &str| -> Result<Option<u32>> {
            let Ok(text) = std::env::var(name) else { return Ok(None) };
            let number = text.parse();
            number
                .map(Some)
                .map_err(|_| Invalid::new(format!("{name} is {text:?}, want a number")).into())
        };
        Ok(Self {
            promised: number(env::GPUS)?,
            local_rank: number(env::LOCAL_RANK)?.unwrap_or(0) as usize,
            has_siblings: std::env::var(env::ROLE).is_ok_and(|role| role == Role::Actor.name())
                && number(env::RANKS_PER_NODE)?.is_some_and(|ranks| ranks > 1),
        })
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

fn decide(
    choice: Choice,
    surroundings: Surroundings,
    look: impl FnOnce() -> Result<Vec<Gpu>, Missing>,
) -> Result<Settled> {
    let Surroundings {
        promised,
        local_rank,
        has_siblings,
    } = surroundings;
    if let (Choice::Cuda(Some(_)), true) = (choice, has_siblings) {
        let words = format!("{choice} names one GPU, and this pod has a process for each of several: say cuda");
        return Err(Invalid::new(words).into());
    }
    let cpu = |missing| Settled {
        device: Device::Cpu,
        gpu: None,
        gpus: 0,
        missing,
    };
    let number = match choice {
        Choice::Cpu => return Ok(cpu(None)),
        // A container may see GPUs of its node that others were given.
        Choice::Auto if promised == Some(0) => return Ok(cpu(None)),
        Choice::Auto | Choice::Cuda(None) => local_rank,
        Choice::Cuda(Some(number)) => number,
    };
    let without = |missing: Missing| {
        let why = match (choice, promised) {
            (Choice::Auto, None) => return Ok(cpu(Some(missing))),
            (Choice::Auto, Some(promised)) => format!("this pod was promised {promised} GPUs"),
            _ => format!("--device {choice}"),
        };
        Err(Invalid::new(format!("{why}: no usable GPU: {missing}")).into())
    };
    let gpus = match look() {
        Ok(gpus) => gpus,
        Err(missing) => return without(missing),
    };
    let Some(gpu) = gpus.get(number) else {
        let words = format!(
            "this process is to compute on cuda:{number}, and there are {} GPUs here: cuda:0 is the first",
            gpus.len()
        );
        return Err(Invalid::new(words).into());
    };
    let all_are_mine = promised.is_some() && !has_siblings && !matches!(choice, Choice::Cuda(Some(_)));
    let mine = if all_are_mine {
        &gpus[..]
    } else {
        std::slice::from_ref(gpu)
    };
    if let Some(old) = mine.iter().find(|gpu| gpu.capability < CAPABILITY) {
        let Gpu { name, capability, .. } = old.clone();
        return without(Missing::OldGpu { name, capability });
    }
    Ok(Settled {
        device: Device::Cuda(number),
        gpu: Some(gpu.clone()),
        gpus: if all_are_mine { gpus.len() } else { 1 },
        missing: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: usize) -> Vec<Gpu> {
        let gpu = |_| Gpu {
            name: "NVIDIA H200".into(),
            bytes: 139 << 30,
            capability: (9, 0),
        };
        (0..count).map(gpu).collect()
    }

    fn decided(choice: &str, promised: Option<u32>, local_rank: usize, found: Result<Vec<Gpu>, Missing>) -> String {
        let surroundings = Surroundings {
            promised,
            local_rank,
            has_siblings: promised > Some(1),
        };
        match decide(choice.parse().unwrap(), surroundings, || found) {
            Ok(settled) => settled.to_string(),
            Err(error) => {
                assert!(error.is::<Invalid>(), "another try ends the same way");
                error.to_string()
            }
        }
    }

    #[test]
    fn a_gpu_is_taken_where_there_is_one_by_the_process_number_in_its_pod() {
        assert_eq!(decided("auto", None, 0, Ok(gpus(1))), "cuda:0 (NVIDIA H200, 139 GiB)");
        assert_eq!(
            decided("auto", Some(8), 5, Ok(gpus(8))),
            "cuda:5 (NVIDIA H200, 139 GiB)"
        );
        assert_eq!(decided("cuda:1", None, 0, Ok(gpus(2))), "cuda:1 (NVIDIA H200, 139 GiB)");
        assert_eq!(decided("auto", None, 0, Err(Missing::Gpu)), "the CPU");
    }

    /// A GPU, and one that is too old.
    fn beside_an_old_one() -> Vec<Gpu> {
        let mut gpus = gpus(2);
        (gpus[1].name, gpus[1].capability) = ("Tesla T4".into(), (7, 5));
        gpus
    }

    #[test]
    fn a_gpu_that_is_too_old_keeps_no_other_from_being_used() {
        for choice in ["auto", "cuda", "cuda:0"] {
            let settled = decided(choice, None, 0, Ok(beside_an_old_one()));
            assert!(settled.starts_with("cuda:0 (NVIDIA H200"), "{choice}: {settled}");
        }
        let words = decided("cuda:1", None, 0, Ok(beside_an_old_one()));
        assert!(
            words.contains("--device cuda:1: no usable GPU: Tesla T4 has compute capability 7.5"),
            "{words}"
        );
        let only_old = beside_an_old_one().split_off(1);
        assert_eq!(decided("auto", None, 0, Ok(only_old)), "the CPU");
    }

    #[test]
    fn a_person_may_say_cpu_and_a_pod_without_gpus_leaves_its_nodes_alone() {
        assert_eq!(decided("cpu", Some(1), 0, Ok(gpus(1))), "the CPU");
        assert_eq!(decided("auto", Some(0), 0, Ok(gpus(1))), "the CPU");
        assert_eq!(
            decided("cuda", Some(0), 0, Ok(gpus(1))),
            "cuda:0 (NVIDIA H200, 139 GiB)"
        );
    }

    #[test]
    fn a_pod_that_was_promised_gpus_does_not_train_on_its_cpu() {
        let wrong_image = Missing::Torch("libtorch_cuda.so: cannot open shared object file".into());
        let words = decided("auto", Some(4), 0, Err(wrong_image));
        assert!(words.starts_with("this pod was promised 4 GPUs"), "{words}");
        assert!(words.contains("tag ends in -cuda"), "{words}");
        let words = decided("auto", Some(1), 0, Err(Missing::Driver("libcuda.so.1".into())));
        assert!(words.contains("runtimeClassName: nvidia"), "{words}");
        let words = decided("cuda", None, 0, Err(Missing::OldDriver((12, 4))));
        assert!(words.starts_with("--device cuda: no usable GPU: "), "{words}");
        assert!(words.contains("CUDA 13.0, the driver runs CUDA up to 12.4"), "{words}");
        let old = Missing::OldGpu {
            name: "Tesla T4".into(),
            capability: (7, 5),
        };
        assert!(decided("auto", Some(1), 0, Err(old)).contains("Tesla T4 has compute capability 7.5, and 8.0"));
        let words = decided("cuda:1", Some(2), 0, Ok(gpus(2)));
        assert!(words.contains("say cuda"), "{words}");
        assert!(decided("auto", Some(1), 0, Ok(beside_an_old_one())).contains("Tesla T4"));
        let words = decided("auto", Some(4), 3, Ok(gpus(2)));
        assert!(words.contains("cuda:3, and there are 2 GPUs"), "{words}");
    }

    #[test]
    fn a_pod_with_one_process_has_all_of_its_gpus_and_one_of_several_has_its_own() {
        let devices = |choice: &str, promised, has_siblings| {
            let surroundings = Surroundings {
                promised,
                local_rank: 0,
                has_siblings,
            };
            let settled = decide(choice.parse().unwrap(), surroundings, || Ok(gpus(4))).unwrap();
            settled.devices()
        };
        let [first, all] = [1, 4].map(|count| (0..count).map(Device::Cuda).collect::<Vec<_>>());
        assert_eq!(devices("auto", Some(4), false), all);
        assert_eq!(devices("cuda", Some(4), false), all);
        assert_eq!(devices("auto", Some(4), true), first);
        assert_eq!(devices("cuda:0", Some(4), false), first);
        // A machine's other GPUs may be somebody else's.
        assert_eq!(devices("auto", None, false), first);
        assert_eq!(devices("cpu", Some(4), false), [Device::Cpu]);
    }

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

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "cpu", "cuda", "cuda:3"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "CUDA"] {
            assert!(text.parse::<Choice>().unwrap_err().contains("cuda:N"), "{text}");
        }
    }
}
