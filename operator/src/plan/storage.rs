//! Claims: the one that the job asks for, and the ones that each role mounts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use ppo_crds::Environment;
use ppo_crds::spec::{DataSource, ModelSource, Role};

use super::{Action, metadata, untyped};
use crate::job::Job;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// The claim for checkpoints, where it is asked for and missing.
pub fn missing(job: &Job, seen: &Snapshot) -> Option<Action> {
    let asked = job.spec.checkpoint.volume_claim.as_ref()?;
    let name = job.spec.checkpoint.claim(&job.key.name)?;
    if seen.exists(Kind::PersistentVolumeClaim, &name) {
        return None;
    }
    let several = job.spec.roles.actor.nodes > 1;
    let default_mode = if several { "ReadWriteMany" } else { "ReadWriteOnce" };
    let modes = match asked.access_modes.as_slice() {
        [] => vec![default_mode.to_string()],
        given => given.iter().map(|mode| format!("{mode:?}")).collect(),
    };
    let mut metadata = metadata(job, &name);
    // It outlives the job: checkpoints are what the run was for.
    metadata.owner_references = None;
    let claim = PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(modes),
            storage_class_name: asked.storage_class_name.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_string(), Quantity(asked.storage.clone()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    };
    let object = untyped(Kind::PersistentVolumeClaim, &claim);
    Some(Action::Create(Kind::PersistentVolumeClaim, Box::new(object)))
}

/// Volumes and mounts of the claims that a role reads or writes. Only these: a claim that one node alone may mount must not
/// hold up the other roles.
pub fn mounts(job: &Job, role: Role) -> (Vec<Volume>, Vec<VolumeMount>) {
    let mounts = claims(job, role)
        .into_iter()
        .enumerate()
        .map(|(index, (claim, writable))| {
            let name = format!("claim-{index}");
            let volume = Volume {
                name: name.clone(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: claim.clone(),
                    read_only: None,
                }),
                ..Volume::default()
            };
            let mount = VolumeMount {
                name,
                mount_path: format!("{}/{claim}", Environment::VOLUMES),
                read_only: (!writable).then_some(true),
                ..VolumeMount::default()
            };
            (volume, mount)
        });
    mounts.unzip()
}

/// Claims of a role, with whether it writes to them.
fn claims(job: &Job, role: Role) -> BTreeMap<String, bool> {
    let spec = &job.spec;
    let model = |source: Option<&ModelSource>| Some(source?.pvc.as_ref()?.claim_name.clone());
    let data = |source: Option<&DataSource>| Some(source?.pvc.as_ref()?.claim_name.clone());
    let policy = model(Some(&spec.model.policy));
    let read = match role {
        Role::Rollout => vec![policy],
        Role::Reference => vec![policy, model(spec.model.reference.as_ref())],
        Role::Reward => vec![model(spec.roles.reward.model.as_ref().map(|model| &model.source))],
        Role::Actor => vec![
            policy,
            model(spec.model.critic.as_ref()),
            data(Some(&spec.prompts.source)),
            data(spec.evaluation.as_ref().map(|evaluation| &evaluation.source)),
        ],
    };
    let mut claims: BTreeMap<String, bool> = read.into_iter().flatten().map(|claim| (claim, false)).collect();
    if let Some(claim) = spec.checkpoint.claim(&job.key.name).filter(|_| role == Role::Actor) {
        claims.insert(claim, true);
    }
    claims
}
