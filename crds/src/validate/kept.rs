//! What outlives the actor's pod: checkpoints, records and the trained model lie in one folder.

use std::path::Path;

use k8s_openapi::api::core::v1::{Volume, VolumeMount};

use super::Warning;
use crate::PpoJobSpec;
use crate::pod::{RUNS_FOLDER, WORKER_CONTAINER};
use crate::spec::PodPlacement;

/// Folders of a pod that can be written without a volume of its template, and go with it.
const SCRATCH: [&str; 3] = [RUNS_FOLDER, "/tmp", "/dev/shm"];

impl PpoJobSpec {
    /// Whether checkpoints and the trained model are somewhere that does not go with the actor's pod.
    pub fn outlives_pods(&self) -> bool {
        let checkpoint = &self.checkpoint;
        let folder = checkpoint.path.as_deref().unwrap_or(RUNS_FOLDER);
        checkpoint.pvc.is_some() || checkpoint.volume_claim.is_some() || is_kept(&self.roles.actor, Path::new(folder))
    }
}

/// Whether the actor's pods can write a folder: it is scratch, or in a volume that their template mounts.
pub(super) fn can_be_written(actor: &PodPlacement, folder: &Path) -> bool {
    SCRATCH.iter().any(|scratch| folder.starts_with(scratch)) || mount(actor, folder).is_some()
}

/// The volume that a folder of the actor's pods is in and that they cannot write.
pub(super) fn read_only_volume<'a>(actor: &'a PodPlacement, folder: &Path) -> Option<&'a str> {
    let mount = mount(actor, folder)?;
    let is_read_only = mount.read_only == Some(true) || volume(actor, &mount.name).is_some_and(only_reads);
    is_read_only.then_some(mount.name.as_str())
}

/// Whether nobody writes a volume, however it is mounted.
fn only_reads(volume: &Volume) -> bool {
    let claim = volume.persistent_volume_claim.as_ref();
    claim.is_some_and(|claim| claim.read_only == Some(true))
        || volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
}

/// What is lost with the actor's pod, on a cluster.
pub fn warning(spec: &PpoJobSpec) -> Option<Warning> {
    (!spec.outlives_pods()).then(|| Warning {
        field: "spec.checkpoint".into(),
        message: "checkpoints and the trained model go with the actor's pod, also when the job succeeds; give volumeClaim, pvc, or a path \
                  in a volume that spec.roles.actor.template mounts"
            .into(),
    })
}

/// Whether a role's template mounts a volume around `folder` that does not go with the pod; below `/runs` the job's folder may be one.
fn is_kept(role: &PodPlacement, folder: &Path) -> bool {
    let below =
        |mount: &&VolumeMount| folder == Path::new(RUNS_FOLDER) && Path::new(&mount.mount_path).starts_with(folder);
    let mount = mount(role, folder).or_else(|| mounts(role).find(below));
    mount.is_some_and(|mount| !goes_with_the_pod(role, &mount.name))
}

/// The innermost mount of a role's template that `folder` is in.
fn mount<'a>(role: &'a PodPlacement, folder: &Path) -> Option<&'a VolumeMount> {
    let around = mounts(role).filter(|mount| folder.starts_with(&mount.mount_path));
    around.max_by_key(|mount| Path::new(&mount.mount_path).components().count())
}

fn mounts(role: &PodPlacement) -> impl Iterator<Item = &VolumeMount> {
    let spec = role.template.iter().flat_map(|template| &template.spec);
    let containers = spec.flat_map(|spec| &spec.containers);
    let worker = containers.filter(|container| container.name == WORKER_CONTAINER);
    worker.flat_map(|worker| worker.volume_mounts.iter().flatten())
}

fn goes_with_the_pod(role: &PodPlacement, name: &str) -> bool {
    volume(role, name).is_some_and(|volume| volume.empty_dir.is_some() || volume.ephemeral.is_some())
}

fn volume<'a>(role: &'a PodPlacement, name: &str) -> Option<&'a Volume> {
    let spec = role.template.iter().flat_map(|template| &template.spec);
    let mut volumes = spec.flat_map(|spec| spec.volumes.iter().flatten());
    volumes.find(|volume| volume.name == name)
}
