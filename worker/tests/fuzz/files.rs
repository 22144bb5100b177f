//! Files of a model's folder, of a data set and of a checkpoint.

use std::path::Path;
use std::time::Duration;

use ppo_crds::spec::AdapterSpec;
use ppo_worker::actor::checkpoint::{Checkpoints, Files};
use ppo_worker::data::read_rows;
use ppo_worker::engine::{Completion, FinishReason};
use ppo_worker::model::adapter::peft;
use ppo_worker::model::safetensors::{self, Memory};
use ppo_worker::model::{ModelConfig, names};
use ppo_worker::run_state::{Inputs, State};
use ppo_worker::tokenizer::Tokenizer;
use ppo_worker::trainer::StepSamples;
use serde_json::json;
use tch::Kind;
use tempfile::TempDir;

use crate::harness::{read, survives};

/// A folder whose file `name` is what is parsed.
fn in_file(name: &str, parse: impl Fn(&Path)) -> impl Fn(&[u8]) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join(name);
    move |bytes| {
        let _keep = &folder;
        // A new file: the old one may still be mapped.
        let _ = std::fs::remove_file(&file);
        std::fs::write(&file, bytes).unwrap();
        parse(&file);
    }
}

#[test]
fn weights() {
    let seeds = read(&[
        "fixtures/reward/expected.safetensors",
        "fixtures/llama/model-00003-of-00003.safetensors",
    ]);
    let parse = in_file("model.safetensors", |file| {
        if let Ok(tensors) = safetensors::read_file(file, Kind::Float, |_| true) {
            assert!(tensors.values().all(|tensor| tensor.kind() == Kind::Float));
        }
    });
    survives("weights", 400, seeds, parse);
}

#[test]
fn an_adapter() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen2");
    let config = ModelConfig::read(&folder).unwrap();
    let spec = AdapterSpec {
        rank: 4,
        ..AdapterSpec::default()
    };
    let parse = in_file(peft::TENSORS, move |file| {
        if let Ok((adapter, head)) = peft::load(file.parent().unwrap(), &config, &spec) {
            assert_eq!((adapter.weights.0.len(), head.0.len()), (28, 0));
        }
    });
    let seeds = read(&["fixtures/adapter/adapter_model.safetensors"]);
    survives("adapter", 200, seeds, parse);
}

#[test]
fn an_index_of_shards() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    let parse = in_file("model.safetensors.index.json", move |index| {
        let there = index.parent().unwrap();
        for shard in 1..=3 {
            let name = format!("model-{shard:05}-of-00003.safetensors");
            let _ = std::os::unix::fs::symlink(folder.join(&name), there.join(&name));
        }
        for memory in [Memory::Own, Memory::Mapped] {
            let _ = safetensors::read(there, Kind::Float, memory, |_| true);
        }
    });
    survives(
        "index",
        150,
        read(&["fixtures/llama/model.safetensors.index.json"]),
        parse,
    );
}

#[test]
fn the_configuration_of_a_model() {
    let seeds = read(&[
        "fixtures/llama/config.json",
        "fixtures/llama3/config.v5.json",
        "fixtures/qwen3/config.json",
        "fixtures/reward/config.json",
    ]);
    let parse = in_file("config.json", |file| {
        if let Ok(config) = ModelConfig::read(file.parent().unwrap()) {
            // What loading does with it before a byte of the weights is read.
            assert!(!names::expected(&config).is_empty());
            let _ = config.shape().parameters();
        }
    });
    survives("config", 1500, seeds, parse);
}

fn tokenizer_of(family: &'static str, changed: &'static str) -> impl Fn(&[u8]) {
    let original = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/tokenizer")
        .join(family);
    in_file(changed, move |file| {
        let folder = file.parent().unwrap();
        for entry in std::fs::read_dir(&original).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            if name != changed {
                let _ = std::os::unix::fs::symlink(&path, folder.join(name));
            }
        }
        let Ok(tokenizer) = Tokenizer::load(folder) else { return };
        if let Ok(ids) = tokenizer.encode("The answer <|im_end|> to 12 + 30 = 42 \u{1f600} e\u{301}", true) {
            let _ = tokenizer.decode(&ids, false);
        }
        let messages = [
            json!({"role": "system", "content": "Be short."}),
            json!({"role": "user", "content": "Hi"}),
        ];
        let _ = tokenizer.encode_chat(&messages, true);
    })
}

