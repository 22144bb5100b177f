//! How metrics are made: each is registered and described in one place, and series about a job are removed with the job.

use prometheus::core::Collector;
use prometheus::{GaugeVec, Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result};

use super::label::Label;
use crate::world::JobKey;

/// Labels that every metric of jobs has, in this order, before its own.
const JOB: [&str; 2] = ["namespace", "job"];

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

/// All metrics that were made.
#[derive(Default)]
pub(super) struct Register {
    pub registry: Registry,
    pub described: Vec<Described>,
    of_jobs: Vec<(Gauges, &'static [Label])>,
}

enum Gauges {
    Whole(IntGaugeVec),
    Real(GaugeVec),
}

impl Register {
    pub fn counters(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec> {
        self.take(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    pub fn gauge(&mut self, name: &str, help: &str) -> Result<IntGauge> {
        self.take(IntGauge::new(name, help)?)
    }

    pub fn gauges(&mut self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec> {
        self.take(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    pub fn histogram(&mut self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.take(Histogram::with_opts(options)?)
    }

    /// A whole number of each job, or of each combination of `labels` of it.
    pub fn of_jobs(&mut self, name: &str, help: &str, labels: &'static [Label]) -> Result<IntGaugeVec> {
        let made = self.gauges(name, help, &names(labels))?;
        self.of_jobs.push((Gauges::Whole(made.clone()), labels));
        Ok(made)
    }

    /// A number of each job.
    pub fn real_of_jobs(&mut self, name: &str, help: &str) -> Result<GaugeVec> {
        let made = self.take(GaugeVec::new(Opts::new(name, help), &JOB)?)?;
        self.of_jobs.push((Gauges::Real(made.clone()), &[]));
        Ok(made)
    }

    /// Removes every series of a job.
    pub fn forget(&self, key: &JobKey) {
        for (gauges, labels) in &self.of_jobs {
            for values in combinations(key, labels) {
                // That there is none is as good.
                let _ = match gauges {
                    Gauges::Whole(gauges) => gauges.remove_label_values(&values),
                    Gauges::Real(gauges) => gauges.remove_label_values(&values),
                };
            }
        }
    }

    fn take<C: Collector + Clone + 'static>(&mut self, metric: C) -> Result<C> {
        self.described.extend(described(&metric));
        self.registry.register(Box::new(metric.clone()))?;
        Ok(metric)
    }
}

fn names(labels: &[Label]) -> Vec<&'static str> {
    JOB.into_iter().chain(labels.iter().map(|label| label.name())).collect()
}

/// The values of every series that a job can have of a metric with these labels.
fn combinations(key: &JobKey, labels: &[Label]) -> Vec<Vec<String>> {
    let mut all = vec![vec![key.namespace.clone(), key.name.clone()]];
    for label in labels {
        let with_each = |known: Vec<String>| {
            let values = label.values().into_iter();
            values.map(move |value| known.iter().cloned().chain([value]).collect::<Vec<String>>())
        };
        all = all.into_iter().flat_map(with_each).collect();
    }
    all
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
