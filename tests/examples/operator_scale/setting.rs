//! How many jobs of how many pods.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Error, Result};

/// How many jobs of how many pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Jobs, all made at once.
    pub jobs: usize,
    /// Pods of each.
    pub pods: usize,
}

/// Where systems are compared in full: this setting and larger ones are watched at rest, too.
const LARGE: usize = 2000;

impl Setting {
    /// The settings of the table; the first is measured for every system, the second for ours alone.
    pub const ALL: [Self; 5] = [
        Self::new(300, 8),
        Self::new(1000, 8),
        Self::new(150, 1),
        Self::new(30, 5),
        Self::new(1, 150),
    ];

    const fn new(jobs: usize, pods: usize) -> Self {
        Self { jobs, pods }
    }

    /// Too large to take the time for every peer.
    pub fn is_for_ours_alone(self) -> bool {
        self.jobs >= 1000
    }

    /// A minute of nothing says most where most is cached.
    pub fn is_watched_at_rest(self) -> bool {
        self.jobs * self.pods >= LARGE
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}x{}", self.jobs, self.pods)
    }
}

impl FromStr for Setting {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let hint = || format!("{text:?} is no setting: JOBSxPODS, such as 300x8");
        let (jobs, pods) = text.split_once('x').with_context(hint)?;
        let (jobs, pods) = (jobs.parse().with_context(hint)?, pods.parse().with_context(hint)?);
        anyhow::ensure!(jobs > 0 && pods > 0, hint());
        Ok(Self { jobs, pods })
    }
}
