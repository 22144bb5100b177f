//! A PpoJob as the operator works on it: defaults filled in, checked, its pods counted. Computed once per generation.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};
use ppo_crds::geometry::RoleGeometry;
use ppo_crds::spec::{PpoJob, PpoJobSpec, Role};
use ppo_crds::{Environment, RunConfig, ValidationErrors, fill, resolve};

use crate::world::JobKey;

/// A job, checked.
#[derive(Debug)]
pub struct Job {
    /// Namespace and name.
    pub key: JobKey,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it was accepted before this check, which then is of a [dividing scale](at_a_dividing_scale).
    pub accepted: bool,
    /// The spec with every default filled in.
    pub spec: PpoJobSpec,
    /// What the pods run, or all that is wrong with the manifest.
    pub config: Result<RunConfig, ValidationErrors>,
    /// The roles that have pods.
    pub roles: Vec<RolePods>,
}

/// Pods of one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolePods {
    /// The role.
    pub role: Role,
    /// Pods wanted.
    pub pods: u32,
    /// Pods without which the job does not run.
    pub floor: u32,
    /// GPUs of each.
    pub gpus: u32,
}

impl Job {
    /// Checks `object`. A job that was accepted before may since have been scaled to any number of engines.
    pub fn of(object: &PpoJob) -> Self {
        let filled = fill(object);
        let accepted = was_accepted(object);
        let config = match accepted {
            true => resolve(&at_a_dividing_scale(object), &Environment::cluster()),
            false => resolve(object, &Environment::cluster()),
        };
        Self {
            key: JobKey::of(object),
            uid: object.uid().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            accepted,
            roles: RoleGeometry::all(&filled.spec)
                .iter()
                .filter_map(|role| pods_of(role, &filled.spec))
                .collect(),
            config,
            spec: filled.spec,
        }
    }

    /// The role's pods, when it has any.
    pub fn role(&self, role: Role) -> Option<RolePods> {
        self.roles.iter().copied().find(|pods| pods.role == role)
    }

    /// The user's template of the role's pods.
    pub fn template(&self, role: Role) -> Option<&PodTemplateSpec> {
        self.spec.roles.template(role).map(|template| &**template)
    }

    /// What makes an object the job's: garbage collection follows it.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: PpoJob::api_version(&()).into_owned(),
            kind: PpoJob::kind(&()).into_owned(),
            name: self.key.name.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

fn pods_of(role: &RoleGeometry, spec: &PpoJobSpec) -> Option<RolePods> {
    let pods = u32::try_from(role.pods).ok().filter(|pods| *pods > 0)?;
    let floor = match role.role {
        Role::Rollout => spec.roles.rollout.min_replicas.clamp(1, pods),
        _ => pods,
    };
    Some(RolePods {
        role: role.role,
        pods,
        floor,
        gpus: u32::try_from(role.gpus_per_pod).unwrap_or(u32::MAX),
    })
}

/// Whether a job was accepted before. The API server takes no new one (generation 1) whose engines do not divide its prompts (crds,
/// `cel.rs`), so one whose spec has changed since did: it may be scaled before its first status is written, or while no operator runs.
pub fn was_accepted(object: &PpoJob) -> bool {
    let is_recorded = object.status.as_ref().is_some_and(|status| status.attempt > 0);
    is_recorded || object.metadata.generation.is_some_and(|generation| generation > 1)
}

/// The job with the greatest number of engines, at most its own, that divides the prompts of a step: once a job runs, samples are
/// dealt to any number of engines.
pub fn at_a_dividing_scale(job: &PpoJob) -> PpoJob {
    let mut job = job.clone();
    let prompts = job.spec.batch.rollout_batch_size;
    let rollout = &mut job.spec.roles.rollout;
    let dividing = (1..=rollout.replicas)
        .rev()
        .find(|engines| prompts.is_multiple_of(*engines));
    rollout.replicas = dividing.unwrap_or(rollout.replicas);
    rollout.min_replicas = rollout.min_replicas.min(rollout.replicas);
    job
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::smallest_job::smallest_object;

    #[test]
    fn a_job_that_was_scaled_before_anyone_looked_at_it_is_valid_with_engines_that_do_not_divide_its_prompts() {
        let valid = |generation: i64| {
            let fields = json!({"batch": {"rolloutBatchSize": 16}, "roles": {"rollout": {"replicas": 3}}});
            let mut object = smallest_object(&fields);
            object.metadata.generation = Some(generation);
            let job = Job::of(&object);
            assert_eq!(
                job.role(Role::Rollout).map(|role| role.pods),
                Some(3),
                "it has the engines it asks for"
            );
            job.config.is_ok()
        };
        assert!(valid(2));
        // The API server lets no such job be made.
        assert!(!valid(1));
    }
}
