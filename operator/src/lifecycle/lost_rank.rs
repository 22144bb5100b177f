//! Ranks of an actor that ended because another was lost. What befell that one decides: a crash of its own, which is seen in the same second,
//! or the loss of its node, which Kubernetes takes most of a minute to notice and most of another to clear away.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::spec::Role;

use crate::failure::Failure;
use crate::job::Job;
use crate::ledger::Ledger;
use crate::snapshot::Snapshot;
use crate::world::{Life, PodView};

/// How long what befell the lost rank may stay unknown: a node counts as not ready after 50 s of silence (`--node-monitor-grace-period` of the
/// controller manager), of which the ranks wait 30 before they end.
const CAUSE_SHOWS_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// By so much a node's clock may be ahead of ours for what it says of an end to be believed.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_secs(5);

/// Where the node of the lost rank is lost, its ranks' failures say so, and are the cluster's doing. Where nothing is known of the lost rank
/// yet: until when something may come to be.
pub(super) fn explain(
    failures: &mut [Failure],
    job: &Job,
    seen: &Snapshot,
    ledger: &Ledger,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut ranks: Vec<&mut Failure> = failures
        .iter_mut()
        .filter(|failure| failure.role == Role::Actor)
        .collect();
    if ranks.is_empty() || !ranks.iter().all(|failure| failure.is_of_lost_rank()) {
        return None;
    }
    let alive = |pod: &&PodView| pod.role == Role::Actor && pod.life != Life::Failed;
    let others: Vec<&PodView> = seen.current_pods(job, ledger).filter(alive).collect();
    let is_lost = |pod: &&&PodView| pod.node.as_ref().is_some_and(|node| seen.lost_nodes.contains(node));
    if let Some(lost) = others.iter().find(is_lost) {
        for failure in ranks {
            failure.disrupted = true;
            failure.message = format!("{}; the node of {} is lost", failure.message, lost.name);
        }
        return None;
    }
    let last = ranks.iter_mut().filter_map(|failure| failure.ended_at).max()?;
    if last.duration_since(now) > CLOCKS_DIFFER {
        return None;
    }
    last.checked_add(CAUSE_SHOWS_WITHIN).ok().filter(|_| !others.is_empty())
}
