//! Pods of the actor that the job's status knows and no watch has shown yet.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use ppo_crds::spec::Role;

use super::Error;
use super::read::{Subject, controller};
use crate::context::Context;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Expects those of the actor's [missed](Snapshot::missed_actors) pods that the API server has. An operator that has just begun may see the
/// status before it sees the pods, and the actor would be restarted for pods that are not gone. Asked for only then.
///
/// # Errors
/// When they cannot be looked up.
pub(super) async fn expect_late_actors(job: &Subject, seen: &mut Snapshot, context: &Context) -> Result<(), Error> {
    let (key, uid) = (&job.checked.key, &job.checked.uid);
    if job.status.phase.is_some_and(|phase| phase.is_finished()) {
        return Ok(());
    }
    let status = job.status.roles.iter().find(|role| role.name == Role::Actor);
    let ready = status.map_or(0, |role| role.ready);
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    for (_, name) in seen.missed_actors(&job.checked, ready) {
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = api.list_metadata(&named).await;
        let found = found.map_err(Error::request(format!("looking up pod {name}"), None))?;
        let own = |pod| controller(pod).is_some_and(|owner| owner.uid == *uid);
        if found.items.iter().any(own) {
            context.expected.made(key, Kind::Pod, &name);
            seen.expected = context.expected.of(key);
        }
    }
    Ok(())
}
