//! The run in Prometheus' words. A metric appears once it has a value, so that a run without a critic shows no critic.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    Counter, Encoder as _, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, Opts, Registry, TextEncoder,
    exponential_buckets,
};

use super::definition::Kind;
use super::engine::EngineFamilies;
use super::request_times::RequestTimes;
use super::test_sets::SetFamilies;
use super::{EvaluationReport, Metric, StepReport, reward_source};
use crate::engine::Stats;

/// A Prometheus registry with the run's metrics.
pub struct Exposition {
    registry: Registry,
    metrics: Mutex<HashMap<Metric, Instrument>>,
    stage_seconds: HistogramVec,
    reward_source: GaugeVec,
    extra: GaugeVec,
    test_sets: SetFamilies,
    run: Mutex<HashMap<&'static str, Gauge>>,
    engine: Mutex<Option<EngineFamilies>>,
    watched: Mutex<Option<(String, StatsOf)>>,
    ready: AtomicBool,
}

/// What an engine does now.
type StatsOf = Box<dyn Fn() -> Stats + Send>;

enum Instrument {
    Gauge(Gauge),
    Counter(Counter),
    Histogram(Histogram),
}

impl Exposition {
    /// An empty registry for the run of that name.
    ///
    /// # Errors
    /// When a name is not one Prometheus takes.
    pub fn new(run: &str) -> Result<Exposition> {
        let registry = Registry::new();
        let info = GaugeVec::new(
            Opts::new("ppo_run_info", "Always 1; the run and the version that runs it."),
            &["run", "version"],
        )?;
        info.with_label_values(&[run, env!("CARGO_PKG_VERSION")]).set(1.0);
        register(&registry, info)?;
        // 10 ms to about 1.5 hours: a laptop's shaping stage and a cluster's generation both fall inside.
        let buckets = exponential_buckets(0.01, 2.0, 20)?;
        let stages =
            HistogramOpts::new("ppo_stage_seconds", "Wall-clock time of a stage of the step.").buckets(buckets);
        Ok(Exposition {
            stage_seconds: register(&registry, HistogramVec::new(stages, &["stage"])?)?,
            reward_source: register(
                &registry,
                GaugeVec::new(
                    Opts::new("ppo_reward_source", "Mean score from one source of the reward."),
                    &["source"],
                )?,
            )?,
            extra: register(
                &registry,
                GaugeVec::new(
                    Opts::new("ppo_extra", "A number the reward role or the run added."),
                    &["name"],
                )?,
            )?,
            test_sets: SetFamilies::register(&registry)?,
            run: Mutex::default(),
            registry,
            metrics: Mutex::default(),
            engine: Mutex::default(),
            watched: Mutex::default(),
            ready: AtomicBool::new(false),
        })
    }

    /// How many steps are done of how many the run will have: told when it begins or goes on, and by every [`step`](Self::step).
    ///
    /// # Errors
    /// When a metric cannot be registered: its name is taken.
    pub fn progress(&self, completed_steps: u64, total_steps: u64) -> Result<()> {
        self.set("ppo_step", "Completed steps.", completed_steps as f64)?;
        self.set("ppo_total_steps", "Steps the run will have.", total_steps as f64)
    }

    /// A step is done.
    ///
    /// # Errors
    /// When a metric cannot be registered: its name is taken.
    pub fn step(&self, report: &StepReport) -> Result<()> {
        for (metric, value) in report.values() {
            self.observe(metric, value)?;
        }
        for (stage, seconds) in report.stage_seconds() {
            self.stage_seconds.with_label_values(&[stage.name()]).observe(seconds);
        }
        // What a step has no number for shows none, and not that of a step before.
        self.reward_source.reset();
        self.extra.reset();
        for (name, value) in &report.extra {
            match reward_source(name) {
                Some(source) => self.reward_source.with_label_values(&[source]).set(*value),
                None => {
                    let name = name.strip_prefix("reward/").unwrap_or(name);
                    self.extra.with_label_values(&[name]).set(*value);
                }
            }
        }
        self.progress(report.step, report.total_steps)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.set(
            "ppo_last_step_timestamp_seconds",
            "When the latest step ended, seconds since 1970.",
            now.as_secs_f64(),
        )
    }

    /// The held-out prompts were answered.
    ///
    /// # Errors
    /// When a metric cannot be registered: its name is taken.
    pub fn evaluation(&self, report: &EvaluationReport) -> Result<()> {
        self.test_sets.set(&report.sets);
        report
            .values()
            .try_for_each(|(metric, value)| self.observe(metric, value))
    }

    /// An engine's state, under vLLM's names.
    ///
    /// # Errors
    /// When a metric cannot be registered: its name is taken.
    pub fn engine(&self, model_name: &str, stats: &Stats) -> Result<()> {
        let mut families = self.engine.lock();
        let families = match &mut *families {
            Some(families) => families,
            empty => empty.insert(EngineFamilies::register(&self.registry)?),
        };
        families.set(model_name, stats);
        Ok(())
    }

    /// From now on the [text](Self::text) has the state of this engine at that moment.
    pub fn watch_engine(&self, model_name: &str, stats: impl Fn() -> Stats + Send + 'static) {
        *self.watched.lock() = Some((model_name.to_owned(), Box::new(stats)));
    }

