//! The role's pod that this process runs in: its place in the job, as the operator tells it (`ppo_crds::pod::env`).

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::pod::{env, pod_name};
use ppo_crds::spec::Role;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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
    /// How long the pod has from SIGTERM until it is killed; None: nobody says it.
    pub grace: Option<Duration>,
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
    /// See [`ready_deadline`].
    pub ready_deadline: Duration,
}

/// Who may write the checkpoints of a run.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Owner {
    /// Tells a job from an earlier one of its name: a digest of its token.
    pub run: String,
    /// The role's attempt.
    pub attempt: u32,
}

/// See [`ready_deadline`]: the manifest's own default.
const READY_DEADLINE_SECONDS: u32 = 1800;
/// By so much a pod waits longer than the operator, whose words name the pods that lack and why.
const LONGER: Duration = Duration::from_secs(60);

/// For the pods of a job to be ready, as an environment says it: images are pulled, models loaded and ranks joined in that time. Waits
/// that are a part of it are as long at the least.
///
/// # Errors
/// [`Invalid`], naming the variable that is no number.
pub fn ready_deadline(variable: impl Fn(&str) -> Option<String>) -> Result<Duration> {
    let seconds = match variable(env::READY_DEADLINE) {
        None => READY_DEADLINE_SECONDS,
        Some(text) => {
            let seconds = text.parse::<u32>();
            seconds.map_err(|_| Invalid::new(format!("{} is {text:?}, want a number", env::READY_DEADLINE)))?
        }
    };
    Ok(Duration::from_secs(u64::from(seconds)) + LONGER)
}

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
    /// From the process' environment, for the command of a `role`'s pods.
    ///
    /// # Errors
    /// [`Invalid`], naming the variable or file that is missing or wrong.
    pub fn read(role: Role) -> Result<Self> {
        Self::of(role, |name| std::env::var(name).ok())
    }

    /// From an environment.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of(role: Role, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let given = |name: &str| {
            variable(name).ok_or_else(|| {
                let (way, here) = match role {
                    Role::Reward => (" without -f", "`ppo-worker reward -f job.yaml` serves the reward of a manifest"),
                    Role::Actor | Role::Rollout | Role::Reference => ("", "`ppo-worker run -f job.yaml` runs a manifest"),
                };
                Invalid::new(format!(
                    "{name} is not set: `ppo-worker {}`{way} is what a pod of a PpoJob runs, and the operator sets it; {here} here",
                    role.name()
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
                ready_deadline: ready_deadline(&variable)?,
            },
            ranks,
            // For a hint alone: one that cannot be read is no reason to refuse anything.
            grace: variable(env::GRACE)
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
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
            timing: Timing {
                join: self.peers.ready_deadline,
                ..Timing::default()
            },
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The second of two ranks, with `given` for the job to be ready.
    fn place(given: Option<&str>) -> Result<Place> {
        let folder = tempfile::tempdir().unwrap();
        let manifest = "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {name: j}, spec: {\
            model: {policy: {path: /models/p}, dtype: float32}, prompts: {source: {path: /data/p.jsonl}, labelField: answer, maxLength: 100},\
            generation: {maxNewTokens: 50}, roles: {reward: {rules: [{exactMatch: {}}]}}}}";
        let job = ppo_crds::parse_manifest(manifest, "test").unwrap();
        let environment = ppo_crds::Environment::Laptop {
            manifest_folder: PathBuf::from("/"),
        };
        let config = ppo_crds::resolve(&job, &environment).unwrap();
        let file = folder.path().join("run-config.json");
        std::fs::write(&file, serde_json::to_string(&config).unwrap()).unwrap();
        Place::of(Role::Actor, |name| match name {
            env::CONFIG => Some(file.to_string_lossy().into_owned()),
            env::READY_DEADLINE => given.map(str::to_owned),
            env::JOB => Some("j".into()),
            env::TOKEN => Some("t".into()),
            env::INDEX | env::ATTEMPT => Some("1".into()),
            env::WORLD_SIZE => Some("2".into()),
            env::RENDEZVOUS => Some("127.0.0.1:29500".into()),
            _ => None,
        })
    }

    #[test]
    fn a_command_of_a_pod_that_is_called_elsewhere_says_what_runs_a_manifest() {
        for (role, words) in [
            (Role::Actor, "`ppo-worker actor` is what a pod of a PpoJob runs"),
            (Role::Actor, "`ppo-worker run -f job.yaml` runs a manifest here"),
            (Role::Reward, "`ppo-worker reward` without -f is what a pod"),
            (
                Role::Reward,
                "`ppo-worker reward -f job.yaml` serves the reward of a manifest here",
            ),
        ] {
            let refused = Place::of(role, |_| None).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn ranks_wait_for_each_other_as_long_as_the_job_has_to_be_ready() {
        for (given, seconds) in [(None, 1860), (Some("7200"), 7260), (Some("60"), 120)] {
            let meeting = place(given).unwrap().meeting().unwrap().unwrap();
            assert_eq!(meeting.timing.join, Duration::from_secs(seconds), "{given:?}");
        }
        let refused = place(Some("soon")).unwrap_err().to_string();
        assert!(refused.contains("PPO_READY_DEADLINE_SECONDS is \"soon\""), "{refused}");
    }
}
