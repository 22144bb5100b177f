//! Batch and GPU arithmetic. Pure integers, every operation checked: any input gives an answer or none, never a panic.

use serde::Serialize;

use crate::defaults::has_reference;
use crate::fill;
use crate::spec::{PpoJob, PpoJobSpec, Role, RolesSpec};

/// What a job's numbers come to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Geometry {
    /// Prompts of one step times samples of one prompt.
    pub samples_per_step: u64,
    /// Optimizer updates in one pass over a step's samples.
    pub updates_per_epoch: u64,
    /// Optimizer updates of one step.
    pub updates_per_step: u64,
    /// Forward and backward passes of a rank per update.
    pub accumulation_steps: u64,
    /// Prompts that each engine answers in a step.
    pub prompts_per_engine: u64,
    /// Samples that each engine generates in a step.
    pub samples_per_engine: u64,
    /// Actor processes, over which an update is shared.
    pub actor_ranks: u64,
    /// Pods and GPUs of each role; one that has no pods is here with 0.
    pub roles: Vec<RoleGeometry>,
    /// Pods of all roles.
    pub pods: u64,
    /// GPUs of all roles.
    pub gpus: u64,
}

/// Pods and GPUs of a role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleGeometry {
    /// The role.
    pub role: Role,
    /// Its pods. 0: it needs none.
    pub pods: u64,
    /// GPUs of each pod. 0: it runs on the CPU.
    pub gpus_per_pod: u64,
}

impl RoleGeometry {
    /// Pods and GPUs of the four roles; one that has no pods is there with 0.
    pub fn all(spec: &PpoJobSpec) -> Vec<Self> {
        let RolesSpec {
            rollout,
            actor,
            reference,
            reward,
        } = &spec.roles;
        vec![
            Self {
                role: Role::Rollout,
                pods: u64::from(rollout.replicas),
                gpus_per_pod: u64::from(rollout.gpus_per_replica),
            },
            placed(Role::Actor, (actor.nodes, actor.gpus_per_node), true),
            placed(
                Role::Reference,
                (reference.nodes, reference.gpus_per_node),
                has_reference(spec),
            ),
            placed(
                Role::Reward,
                (reward.placement.nodes, reward.placement.gpus_per_node),
                reward.model.is_some(),
            ),
        ]
    }

    /// GPUs of the role.
    pub fn gpus(&self) -> u64 {
        self.pods.saturating_mul(self.gpus_per_pod)
    }

    /// Names of the role's pods, `<job>-<role>-<index>`.
    pub fn pod_names(&self, job: &str) -> impl Iterator<Item = String> {
        let prefix = format!("{job}-{}", self.role.name());
        (0..self.pods).map(move |index| format!("{prefix}-{index}"))
    }
}

impl Geometry {
    /// The arithmetic of a job, defaults filled in. None when a division is not exact or a number is out of range;
    /// [`validate`](crate::validate) then says which.
    pub fn of(job: &PpoJob) -> Option<Self> {
        let spec = fill(job).spec;
        let batch = &spec.batch;
        let rollout = &spec.roles.rollout;
        let prompts = u64::from(batch.rollout_batch_size);
        let samples = prompts.checked_mul(u64::from(batch.n_samples_per_prompt))?;
        let train = u64::from(batch.train_batch_size?);
        let actor_ranks = spec.roles.actor.ranks();
        let updates_per_epoch = exact(samples, train)?;
        let engines = u64::from(rollout.replicas);

        let roles = RoleGeometry::all(&spec);
        Some(Self {
            samples_per_step: samples,
            updates_per_epoch,
            updates_per_step: updates_per_epoch.checked_mul(u64::from(batch.ppo_epochs))?,
            accumulation_steps: exact(
                train,
                actor_ranks.checked_mul(u64::from(batch.micro_train_batch_size?))?,
            )?,
            prompts_per_engine: exact(prompts, engines)?,
            samples_per_engine: exact(samples, engines)?,
            actor_ranks,
            pods: roles.iter().try_fold(0u64, |sum, role| sum.checked_add(role.pods))?,
            gpus: roles.iter().try_fold(0u64, |sum, role| sum.checked_add(role.gpus()))?,
            roles,
        })
    }

