//! The gang that is not complete.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::status::Phase;

use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use super::{remedy, scheduling};
use crate::plugin::gang::{condition, is_of, text};
use crate::plugin::pods;

/// What the operator and the PodGroups say, where the pods do not say the same. Where pods are `refused` the operator's word is of that,
/// which is told already.
pub fn findings(evidence: &Evidence, refused: bool, now: Timestamp) -> Vec<Finding> {
    let said: Vec<&str> = evidence
        .living()
        .filter_map(|pod| pods::condition(pod, "PodScheduled", "False"))
        .map(|it| it.1)
        .collect();
    let is_new =
        |words: &str| !words.is_empty() && !said.iter().any(|said| said.contains(words) || words.contains(said));
    let incomplete =
        |words: &str, fix: String| Finding::blocking(Cause::Gang, format!("The gang is not complete: {words}."), fix);
    let group = |words: String| incomplete(&words, remedy::of_scheduling(&words, evidence));
    let groups = evidence.gang.iter().filter_map(pod_group).map(|words| one_line(&words));
    let mut found: Vec<Finding> = groups.filter(|words| is_new(words)).map(group).collect();
    let waits = matches!(
        evidence.phase(),
        None | Some(Phase::Pending | Phase::Scheduling | Phase::Restarting)
    );
    let condition = evidence
        .condition("GangScheduled", "False")
        .filter(|_| waits && !refused);
    let words = condition.map(|condition| one_line(&condition.message));
    if let Some(words) = words.filter(|words| is_new(words) && found.is_empty() && said.is_empty()) {
        // Room is no remedy for what the API server refuses.
        let refusal = scheduling::refused(evidence, now).map(one_line);
        let is_refused = refusal.is_some_and(|refusal| words.contains(&refusal) && !scheduling::is_of_budget(&refusal));
        let fix = match is_refused {
            true => remedy::of_creation(&words),
            false => remedy::of_scheduling(&words, evidence),
        };
        found.push(incomplete(&words, fix));
    }
    found
}

/// A pending PodGroup's words. Volcano never takes Unschedulable=True back, so its phase decides.
fn pod_group(object: &kube::api::DynamicObject) -> Option<String> {
    let volcano = is_of(object, "scheduling.volcano.sh", "PodGroup");
    let native = is_of(object, "scheduling.k8s.io", "PodGroup");
    if volcano && matches!(text(object, "/status/phase").as_str(), "Pending" | "Inqueue") {
        return condition(object, "Unschedulable", "True").map(|(_, message)| message.to_string());
    }
    if native {
        let refused = condition(object, "PodGroupScheduled", "False");
        return refused.map(|(_, message)| message.to_string());
    }
    None
}
