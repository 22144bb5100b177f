//! Objects that a job must have and that no watch has shown yet: the watch may only be late, so the API server is asked for them, and
//! only then.

use kube::Api;
use kube::api::{DynamicObject, ListParams};
use ppo_crds::pod::token_name;
use ppo_crds::spec::Role;
use ppo_crds::status::Phase;

use super::error::Error;
use super::owner::controller;
use super::subject::Subject;
use crate::context::Context;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Expects those of the actor's [missed](Snapshot::missed_actors) pods that the API server has. An operator that has just begun may see the
/// status before it sees the pods, and the actor would be restarted for pods that are not gone.
///
/// # Errors
/// When they cannot be looked up.
pub(super) async fn expect_late_actors(job: &Subject, seen: &mut Snapshot, context: &Context) -> Result<(), Error> {
    if is_finished(job) {
        return Ok(());
    }
    let status = job.status.roles.iter().find(|role| role.name == Role::Actor);
    let ready = status.map_or(0, |role| role.ready);
    for (_, name) in seen.missed_actors(&job.checked, ready) {
        expect(job, Kind::Pod, &name, seen, context).await?;
    }
    Ok(())
}

/// Expects the Secret with the token, where there are pods that were made with it; where the API server has none it is lost.
///
/// # Errors
/// When it cannot be looked up.
pub(super) async fn expect_late_token(job: &Subject, seen: &mut Snapshot, context: &Context) -> Result<(), Error> {
    let name = token_name(&job.checked.key.name);
    let without_pods = seen.pods(&job.checked).next().is_none();
    if is_finished(job) || without_pods || seen.exists(Kind::Secret, &name) {
        return Ok(());
    }
    seen.token_lost = !expect(job, Kind::Secret, &name, seen, context).await?;
    Ok(())
}

fn is_finished(job: &Subject) -> bool {
    job.status.phase.is_some_and(Phase::is_finished)
}

/// Expects the job's own object of that name, if the API server has it; whether it does.
async fn expect(job: &Subject, kind: Kind, name: &str, seen: &mut Snapshot, context: &Context) -> Result<bool, Error> {
    let key = &job.checked.key;
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &key.namespace, &kind.resource());
    // By a list: no secret may be read.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = api.list_metadata(&named).await;
    let found = found.map_err(Error::request(format!("looking up {} {name}", kind.name()), None))?;
    let own = |object| controller(object).is_some_and(|owner| owner.uid == job.checked.uid);
    let there = found.items.iter().any(own);
    if there {
        context.expected.made(key, kind, name);
        seen.expected = context.expected.of(key);
    }
    Ok(there)
}