    /// A role's pods and GPUs.
    pub fn role(&self, role: Role) -> Option<&RoleGeometry> {
        self.roles.iter().find(|geometry| geometry.role == role)
    }
}

fn placed(role: Role, (nodes, gpus_per_node): (u32, u32), exists: bool) -> RoleGeometry {
    let pods = if exists { u64::from(nodes) } else { 0 };
    RoleGeometry {
        role,
        pods,
        gpus_per_pod: u64::from(gpus_per_node),
    }
}

/// The quotient, when it is whole and above 0.
fn exact(dividend: u64, divisor: u64) -> Option<u64> {
    let whole = divisor > 0 && dividend > 0 && dividend.is_multiple_of(divisor);
    whole.then(|| dividend / divisor)
}

pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(crate) fn lcm(a: u64, b: u64) -> Option<u64> {
    if a == 0 || b == 0 {
        return None;
    }
    (a / gcd(a, b)).checked_mul(b)
}

/// All divisors in rising order. Takes the square root of `number` in steps: meant for numbers up to 2^40.
pub(crate) fn divisors(number: u64) -> Vec<u64> {
    let mut low: Vec<u64> = (1..)
        .take_while(|&d| d <= number / d)
        .filter(|&d| number.is_multiple_of(d))
        .collect();
    let high: Vec<u64> = low
        .iter()
        .rev()
        .map(|&d| number / d)
        .filter(|d| !low.contains(d))
        .collect();
    low.extend(high);
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::tests::job;
    use crate::spec::PodPlacement;

    #[test]
    fn divisors_come_once_each_and_in_order() {
        assert_eq!(divisors(1), [1]);
        assert_eq!(divisors(36), [1, 2, 3, 4, 6, 9, 12, 18, 36]);
        assert!(divisors(0).is_empty());
    }

    #[test]
    fn the_seed_example_comes_to_24_gpus_and_4_accumulation_steps() {
        let job = job(
            "batch: {rolloutBatchSize: 32, nSamplesPerPrompt: 4, microRolloutBatchSize: 2, trainBatchSize: 32, \
               microTrainBatchSize: 1}",
            "actor: {gpusPerNode: 8}, reference: {gpusPerNode: 8}, rollout: {replicas: 2, gpusPerReplica: 4}, \
             reward: {remote: {urls: ['http://verifier:5000/get_reward']}}",
        );
        let geometry = Geometry::of(&job).unwrap();
        assert_eq!(geometry.samples_per_step, 128);
        assert_eq!((geometry.prompts_per_engine, geometry.samples_per_engine), (16, 64));
        assert_eq!((geometry.updates_per_epoch, geometry.accumulation_steps), (4, 4));
        assert_eq!((geometry.gpus, geometry.pods), (24, 4));
        assert_eq!(geometry.role(Role::Reward).unwrap().pods, 0);
    }

    #[test]
    fn the_greatest_numbers_give_an_answer_or_none_without_a_panic() {
        let mut job = job("", "reward: {rules: [{json: {}}]}");
        let batch = &mut job.spec.batch;
        (batch.rollout_batch_size, batch.n_samples_per_prompt, batch.ppo_epochs) = (u32::MAX, u32::MAX, u32::MAX);
        batch.train_batch_size = Some(u32::MAX);
        job.spec.roles.actor = PodPlacement {
            nodes: u32::MAX,
            gpus_per_node: u32::MAX,
            template: None,
        };
        assert_eq!(Geometry::of(&job), None);
    }

    #[test]
    fn there_is_no_reference_pod_without_a_kl() {
        let job = job("algorithm: {kl: {coef: 0}}", "reward: {rules: [{json: {}}]}");
        assert_eq!(Geometry::of(&job).unwrap().role(Role::Reference).unwrap().pods, 0);
    }
}
