//! How long requests of a rollout server took, in vLLM's words (`vllm/v1/metrics/loggers.py`).

use std::time::Duration;

use anyhow::Result;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry, exponential_buckets};

use super::exposition::register;

/// Histograms of one model's requests.
#[derive(Clone)]
pub struct RequestTimes {
    end_to_end: Histogram,
    first_token: Histogram,
    next_token: Histogram,
}

impl RequestTimes {
    pub(super) fn register(registry: &Registry, model_name: &str) -> Result<Self> {
        // 1 ms to 1.2 hours, so that a token and a long batch of rollouts both fall inside.
        let histogram = |name: &str, help: &str| -> Result<Histogram> {
            let options = HistogramOpts::new(name, help).buckets(exponential_buckets(0.001, 2.0, 23)?);
            let family = register(registry, HistogramVec::new(options, &["model_name", "engine"])?)?;
            Ok(family.with_label_values(&[model_name, "0"]))
        };
        Ok(Self {
            end_to_end: histogram(
                "vllm:e2e_request_latency_seconds",
                "Time from a request to the end of its answer.",
            )?,
            first_token: histogram(
                "vllm:time_to_first_token_seconds",
                "Time from a request to the first token of each sample.",
            )?,
            next_token: histogram("vllm:inter_token_latency_seconds", "Time between tokens of a sample.")?,
        })
    }

    /// A request was answered in full.
    pub fn end_to_end(&self, took: Duration) {
        self.end_to_end.observe(took.as_secs_f64());
    }

    /// A sample's first token was drawn.
    pub fn first_token(&self, took: Duration) {
        self.first_token.observe(took.as_secs_f64());
    }

    /// A further token of a sample was drawn.
    pub fn next_token(&self, took: Duration) {
        self.next_token.observe(took.as_secs_f64());
    }
}
