//! The operator's metrics. Series about a job are removed with the job.

mod label;
mod register;

use std::collections::BTreeMap;

use ppo_crds::status::{Phase, PpoJobStatus, Progress};
use prometheus::{Encoder, GaugeVec, Histogram, IntCounterVec, IntGauge, IntGaugeVec, TextEncoder};

use crate::gang::stuck;
use crate::job::Job;
use crate::reconcile::error::Error;
use crate::snapshot::Snapshot;
use crate::world::{JobKey, Kind};

use label::{Label, NO_REASON, word};
use register::Register;

pub use register::Described;

/// Counters and gauges.
pub struct Metrics {
    register: Register,
    /// Duration of a reconcile.
    pub reconcile_seconds: Histogram,
    /// Reconciles by result.
    pub reconciles: IntCounterVec,
    /// Failed ones by kind of error.
    pub reconcile_errors: IntCounterVec,
    /// Jobs that wait for a reconcile.
    pub queue_depth: IntGauge,
    /// Whether this process acts.
    pub is_leader: IntGaugeVec,
    /// Whether the installed CRD is this operator's.
    pub crd_matches: IntGauge,
    /// Failures of watches by kind.
    pub watch_errors: IntCounterVec,
    writes: IntCounterVec,
    cached: IntGaugeVec,
    phase: IntGaugeVec,
    waiting: IntGaugeVec,
    role_pods: IntGaugeVec,
    role_gpus: IntGaugeVec,
    restarts: IntGaugeVec,
    restarts_left: IntGaugeVec,
    step: IntGaugeVec,
    total_steps: IntGaugeVec,
    reward: GaugeVec,
    kl: GaugeVec,
    seconds_since_progress: GaugeVec,
    time_to_running: GaugeVec,
}

