//! A tiny model, prompts and manifests in a scratch folder, and the worker's binary run on them.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

mod process;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use ppo_crds::pod::env;
use ppo_tests::Gpus;
use serde_json::{Value, json};

pub use self::process::{DEADLINE, Running, finish, finish_within, kill, output, signal, wait_for, wait_within};

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The binary that `cargo test --workspace` built beside this test.
pub fn binary() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    let binary = deps.parent().unwrap().parent().unwrap().join("ppo-worker");
    assert!(
        binary.exists(),
        "{} is not built: run `cargo build -p ppo-worker`",
        binary.display()
    );
    binary
}

/// A number of a line of records.
pub fn number(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or_else(|| panic!("{name} is not in {line}"))
}

/// A scratch folder with a supervised model and prompts.
pub struct Bench {
    pub folder: tempfile::TempDir,
    /// What the worker computes on; None: the CPU, or what `PPO_TEST_DEVICE` names.
    pub gpus: Option<Gpus>,
}

impl Bench {
    /// A 2-layer Llama that has seen a little of single-digit addition, and 90 prompts.
    pub fn new() -> Self {
        Self::of(16, true, None)
    }

    /// The same on a machine with these GPUs.
    pub fn on(gpus: Gpus) -> Self {
        Self::of(16, true, Some(gpus))
    }

    /// The same as vLLM's CPU engine can compute and update it: heads of 32 numbers, an output projection of its own.
    pub fn for_vllm() -> Self {
        Self::of(32, false, None)
    }

