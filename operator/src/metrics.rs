//! The operator's metrics. What is per job goes when the job goes.

use std::collections::BTreeMap;

use ppo_crds::status::{Phase, PpoJobStatus};
use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::job::Job;
use crate::reconcile::Error;
use crate::snapshot::Snapshot;
use crate::world::{JobKey, Kind};

/// Counters and gauges.
pub struct Metrics {
    registry: Registry,
    build: IntGaugeVec,
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

const JOB: [&str; 2] = ["namespace", "job"];
const PHASES: [Phase; 9] = [
    Phase::Pending,
    Phase::Queued,
    Phase::Scheduling,
    Phase::Initializing,
    Phase::Running,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Succeeded,
    Phase::Failed,
];

impl Metrics {
    /// All of them, at zero.
    ///
    /// # Errors
    /// When two have one name, which is a bug.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let seconds =
            HistogramOpts::new("ppo_operator_reconcile_duration_seconds", "Duration of a reconcile").buckets(vec![
                0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
            ]);
        let build = int_gauges(
            "ppo_operator_build_info",
            "1, with the operator's version",
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let job = |labels: &[&'static str]| -> Vec<&'static str> { JOB.iter().chain(labels).copied().collect() };
        let metrics = Self {
            reconcile_seconds: Histogram::with_opts(seconds)?,
            reconciles: counters("ppo_operator_reconciles_total", "Reconciles", &["result"])?,
            reconcile_errors: counters("ppo_operator_reconcile_errors_total", "Failed reconciles", &["kind"])?,
            queue_depth: IntGauge::new("ppo_operator_queue_depth", "Jobs that wait for a reconcile")?,
            is_leader: int_gauges("ppo_operator_is_leader", "1 while this process acts", &["lease"])?,
            crd_matches: IntGauge::new(
                "ppo_operator_crd_matches",
                "1 while the installed CRD is this operator's; it touches no job otherwise",
            )?,
            watch_errors: counters("ppo_operator_watch_errors_total", "Failures of watches", &["kind"])?,
            writes: counters(
                "ppo_operator_writes_total",
                "Writes to the API server",
                &["verb", "kind"],
            )?,
            cached: int_gauges("ppo_operator_cached_objects", "Objects remembered", &["kind"])?,
            phase: int_gauges("ppojob_phase", "1 for the job's present phase", &job(&["phase"]))?,
            role_pods: int_gauges("ppojob_role_pods", "Pods of a role", &job(&["role", "state"]))?,
            restarts: int_gauges("ppojob_restarts", "Restarts of a role that count", &job(&["role"]))?,
            role_gpus: int_gauges(
                "ppojob_role_gpus",
                "GPUs that a role's pods ask for now",
                &job(&["role"]),
            )?,
            restarts_left: int_gauges(
                "ppojob_restarts_left",
                "Restarts that failurePolicy.maxRestarts still allows",
                &JOB,
            )?,
            step: int_gauges("ppojob_step", "Completed steps", &JOB)?,
            total_steps: int_gauges("ppojob_total_steps", "Steps of the whole run", &JOB)?,
            reward: gauges("ppojob_reward", "Mean score of the last step's samples", &JOB)?,
            kl: gauges("ppojob_kl", "Mean sequence KL to the reference in the last step", &JOB)?,
            seconds_since_progress: gauges("ppojob_seconds_since_progress", "Seconds since a stage finished", &JOB)?,
            time_to_running: gauges(
                "ppojob_time_to_running_seconds",
                "Seconds from wanting pods to running",
                &JOB,
            )?,
            build,
            registry,
        };
        // From zero: rate() does not see a failure that comes with its series.
        for result in ["ok", "error"] {
            metrics.reconciles.with_label_values(&[result]);
        }
        for kind in Error::KINDS {
            metrics.reconcile_errors.with_label_values(&[kind]);
        }
        for collector in metrics.collectors() {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    fn collectors(&self) -> Vec<Box<dyn Collector>> {
        let counters = [
            &self.reconciles,
            &self.reconcile_errors,
            &self.watch_errors,
            &self.writes,
        ];
        let int_gauges = [
            &self.build,
            &self.is_leader,
            &self.cached,
            &self.phase,
            &self.role_pods,
            &self.role_gpus,
            &self.restarts,
            &self.restarts_left,
            &self.step,
            &self.total_steps,
        ];
        let gauges = [
            &self.reward,
            &self.kl,
            &self.seconds_since_progress,
            &self.time_to_running,
        ];
        let mut all: Vec<Box<dyn Collector>> = vec![
            Box::new(self.reconcile_seconds.clone()),
            Box::new(self.queue_depth.clone()),
            Box::new(self.crd_matches.clone()),
        ];
        all.extend(counters.map(|metric| Box::new(metric.clone()) as Box<dyn Collector>));
        all.extend(int_gauges.map(|metric| Box::new(metric.clone()) as Box<dyn Collector>));
        all.extend(gauges.map(|metric| Box::new(metric.clone()) as Box<dyn Collector>));
        all
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
        for phase in PHASES {
            let word = format!("{phase:?}");
            let labels = [job[0], job[1], word.as_str()];
            match status.phase == Some(phase) {
                true => self.phase.with_label_values(&labels).set(1),
                // Only the present phase has a series.
                false => drop(self.phase.remove_label_values(&labels)),
            }
        }
        for role in &status.roles {
            let name = role.name.name();
            let wanted = checked.role(role.name).filter(|_| wants_pods(status));
            // A queue may have admitted fewer than the job would like to have.
            let desired = wanted.map_or(0, |pods| seen.count(pods));
            let pods = |state| self.role_pods.with_label_values(&[job[0], job[1], name, state]);
            pods("desired").set(desired.into());
            // Of a job that ended before its status said 0.
            let ready = if status.phase.is_some_and(Phase::is_finished) {
                0
            } else {
                role.ready
            };
            pods("ready").set(ready.into());
            self.restarts
                .with_label_values(&[job[0], job[1], name])
                .set(role.restarts.into());
            let gpus = wanted.map_or(0, |pods| pods.gpus);
            self.role_gpus
                .with_label_values(&[job[0], job[1], name])
                .set(i64::from(desired) * i64::from(gpus));
        }
        if let Some(progress) = &status.progress {
            self.step
                .with_label_values(&job)
                .set(i64::try_from(progress.step).unwrap_or(i64::MAX));
            self.total_steps
                .with_label_values(&job)
                .set(i64::try_from(progress.total).unwrap_or(i64::MAX));
            for (gauge, value) in [(&self.reward, progress.reward), (&self.kl, progress.kl)] {
                if let Some(value) = value {
                    gauge.with_label_values(&job).set(value);
                }
            }
        }
        if let (Some(wanted), Some(ran)) = (&status.active_since, &status.start_time) {
            let seconds = ran.0.duration_since(wanted.0).as_secs_f64();
            // A later activation says nothing of the first start.
            if seconds >= 0.0 {
                self.time_to_running.with_label_values(&job).set(seconds);
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
        let job = [key.namespace.as_str(), key.name.as_str()];
        for metric in [&self.step, &self.total_steps, &self.restarts_left] {
            let _ = metric.remove_label_values(&job);
        }
        for metric in [
            &self.reward,
            &self.kl,
            &self.seconds_since_progress,
            &self.time_to_running,
        ] {
            let _ = metric.remove_label_values(&job);
        }
        for phase in PHASES {
            let _ = self.phase.remove_label_values(&[job[0], job[1], &format!("{phase:?}")]);
        }
        for role in ppo_crds::spec::Role::ALL {
            for metric in [&self.restarts, &self.role_gpus] {
                let _ = metric.remove_label_values(&[job[0], job[1], role.name()]);
            }
            for state in ["desired", "ready"] {
                let _ = self
                    .role_pods
                    .remove_label_values(&[job[0], job[1], role.name(), state]);
            }
        }
    }

    /// All metrics, whether they have a series yet or not: for the list that dashboards and rules are checked against.
    pub fn described(&self) -> Vec<Described> {
        let mut all: Vec<Described> = self
            .collectors()
            .iter()
            .flat_map(|one| described(one.as_ref()))
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Prometheus' text format.
    ///
    /// # Errors
    /// When a metric cannot be written, which is a bug.
    pub fn text(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

/// Whether a job asks for its pods now.
fn wants_pods(status: &PpoJobStatus) -> bool {
    let none = |phase: Phase| phase.is_finished() || matches!(phase, Phase::Queued | Phase::Suspended);
    !status.phase.is_some_and(none)
}

/// What there is to know of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Names of its labels, sorted.
    pub labels: Vec<String>,
    /// One line.
    pub help: String,
}

fn described(collector: &dyn Collector) -> Vec<Described> {
    let kinds: Vec<String> = collector
        .collect()
        .iter()
        .map(|family| format!("{:?}", family.get_field_type()).to_lowercase())
        .collect();
    let descs = collector.desc().into_iter().zip(kinds);
    descs
        .map(|(desc, kind)| {
            let mut labels = desc.variable_labels.clone();
            labels.sort();
            Described {
                name: desc.fq_name.clone(),
                kind,
                labels,
                help: desc.help.clone(),
            }
        })
        .collect()
}

fn counters(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
    IntCounterVec::new(Opts::new(name, help), labels)
}

fn int_gauges(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
    IntGaugeVec::new(Opts::new(name, help), labels)
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
    GaugeVec::new(Opts::new(name, help), labels)
}

#[cfg(test)]
mod tests;
