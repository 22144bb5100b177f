//! A run that trains an adapter, as a user meets it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod worker;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use worker::{Bench, number, text};

/// The header of a safetensors file: a tensor's dtype and shape by its name.
fn tensors(file: &Path) -> Value {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    header.as_object_mut().unwrap().remove("__metadata__");
    header
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn adapter() -> Value {
    json!({"model": {"adapter": {"rank": 4, "alpha": 16, "targets": ["q_proj", "v_proj", "up_proj", "down_proj"]}},
           "optimizer": {"actorLearningRate": 1e-2, "criticLearningRate": 1e-2}})
}

#[test]
fn an_adapter_learns_from_the_policy_as_it_was_and_raises_the_reward() {
    let bench = Bench::new();
    // What an adapter can say is limited by the embeddings that it leaves alone: they have to know their tokens.
    let teach = "{model: {config: config}, data: {path: prompts.jsonl, responseField: answer}, steps: 600, batchSize: 30, \
                 learningRate: 3e-3, output: taught}";
    std::fs::write(bench.path("teach.yaml"), teach).unwrap();
    let taught = bench.worker(["sft", "-f", "teach.yaml", "--quiet"]);
    assert!(taught.status.success(), "{}", text(&taught.stderr));
    let more = json!({
        "model": {"policy": {"path": "taught"}},
        "steps": 25,
        "optimizer": {"criticLearningRate": 2e-3},
        "algorithm": {"kl": {"coef": 0.01}},
        "roles": {"reward": {"rules": [{"regex": {"pattern": "^1"}}]}},
    });
    bench.manifests("job.yaml", &[adapter(), more]);
    bench.run("job.yaml", "run");
    let lines = bench.metrics("run");
    assert_eq!(
        number(&lines[0], "kl"),
        0.0,
        "the reference is the policy to the bit: {}",
        lines[0]
    );
    assert!(lines.iter().all(|line| number(line, "logprob_difference_max") < 1e-3));
    assert!(number(lines.last().unwrap(), "kl") > 0.0, "{lines:?}");
    let scores: Vec<f64> = lines.iter().map(|line| number(line, "score")).collect();
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&scores[20..]) > mean(&scores[..5]) + 0.2, "{scores:?}");
}

#[test]
fn a_run_leaves_its_adapter_for_peft_and_the_merged_model_for_everybody() {
    let bench = Bench::new();
    bench.manifests("job.yaml", &[adapter(), json!({"steps": 2})]);
    bench.run("job.yaml", "run");
    let peft = ["adapter_config.json", "adapter_model.safetensors"];
    let step = bench.path("run/checkpoints/step-00000002");
    for folder in [bench.path("run/adapter"), step.join("policy"), step.join("critic")] {
        assert_eq!(files(&folder), names(&peft), "{}", folder.display());
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join(peft[0])).unwrap()).unwrap();
        let base = bench.path("sft").canonicalize().unwrap();
        assert_eq!(config["base_model_name_or_path"], json!(base));
        assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(4), &json!(16)));
        assert_eq!(
            config["target_modules"],
            json!(["q_proj", "v_proj", "up_proj", "down_proj"])
        );
    }
    let last = |folder: &str| std::fs::read(bench.path(folder).join(peft[1])).unwrap();
    assert!(last("run/adapter") == last("run/checkpoints/step-00000002/policy"));
    let adapter = tensors(&bench.path("run/adapter").join(peft[1]));
    // Two layers, four projections, A and B.
    assert_eq!(adapter.as_object().unwrap().len(), 2 * 4 * 2);
    let a = &adapter["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"];
    assert_eq!((&a["dtype"], &a["shape"]), (&json!("F32"), &json!([4, 32])));
    let critic = tensors(&step.join("critic").join(peft[1]));
    assert_eq!(critic["base_model.model.score.weight"]["shape"], json!([1, 32]));
    // The merged model has the tensors of the one it was, and is one that a run can start from.
    let (before, after) = (
        tensors(&bench.path("sft/model.safetensors")),
        tensors(&bench.path("run/model/model.safetensors")),
    );
    assert_eq!(before, after);
    bench.manifest(
        "next.yaml",
        json!({"model": {"policy": {"path": "run/model"}}, "steps": 1}),
    );
    bench.run("next.yaml", "next");
    assert!(number(&bench.metrics("next")[0], "logprob_difference_max") < 1e-4);
}
