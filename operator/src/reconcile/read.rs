//! Gathers what a reconcile looks at, nearly all of it from memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::core::{DeserializeGuard, error_boundary::InvalidObject};
use kube::{Api, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::pod::{annotation, pod_name};
use ppo_crds::report::Reason;
use ppo_crds::spec::Role;

use super::error::Error;
use super::late::{expect_late_actors, expect_late_token};
use super::owner::is_of;
use super::subject::Subject;
use crate::context::Context;
use crate::contract::Contract;
use crate::events;
use crate::gang::{self, Gang};
use crate::plan::hangs_at;
use crate::snapshot::Snapshot;
use crate::world::{Children, JobKey, Kind, Life, PodView};

/// The value of `runPolicy.managedBy` that means this operator.
const OPERATOR: &str = "ppojob.dev/operator";

/// The job, if it is this operator's to work on. One that cannot be read gets an event that says so: nothing else can be written of it.
pub async fn job(object: &DeserializeGuard<PpoJob>, context: &Context) -> Option<Subject> {
    // On another CRD than its own the operator might misread, or lose, what decides. It then touches nothing.
    if *context.contract.borrow() != Contract::Same {
        return None;
    }
    let object = match &object.0 {
        Ok(object) => object,
        Err(invalid) => {
            tell_unreadable(object, invalid, context).await;
            return None;
        }
    };
    context.unreadable.forget(&JobKey::of(object));
    let elsewhere = object
        .spec
        .run_policy
        .managed_by
        .as_deref()
        .is_some_and(|manager| manager != OPERATOR);
    let is_going = object.metadata.deletion_timestamp.is_some();
    if is_going {
        // It may hang on a finalizer for long, and nobody looks at it any more.
        context.metrics.forget(&JobKey::of(object));
    }
    if elsewhere || is_going {
        return None;
    }
    Some(Subject {
        checked: context.jobs.checked(object).await,
        status: object.status.clone().unwrap_or_default(),
        object: object.clone(),
    })
}

/// Logs that the job cannot be read, and writes an event that says so: nothing else can be written of it.
async fn tell_unreadable(job: &DeserializeGuard<PpoJob>, invalid: &InvalidObject, context: &Context) {
    let (key, error) = (JobKey::of(job), invalid.error.as_str());
    // What they last said is no longer known to be so.
    context.metrics.forget(&key);
    if context.unreadable.is_news(job, error) {
        tracing::error!(job = %key, error, "a PpoJob cannot be read: is a field of a pod template of another type?");
        events::unreadable(job, error, context).await;
    }
}

/// What is known of the job's world.
///
/// # Errors
/// When the gang's objects are not known yet, or a pod, a node or the Secret cannot be looked up.
pub async fn snapshot(job: &Subject, context: &Context) -> Result<Snapshot, Error> {
    look_for_gangs(job, context).await?;
    let key = &job.checked.key;
    let gang = settled(job, context);
    // Before its objects are read: a Workload that is there and not known yet would be taken for quota that the job does not have.
    if let Some(kind) = unlisted(gang, key, context) {
        let namespace = key.namespace.clone();
        return Err(Error::Unlisted { kind, namespace });
    }
    let mut children = context.world.children(key);
    children
        .objects
        .retain(|(kind, _), object| is_of(&job.checked, *kind, object));
    let lookups = gang
        .look_up(&job.checked, &children, &context.client, &context.flavors)
        .await;
    let what = "looking up Kueue's flavors and priority classes";
    let lookups = lookups.map_err(Error::request(what, Kind::KueueWorkload))?;
    let annotations = job.object.annotations();
    // What an earlier attempt said is over.
    let actor = children.pods.get(&pod_name(&key.name, Role::Actor, 0));
    let attempt = actor.map(|pod| pod.attempt);
    let unapproved = context.unapproved.lock().get(key).cloned();
    let refused = context.refused.obstacle(key, context.now());
    let mut seen = Snapshot {
        expected: context.expected.of(key),
        report: context
            .reports
            .heard(key, &job.checked.uid)
            .filter(|heard| attempt == Some(heard.report.attempt)),
        admission: gang.admission(&job.checked, &children, &lookups),
        lookups,
        gang,
        unapproved,
        refused,
        token_lost: false,
        lost_nodes: lost_nodes(&children, context).await?,
        restart_request: annotations.get(annotation::RESTART).cloned(),
        listening_since: context.acting_since.get().copied().unwrap_or(context.now()),
        vanished: context.world.vanished(key),
        children,
    };
    expect_late_actors(job, &mut seen, context).await?;
    expect_late_token(job, &mut seen, context).await?;
    Ok(seen)
}

/// The job's gang scheduler, of those that the cluster has.
fn settled(job: &Subject, context: &Context) -> Gang {
    gang::settled(&job.checked.spec.scheduling, &job.status, &context.served.kinds())
}

/// The kind of the gang's own object, while not all of the job's namespace are known.
fn unlisted(gang: Gang, key: &JobKey, context: &Context) -> Option<Kind> {
    let kind = match gang {
        Gang::None | Gang::Missing(_) => None,
        Gang::Volcano => Some(Kind::VolcanoPodGroup),
        Gang::Coscheduling => Some(Kind::CoschedulingPodGroup),
        Gang::Kueue => Some(Kind::KueueWorkload),
        Gang::Native(kind) => Some(kind),
    };
    kind.filter(|kind| !context.listed.has(*kind, &key.namespace))
}

/// A new job may want a gang scheduler that was installed since the operator last looked; one that misses it looks again, and so
/// does the next one after a kind was not found, and one whose gang's kind was never listed: it may be gone.
async fn look_for_gangs(job: &Subject, context: &Context) -> Result<(), Error> {
    let misses_it = || {
        let gang = settled(job, context);
        matches!(gang, Gang::Missing(_)) || unlisted(gang, &job.checked.key, context).is_some()
    };
    if job.status.phase.is_some() && !context.served.is_doubted() && !misses_it() {
        return Ok(());
    }
    let new = context
        .served
        .refresh(&context.client)
        .await
        .map_err(Error::request("asking which gang schedulers there are", None))?;
    for kind in new {
        tracing::info!(kind = kind.name(), "found a gang scheduler");
        // Nobody watches while the operator starts or stops.
        let _ = context.new_kinds.send(kind);
    }
    Ok(())
}

/// Of the nodes whose pods hang terminating, or may be what ranks of the actor have lost, those that are gone or do not answer. Asked for
/// only then.
async fn lost_nodes(children: &Children, context: &Context) -> Result<BTreeSet<String>, Error> {
    let now = context.now();
    let lost_a_rank = |pod: &Arc<PodView>| {
        pod.outcome
            .as_ref()
            .is_some_and(|outcome| outcome.reason == Reason::RankLost)
    };
    let is_lost = children.pods.values().any(lost_a_rank);
    let doubted = |pod: &&Arc<PodView>| {
        let hangs = hangs_at(pod).is_some_and(|due| due <= now);
        hangs || is_lost && pod.role == Role::Actor && pod.life != Life::Failed
    };
    let doubted = children.pods.values().filter(doubted);
    let nodes: BTreeSet<&String> = doubted.filter_map(|pod| pod.node.as_ref()).collect();
    let api: Api<Node> = Api::all(context.client.clone());
    let mut lost = BTreeSet::new();
    for name in nodes {
        let node = api.get_opt(name).await;
        let node = node.map_err(Error::request(format!("looking up node {name}"), None))?;
        if node.is_none_or(|node| !is_ready(&node)) {
            lost.insert(name.clone());
        }
    }
    Ok(lost)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
