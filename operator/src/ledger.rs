//! The part of the status that decides: attempts and counts. It is written before anything acts on it, so a decision is
//! taken once, wherever the operator dies.
//!
//! A restart is a raised attempt. Pods of an older attempt are deleted, pods of the wanted one created; a failed pod of an
//! older attempt says nothing any more, so no failure is counted twice.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use ppo_crds::spec::{FailurePolicySpec, Gang, Role};
use ppo_crds::status::{PodAttempt, PpoJobStatus, RoleStatus, RuleRestarts};

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
            self.restart_job(now);
        }
    }

    /// Wants no pods for now.
    pub fn pause(&mut self, now: Timestamp) {
        if self.status.active_since.is_none() {
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

    /// Replaces one pod.
    pub fn restart_pod(&mut self, role: Role, index: u32, now: Timestamp) {
        let Some(status) = self.role_mut(role) else { return };
        let attempt = status.next_attempt();
        status.pod_attempts.retain(|pod| pod.index != index);
        status.pod_attempts.push(PodAttempt { index, attempt });
        status.pod_attempts.sort_by_key(|pod| pod.index);
        status.last_restart_time = Some(Time(whole_second(now)));
    }

    /// Replaces all pods of a role.
    pub fn restart_role(&mut self, role: Role, now: Timestamp) {
        let Some(status) = self.role_mut(role) else { return };
        status.attempt = status.next_attempt();
        // No pod of that attempt was seen yet.
        status.ready = 0;
        status.pod_attempts.clear();
        status.last_restart_time = Some(Time(whole_second(now)));
    }

    /// Replaces all pods.
    pub fn restart_job(&mut self, now: Timestamp) {
        self.status.attempt = self.status.attempt.saturating_add(1);
        let roles: Vec<Role> = self.status.roles.iter().map(|status| status.name).collect();
        roles.into_iter().for_each(|role| self.restart_role(role, now));
    }

    /// Counts a restart towards the budgets.
    pub fn count(&mut self, role: Role, verdict: &Verdict) {
        if !verdict.counted {
            return;
        }
        self.status.restarts = self.status.restarts.saturating_add(1);
        if let Some(status) = self.role_mut(role) {
            status.restarts = status.restarts.saturating_add(1);
        }
        let Some(rule) = verdict.rule.and_then(|rule| u32::try_from(rule).ok()) else {
            return;
        };
        match self.status.rule_restarts.iter_mut().find(|known| known.rule == rule) {
            Some(known) => known.restarts = known.restarts.saturating_add(1),
            None => self.status.rule_restarts.push(RuleRestarts { rule, restarts: 1 }),
        }
    }

    /// The budget that one more counted restart would exceed, as a sentence.
    pub fn exhausted(&self, role: Role, verdict: &Verdict, policy: &FailurePolicySpec) -> Option<String> {
        if !verdict.counted {
            return None;
        }
        let used = |count: u32, limit: u32, field: String| {
            (count >= limit).then(|| format!("{count} of {limit} restarts are used ({field})"))
        };
        let of_role = self.role(role).map_or(0, |status| status.restarts);
        let per_role = policy.max_restarts_per_role.of(role);
        let of_rule = verdict
            .rule
            .and_then(|rule| Some((rule, policy.rules.get(rule)?.max_restarts?)));
        let by_rule = |rule: usize| {
            let counts = &self.status.rule_restarts;
            let known = counts.iter().find(|known| usize::try_from(known.rule) == Ok(rule));
            known.map_or(0, |known| known.restarts)
        };
        used(
            self.status.restarts,
            policy.max_restarts,
            "failurePolicy.maxRestarts".into(),
        )
        .or_else(|| {
            let field = format!("failurePolicy.maxRestartsPerRole.{}", role.name());
            used(of_role, per_role?, field)
        })
        .or_else(|| {
            let (rule, limit) = of_rule?;
            used(by_rule(rule), limit, format!("failurePolicy.rules[{rule}].maxRestarts"))
        })
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
