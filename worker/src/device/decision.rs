//! Which device it is to be: of what a person asked for, what the operator promised and what is there.

use anyhow::Result;
use ppo_crds::pod::env;
use ppo_crds::spec::Role;
use tch::Device;

use super::missing::CAPABILITY;
use super::{Choice, Missing, Settled};
use crate::manifest::Invalid;
use crate::native::driver::Gpu;

/// What of this process' surroundings decides.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surroundings {
    /// GPUs that the operator asked for; None outside a pod.
    promised: Option<u32>,
    /// Number of this process in its pod.
    local_rank: usize,
    /// The pod has a process for each of its GPUs.
    has_siblings: bool,
}

impl Surroundings {
    pub(super) fn read() -> Result<Self> {
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

/// The device, of which `look` finds the GPUs that are here.
///
/// # Errors
/// [`Invalid`] when a GPU was asked for or promised and none can be used.
pub(super) fn decide(
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
}
