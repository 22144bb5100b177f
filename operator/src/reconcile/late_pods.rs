//! Pods of the actor that the job's status knows and no watch has shown yet.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;

use super::Error;
use super::read::{Subject, controller};
use crate::context::Context;
use crate::world::{Children, Kind};

/// Expects those of the actor's pods that the status has ready, that no watch has shown, and that the API server has. An operator that
/// has just begun may see the status before it sees the pods, and the actor would be restarted for pods that are not gone. Asked for only then.
///
/// # Errors
/// When they cannot be looked up.
pub(super) async fn expect_ready_actors(job: &Subject, children: &Children, context: &Context) -> Result<(), Error> {
    let (key, uid) = (&job.checked.key, &job.checked.uid);
    let finished = job.status.phase.is_some_and(|phase| phase.is_finished());
    let status = job.status.roles.iter().find(|role| role.name == Role::Actor);
    let ready = status.filter(|_| !finished).map_or(0, |role| role.ready);
    let pods = job.checked.role(Role::Actor).map_or(0, |role| role.pods);
    let mut late: Vec<String> = (0..pods).map(|index| pod_name(&key.name, Role::Actor, index)).collect();
    late.retain(|name| !children.pods.contains_key(name));
    if pods as usize - late.len() >= ready as usize {
        return Ok(());
    }
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &key.namespace);
    for name in late {
        let named = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = api.list_metadata(&named).await.map_err(|source| Error::Request {
            what: format!("looking up pod {name}"),
            kind: None,
            source: Box::new(source),
        })?;
        let own = |pod| controller(pod).is_some_and(|owner| owner.uid == *uid);
        if found.items.iter().any(own) {
            context.expected.made(key, Kind::Pod, &name);
        }
    }
    Ok(())
}