    fn of(size: u32, tied: bool, gpus: Option<Gpus>) -> Self {
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
            gpus,
        };
        let source = repository().join("configs/quickstart/model");
        let model = bench.path("config");
        fs::create_dir(&model).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(source.join(name), model.join(name)).unwrap();
        }
        let mut config: Value = serde_json::from_slice(&fs::read(source.join("config.json")).unwrap()).unwrap();
        for (key, value) in [
            ("hidden_size", 2 * size),
            ("intermediate_size", 3 * size),
            ("num_hidden_layers", 2),
            ("num_attention_heads", 2),
            ("num_key_value_heads", 1),
            ("head_dim", size),
        ] {
            config[key] = json!(value);
        }
        config["tie_word_embeddings"] = json!(tied);
        fs::write(model.join("config.json"), config.to_string()).unwrap();
        let rows: Vec<String> = (0..90)
            .map(|index| (index / 10 + 1, index % 10))
            .map(|(a, b)| json!({"prompt": format!("{a}+{b}="), "answer": (a + b).to_string()}).to_string())
            .collect();
        fs::write(bench.path("prompts.jsonl"), rows.join("\n")).unwrap();
        fs::write(
            bench.path("sft.yaml"),
            "{model: {config: config}, data: {path: prompts.jsonl, responseField: answer}, steps: 40, batchSize: 30, \
             learningRate: 3e-3, output: sft}",
        )
        .unwrap();
        let made = bench.worker(["sft", "-f", "sft.yaml", "--quiet"]);
        assert!(made.status.success(), "{}", text(&made.stderr));
        bench
    }

    /// A copy of the model in the folder `from`.
    pub fn copy(&self, from: &str, to: &str) {
        fs::create_dir(self.path(to)).unwrap();
        for file in fs::read_dir(self.path(from)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), self.path(to).join(file.file_name())).unwrap();
        }
    }

    /// A reward model in the folder `name`: the supervised model's trunk under a head that weighs each number differently.
    pub fn reward_model(&self, name: &str) {
        let (from, to) = (self.path("sft"), self.path(name));
        fs::create_dir(&to).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
        config["architectures"] = json!(["LlamaForSequenceClassification"]);
        config["num_labels"] = json!(1);
        let hidden = config["hidden_size"].as_u64().unwrap();
        fs::write(to.join("config.json"), config.to_string()).unwrap();
        // A safetensors file: the header's length, the header, the tensors.
        let file = fs::read(from.join("model.safetensors")).unwrap();
        let (length, rest) = file.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
        let mut header: Value = serde_json::from_slice(header).unwrap();
        header.as_object_mut().unwrap().remove("lm_head.weight");
        let end = data.len() + 4 * hidden as usize;
        header["score.weight"] = json!({"dtype": "F32", "shape": [1, hidden], "data_offsets": [data.len(), end]});
        let head = (0..hidden).flat_map(|number| ((number as f32 - 11.0) / 37.0).to_le_bytes());
        let header = header.to_string().into_bytes();
        let length = (header.len() as u64).to_le_bytes();
        let model: Vec<u8> = [&length[..], &header, data].concat().into_iter().chain(head).collect();
        fs::write(to.join("model.safetensors"), model).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a manifest: a small PPO run, changed by `patch` (merged into the spec).
    pub fn manifest(&self, name: &str, patch: Value) {
        self.manifests(name, &[patch]);
    }

    /// The same with several patches, one after another.
    pub fn manifests(&self, name: &str, patches: &[Value]) {
        let mut spec = json!({
            "model": {"policy": {"path": "sft"}, "dtype": "float32"},
            "prompts": {"source": {"path": "prompts.jsonl"}, "labelField": "answer"},
            "generation": {"maxNewTokens": 4},
            "algorithm": {"kl": {"coef": 0.05}},
            "batch": {"rolloutBatchSize": 8, "nSamplesPerPrompt": 4, "trainBatchSize": 16, "microTrainBatchSize": 8,
                      "microRolloutBatchSize": 16, "ppoEpochs": 2},
            "optimizer": {"actorLearningRate": 1e-3, "criticLearningRate": 2e-3},
            "steps": 6,
            "roles": {"actor": {"gpusPerNode": 0}, "reference": {"gpusPerNode": 0}, "rollout": {"gpusPerReplica": 0},
                      "reward": {"rules": [{"exactMatch": {}}]}},
            "checkpoint": {"everySteps": 1},
        });
        for patch in patches {
            merge(&mut spec, patch.clone());
        }
        let manifest =
            json!({"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "test"}, "spec": spec});
        fs::write(self.path(name), serde_yaml::to_string(&manifest).unwrap()).unwrap();
    }

    /// The worker in this folder, on one thread: tests run beside each other.
    pub fn command<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut command = Command::new(binary());
        command
            .current_dir(self.folder.path())
            .args(args)
            .args(["--threads", "1"])
            .env_remove("PPO_LOG");
        match &self.gpus {
            Some(gpus) => command.envs(gpus.environment().unwrap()),
            // What tests promise of bits holds on CPUs: one on a machine with a GPU does not turn to that.
            None => command.env(env::DEVICE, std::env::var_os("PPO_TEST_DEVICE").unwrap_or("cpu".into())),
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the worker to its end.
    pub fn worker<const N: usize>(&self, args: [&str; N]) -> Output {
        output(&mut self.command(args))
    }

    /// Runs a manifest to its end in a folder of its own; panics with the worker's words when it fails.
    pub fn run(&self, manifest: &str, run_dir: &str) {
        let done = self.worker(["run", "-f", manifest, "--run-dir", run_dir, "--quiet"]);
        assert!(done.status.success(), "{manifest}: {}", text(&done.stderr));
    }

    /// A line of metrics.jsonl per step; there is one at least. Of a line that a run is just writing the system may show a
    /// part (a write over two pages is seen page by page), so a line without its end is none yet.
    pub fn metrics(&self, run_dir: &str) -> Vec<Value> {
        let lines = fs::read_to_string(self.path(run_dir).join("metrics.jsonl")).unwrap();
        let whole = lines.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let steps: Vec<_> = whole.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(!steps.is_empty(), "{run_dir} has not a step in metrics.jsonl");
        steps
    }

    /// Every file that a run of so many steps ends with: its model's and its last checkpoint's.
    pub fn last_state(&self, run_dir: &str, steps: u64) -> Files {
        let mut files = Files::new();
        read_folder(&self.path(run_dir).join("model"), "model/", &mut files);
        assert!(
            files.contains_key("model/model.safetensors"),
            "{run_dir}: {:?}",
            files.keys()
        );
        files.extend(self.checkpoint(&format!("{run_dir}/checkpoints"), steps));
        files
    }

    /// The files of a step's checkpoint; of its manifest what a run goes on with: the rest names folders and the clock.
    pub fn checkpoint(&self, folder: &str, step: u64) -> Files {
        let folder = self.path(folder).join(format!("step-{step:08}"));
        let mut files = Files::new();
        read_folder(&folder, "", &mut files);
        let manifest = files.remove("manifest.json").unwrap();
        let mut state = serde_json::from_slice::<Value>(&manifest).unwrap()["state"].take();
        assert_eq!(state["step"], step, "{}", folder.display());
        for other in ["runConfig", "inputs"] {
            state.as_object_mut().unwrap().remove(other);
        }
        for part in ["policy/", "actor-optimizer-"] {
            let is_there = files.keys().any(|name| name.starts_with(part));
            assert!(is_there, "{part} is not in {}: {:?}", folder.display(), files.keys());
        }
        files.insert("the manifest's state".into(), state.to_string().into_bytes());
        files
    }
}

/// Files by their names below a folder.
pub type Files = BTreeMap<String, Vec<u8>>;

fn read_folder(folder: &Path, prefix: &str, files: &mut Files) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_string_lossy());
        match path.is_dir() {
            true => read_folder(&path, &format!("{name}/"), files),
            false => drop(files.insert(name, fs::read(path).unwrap())),
        }
    }
}

/// Both have the same files, byte for byte.
pub fn check_same_files(one: &Files, other: &Files) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(one), names(other));
    for (name, bytes) in one {
        assert!(&other[name] == bytes, "{name} differs");
    }
}

/// A safetensors file with another number at its end.
pub fn with_another_weight(file: &[u8]) -> Vec<u8> {
    let mut other = file.to_vec();
    // The lowest byte of a float32.
    let at = other.len() - 4;
    other[at] ^= 1;
    other
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    into.remove(&key);
                } else {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => *into = patch,
    }
}
