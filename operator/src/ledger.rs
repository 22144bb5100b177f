//! The part of the status that decisions depend on: attempts and counts. It is written before anything acts on it, so a decision is
//! taken once, wherever the operator dies.
//!
//! A restart is a raised attempt. Pods of an older attempt are deleted, pods of the wanted one created; a failed pod of an
//! older attempt no longer matters, so no failure is counted twice.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::spec::{FailurePolicySpec, FailureRule, Gang, Role};
use ppo_crds::status::{PodAttempt, PpoJobStatus, RoleStatus, RuleRestarts};
use sha2::{Digest, Sha256};

use crate::condition::whole_second;
use crate::failure::Verdict;
use crate::job::Job;

/// Attempts and counts of a job, on its way into the status.
#[derive(Clone, Debug)]
pub struct Ledger {
    /// The status as it will be written, except for what is observed.
    pub status: PpoJobStatus,
}

impl Ledger {
    /// What was written last, with an entry for every role that the job has.
    pub fn open(previous: &PpoJobStatus, job: &Job) -> Self {
        let mut status = previous.clone();
        status.attempt = status.attempt.max(1);
        status.roles = job
            .roles
            .iter()
            .map(|role| {
                let known = previous.roles.iter().find(|known| known.name == role.role).cloned();
                RoleStatus {
                    desired: role.pods,
                    ..known.unwrap_or_else(|| RoleStatus::started(role.role))
                }
            })
            .collect();
        status.rule_restarts = recounted(&previous.rule_restarts, &job.spec.failure_policy.rules);
        Self { status }
    }

    /// The role's entry.
    pub fn role(&self, role: Role) -> Option<&RoleStatus> {
        self.status.roles.iter().find(|status| status.name == role)
    }

    fn role_mut(&mut self, role: Role) -> Option<&mut RoleStatus> {
        self.status.roles.iter_mut().find(|status| status.name == role)
    }

    /// Attempt that a pod should have.
    pub fn attempt_of(&self, role: Role, index: u32) -> u32 {
        self.role(role).map_or(1, |status| status.attempt_of(index))
    }

    /// Begins to want pods, which `gang` places; after a suspension or an eviction under a new attempt.
    pub fn activate(&mut self, gang: Gang, now: Timestamp) {
        self.status.gang = Some(gang);
        if self.status.active_since.is_some() {
            return;
        }
        self.status.active_since = Some(Time(whole_second(now)));
        if self.status.active_seconds > 0 {
            self.restart_job();
        }
    }

    /// Wants no pods for now. A job that `has_pods` was active, though it may not be written since when: its first status is held back for
    /// a moment, and its pods are not.
    pub fn pause(&mut self, has_pods: bool, now: Timestamp) {
        if self.status.active_since.is_none() && !has_pods {
            return;
        }
        // Never 0: that it was active once is what makes the next pods another attempt's.
        self.status.active_seconds = self.active_seconds(now).max(1);
        self.status.active_since = None;
    }

    /// Seconds for which the job has wanted its pods.
    pub fn active_seconds(&self, now: Timestamp) -> u64 {
        let since = self
            .status
            .active_since
            .as_ref()
            .map(|since| now.duration_since(since.0).as_secs());
        let running = since
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or_default();
        self.status.active_seconds.saturating_add(running)
    }

    /// Has done with one pod that nobody wants: should one of its index be wanted again, it is another.
    pub fn retire_pod(&mut self, role: Role, index: u32) {
        let Some(status) = self.role_mut(role) else { return };
        let attempt = status.next_attempt();
        status.pod_attempts.retain(|pod| pod.index != index);
        status.pod_attempts.push(PodAttempt { index, attempt });
        status.pod_attempts.sort_by_key(|pod| pod.index);
    }

    /// Replaces all pods of a role.
    pub fn restart_role(&mut self, role: Role) {
        let Some(status) = self.role_mut(role) else { return };
        status.attempt = status.next_attempt();
        // No pod of that attempt was seen yet.
        status.ready = 0;
        status.pod_attempts.clear();
    }

    /// Replaces all pods.
    pub fn restart_job(&mut self) {
        self.status.attempt = self.status.attempt.saturating_add(1);
        let roles: Vec<Role> = self.status.roles.iter().map(|status| status.name).collect();
        roles.into_iter().for_each(|role| self.restart_role(role));
    }