/// Bounds of the buckets of a reconcile's duration, in seconds.
const RECONCILE_SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
impl Metrics {
    /// All of them, at zero.
    ///
    /// # Errors
    /// When two have one name, which is a bug.
    pub fn new() -> prometheus::Result<Self> {
        let mut all = Register::default();
        let build = all.gauges(
            "ppo_operator_build_info",
            "1, with the operator's version",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let metrics = Self {
            reconcile_seconds: all.histogram(
                "ppo_operator_reconcile_duration_seconds",
                "Duration of a reconcile",
                &RECONCILE_SECONDS,
            )?,
            reconciles: all.counters("ppo_operator_reconciles_total", "Reconciles", &["result"])?,
            reconcile_errors: all.counters("ppo_operator_reconcile_errors_total", "Failed reconciles", &["kind"])?,
            queue_depth: all.gauge("ppo_operator_queue_depth", "Jobs that wait for a reconcile")?,
            is_leader: all.gauges("ppo_operator_is_leader", "1 while this process acts", &["lease"])?,
            crd_matches: all.gauge(
                "ppo_operator_crd_matches",
                "1 while the installed CRD is this operator's; it touches no job otherwise",
            )?,
            watch_errors: all.counters("ppo_operator_watch_errors_total", "Failures of watches", &["kind"])?,
            writes: all.counters(
                "ppo_operator_writes_total",
                "Writes to the API server",
                &["verb", "kind"],
            )?,
            cached: all.gauges("ppo_operator_cached_objects", "Objects remembered", &["kind"])?,
            phase: all.of_jobs("ppojob_phase", "1 for the job's present phase", &[Label::Phase])?,
            waiting: all.of_jobs(
                "ppojob_waiting",
                "1, with the reason, while the job waits for what does not come by itself",
                &[Label::Reason],
            )?,
            role_pods: all.of_jobs("ppojob_role_pods", "Pods of a role", &[Label::Role, Label::State])?,
            restarts: all.of_jobs("ppojob_restarts", "Restarts of a role that count", &[Label::Role])?,
            role_gpus: all.of_jobs(
                "ppojob_role_gpus",
                "GPUs that a role's pods ask for now",
                &[Label::Role],
            )?,
            restarts_left: all.of_jobs(
                "ppojob_restarts_left",
                "Restarts that failurePolicy.maxRestarts still allows",
                &[],
            )?,
            step: all.of_jobs("ppojob_step", "Completed steps", &[])?,
            total_steps: all.of_jobs("ppojob_total_steps", "Steps of the whole run", &[])?,
            reward: all.real_of_jobs("ppojob_reward", "Mean score of the last step's samples")?,
            kl: all.real_of_jobs("ppojob_kl", "Mean sequence KL to the reference in the last step")?,
            seconds_since_progress: all
                .real_of_jobs("ppojob_seconds_since_progress", "Seconds since a stage finished")?,
            time_to_running: all
                .real_of_jobs("ppojob_time_to_running_seconds", "Seconds from wanting pods to running")?,
            register: all,
        };
        // From zero: rate() does not see a failure that comes with its series.
        for result in ["ok", "error"] {
            metrics.reconciles.with_label_values(&[result]);
        }
        for kind in Error::KINDS {
            metrics.reconcile_errors.with_label_values(&[kind]);
        }
        Ok(metrics)
    }

    /// Counts a write.
    pub fn wrote(&self, verb: &str, kind: &str) {
        self.writes.with_label_values(&[verb, kind]).inc();
    }

    /// Shows a job's status, and the pods that it asks for now.
    pub fn observe(&self, checked: &Job, status: &PpoJobStatus, seen: &Snapshot) {
        let key = &checked.key;
        let job = [key.namespace.as_str(), key.name.as_str()];
        let left = checked.spec.failure_policy.max_restarts.saturating_sub(status.restarts);
        self.restarts_left.with_label_values(&job).set(left.into());
        let phase = status.phase.map(word);
        show_one(&self.phase, job, Label::Phase, phase.as_deref(), 1);
        let waits_for = stuck::reason(status).unwrap_or(NO_REASON);
        // Of a job that waits for nothing there is a 0: an alert on a series that is nowhere may be misspelt.
        let waits = i64::from(waits_for != NO_REASON);
        show_one(&self.waiting, job, Label::Reason, Some(waits_for), waits);
        for role in &status.roles {
            let wanted = checked.role(role.name).filter(|_| wants_pods(status));
            // A queue may have admitted fewer than the job would like to have.
            let (desired, gpus) = wanted.map_or((0, 0), |pods| (seen.count(pods), pods.gpus));
            // Of a job that ended before its status said 0.
            let ready = if status.phase.is_some_and(Phase::is_finished) {
                0
            } else {
                role.ready
            };
            let of_role = [job[0], job[1], role.name.name()];
            let pods = |state| {
                self.role_pods
                    .with_label_values(&[of_role[0], of_role[1], of_role[2], state])
            };
            pods("desired").set(desired.into());
            pods("ready").set(ready.into());
            self.restarts.with_label_values(&of_role).set(role.restarts.into());
            self.role_gpus
                .with_label_values(&of_role)
                .set(i64::from(desired) * i64::from(gpus));
        }
        if let Some(progress) = &status.progress {
            self.how_far(job, progress);
        }
        if let (Some(wanted), Some(ran)) = (&status.active_since, &status.start_time) {
            let seconds = ran.0.duration_since(wanted.0).as_secs_f64();
            // A later activation says nothing of the first start.
            if seconds >= 0.0 {
                self.time_to_running.with_label_values(&job).set(seconds);
            }
        }
    }

    /// Shows how far a job has come, and what its last step measured.
    fn how_far(&self, job: [&str; 2], progress: &Progress) {
        for (gauge, steps) in [(&self.step, progress.step), (&self.total_steps, progress.total)] {
            gauge
                .with_label_values(&job)
                .set(i64::try_from(steps).unwrap_or(i64::MAX));
        }
        for (gauge, value) in [(&self.reward, progress.reward), (&self.kl, progress.kl)] {
            match value {
                Some(value) => gauge.with_label_values(&job).set(value),
                // An attempt that has not measured it yet does not have what the one before measured.
                None => drop(gauge.remove_label_values(&job)),
            }
        }
    }

    /// Shows for how long each running job's actor has finished no stage. A job that no longer runs has no series.
    pub fn progress(&self, silences: Vec<(JobKey, f64)>) {
        self.seconds_since_progress.reset();
        for (key, seconds) in silences {
            self.seconds_since_progress
                .with_label_values(&[key.namespace.as_str(), key.name.as_str()])
                .set(seconds);
        }
    }

    /// Shows how much is remembered. Two kinds may have one name: it is one kind in two versions.
    pub fn cached(&self, counts: &BTreeMap<Kind, usize>) {
        self.cached.reset();
        for kind in Kind::BUILTIN {
            self.cached.with_label_values(&[kind.name()]);
        }
        for (kind, count) in counts {
            self.cached
                .with_label_values(&[kind.name()])
                .add(i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Removes every series of a deleted job.
    pub fn forget(&self, key: &JobKey) {
        self.register.forget(key);
    }

    /// All metrics, whether they have a series yet or not: for the list that dashboards and rules are checked against.
    pub fn described(&self) -> Vec<Described> {
        let mut all = self.register.described.clone();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Prometheus' text format.
    ///
    /// # Errors
    /// When a metric cannot be written, which is a bug.
    pub fn text(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.register.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Shows `value` for what the `label` of a job's series is now, and removes its series for all else that it can be.
fn show_one(gauge: &IntGaugeVec, job: [&str; 2], label: Label, now: Option<&str>, value: i64) {
    for known in label.values() {
        let labels = [job[0], job[1], known.as_str()];
        match now == Some(known.as_str()) {
            true => gauge.with_label_values(&labels).set(value),
            false => drop(gauge.remove_label_values(&labels)),
        }
    }
}

/// Whether a job asks for its pods now.
fn wants_pods(status: &PpoJobStatus) -> bool {
    let none = |phase: Phase| phase.is_finished() || matches!(phase, Phase::Queued | Phase::Suspended);
    !status.phase.is_some_and(none)
}

#[cfg(test)]
mod tests;
