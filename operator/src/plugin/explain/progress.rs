//! All pods run; does the training? And what the operator itself says of roles, budgets and deadlines.

use k8s_openapi::jiff::Timestamp;
use ppo_crds::pod::port;
use ppo_crds::status::{Phase, RoleStatus};

use super::controller;
use super::evidence::{Evidence, one_line};
use super::finding::{Cause, Finding};
use crate::condition::kind;
use crate::lifecycle::not_ready_from;
use crate::plugin::{age, pods};
use crate::status::QUOTA_FOR_FEWER;

/// No stage ends; restarts are used up; a deadline comes nearer.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let (status, spec) = (evidence.status(), &evidence.job.spec);
    let mut findings = Vec::new();
    let trains = matches!(status.phase, Some(Phase::Running | Phase::Restarting));
    let progressing = evidence.condition("Progressing", "False").filter(|_| trains);
    if let Some(silent) = progressing.filter(|silent| silent.reason == "Silent") {
        findings.push(Finding::note(
            Cause::NoProgress,
            format!("The operator does not know how far training is: {}.", one_line(&silent.message)),
            format!(
                "see how far it is by `kubectl ppo logs {} --role actor`; the operator's pod has to reach port {} of the actor's: does a \
                 NetworkPolicy or a mesh stand between them?",
                evidence.name(),
                port::METRICS
            ),
        ));
    }
    if let Some(stalled) = progressing.filter(|stalled| stalled.reason == "Stalled") {
        let since = age::since(stalled.last_transition_time.0, now);
        findings.push(Finding::blocking(
            Cause::NoProgress,
            format!("Training makes no progress ({}, for {since}): {}.", stalled.reason, one_line(&stalled.message)),
            format!(
                "look at the pod that it waits for: `kubectl ppo logs {}`; `kubectl ppo restart-role {} ROLE` replaces a role that hangs, \
                 as the operator does after spec.runPolicy.progressDeadlineSeconds ({})",
                evidence.name(),
                evidence.name(),
                age::human_unsigned(spec.run_policy.progress_deadline_seconds)
            ),
        ));
    }
    let limit = spec.failure_policy.max_restarts;
    if status.restarts >= limit && status.restarts > 0 {
        findings.push(Finding::note(
            Cause::Budget,
            format!("All {limit} restarts of spec.failurePolicy.maxRestarts are used: the next failure ends the job."),
            "raise spec.failurePolicy.maxRestarts, which may change while the job runs",
        ));
    }
    findings.extend(deadlines(evidence, now));
    findings
}

/// A time by which the job fails.
struct Deadline {
    field: &'static str,
    limit: u64,
    spent: i64,
    /// Whether it may be later, too.
    or_later: bool,
}

impl Deadline {
    fn left(&self) -> i64 {
        i64::try_from(self.limit).unwrap_or(i64::MAX).saturating_sub(self.spent)
    }
}

/// The deadline that ends the job soonest, when a tenth or less of it is left; beside it one that may do so sooner.
fn deadlines(evidence: &Evidence, now: Timestamp) -> impl Iterator<Item = Finding> {
    let both = [of_readiness(evidence, now), of_activity(evidence, now)]
        .into_iter()
        .flatten();
    let near = both.filter(|deadline| deadline.left() <= i64::try_from(deadline.limit / 10).unwrap_or(i64::MAX));
    let (bounds, known): (Vec<_>, Vec<_>) = near.partition(|deadline| deadline.or_later);
    let soonest = known.into_iter().min_by_key(Deadline::left);
    soonest.into_iter().chain(bounds).map(|deadline| {
        let or_later = if deadline.or_later { " or later" } else { "" };
        let (left, field) = (age::human(deadline.left()), deadline.field);
        let limit = age::human_unsigned(deadline.limit);
        Finding::note(
            Cause::Deadline,
            format!("The job fails in {left}{or_later}, by spec.runPolicy.{field} ({limit})."),
            format!("raise spec.runPolicy.{field}, which may change while the job runs"),
        )
    })
}

/// As the operator counts it: no time before it began. Where nobody holds a Lease that can be read, when it began is not known.
fn of_readiness(evidence: &Evidence, now: Timestamp) -> Option<Deadline> {
    if evidence.condition(kind::ROLES_READY, "True").is_some() {
        return None;
    }
    let acting = controller::acting_since(evidence, now);
    let since = not_ready_from(&evidence.status(), acting)?;
    Some(Deadline {
        field: "preRunningDeadlineSeconds",
        limit: evidence.job.spec.run_policy.pre_running_deadline_seconds,
        spent: age::seconds_since(since, now),
        or_later: acting.is_none(),
    })
}

fn of_activity(evidence: &Evidence, now: Timestamp) -> Option<Deadline> {
    let status = evidence.status();
    let active = age::seconds_since(status.active_since.as_ref()?.0, now);
    let before = i64::try_from(status.active_seconds).unwrap_or(i64::MAX);
    Some(Deadline {
        field: "activeDeadlineSeconds",
        limit: evidence.job.spec.run_policy.active_deadline_seconds?,
        spent: active.saturating_add(before),
        or_later: false,
    })
}

/// What the operator says of roles that are not ready: all there is once the pod that failed has been replaced. Pods are
/// read after the job: a role whose pods are all ready in them has become so since, and the operator will say so next.
pub fn roles(evidence: &Evidence, explained: bool) -> Vec<Finding> {
    let starting = matches!(
        evidence.phase(),
        Some(Phase::Pending | Phase::Scheduling | Phase::Initializing | Phase::Queued)
    );
    let status = evidence.status();
    let told = status
        .roles
        .iter()
        .filter(|role| !role.reason.is_empty() && role.ready < role.desired)
        .filter(|role| {
            let ready = evidence.of_role(role.name).filter(|pod| pods::is_ready(pod)).count();
            ready < role.desired as usize
        });
    told.map(|role| of_role(evidence, role, !explained && !starting))
        .filter(|finding| !explained || finding.blocks)
        .collect()
}

fn of_role(evidence: &Evidence, role: &RoleStatus, blocks: bool) -> Finding {
    if role.reason == QUOTA_FOR_FEWER {
        let name = evidence.name();
        return Finding::note(
            Cause::Queued,
            format!("{}.", one_line(&role.message)),
            format!("`kubectl ppo suspend {name}` and `kubectl ppo resume {name}`, when the queue has quota for all"),
        );
    }
    let (name, limit) = (role.name.name(), evidence.job.spec.failure_policy.max_restarts);
    let budget = evidence
        .job
        .spec
        .failure_policy
        .max_restarts_per_role
        .of(role.name)
        .unwrap_or(limit);
    let said = match role.message.is_empty() {
        true => String::new(),
        false => format!(": {}", one_line(&role.message)),
    };
    let restarts = match role.restarts {
        0 => String::new(),
        restarts => format!(
            " It is at attempt {}; {restarts} of {budget} restarts are used.",
            role.attempt
        ),
    };
    let what = format!(
        "Role {name} has {} of {} pods ready ({}){said}.{restarts}",
        role.ready, role.desired, role.reason
    );
    let fix = format!("`kubectl ppo logs {} --role {name}`", evidence.name());
    Finding {
        blocks,
        ..Finding::blocking(Cause::Role, what, fix)
    }
}