    /// Counts a restart towards the budgets. The rule's own counts what the others do not, too. The wait of the next counted one begins with
    /// it: what the cluster takes away meanwhile makes it no longer.
    pub fn count(&mut self, role: Role, verdict: &Verdict, policy: &FailurePolicySpec, now: Timestamp) {
        if verdict.counted {
            self.status.restarts = self.status.restarts.saturating_add(1);
            if let Some(status) = self.role_mut(role) {
                status.restarts = status.restarts.saturating_add(1);
                status.last_restart_time = Some(Time(whole_second(now)));
            }
        }
        let rule = verdict.rule.and_then(|at| Some((at, policy.rules.get(at)?)));
        let Some((at, rule)) = rule else { return };
        let Ok(position) = u32::try_from(at) else { return };
        let counts = &mut self.status.rule_restarts;
        match counts.iter_mut().find(|known| known.rule == position) {
            Some(known) => known.restarts = known.restarts.saturating_add(1),
            None => counts.push(RuleRestarts {
                rule: position,
                fingerprint: fingerprint(rule),
                restarts: 1,
            }),
        }
    }

    /// The budget that one more restart would exceed, as a sentence: the rule's own, and where it is counted the others.
    pub fn exhausted(&self, role: Role, verdict: &Verdict, policy: &FailurePolicySpec) -> Option<String> {
        let used = |count: u32, limit: u32, field: String| {
            (count >= limit).then(|| format!("{count} of {limit} restarts are used ({field})"))
        };
        let of_all = || {
            used(
                self.status.restarts,
                policy.max_restarts,
                "failurePolicy.maxRestarts".into(),
            )
        };
        let of_role = || {
            let limit = policy.max_restarts_per_role.of(role)?;
            let field = format!("failurePolicy.maxRestartsPerRole.{}", role.name());
            used(self.role(role).map_or(0, |status| status.restarts), limit, field)
        };
        let of_rule = || {
            let rule = verdict.rule?;
            let limit = policy.rules.get(rule)?.max_restarts?;
            let counts = &self.status.rule_restarts;
            let known = counts.iter().find(|known| usize::try_from(known.rule) == Ok(rule));
            let count = known.map_or(0, |known| known.restarts);
            used(count, limit, format!("failurePolicy.rules[{rule}].maxRestarts"))
        };
        let of_others = verdict.counted.then(|| of_all().or_else(of_role)).flatten();
        of_others.or_else(of_rule)
    }

    /// When a role that keeps failing may be restarted again: at once the first time, then after 10 s, 20 s, 40 s, up to
    /// 5 minutes, as the kubelet waits with a container.
    pub fn restart_not_before(&self, role: Role) -> Option<Timestamp> {
        let status = self.role(role)?;
        let last = status.last_restart_time.as_ref()?.0;
        let exponent = status.restarts.checked_sub(1)?.min(5);
        let seconds = (10i64 << exponent).min(300);
        last.checked_add(SignedDuration::from_secs(seconds)).ok()
    }
}

/// The counts of the rules that there are, each where it stands now: the policy may change while the job runs.
fn recounted(known: &[RuleRestarts], rules: &[FailureRule]) -> Vec<RuleRestarts> {
    if known.is_empty() {
        return Vec::new();
    }
    let recounted = (0..).zip(rules).filter_map(|(position, rule)| {
        let fingerprint = fingerprint(rule);
        let same = |known: &&RuleRestarts| match known.fingerprint.as_str() {
            // Of an operator that told rules by their position alone.
            "" => known.rule == position,
            other => other == fingerprint,
        };
        let restarts = known.iter().find(same)?.restarts;
        Some(RuleRestarts {
            rule: position,
            fingerprint,
            restarts,
        })
    });
    recounted.collect()
}

