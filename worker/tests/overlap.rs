//! `overlap: oneStep`: which policy draws the samples of which step.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ppo_crds::manifest::parse_manifest;
use ppo_crds::{Environment, RunConfig, resolve};
use ppo_worker::data::{PromptOrder, PromptSet};
use ppo_worker::engine::{Completion, Details, Request, SamplingParams, sample_seed};
use ppo_worker::engine::{Kernels, PolicyEngine, start_engine};
use ppo_worker::model::save::SHARD_BYTES;
use ppo_worker::model::{ModelConfig, Weights, save};
use ppo_worker::run::{Options, Run};
use ppo_worker::stop::StopFlag;
use ppo_worker::telemetry::OutputMode;
use ppo_worker::tokenizer::Tokenizer;
use ppo_worker::trainer::StepSamples;
use serde_json::{Value, json};
use tch::Kind;
use tempfile::TempDir;

const STEPS: u64 = 4;

/// A run of [`STEPS`] steps on a random model of a few thousand parameters, with a checkpoint after each.
struct Bench {
    folder: TempDir,
    config: RunConfig,
}

impl Bench {
    fn new(overlap: &str) -> Self {
        // The harness runs a test per core; tiny products gain nothing from more threads.
        tch::set_num_threads(1);
        let folder = TempDir::new().unwrap();
        make_model(&folder.path().join("model"));
        let rows: Vec<String> = (0..10)
            .map(|row| json!({"prompt": format!("{row} + 1 =")}).to_string())
            .collect();
        std::fs::write(folder.path().join("prompts.jsonl"), rows.join("\n")).unwrap();
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "overlap"},
            "spec": {
                "model": {"policy": {"path": "model"}, "dtype": "float32"},
                "prompts": {"source": {"path": "prompts.jsonl"}},
                "generation": {"maxNewTokens": 6},
                "batch": {"rolloutBatchSize": 4, "nSamplesPerPrompt": 2, "trainBatchSize": 4},
                "optimizer": {"actorLearningRate": 1e-2},
                "steps": STEPS,
                "overlap": overlap,
                "roles": {"actor": {"gpusPerNode": 0}, "reference": {"gpusPerNode": 0}, "rollout": {"gpusPerReplica": 0},
                          "reward": {"rules": [{"regex": {"pattern": "[aeiou]"}}]}},
                "checkpoint": {"everySteps": 1, "keep": 100},
            },
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: folder.path().to_owned(),
        };
        let config = resolve(&job, &here).unwrap();
        let bench = Self { folder, config };
        let options = Options {
            fresh: false,
            output: OutputMode::Quiet,
            metrics_address: None,
            owner: None,
            stop: StopFlag::default(),
            peers: None,
            meeting: None,
            grace: None,
        };
        let run = Run::open(bench.config.clone(), "", &bench.run_dir(), options).unwrap();
        run.complete().unwrap();
        bench
    }

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn checkpoint(&self, step: u64) -> PathBuf {
        self.run_dir().join(format!("checkpoints/step-{step:08}"))
    }

    /// What an engine with the policy of `version` draws for a step.
    fn drawn_by(&self, version: u64, step: u64) -> Vec<Vec<Completion>> {
        let config = &self.config;
        let policy = match version {
            0 => self.folder.path().join("model"),
            version => self.checkpoint(version).join("policy"),
        };
        let model = ModelConfig::read(&policy).unwrap();
        let tokenizer = Arc::new(Tokenizer::load(&policy).unwrap());
        let prompts = PromptSet::load(&config.prompts, &tokenizer).unwrap().prompts;
        let order = PromptOrder {
            seed: config.seed,
            prompts: prompts.len(),
            batch: config.batch.rollout_batch_size,
            shuffle: config.prompts.shuffle,
        };
        let params = Arc::new(params(config, &tokenizer));
        let requests = order.batch(step).into_iter().enumerate().map(|(place, index)| Request {
            prompt: prompts[index].ids.clone(),
            seeds: (0..2)
                .map(|sample| sample_seed(config.seed, step, place as u64, sample))
                .collect(),
            params: params.clone(),
            details: Details::default(),
        });
        let engine = PolicyEngine {
            model: &model,
            device: tch::Device::Cpu,
            shares_device: false,
            kernels: Kernels::default(),
            kind: Kind::Float,
            rollout: &config.rollout,
            sequences: 8,
            longest: 64,
            usual_cache: None,
            policy_version: version,
            start_deadline: Duration::from_secs(60),
        };
        let weights = Weights::load(&policy, &model, Kind::Float).unwrap();
        let engine = start_engine(&engine, weights, Some(tokenizer)).unwrap();
        engine.generate(requests.collect(), Duration::from_secs(60)).unwrap()
    }

    fn metrics(&self, name: &str) -> Vec<f64> {
        let lines = std::fs::read_to_string(self.run_dir().join("metrics.jsonl")).unwrap();
        let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()[name].as_f64().unwrap();
        lines.lines().map(number).collect()
    }
}

