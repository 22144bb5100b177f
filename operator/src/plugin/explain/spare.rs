//! Engines that a job does without: it trains on while as many as it needs are ready.

use std::collections::HashSet;

use kube::ResourceExt as _;
use ppo_crds::pod::annotation;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, RoleStatus};

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use crate::plugin::pods;

/// The findings; those that are about engines alone hold nothing up while the job runs without them.
pub fn told(findings: Vec<Finding>, evidence: &Evidence) -> Vec<Finding> {
    if !runs_without(evidence) {
        return findings;
    }
    let engines = evidence
        .pods
        .iter()
        .filter(|pod| pods::role(pod) == Some(Role::Rollout));
    let engines: HashSet<String> = engines.map(|pod| pod.name_any()).collect();
    let others_are_ready = others_are_ready(evidence);
    let is_of_engines = |finding: &Finding| match finding.pods.as_slice() {
        // What is said of roles names no pod: it is of the one that is not complete.
        [] => others_are_ready && matches!(finding.cause, Cause::PodsMissing | Cause::Role),
        pods => pods.iter().all(|pod| engines.contains(pod)),
    };
    let each = findings.into_iter().map(|finding| Finding {
        blocks: finding.blocks && !is_of_engines(&finding),
        ..finding
    });
    each.collect()
}

/// Whether the job runs and has the engines that it needs (`roles.rollout.minReplicas`).
fn runs_without(evidence: &Evidence) -> bool {
    let asked = evidence.job.spec.roles.rollout.min_replicas;
    let needed = actor_was_told(evidence).map_or(asked, |told| told.min(asked)).max(1) as usize;
    evidence.phase() == Some(Phase::Running) && ready(evidence, Role::Rollout) >= needed
}

/// How many engines the actor was told that it needs when it was made: a number that was raised since counts from its next start
/// (`snapshot.rs`).
fn actor_was_told(evidence: &Evidence) -> Option<u32> {
    let mut actors = evidence.of_role(Role::Actor).filter(|pod| pods::index(pod) == Some(0));
    actors.next()?.annotations().get(annotation::MIN_REPLICAS)?.parse().ok()
}

fn others_are_ready(evidence: &Evidence) -> bool {
    let is_ready = |role: &RoleStatus| ready(evidence, role.name) >= role.desired as usize;
    let status = evidence.status();
    status
        .roles
        .iter()
        .all(|role| role.name == Role::Rollout || is_ready(role))
}

fn ready(evidence: &Evidence, role: Role) -> usize {
    evidence.of_role(role).filter(|pod| pods::is_ready(pod)).count()
}
