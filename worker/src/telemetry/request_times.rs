//! How long requests of a rollout server took, and how much they were for, in vLLM's words (`vllm/v1/metrics/loggers.py`).

use std::time::Duration;

use anyhow::Result;
use prometheus::{Histogram, HistogramOpts, HistogramVec, Registry, exponential_buckets};

use super::exposition::register;
use crate::engine::Spent;

/// Histograms of one model's requests.
#[derive(Clone)]
pub struct RequestTimes {
    end_to_end: Histogram,
    first_token: Histogram,
    next_token: Histogram,
    queued: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    n: Histogram,
    max_tokens: Histogram,
}

impl RequestTimes {
    pub(super) fn register(registry: &Registry, model_name: &str) -> Result<Self> {
        let histogram = |buckets: &[f64], name: &str, help: &str| -> Result<Histogram> {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let family = register(registry, HistogramVec::new(options, &["model_name", "engine"])?)?;
            Ok(family.with_label_values(&[model_name, "0"]))
        };
        // 1 ms to 1.2 hours, so that a token and a long batch of rollouts both fall inside.
        let times = exponential_buckets(0.001, 2.0, 23)?;
        let time = |name: &str, help: &str| histogram(&times, name, help);
        // Up to a million tokens, the longest context that we know of.
        let counts = exponential_buckets(1.0, 2.0, 21)?;
        let count = |name: &str, help: &str| histogram(&counts, name, help);
        Ok(Self {
            end_to_end: time(
                "vllm:e2e_request_latency_seconds",
                "Time from a request to the end of its answer.",
            )?,
            first_token: time(
                "vllm:time_to_first_token_seconds",
                "Time from a request to the first token of each sample.",
            )?,
            next_token: time("vllm:inter_token_latency_seconds", "Time between tokens of a sample.")?,
            queued: time(
                "vllm:request_queue_time_seconds",
                "Time from a request until each sample that has ended came to run.",
            )?,
            prefill: time(
                "vllm:request_prefill_time_seconds",
                "Time from when a sample that has ended came to run to its first token.",
            )?,
            decode: time(
                "vllm:request_decode_time_seconds",
                "Time from the first token of a sample that has ended to its last.",
            )?,
            inference: time(
                "vllm:request_inference_time_seconds",
                "Time from when a sample that has ended came to run to its last token.",
            )?,
            prompt_tokens: count(
                "vllm:request_prompt_tokens",
                "Tokens of the prompt of each sample that has ended.",
            )?,
            generation_tokens: count(
                "vllm:request_generation_tokens",
                "Tokens of each sample that has ended.",
            )?,
            n: count(
                "vllm:request_params_n",
                "Samples that were asked for of each prompt that was answered.",
            )?,
            max_tokens: count(
                "vllm:request_params_max_tokens",
                "Most tokens that each sample that was answered could have: as asked for, or as the context held.",
            )?,
        })
    }

    /// A request was answered in full.
    pub fn end_to_end(&self, took: Duration) {
        self.end_to_end.observe(took.as_secs_f64());
    }

    /// A prompt was answered with `n` samples of `max_tokens` at most each.
    pub fn asked_for(&self, n: usize, max_tokens: usize) {
        self.n.observe(n as f64);
        (0..n).for_each(|_| self.max_tokens.observe(max_tokens as f64));
    }

    /// A sample's first token was drawn.
    pub fn first_token(&self, took: Duration) {
        self.first_token.observe(took.as_secs_f64());
    }

    /// A further token of a sample was drawn.
    pub fn next_token(&self, took: Duration) {
        self.next_token.observe(took.as_secs_f64());
    }

    /// A sample has ended.
    pub fn ended(&self, spent: Spent) {
        for (histogram, took) in [
            (&self.queued, spent.queued),
            (&self.prefill, spent.prefill),
            (&self.decode, spent.decode),
            (&self.inference, spent.prefill + spent.decode),
        ] {
            histogram.observe(took.as_secs_f64());
        }
        self.prompt_tokens.observe(spent.prompt_tokens as f64);
        self.generation_tokens.observe(spent.generation_tokens as f64);
    }
}