fn make_model(folder: &Path) {
    let config = json!({
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 400, "max_position_embeddings": 64, "initializer_range": 0.4, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "dtype": "float32",
    });
    let config = ModelConfig::from_json(config.as_object().unwrap().clone()).unwrap();
    let weights = Weights::random(&config, Kind::Float, 5).unwrap();
    let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
    save(folder, &tokenizer, &config, &weights, SHARD_BYTES).unwrap();
}

fn params(config: &RunConfig, tokenizer: &Tokenizer) -> SamplingParams {
    let generation = &config.generation;
    SamplingParams {
        temperature: generation.temperature as f32,
        top_p: generation.top_p as f32,
        top_k: generation.top_k as usize,
        min_p: generation.min_p as f32,
        max_new_tokens: generation.max_new_tokens as usize,
        min_new_tokens: generation.min_new_tokens as usize,
        stop_token_ids: tokenizer.eos_ids().to_vec(),
        stop: Vec::new(),
        skip_special: true,
    }
}

#[test]
fn a_step_learns_from_samples_of_the_version_before_and_only_the_first_from_its_own() {
    let bench = Bench::new("oneStep");
    assert_eq!(bench.metrics("staleness"), [0.0, 1.0, 1.0, 1.0]);
    assert_eq!(bench.metrics("staleness_max"), [0.0, 1.0, 1.0, 1.0]);
    for step in 1..STEPS {
        let samples = StepSamples::load(&bench.checkpoint(step)).unwrap().unwrap();
        assert_eq!(samples.step, step);
        assert_eq!(samples.completions, bench.drawn_by(step - 1, step), "step {step}");
        // The policy has moved since: its own samples would be others.
        assert_ne!(samples.completions, bench.drawn_by(step, step), "step {step}");
    }
    let last = StepSamples::load(&bench.checkpoint(STEPS)).unwrap();
    assert_eq!(last, None, "no more samples are drawn than steps learn from");
}

#[test]
fn without_overlap_every_step_learns_from_samples_of_its_own_version_and_a_checkpoint_holds_none() {
    let bench = Bench::new("none");
    assert_eq!(bench.metrics("staleness_max"), [0.0; STEPS as usize]);
    for step in 1..=STEPS {
        assert_eq!(StepSamples::load(&bench.checkpoint(step)).unwrap(), None, "step {step}");
    }
}

#[test]
fn without_evaluation_a_checkpoint_is_as_good_as_the_samples_that_its_own_weights_drew() {
    // By the step that learnt from what a version drew: its place among the scores.
    for (overlap, later) in [("none", 0), ("oneStep", 1)] {
        let bench = Bench::new(overlap);
        let scores = bench.metrics("score");
        assert_eq!(scores.len() as u64, STEPS);
        for version in 1..=STEPS {
            let manifest = std::fs::read(bench.checkpoint(version).join("manifest.json")).unwrap();
            let manifest: Value = serde_json::from_slice(&manifest).unwrap();
            let known = scores.get((version + later) as usize).copied();
            assert_eq!(
                manifest["state"]["quality"].as_f64(),
                known,
                "{overlap}, version {version}"
            );
        }
    }
}
