//! A role's pod: what the operator tells the process of its place in the job (`ppo_crds::pod::env`).

use std::path::Path;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::pod::env;
use ppo_crds::spec::Role;
use sha2::{Digest, Sha256};

use crate::actor::fence::Owner;
use crate::manifest::Invalid;

/// A process' place in a job.
#[derive(Debug)]
pub struct Place {
    /// The job.
    pub job: String,
    /// Index of the pod in its role.
    pub index: u32,
    /// The pod's attempt.
    pub attempt: u32,
    /// What runs.
    pub config: RunConfig,
    /// The other roles.
    pub peers: Peers,
}

/// How the roles of a job reach each other.
#[derive(Clone, Debug)]
pub struct Peers {
    /// The job's bearer token.
    pub token: String,
    /// `host:port` of each role's headless Service, None for roles without pods.
    services: [Option<String>; 4],
}

impl Peers {
    /// `host:port` of a role's Service; None when the role has no pods.
    pub fn service(&self, role: Role) -> Option<&str> {
        let at = Role::ALL.iter().position(|known| *known == role)?;
        self.services[at].as_deref()
    }
}

impl Place {
    /// From the process' environment.
    ///
    /// # Errors
    /// [`Invalid`], naming the variable or file that is missing or wrong.
    pub fn read() -> Result<Self> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// From an environment.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name: &str| {
            variable(name).ok_or_else(|| {
                Invalid::new(format!(
                    "{name} is not set: this command is what a pod of a PpoJob runs, and the operator sets it; \
                     `ppo-worker run -f job.yaml` runs a manifest here"
                ))
            })
        };
        let number = |name: &str| -> Result<u32> {
            let text = given(name)?;
            let number = text.parse();
            number.map_err(|_| Invalid::new(format!("{name} is {text:?}, want a number")).into())
        };
        let config = run_config(Path::new(&given(env::CONFIG)?))?;
        Ok(Self {
            job: given(env::JOB)?,
            index: number(env::INDEX)?,
            attempt: number(env::ATTEMPT)?,
            config,
            peers: Peers {
                token: given(env::TOKEN)?,
                services: Role::ALL.map(|role| variable(env::service(role))),
            },
        })
    }

    /// Says in the log which process this is.
    pub fn announce(&self, role: &str) {
        tracing::info!("{role} {} of job {}, attempt {}", self.index, self.job, self.attempt);
    }

    /// Who writes this run's checkpoints.
    pub fn owner(&self) -> Owner {
        let digest = Sha256::digest(self.peers.token.as_bytes());
        Owner {
            run: digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
            attempt: self.attempt,
        }
    }
}

/// The RunConfig that the operator mounts.
///
/// # Errors
/// When the file cannot be read; [`Invalid`] when it is of another version.
pub fn run_config(file: &Path) -> Result<RunConfig> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read the RunConfig {}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| {
        let words = format!(
            "{} is not a RunConfig of this version ({}): {error}; are operator and worker of the same release?",
            file.display(),
            env!("CARGO_PKG_VERSION")
        );
        Invalid::new(words).into()
    })
}
