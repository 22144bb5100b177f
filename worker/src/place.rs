//! A role's pod: what the operator tells the process of its place in the job (`ppo_crds::pod::env`).

use std::path::PathBuf;

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
        let file = PathBuf::from(given(env::CONFIG)?);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("cannot read {}, which {} names", file.display(), env::CONFIG))?;
        let config = serde_json::from_str(&text)
            .map_err(|error| Invalid::new(format!("{} is no RunConfig of this version: {error}", file.display())))?;
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

    /// Who writes this run's checkpoints.
    pub fn owner(&self) -> Owner {
        let digest = Sha256::digest(self.peers.token.as_bytes());
        Owner {
            run: digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
            attempt: self.attempt,
        }
    }
}
