//! What has failed of a job: pods that ended badly, though they may be gone by now, actor pods that are gone, an actor that hangs.

use ppo_crds::spec::Role;

use crate::failure::{Failure, failure_of};
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;
use crate::world::{Kind, Life, PodView};

/// Everything that failed of the pods that the job has now.
pub(super) fn all(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Vec<Failure> {
    let mut failures: Vec<Failure> = seen.current_pods(job, ledger).filter_map(failure_of).collect();
    failures.extend(vanished(job, seen, ledger));
    failures.extend(hung(job, seen, ledger));
    failures
}

/// The actor's pods that should be there and are gone. Their end may not have been looked at; a forced deletion even says nothing of
/// their processes, which may still run where their node cannot be reached. Who comes after them is another attempt, so that
/// those can write no more. Of the other roles those are remembered that had failed: somebody who removes a failed pod, by hand or with its
/// node, removes neither its failure nor the time that its successor waits. (`kubectl ppo restart-role` does not wait.)
fn vanished(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Vec<Failure> {
    let gone = seen.vanished.iter().filter(|pod| {
        pod.owner.as_deref() == Some(job.uid.as_str())
            && seen.wants(job, pod)
            && pod.attempt == ledger.attempt_of(pod.role, pod.index)
            && !seen.exists(Kind::Pod, &pod.name)
    });
    let without_end = |pod: &PodView| {
        let of_actor = pod.role == Role::Actor;
        of_actor.then(|| removed(pod.index, &pod.name, &pod.conditions))
    };
    let mut failures: Vec<Failure> = gone
        .filter_map(|pod| failure_of(pod).or_else(|| without_end(pod)))
        .collect();
    if failures.iter().all(|failure| failure.role != Role::Actor) {
        failures.extend(missed(job, seen, ledger));
    }
    failures
}

/// The same of a pod that this process never saw: the status, which another one wrote, has more ready pods of the attempt than there are.
fn missed(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<Failure> {
    let ready = ledger.role(Role::Actor)?.ready;
    let (index, name) = seen.missed_actors(job, ready).into_iter().next()?;
    Some(removed(index, &name, &[]))
}

fn removed(index: u32, pod: &str, conditions: &[String]) -> Failure {
    Failure {
        role: Role::Actor,
        index,
        pod: pod.to_owned(),
        exit_code: None,
        of_worker: false,
        reason: "Deleted".into(),
        message: "the pod was removed before its end was seen, with its node or by force".into(),
        conditions: conditions.to_vec(),
        disrupted: true,
        ended_at: None,
        not_before: None,
    }
}

/// No stage, nor a part of one, finished for longer than the policy allows, by the actor's own word. Silence says nothing: a process that
/// answers nobody is the kubelet's to end, by its probe, and one that answers the kubelet runs where the operator does not reach it. While
/// another role has too few ready pods it is those that the actor waits for, and the deadline of readiness that ends it.
fn hung(job: &Job, seen: &Snapshot, ledger: &Ledger) -> Option<Failure> {
    let limit = job.spec.run_policy.progress_deadline_seconds;
    let actor = seen.pod(job, Role::Actor, 0).filter(|pod| pod.life == Life::Ready)?;
    let current = actor.attempt == ledger.attempt_of(Role::Actor, 0);
    let report = seen.report.as_ref().map(|heard| &heard.report)?;
    let waits = !seen.roles_ready(job, ledger);
    if !current || waits || report.seconds_since_progress < limit as f64 {
        return None;
    }
    let stage = format!("{:?}", report.stage).to_lowercase();
    let peer = match report.waiting_for.as_str() {
        "" => String::new(),
        peer => format!(", where it waits for {peer}"),
    };
    Some(Failure {
        role: Role::Actor,
        index: 0,
        pod: actor.name.clone(),
        exit_code: None,
        of_worker: false,
        reason: "Hung".into(),
        message: format!(
            "no stage, nor a part of one, finished for {limit} s (runPolicy.progressDeadlineSeconds): it hangs in stage {stage}{peer}"
        ),
        conditions: Vec::new(),
        disrupted: false,
        ended_at: None,
        not_before: None,
    })
}
