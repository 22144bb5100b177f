//! Claims: the one that the job asks for, and the ones that each role mounts.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeClaimVolumeSource, Volume, VolumeMount,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use kube::api::DynamicObject;
use ppo_crds::Environment;
use ppo_crds::quantity::{amount, exceeds};
use ppo_crds::spec::{DataSource, ModelSource, Role};

use super::action::Action;
use super::object::{metadata, untyped};
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

/// What is wrong with a claim for checkpoints that was there already, in words that follow its name: it is smaller than the manifest asks for.
pub fn undersized(job: &Job, claim: &DynamicObject) -> Option<String> {
    let asked = &job.spec.checkpoint.volume_claim.as_ref()?.storage;
    // A volume may have more than its claim asked for; a claim that was just made larger asks for more than its volume has.
    let sizes = ["/spec/resources/requests/storage", "/status/capacity/storage"].into_iter();
    let sizes = sizes.filter_map(|field| {
        let size = claim.data.pointer(field)?.as_str()?;
        Some((amount(size)?, size))
    });
    let (_, size) = sizes.max_by(|one, other| one.0.total_cmp(&other.0))?;
    let name = claim.name_any();
    exceeds(asked, size).then(|| {
        format!(
            "its {size} are less than the {asked} of spec.checkpoint.volumeClaim.storage, and checkpoints may not fit: where its StorageClass \
             lets it grow, `kubectl patch pvc {name} -p '{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"{asked}\"}}}}}}}}'`; else make \
             the job again with another claim (spec.checkpoint.pvc)"
        )
    })
}

/// The same of the job's claim, where it is the operator's: of an earlier job of the name, or of this one.
pub fn undersized_claim(job: &Job, seen: &Snapshot) -> Option<String> {
    let name = job.spec.checkpoint.claim(&job.key.name)?;
    let claim = seen.object(Kind::PersistentVolumeClaim, &name)?;
    let words = undersized(job, claim)?;
    Some(format!("PersistentVolumeClaim {name} was there already: {words}"))
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::smallest_job::smallest_job;

    fn words(asked: &str, claim: Value) -> Option<String> {
        let job = smallest_job(&json!({"checkpoint": {"volumeClaim": {"storage": asked}}}));
        let claim = DynamicObject::new("a-checkpoints", &Kind::PersistentVolumeClaim.resource()).data(claim);
        undersized(&job, &claim)
    }

    #[test]
    fn a_claim_that_is_smaller_than_what_is_asked_for_is_told_of_with_both_sizes_and_what_to_do() {
        let requests = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let said = words("200Gi", requests("20Gi")).unwrap();
        for part in [
            "its 20Gi are less than the 200Gi",
            "`kubectl patch pvc a-checkpoints -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"200Gi\"}}}}'`",
        ] {
            assert!(said.contains(part), "{said}");
        }
        assert!(words("1Gi", requests("1G")).is_some());
        for (asked, has) in [("20Gi", "20Gi"), ("1G", "1Gi"), ("1Gi", "of no form")] {
            assert_eq!(words(asked, requests(has)), None, "{asked} and {has}");
        }
        let mut bound = requests("10Gi");
        bound["status"] = json!({"capacity": {"storage": "20Gi"}});
        assert_eq!(words("20Gi", bound), None, "its volume is larger");
        assert_eq!(words("20Gi", json!({})), None, "nothing is known of it");
    }
}
