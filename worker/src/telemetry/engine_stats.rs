//! The rollout engine in vLLM's words, so that a dashboard made for vLLM shows ours.

use anyhow::Result;
use prometheus::{Counter, CounterVec, GaugeVec, Opts, Registry};

use super::exposition::register;
use crate::engine::Stats;

/// What the rollout engine says of itself. Totals count from the engine's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineStats {
    /// Label `model_name`, as in vLLM.
    pub model_name: String,
    /// Sequences being decoded.
    pub running: u64,
    /// Sequences waiting for blocks or budget.
    pub waiting: u64,
    /// Share of the cache's blocks in use, 0 to 1.
    pub kv_cache_usage: f64,
    /// Sequences preempted and recomputed, total.
    pub preemptions: u64,
    /// Prompt tokens computed, total.
    pub prompt_tokens: u64,
    /// Tokens generated, total.
    pub generation_tokens: u64,
    /// Prompt tokens looked up in the shared-prefix cache, total.
    pub prefix_cache_queries: u64,
    /// Prompt tokens found there, total.
    pub prefix_cache_hits: u64,
    /// Sequences finished by a stop condition, total.
    pub finished_stop: u64,
    /// Sequences finished at their greatest length, total.
    pub finished_length: u64,
    /// Sequences withdrawn, total.
    pub finished_abort: u64,
}

impl EngineStats {
    /// What an engine in this process says; its cache shares prompts within a request only, so there are no queries to count.
    pub fn of(model_name: &str, stats: &Stats) -> Self {
        Self {
            model_name: model_name.to_owned(),
            running: stats.running as u64,
            waiting: stats.waiting as u64,
            kv_cache_usage: stats.kv_cache_usage,
            preemptions: stats.preemptions,
            prompt_tokens: stats.prompt_tokens,
            generation_tokens: stats.generation_tokens,
            finished_stop: stats.finished_stop,
            finished_length: stats.finished_length,
            finished_abort: stats.finished_abort,
            ..Self::default()
        }
    }
}

/// vLLM's families (`vllm/v1/metrics/loggers.py`), with its labels.
pub(super) struct EngineFamilies {
    running: GaugeVec,
    waiting: GaugeVec,
    kv_cache_usage: GaugeVec,
    preemptions: CounterVec,
    prompt_tokens: CounterVec,
    generation_tokens: CounterVec,
    prefix_cache_queries: CounterVec,
    prefix_cache_hits: CounterVec,
    request_success: CounterVec,
}

impl EngineFamilies {
    pub fn register(registry: &Registry) -> Result<EngineFamilies> {
        const LABELS: [&str; 2] = ["model_name", "engine"];
        let gauge = |name: &str, help: &str| register(registry, GaugeVec::new(Opts::new(name, help), &LABELS)?);
        let counter = |name: &str, help: &str| register(registry, CounterVec::new(Opts::new(name, help), &LABELS)?);
        Ok(EngineFamilies {
            running: gauge("vllm:num_requests_running", "Sequences being decoded.")?,
            waiting: gauge("vllm:num_requests_waiting", "Sequences waiting to be decoded.")?,
            kv_cache_usage: gauge(
                "vllm:kv_cache_usage_perc",
                "Share of the key/value cache in use; 1 is all of it.",
            )?,
            preemptions: counter("vllm:num_preemptions_total", "Sequences preempted and recomputed.")?,
            prompt_tokens: counter("vllm:prompt_tokens_total", "Prompt tokens computed.")?,
            generation_tokens: counter("vllm:generation_tokens_total", "Tokens generated.")?,
            prefix_cache_queries: counter(
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
            )?,
            prefix_cache_hits: counter(
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache.",
            )?,
            request_success: register(
                registry,
                CounterVec::new(
                    Opts::new("vllm:request_success_total", "Sequences finished, by reason."),
                    &["model_name", "engine", "finished_reason"],
                )?,
            )?,
        })
    }

    pub fn set(&self, stats: &EngineStats) {
        let labels = [stats.model_name.as_str(), "0"];
        self.running.with_label_values(&labels).set(stats.running as f64);
        self.waiting.with_label_values(&labels).set(stats.waiting as f64);
        self.kv_cache_usage.with_label_values(&labels).set(stats.kv_cache_usage);
        raise(&self.preemptions.with_label_values(&labels), stats.preemptions);
        raise(&self.prompt_tokens.with_label_values(&labels), stats.prompt_tokens);
        raise(
            &self.generation_tokens.with_label_values(&labels),
            stats.generation_tokens,
        );
        raise(
            &self.prefix_cache_queries.with_label_values(&labels),
            stats.prefix_cache_queries,
        );
        raise(
            &self.prefix_cache_hits.with_label_values(&labels),
            stats.prefix_cache_hits,
        );
        let reasons = [
            ("stop", stats.finished_stop),
            ("length", stats.finished_length),
            ("abort", stats.finished_abort),
        ];
        for (reason, total) in reasons {
            raise(
                &self.request_success.with_label_values(&[labels[0], labels[1], reason]),
                total,
            );
        }
    }
}

/// Brings a counter to the engine's total; an engine that started again begins anew, as Prometheus expects.
fn raise(counter: &Counter, total: u64) {
    let total = total as f64;
    if total < counter.get() {
        counter.reset();
    }
    counter.inc_by(total - counter.get());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Exposition;

    #[test]
    fn the_engine_speaks_under_vllms_names_and_may_start_again() {
        let exposition = Exposition::new("run").unwrap();
        let stats = EngineStats {
            model_name: "policy".into(),
            running: 4,
            generation_tokens: 100,
            ..EngineStats::default()
        };
        exposition.engine(&stats).unwrap();
        exposition
            .engine(&EngineStats {
                generation_tokens: 140,
                ..stats.clone()
            })
            .unwrap();
        let labels = "{engine=\"0\",model_name=\"policy\"}";
        let text = exposition.text().unwrap();
        assert!(
            text.contains(&format!("vllm:generation_tokens_total{labels} 140")),
            "{text}"
        );
        assert!(text.contains(&format!("vllm:num_requests_running{labels} 4")), "{text}");
        exposition
            .engine(&EngineStats {
                generation_tokens: 7,
                ..stats
            })
            .unwrap();
        assert!(
            exposition
                .text()
                .unwrap()
                .contains(&format!("vllm:generation_tokens_total{labels} 7"))
        );
    }
}