#[test]
fn a_tokenizer() {
    survives(
        "tokenizer",
        300,
        read(&["fixtures/tokenizer/qwen3/tokenizer.json"]),
        tokenizer_of("qwen3", "tokenizer.json"),
    );
    survives(
        "tokenizer",
        300,
        read(&["fixtures/tokenizer/llama2/tokenizer.json"]),
        tokenizer_of("llama2", "tokenizer.json"),
    );
}

#[test]
fn the_configuration_of_a_tokenizer() {
    let seeds = read(&["fixtures/tokenizer/llama3/tokenizer_config.json"]);
    survives(
        "tokenizer-config",
        200,
        seeds,
        tokenizer_of("llama3", "tokenizer_config.json"),
    );
}

#[test]
fn a_chat_template() {
    let seeds = read(&[
        "fixtures/tokenizer/qwen3/chat_template.jinja",
        "fixtures/tokenizer/llama3/chat_template.jinja",
    ]);
    survives(
        "chat-template",
        300,
        seeds,
        tokenizer_of("qwen3", "chat_template.jinja"),
    );
}

#[test]
fn rows_of_json() {
    let rows: Vec<u8> = (0..20)
        .map(|row| {
            format!("{{\"prompt\": [{{\"role\": \"user\", \"content\": \"{row} \u{e9}\"}}], \"answer\": {row}.5}}\n")
        })
        .collect::<String>()
        .into_bytes();
    let array =
        b"[{\"prompt\": \"a\", \"answer\": null}, {\"prompt\": \"b\", \"nested\": {\"x\": [1, 2, 3]}}]".to_vec();
    let parse = in_file("rows.json", |file| {
        let _ = read_rows(file);
    });
    survives("rows", 800, vec![rows, array], parse);
}

#[test]
fn rows_of_parquet() {
    let seeds = read(&[
        "fixtures/prompts/none.parquet",
        "fixtures/prompts/snappy.parquet",
        "fixtures/prompts/gzip.parquet",
        "fixtures/prompts/zstd.parquet",
        "fixtures/prompts/lz4.parquet",
        "fixtures/prompts/binary.parquet",
        "fixtures/prompts/warehouse.parquet",
    ]);
    let parse = in_file("rows.parquet", |file| {
        let _ = read_rows(file);
    });
    survives("parquet", 800, seeds, parse);
}

#[test]
fn the_samples_that_a_checkpoint_holds() {
    let sample = |length: usize| Completion {
        tokens: vec![7; length],
        logprobs: vec![-0.5; length],
        finish_reason: FinishReason::Stop,
        versions: vec![3; length],
        top_logprobs: Vec::new(),
        prompt_logprobs: None,
    };
    let samples = StepSamples {
        step: 4,
        completions: vec![vec![sample(3), sample(1)], vec![sample(0), sample(9)]],
        took: Duration::from_secs(1),
    };
    let folder = TempDir::new().unwrap();
    samples.save(folder.path()).unwrap();
    let name = "samples-ahead.safetensors";
    let seed = std::fs::read(folder.path().join(name)).unwrap();
    let parse = in_file(name, |file| {
        if let Ok(read) = StepSamples::load(file.parent().unwrap()) {
            let even = |sample: &Completion| sample.tokens.len() == sample.versions.len();
            assert!(read.unwrap().completions.iter().flatten().all(even));
        }
    });
    survives("samples", 600, vec![seed], parse);
}

#[test]
fn the_manifest_of_a_checkpoint() {
    let folder = TempDir::new().unwrap();
    let checkpoints = Checkpoints::open(folder.path().to_owned(), 3, true).unwrap();
    let state = State {
        step: 7,
        draws: None,
        kl_coefficient: 0.1,
        actor_updates: 28,
        critic_updates: 28,
        quality: Some(0.5),
        kl: None,
        run_config: json!({"name": "x", "seed": 42}),
        inputs: Some(Inputs::default()),
    };
    let saved = checkpoints
        .save(state, |folder| {
            std::fs::write(folder.join("actor.safetensors"), [1, 2, 3])?;
            Ok(Files::default())
        })
        .unwrap();
    let file = saved.join("manifest.json");
    let seed = std::fs::read(&file).unwrap();
    survives("checkpoint", 600, vec![seed], |bytes| {
        std::fs::write(&file, bytes).unwrap();
        if let Ok(Some(verified)) = checkpoints.latest(|_| {}) {
            // What is believed is the checkpoint that was saved, not a file elsewhere that the manifest names.
            assert_eq!(verified.folder, saved);
        }
    });
}
