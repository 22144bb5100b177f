//! Why no GPU is computed on, in words that help.

use crate::native::driver::Unusable;

/// The CUDA that libtorch 2.11.0's wheel is built for, and the first driver that runs it.
/// <https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/>
const CUDA: (i32, i32) = (13, 0);
/// See [`CUDA`].
const DRIVER: &str = "580";

/// The first GPUs that compute with bfloat16, and that FlashAttention-2 runs on.
pub(super) const CAPABILITY: (i32, i32) = (8, 0);

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
