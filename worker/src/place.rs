//! A role's pod: what the operator tells the process of its place in the job (`ppo_crds::pod::env`).

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::pod::{env, pod_name};
use ppo_crds::spec::Role;
use sha2::{Digest, Sha256};

use crate::actor::fence::Owner;
use crate::device;
use crate::manifest::Invalid;
use crate::ranks::{Meeting, Timing};

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
    /// The role's ranks.
    pub ranks: RankPlace,
}

/// A process among the ranks of its role.
#[derive(Clone, Debug)]
pub struct RankPlace {
    /// This process in its pod.
    pub local: usize,
    /// Processes of a pod.
    pub per_pod: usize,
    /// Ranks of all pods.
    pub count: usize,
    /// `host:port` where they meet; None: there is one.
    pub rendezvous: Option<String>,
}

/// How the roles of a job reach each other.
#[derive(Clone, Debug)]
pub struct Peers {
    /// The job's bearer token.
    pub token: String,
    /// `host:port` of each role's headless Service, None for roles without pods.
    services: [Option<String>; 4],
    /// Ranks in each pod of a role.
    ranks: [usize; 4],
    /// For the engines that a step needs at the least to be ready: images are pulled and models loaded in that time.
    pub ready_deadline: Duration,
}

/// See [`Peers::ready_deadline`]: the manifest's own default.
const READY_DEADLINE_SECONDS: u32 = 1800;
/// By so much an actor waits longer than the operator, whose words name the pods that lack and why.
const LONGER: Duration = Duration::from_secs(60);

impl Peers {
    /// `host:port` of a role's Service; None when the role has no pods.
    pub fn service(&self, role: Role) -> Option<&str> {
        let at = Role::ALL.iter().position(|known| *known == role)?;
        self.services[at].as_deref()
    }

    /// Questions that each pod of a role computes at once.
    pub fn ranks_per_pod(&self, role: Role) -> usize {
        let at = Role::ALL.iter().position(|known| *known == role);
        at.map_or(1, |at| self.ranks[at])
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
        let count = |name: &str, default: u32| -> Result<usize> {
            let count = variable(name).map_or(Ok(default), |_| number(name))?;
            Ok(count as usize)
        };
        let ranks = RankPlace {
            local: count(env::LOCAL_RANK, 0)?,
            per_pod: count(env::RANKS_PER_NODE, 1)?.max(1),
            count: count(env::WORLD_SIZE, 1)?.max(1),
            rendezvous: variable(env::RENDEZVOUS),
        };
        let mut config = run_config(Path::new(&given(env::CONFIG)?))?;
        let floor = &mut config.rollout.min_replicas;
        *floor = count(env::MIN_REPLICAS, u32::try_from(*floor).unwrap_or(u32::MAX))?.max(1);
        let mut ranks_of_roles = [1; 4];
        for (ranks, role) in ranks_of_roles.iter_mut().zip(Role::ALL) {
            *ranks = env::ranks(role).map_or(Ok(1), |name| count(name, 1))?.max(1);
        }
        Ok(Self {
            job: given(env::JOB)?,
            index: number(env::INDEX)?,
            attempt: number(env::ATTEMPT)?,
            config,
            peers: Peers {
                token: given(env::TOKEN)?,
                services: Role::ALL.map(|role| variable(env::service(role))),
                ranks: ranks_of_roles,
                ready_deadline: Duration::from_secs(count(env::READY_DEADLINE, READY_DEADLINE_SECONDS)? as u64)
                    + LONGER,
            },
            ranks,
        })
    }

    /// This process' rank.
    pub fn rank(&self) -> usize {
        self.index as usize * self.ranks.per_pod + self.ranks.local
    }

    /// How the actor's ranks meet; None where there is one.
    ///
    /// # Errors
    /// [`Invalid`], naming the variable.
    pub fn meeting(&self) -> Result<Option<Meeting>> {
        let RankPlace {
            per_pod,
            count,
            rendezvous,
            ..
        } = &self.ranks;
        if *count <= 1 {
            return Ok(None);
        }
        let wrong = |what: &str| Invalid::new(format!("{} {what}", env::RENDEZVOUS));
        let address = rendezvous
            .as_deref()
            .ok_or_else(|| wrong("is not set, and there are several ranks"))?;
        let parts = address
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.ok_or_else(|| wrong(&format!("is {address:?}, want host:port")))?;
        let pod = |rank: usize| pod_name(&self.job, Role::Actor, (rank / per_pod) as u32);
        let name = |rank: usize| match per_pod {
            1 => pod(rank),
            _ => format!("{}, process {}", pod(rank), rank % per_pod),
        };
        Ok(Some(Meeting {
            host: host.to_owned(),
            port,
            rank: self.rank(),
            count: *count,
            own_host: own_host(host),
            names: (0..*count).map(name).collect(),
            device: device::here()?,
            attempt: self.attempt,
            timing: Timing::default(),
        }))
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

/// This process' address as other ranks reach it: a pod's name is in its own hosts file.
fn own_host(rendezvous: &str) -> String {
    let loopback = rendezvous == "localhost" || rendezvous.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    match name {
        Some(name) if !loopback && !name.trim().is_empty() => name.trim().to_owned(),
        _ => rendezvous.to_owned(),
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