    /// Times of a server's requests.
    ///
    /// # Errors
    /// When a metric cannot be registered: its name is taken, as by an earlier call.
    pub fn requests(&self, model_name: &str) -> Result<RequestTimes> {
        RequestTimes::register(&self.registry, model_name)
    }

    /// Whether `/readyz` says yes; no until told.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// What `/readyz` says.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Prometheus' text format.
    ///
    /// # Errors
    /// When a metric cannot be encoded, or an engine's be registered.
    pub fn text(&self) -> Result<String> {
        if let Some((model_name, stats)) = &*self.watched.lock() {
            self.engine(model_name, &stats())?;
        }
        let mut text = Vec::new();
        TextEncoder::new()
            .encode(&self.registry.gather(), &mut text)
            .context("cannot encode the metrics")?;
        String::from_utf8(text).context("cannot encode the metrics")
    }

    /// Sets a gauge of the run as a whole.
    fn set(&self, name: &'static str, help: &str, value: f64) -> Result<()> {
        let mut run = self.run.lock();
        let gauge = match run.entry(name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(register(&self.registry, Gauge::new(name, help)?)?),
        };
        gauge.set(value);
        Ok(())
    }

    fn observe(&self, metric: Metric, value: f64) -> Result<()> {
        let mut metrics = self.metrics.lock();
        let instrument = match metrics.entry(metric) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Instrument::register(metric, &self.registry)?),
        };
        match instrument {
            Instrument::Gauge(gauge) => gauge.set(value),
            Instrument::Histogram(histogram) => histogram.observe(value),
            // A counter refuses to fall; what is no count adds nothing.
            Instrument::Counter(counter) if value.is_finite() && value > 0.0 => counter.inc_by(value),
            Instrument::Counter(_) => {}
        }
        Ok(())
    }
}

impl Instrument {
    fn register(metric: Metric, registry: &Registry) -> Result<Instrument> {
        let (name, help) = (metric.prometheus_name(), metric.help());
        Ok(match metric.kind() {
            Kind::Gauge => Instrument::Gauge(register(registry, Gauge::new(name, help)?)?),
            Kind::Counter => Instrument::Counter(register(registry, Counter::new(name, help)?)?),
            Kind::Histogram => {
                let options = HistogramOpts::new(name, help).buckets(exponential_buckets(0.1, 2.0, 18)?);
                Instrument::Histogram(register(registry, Histogram::with_opts(options)?)?)
            }
        })
    }
}

pub(super) fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C> {
    registry
        .register(Box::new(collector.clone()))
        .context("cannot register a metric")?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::Stage;

    #[test]
    fn a_metric_without_a_value_is_absent() {
        let exposition = Exposition::new("run").unwrap();
        let mut report = StepReport {
            step: 1,
            ..StepReport::default()
        };
        report.set(Metric::PolicyLoss, f64::NAN);
        exposition.step(&report).unwrap();
        let text = exposition.text().unwrap();
        assert!(text.contains("ppo_policy_loss NaN"), "{text}");
        assert!(!text.contains("ppo_value_loss"), "{text}");
    }

    #[test]
    fn a_number_that_a_step_does_not_have_is_not_that_of_the_step_before() {
        let exposition = Exposition::new("run").unwrap();
        for (step, name) in [(1, "reward/remote/latency"), (2, "reward/exact")] {
            let mut report = StepReport {
                step,
                ..StepReport::default()
            };
            report.extra.insert(name.into(), 0.5);
            exposition.step(&report).unwrap();
        }
        let text = exposition.text().unwrap();
        assert!(text.contains("ppo_reward_source{source=\"exact\"} 0.5"), "{text}");
        assert!(!text.contains("latency"), "{text}");
    }

    #[test]
    fn a_run_that_goes_on_shows_how_far_it_is_and_nothing_of_a_step_that_has_not_ended() {
        let exposition = Exposition::new("run").unwrap();
        let shows = |name: &str| exposition.text().unwrap().contains(name);
        assert!(!shows("ppo_step"), "a server of a role has no steps");
        exposition.progress(40, 100).unwrap();
        assert!(shows("\nppo_step 40\n") && shows("\nppo_total_steps 100\n"));
        assert!(!shows("ppo_last_step_timestamp_seconds"));
        let step = StepReport {
            step: 41,
            total_steps: 100,
            ..StepReport::default()
        };
        exposition.step(&step).unwrap();
        assert!(shows("\nppo_step 41\n") && shows("\nppo_last_step_timestamp_seconds "));
    }

    #[test]
    fn counters_add_up_and_gauges_hold_the_latest() {
        let exposition = Exposition::new("run").unwrap();
        for step in 1..=3 {
            let mut report = StepReport {
                step,
                samples: 8,
                ..StepReport::default()
            };
            report.set(Metric::Reward, step as f64);
            report.extra.insert("reward/exact".into(), 0.5);
            report.extra.insert("reward/remote/latency".into(), 0.1);
            report.stages.push((Stage::Generate, Duration::from_millis(15)));
            exposition.step(&report).unwrap();
        }
        let text = exposition.text().unwrap();
        for line in [
            "ppo_samples_total 24",
            "ppo_reward 3",
            "ppo_step 3",
            "ppo_reward_source{source=\"exact\"} 0.5",
            "ppo_extra{name=\"remote/latency\"} 0.1",
            "ppo_stage_seconds_count{stage=\"generate\"} 3",
            "ppo_step_seconds_count 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
    }
}