/// Of what a rule says, but for its budget: who raises that does not begin anew.
fn fingerprint(rule: &FailureRule) -> String {
    let rule = FailureRule {
        max_restarts: None,
        ..rule.clone()
    };
    // A rule is plain data: it can always be written.
    let hash = Sha256::digest(serde_json::to_string(&rule).unwrap_or_default());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::FailureAction;
    use serde_json::{Value, json};

    use super::*;
    use crate::smallest_job::smallest_job;

    fn job(rules: &Value) -> Job {
        smallest_job(&json!({"failurePolicy": {"rules": rules}}))
    }

    fn by_rule(rule: usize, action: FailureAction) -> Verdict {
        Verdict {
            action,
            counted: action != FailureAction::Ignore,
            rule: Some(rule),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    /// Of a job that has every role.
    fn of_all_roles() -> Ledger {
        let roles = Role::ALL.map(RoleStatus::started).to_vec();
        Ledger {
            status: PpoJobStatus {
                roles,
                ..PpoJobStatus::default()
            },
        }
    }

    #[test]
    fn time_in_which_a_job_was_suspended_does_not_count_and_time_before_does() {
        let mut ledger = of_all_roles();
        ledger.activate(Gang::None, at(0));
        ledger.pause(true, at(70));
        assert_eq!(ledger.active_seconds(at(999)), 70);
        ledger.activate(Gang::None, at(1000));
        assert_eq!(ledger.active_seconds(at(1030)), 100);
    }

    #[test]
    fn a_role_that_keeps_failing_waits_twice_as_long_each_time_and_never_longer_than_five_minutes() {
        let mut ledger = of_all_roles();
        ledger.role_mut(Role::Rollout).unwrap().last_restart_time = Some(Time(at(1000)));
        let mut wait = |restarts: u32| {
            ledger.role_mut(Role::Rollout).unwrap().restarts = restarts;
            ledger.restart_not_before(Role::Rollout)
        };
        // What was restarted and not counted waits for nothing.
        assert_eq!(wait(0), None);
        for (restarts, seconds) in (1..).zip([10, 20, 40, 80, 160, 300, 300]) {
            assert_eq!(wait(restarts), Some(at(1000 + seconds)), "{restarts}");
        }
        assert_eq!(wait(u32::MAX), Some(at(1300)));
        assert_eq!(ledger.restart_not_before(Role::Actor), None, "another role");
    }

    #[test]
    fn a_roles_budget_is_for_its_own_restarts_alone() {
        let verdict = Verdict {
            action: FailureAction::RestartPod,
            counted: true,
            rule: None,
        };
        for role in Role::ALL {
            let budgets = json!({"maxRestarts": 100, "maxRestartsPerRole": {(role.name()): 1}});
            let policy: FailurePolicySpec = serde_json::from_value(budgets).unwrap();
            for failed in Role::ALL {
                let mut ledger = of_all_roles();
                assert_eq!(ledger.exhausted(role, &verdict, &policy), None);
                ledger.count(failed, &verdict, &policy, at(0));
                let budget = ledger.exhausted(role, &verdict, &policy);
                assert_eq!(budget.is_some(), failed == role, "{failed:?}: {budget:?}");
                let field = format!("(failurePolicy.maxRestartsPerRole.{})", role.name());
                assert!(budget.is_none_or(|budget| budget.ends_with(&field)));
                if failed != role {
                    assert_eq!(
                        ledger.exhausted(failed, &verdict, &policy),
                        None,
                        "{failed:?} has no budget"
                    );
                }
            }
        }
    }

    #[test]
    fn a_rule_that_ignores_has_its_own_budget_and_uses_no_other() {
        let job = job(&json!([{"action": "Ignore", "exitCodes": [7], "maxRestarts": 1}]));
        let (policy, verdict) = (&job.spec.failure_policy, by_rule(0, FailureAction::Ignore));
        let mut ledger = Ledger::open(&PpoJobStatus::default(), &job);
        assert_eq!(ledger.exhausted(Role::Rollout, &verdict, policy), None);
        ledger.count(Role::Rollout, &verdict, policy, at(0));
        assert_eq!(ledger.status.restarts, 0);
        let budget = ledger.exhausted(Role::Rollout, &verdict, policy).unwrap();
        assert!(budget.contains("failurePolicy.rules[0].maxRestarts"), "{budget}");
    }

    #[test]
    fn a_count_follows_its_rule_and_not_its_place() {
        let ours = json!({"action": "RestartPod", "exitCodes": [7], "maxRestarts": 1});
        let first = job(&json!([ours]));
        let mut ledger = Ledger::open(&PpoJobStatus::default(), &first);
        let policy = &first.spec.failure_policy;
        ledger.count(Role::Rollout, &by_rule(0, FailureAction::RestartPod), policy, at(0));

        let mut raised = ours.clone();
        raised["maxRestarts"] = json!(5);
        let other = json!({"action": "RestartPod", "exitCodes": [8], "maxRestarts": 1});
        let moved = Ledger::open(&ledger.status, &job(&json!([other, raised])));
        let counts = moved.status.rule_restarts.iter();
        let counts: Vec<(u32, u32)> = counts.map(|known| (known.rule, known.restarts)).collect();
        assert_eq!(counts, [(1, 1)]);
        let gone = Ledger::open(&moved.status, &job(&json!([other])));
        assert!(gone.status.rule_restarts.is_empty());

        // What an operator before wrote has no fingerprints yet.
        let mut before = ledger.status.clone();
        before.rule_restarts[0].fingerprint.clear();
        let after = Ledger::open(&before, &first).status;
        assert_eq!(after.rule_restarts, ledger.status.rule_restarts);
    }
}
