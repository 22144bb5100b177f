//! The rollout engine in vLLM's words, so that a dashboard made for vLLM shows ours.

use anyhow::Result;
use prometheus::{Counter, CounterVec, GaugeVec, Opts, Registry};

use super::exposition::register;
use crate::engine::Stats;

/// vLLM's families (`vllm/v1/metrics/loggers.py`), with its labels.
pub(super) struct EngineFamilies {
    running: GaugeVec,
    waiting: GaugeVec,
    kv_cache_usage: GaugeVec,
    cache_config: GaugeVec,
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
        let cache = Opts::new("vllm:cache_config_info", "Always 1; the shape of the key/value cache.");
        let gauge = |name: &str, help: &str| register(registry, GaugeVec::new(Opts::new(name, help), &LABELS)?);
        let counter = |name: &str, help: &str| register(registry, CounterVec::new(Opts::new(name, help), &LABELS)?);
        Ok(EngineFamilies {
            running: gauge("vllm:num_requests_running", "Sequences being decoded.")?,
            waiting: gauge("vllm:num_requests_waiting", "Sequences waiting to be decoded.")?,
            kv_cache_usage: gauge(
                "vllm:kv_cache_usage_perc",
                "Share of the key/value cache in use; 1 is all of it.",
            )?,
            // Of the labels that vLLM has there those that say something of ours; its GPU blocks are its cache's on a CPU too.
            cache_config: register(
                registry,
                GaugeVec::new(
                    cache,
                    &["block_size", "enable_prefix_caching", "engine", "num_gpu_blocks"],
                )?,
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

    pub fn set(&self, model_name: &str, stats: &Stats) {
        let labels = [model_name, "0"];
        self.running.with_label_values(&labels).set(stats.running as f64);
        self.waiting.with_label_values(&labels).set(stats.waiting as f64);
        self.kv_cache_usage.with_label_values(&labels).set(stats.kv_cache_usage);
        let (block_size, blocks) = (stats.block_size.to_string(), stats.cache_blocks.to_string());
        self.cache_config
            .with_label_values(&[block_size.as_str(), "False", labels[1], blocks.as_str()])
            .set(1.0);
        let counters = &stats.counters;
        for (family, total) in [
            (&self.preemptions, counters.preemptions),
            (&self.prompt_tokens, counters.prompt_tokens),
            (&self.generation_tokens, counters.generation_tokens),
            // Prompts are shared within a request only: there are no queries to count.
            (&self.prefix_cache_queries, 0),
            (&self.prefix_cache_hits, 0),
        ] {
            raise(&family.with_label_values(&labels), total);
        }
        let reasons = [
            ("stop", counters.finished_stop),
            ("length", counters.finished_length),
            ("abort", counters.finished_abort),
            ("error", counters.finished_error),
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::engine::Counters;
    use crate::telemetry::Exposition;

    #[test]
    fn an_engine_that_is_watched_is_shown_as_it_is_when_somebody_asks() {
        let exposition = Exposition::new("run").unwrap();
        let running = Arc::new(AtomicUsize::new(3));
        let stats = {
            let running = running.clone();
            move || Stats {
                running: running.load(Ordering::Relaxed),
                ..Stats::default()
            }
        };
        exposition.watch_engine("policy", stats);
        let shows = |running: usize| {
            let line = format!("vllm:num_requests_running{{engine=\"0\",model_name=\"policy\"}} {running}");
            exposition.text().unwrap().contains(&line)
        };
        assert!(shows(3));
        running.store(5, Ordering::Relaxed);
        assert!(shows(5));
    }

    #[test]
    fn the_caches_shape_is_told_as_vllm_tells_it() {
        let exposition = Exposition::new("run").unwrap();
        let stats = Stats {
            cache_blocks: 300,
            block_size: 16,
            ..Stats::default()
        };
        exposition.engine("policy", &stats).unwrap();
        let labels = r#"{block_size="16",enable_prefix_caching="False",engine="0",num_gpu_blocks="300"}"#;
        let text = exposition.text().unwrap();
        assert!(text.contains(&format!("vllm:cache_config_info{labels} 1\n")), "{text}");
    }

    #[test]
    fn the_engine_speaks_under_vllms_names_and_may_start_again() {
        let exposition = Exposition::new("run").unwrap();
        let show = |generation_tokens: u64| {
            let stats = Stats {
                running: 4,
                counters: Counters {
                    generation_tokens,
                    ..Counters::default()
                },
                ..Stats::default()
            };
            exposition.engine("policy", &stats).unwrap();
            exposition.text().unwrap()
        };
        let labels = "{engine=\"0\",model_name=\"policy\"}";
        for tokens in [100, 140, 7] {
            let text = show(tokens);
            assert!(
                text.contains(&format!("vllm:generation_tokens_total{labels} {tokens}")),
                "{text}"
            );
            assert!(text.contains(&format!("vllm:num_requests_running{labels} 4")), "{text}");
        }
    }
}
