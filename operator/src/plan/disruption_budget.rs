//! A PodDisruptionBudget that keeps drains from evicting the actor: every eviction costs the steps since the last checkpoint.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::DynamicObject;
use ppo_crds::pod::{label, service_name};
use ppo_crds::spec::Role;

use super::action::Action;
use super::drift;
use super::object::{metadata, untyped};
use crate::job::Job;
use crate::lifecycle::{Decision, Intent};
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// Makes the budget once the actor trains, and takes it away as soon as it has nothing to guard: of a job that has ended, waits or is
/// suspended it would tell the cluster's alerts for ever that its pods are missing.
pub fn upkeep(job: &Job, decision: &Decision, seen: &Snapshot, settings: &PodSettings) -> Option<Action> {
    let kind = Kind::PodDisruptionBudget;
    let name = service_name(&job.key.name, Role::Actor);
    let made = seen.object(kind, &name);
    if settings.disruption_budgets && decision.intent == Intent::Run && guards(job, decision, seen, made.is_some()) {
        return drift::repair(kind, desired(job), seen);
    }
    Action::removal(kind, made?)
}

/// Before all ranks are ready they have learned nothing that an eviction could cost. One that is not ready for a moment leaves the budget
/// of the others as it is, one that has no node any more waits for a new one.
fn guards(job: &Job, decision: &Decision, seen: &Snapshot, made: bool) -> bool {
    let ranks = job.role(Role::Actor).map_or(0, |role| role.pods);
    if !made {
        let ready = seen.ready(job, &decision.ledger);
        return ranks > 0 && ready.get(&Role::Actor).is_some_and(|ready| *ready >= ranks);
    }
    let mut pods = (0..ranks).map(|index| seen.pod(job, Role::Actor, index));
    pods.all(|pod| pod.is_some_and(|pod| pod.node.is_some()))
}

/// The actor's budget.
fn desired(job: &Job) -> DynamicObject {
    let actors = job.role(Role::Actor).map_or(1, |role| role.pods);
    let actors = i32::try_from(actors).unwrap_or(i32::MAX);
    let selector = [(label::JOB, job.key.name.as_str()), (label::ROLE, Role::Actor.name())];
    let budget = PodDisruptionBudget {
        metadata: metadata(job, &service_name(&job.key.name, Role::Actor)),
        spec: Some(PodDisruptionBudgetSpec {
            // A number, and not "maxUnavailable: 0": that counts from the owner's scale, which is the number of engines
            // (disruption.go, getExpectedPodCount).
            min_available: Some(IntOrString::Int(actors)),
            selector: Some(LabelSelector {
                match_labels: Some(selector.map(|(key, value)| (key.into(), value.into())).into()),
                match_expressions: None,
            }),
            // A pod that is not running guards nothing.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            max_unavailable: None,
        }),
        status: None,
    };
    untyped(Kind::PodDisruptionBudget, &budget)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use ppo_crds::status::PpoJobStatus;
    use serde_json::{Value, json};

    use super::*;
    use crate::gang::Gang;
    use crate::lifecycle::decide;
    use crate::smallest_job::smallest_job;
    use crate::world::{Children, PodView, SeenPod};

    /// A job of one actor.
    fn job(suspend: bool) -> Job {
        smallest_job(&json!({"runPolicy": {"suspend": suspend}}))
    }

    /// Its actor, on that node and ready or not, with or without a budget.
    fn seen(node: Option<&str>, ready: bool, budget: bool) -> Snapshot {
        let ready = if ready { "True" } else { "False" };
        let pod = json!({
            "metadata": {
                "name": "a-actor-0",
                "labels": {"ppojob.dev/role": "actor", "ppojob.dev/index": "0"},
                "annotations": {"ppojob.dev/attempt": "1"},
                "ownerReferences": [{"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "name": "a", "uid": "12345678-9",
                    "controller": true}],
            },
            "spec": {"nodeName": node},
            "status": {"phase": if node.is_some() { "Running" } else { "Pending" },
                "conditions": [{"type": "Ready", "status": ready}]},
        });
        let pod = PodView::of(&serde_json::from_value::<SeenPod>(pod).unwrap()).unwrap();
        let mut children = Children::default();
        children.pods.insert(pod.name.clone(), Arc::new(pod));
        if budget {
            let key = (Kind::PodDisruptionBudget, "a-actor".to_owned());
            children.objects.insert(key, Arc::new(desired(&job(false))));
        }
        Snapshot::plain(children, Gang::None, Timestamp::UNIX_EPOCH)
    }

    fn done(job: &Job, seen: &Snapshot, settings: &PodSettings, previous: Value) -> &'static str {
        let previous: PpoJobStatus = serde_json::from_value(previous).unwrap();
        let decision = decide(job, seen, &previous, Timestamp::UNIX_EPOCH);
        match upkeep(job, &decision, seen, settings) {
            None => "nothing",
            Some(Action::Create(Kind::PodDisruptionBudget, _)) => "made",
            Some(Action::Delete(target)) if target.kind == Kind::PodDisruptionBudget => "deleted",
            Some(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_budget_comes_when_the_actor_is_ready_and_goes_when_there_is_nothing_to_guard() {
        let on = PodSettings::default();
        let look = |node, ready, budget| done(&job(false), &seen(node, ready, budget), &on, json!({}));
        assert_eq!(look(None, false, false), "nothing");
        assert_eq!(look(Some("one"), false, false), "nothing");
        assert_eq!(look(Some("one"), true, false), "made");
        assert_eq!(look(Some("one"), true, true), "nothing");
        assert_eq!(look(Some("one"), false, true), "nothing", "not ready for a moment");
        assert_eq!(look(None, false, true), "deleted", "the next actor waits for a node");

        let ready = seen(Some("one"), true, true);
        assert_eq!(done(&job(true), &ready, &on, json!({})), "deleted", "suspended");
        let ended = json!({"phase": "Failed"});
        assert_eq!(done(&job(false), &ready, &on, ended), "deleted", "ended");
    }

    #[test]
    fn where_there_are_to_be_no_budgets_none_is_made_and_one_that_is_there_goes() {
        let off = PodSettings {
            disruption_budgets: false,
            ..PodSettings::default()
        };
        let look = |budget| done(&job(false), &seen(Some("one"), true, budget), &off, json!({}));
        assert_eq!((look(false), look(true)), ("nothing", "deleted"));
    }
}
