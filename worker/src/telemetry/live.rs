//! What the run is doing right now, for the operator's `GET /report`.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ppo_crds::report::{Report, Stage as Doing};
use ppo_crds::status::Progress;

use super::{EvaluationReport, Metric, Stage, StepReport};

/// What the run does right now.
#[derive(Debug)]
pub struct Live {
    job: String,
    attempt: u32,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    stage: Doing,
    /// When the stage before it finished, or a part of its own work was last done.
    since: Instant,
    waiting_for: String,
    progress: Progress,
}

impl Live {
    /// A run whose models load. `attempt` is the pod's; 1 outside a cluster.
    pub fn new(job: &str, attempt: u32) -> Self {
        let now = Now {
            stage: Doing::Initialize,
            since: Instant::now(),
            waiting_for: String::new(),
            progress: Progress::at(0, 0),
        };
        Self {
            job: job.to_owned(),
            attempt,
            now: Mutex::new(now),
        }
    }

    /// A stage begins; the one before it has finished.
    pub fn enter(&self, stage: Stage) {
        let mut now = self.now.lock();
        now.stage = doing(stage);
        now.since = Instant::now();
        now.waiting_for.clear();
    }

    /// A part of the stage's work is done: a stage may be long, and one that goes on does not hang.
    pub fn goes_on(&self) {
        self.now.lock().since = Instant::now();
    }

    /// Whom the stage waits for: a pod, or a server's URL.
    pub fn wait_for(&self, whom: &str) {
        self.now.lock().waiting_for = whom.to_owned();
    }

    /// The run begins, or goes on, at `step` of `total`.
    pub fn begin(&self, step: u64, total: u64) {
        let mut now = self.now.lock();
        now.progress = Progress::at(step, total);
        now.progress.last_checkpoint = (step > 0).then_some(step);
        now.since = Instant::now();
    }

    /// A step is done; those to come take `eta`.
    pub fn step(&self, report: &StepReport, eta: Option<Duration>) {
        let mut now = self.now.lock();
        now.progress = Progress {
            eta_seconds: eta.map(|eta| eta.as_secs()),
            // The score, without the KL penalty: the KL stands beside it.
            reward: finite(report.get(Metric::Score)),
            kl: finite(report.get(Metric::Kl)),
            response_length: finite(report.get(Metric::ResponseLength)),
            evaluation_score: now.progress.evaluation_score,
            last_checkpoint: now.progress.last_checkpoint,
            ..Progress::at(report.step, report.total_steps)
        };
    }

    /// The held-out prompts were answered.
    pub fn evaluated(&self, report: &EvaluationReport) {
        self.now.lock().progress.evaluation_score = finite(Some(report.score));
    }

    /// A checkpoint of `step` is complete.
    pub fn saved(&self, step: u64) {
        self.now.lock().progress.last_checkpoint = Some(step);
    }

    /// All of it.
    pub fn report(&self) -> Report {
        let now = self.now.lock();
        Report {
            job: self.job.clone(),
            attempt: self.attempt,
            stage: now.stage,
            policy_version: now.progress.step,
            progress: now.progress.clone(),
            seconds_since_progress: now.since.elapsed().as_secs_f64(),
            waiting_for: now.waiting_for.clone(),
        }
    }
}

/// The operator's word for a stage: people and deadlines need no finer ones.
fn doing(stage: Stage) -> Doing {
    match stage {
        Stage::Generate => Doing::Rollout,
        Stage::Score => Doing::Score,
        Stage::Reference | Stage::OldLogprobs | Stage::Values | Stage::Shape => Doing::Shape,
        Stage::Advantage => Doing::Advantage,
        Stage::UpdateActor | Stage::UpdateCritic => Doing::Update,
        Stage::Publish => Doing::Publish,
        Stage::Checkpoint => Doing::Checkpoint,
        Stage::Evaluate => Doing::Evaluate,
    }
}

/// JSON has no infinity and no NaN.
fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_is_done_now_and_how_far_the_run_is() {
        let live = Live::new("math", 3);
        assert_eq!((live.report().stage, live.report().attempt), (Doing::Initialize, 3));
        live.begin(4, 10);
        live.enter(Stage::Generate);
        live.wait_for("math-rollout-1");
        let report = live.report();
        assert_eq!((report.stage, report.policy_version), (Doing::Rollout, 4));
        assert_eq!(report.waiting_for, "math-rollout-1");
        assert_eq!(report.progress.last_checkpoint, Some(4));

        let mut step = StepReport {
            step: 5,
            total_steps: 10,
            ..StepReport::default()
        };
        step.set(Metric::Score, 0.5);
        step.set(Metric::Reward, 0.25);
        step.set(Metric::Kl, f64::NAN);
        live.step(&step, Some(Duration::from_secs(10)));
        live.enter(Stage::UpdateCritic);
        let report = live.report();
        assert_eq!((report.stage, report.waiting_for.as_str()), (Doing::Update, ""));
        let progress = report.progress;
        assert_eq!((progress.summary.as_str(), progress.eta_seconds), ("5/10", Some(10)));
        assert_eq!((progress.reward, progress.kl), (Some(0.5), None));
    }

    #[test]
    fn a_stage_that_goes_on_has_no_old_progress_and_stays_the_stage_that_it_is() {
        let live = Live::new("math", 1);
        live.enter(Stage::UpdateActor);
        live.wait_for("math-actor-1");
        let long_ago = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
        live.now.lock().since = long_ago;
        assert!(live.report().seconds_since_progress >= 3600.0);
        live.goes_on();
        let report = live.report();
        assert!(report.seconds_since_progress < 60.0);
        assert_eq!(
            (report.stage, report.waiting_for.as_str()),
            (Doing::Update, "math-actor-1")
        );
    }
}
