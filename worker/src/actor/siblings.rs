//! A pod with several GPUs runs a process for each: the pod's own process starts the others, and they end with it.

use std::process::{Child, Command};

use anyhow::{Context, Result};
use ppo_crds::pod::env;

use crate::place::Place;

/// The other processes of this pod.
#[derive(Debug)]
pub struct Siblings(Vec<Child>);

impl Siblings {
    /// Starts the others, as this process was started. One of them starts nobody.
    ///
    /// # Errors
    /// When a process cannot be started.
    pub fn start(place: &Place) -> Result<Self> {
        let mut siblings = Self(Vec::new());
        if place.ranks.local > 0 {
            return Ok(siblings);
        }
        for local in 1..place.ranks.per_pod.min(place.ranks.count) {
            let program = std::env::current_exe().context("cannot find the program of this process")?;
            let child = Command::new(program)
                .args(std::env::args_os().skip(1))
                .env(env::LOCAL_RANK, local.to_string())
                .spawn();
            siblings
                .0
                .push(child.with_context(|| format!("cannot start process {local} of this pod"))?);
        }
        Ok(siblings)
    }

    /// Whether this process is one that another process of its pod started.
    pub fn is_one() -> bool {
        std::env::var(env::LOCAL_RANK).is_ok_and(|local| local != "0")
    }
}

impl Drop for Siblings {
    fn drop(&mut self) {
        // They heard of the end as every rank does. One that is still there hangs, and would outlive the pod's process.
        for child in &mut self.0 {
            let ended = (0..50).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                !matches!(child.try_wait(), Ok(None))
            });
            if !ended {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}
