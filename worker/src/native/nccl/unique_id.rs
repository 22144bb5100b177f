//! The id that the ranks of a communicator share.

use std::ptr::null_mut;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::functions::{Functions, SUCCESS};
use crate::native::collective::Failure;
use crate::native::store::Store;

/// `ncclUniqueId`: what the ranks of a communicator have in common.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl UniqueId {
    /// A new one, to be made by rank 0.
    ///
    /// # Errors
    /// When NCCL is not there, or finds no network.
    pub fn make() -> Result<Self> {
        let functions = Functions::get()?;
        let mut id = Self([0; 128]);
        // SAFETY: a place for an id.
        let code = unsafe { (functions.get_unique_id)(&raw mut id) };
        ensure!(code == SUCCESS, functions.words(code, null_mut()));
        Ok(id)
    }

    /// That of rank 0, through the store.
    pub(super) fn share(store: &Store, name: &str, rank: usize, deadline: Duration) -> Result<Self> {
        let key = format!("{name}/nccl");
        if rank == 0 {
            let id = Self::make()?;
            store.set(&key, &id.0)?;
            return Ok(id);
        }
        let told = store.wait(&key, deadline);
        let told = told.map_err(Failure::of_others)?;
        let told = told.ok_or_else(|| Failure::of_others("rank 0 did not say how to reach it by NCCL"))?;
        let bytes = <[u8; 128]>::try_from(told).ok();
        Ok(Self(bytes.context("rank 0 speaks of another NCCL")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It needs no GPU for that, but NCCL, which is where GPUs are: simulated ones bring it everywhere.
    #[test]
    #[ignore = "needs a GPU: make test-gpu"]
    fn ranks_get_the_id_of_the_first() {
        // NCCL comes with libtorch's CUDA part, which is loaded for the device.
        crate::device::here().unwrap();
        let patience = Duration::from_secs(20);
        let store = Store::serve(0, patience).unwrap();
        let other = Store::connect("127.0.0.1", store.port(), patience, patience).unwrap();
        let follower = std::thread::spawn(move || UniqueId::share(&other, "attempt-1", 1, patience).unwrap());
        let first = UniqueId::share(&store, "attempt-1", 0, patience).unwrap();
        assert_eq!(follower.join().unwrap(), first);
        assert_ne!(first.0, [0; 128]);
        // Nobody meets by it: the place of simulated ranks would stay.
        let name = first.0.split(|byte| *byte == 0).next().unwrap_or_default();
        if name.starts_with(b"/ppo-simulated-nccl-") {
            std::fs::remove_file(format!("/dev/shm{}", String::from_utf8_lossy(name))).unwrap();
        }
    }
}
