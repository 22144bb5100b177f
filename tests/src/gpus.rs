//! What the worker computes on in tests of its code for GPUs: simulated ones, or this machine's (`make test-gpu`).

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ppo_crds::pod::env;

use crate::SimulatedGpus;
use crate::simulated_gpu::before_the_loaders;

/// Folder of `libppo_cuda.so` for this machine's GPU, which tests compute on where it is set. The loader has to find the whole libtorch
/// (`LD_LIBRARY_PATH`), as for the worker itself.
pub const REAL_GPU: &str = "PPO_TEST_GPU";

/// GPUs of a process.
#[derive(Clone, Debug)]
pub enum Gpus {
    /// This machine's, with our own CUDA library from that folder or without.
    Real(Option<PathBuf>),
    /// See [`SimulatedGpus`].
    Simulated(SimulatedGpus),
}

impl Gpus {
    /// This machine's where it is to be tested, else so many that are simulated.
    ///
    /// # Errors
    /// As [`SimulatedGpus::new`].
    pub fn new(count: usize) -> Result<Self> {
        match std::env::var_os(REAL_GPU) {
            Some(folder) => Ok(Self::Real(Some(folder.into()))),
            None => Ok(Self::Simulated(SimulatedGpus::new(count)?)),
        }
    }

    /// Whether this machine's are tested: what only simulated ones can show is left out then.
    #[must_use]
    pub fn are_real() -> bool {
        std::env::var_os(REAL_GPU).is_some()
    }

    /// The same without our own CUDA library: nothing is captured in graphs.
    #[must_use]
    pub fn without_graphs(self) -> Self {
        match self {
            Self::Real(_) => Self::Real(None),
            Self::Simulated(gpus) => Self::Simulated(gpus.without_graphs()),
        }
    }

    /// What the environment of a process has to have besides.
    ///
    /// # Errors
    /// When a folder's name cannot be in a list of folders.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        match self {
            Self::Simulated(gpus) => gpus.environment(),
            Self::Real(library) => {
                let folders = before_the_loaders(library.iter().cloned());
                let (name, folders) = folders.context("where the loader looks")?;
                Ok(vec![(name, folders), (env::DEVICE, "cuda".into())])
            }
        }
    }
}
