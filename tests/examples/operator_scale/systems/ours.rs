//! Our operator, as shipped.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

/// The operator's binary with no flag that its chart would not give it; the port is any that is free.
pub fn argv() -> Result<Vec<String>> {
    let program = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/release/ppo-operator");
    ensure!(
        program.exists(),
        "{} is not built: cargo build --release -p ppo-operator --bin ppo-operator",
        program.display()
    );
    let flags = ["run", "--http-address", "127.0.0.1:0"];
    let program = std::iter::once(program.display().to_string());
    Ok(program.chain(flags.map(str::to_owned)).collect())
}

/// An actor and engines; the reward is a rule, which needs no pod.
pub fn spec(pods: usize) -> Value {
    let engines = pods - 1;
    json!({
        "model": {"policy": {"path": "/models/policy"}},
        "prompts": {"source": {"path": "/data/train.jsonl"}},
        "algorithm": {"kl": {"coef": 0}},
        "batch": {"rolloutBatchSize": engines},
        "roles": {"rollout": {"replicas": engines}, "reward": {"rules": [{"json": {}}]}},
        "scheduling": {"gang": "none"},
    })
}

pub fn runs(status: &Value) -> bool {
    status["phase"] == "Running"
}
