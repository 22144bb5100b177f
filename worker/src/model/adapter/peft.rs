//! Adapters on disk, in PEFT's layout: `adapter_config.json` (the fields of `peft.LoraConfig`) and
//! `adapter_model.safetensors`, whose names are those of `peft.get_peft_model_state_dict`: the tensor's below `base_model.model.`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use ppo_crds::spec::{AdapterSpec, Projection};
use serde_json::{Value, json};
use tch::{Kind, Tensor};

use super::Adapter;
use crate::model::config::{Head, ModelConfig};
use crate::model::names::{self, SCORE_BIAS, SCORE_WEIGHT};
use crate::model::replace::replace_folder;
use crate::model::safetensors::read_file;
use crate::model::save::{write_json, write_shard};
use crate::model::weights::{Weights, check};

/// Name of the file that says what the tensors are.
pub const CONFIG: &str = "adapter_config.json";
/// Name of the file with the tensors.
pub const TENSORS: &str = "adapter_model.safetensors";
/// Stands before the name of every tensor.
const PREFIX: &str = "base_model.model.";

/// The model that an adapter belongs to, as `AutoPeftModel` finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// A folder, or the name of a model of the hub.
    pub name: String,
    /// Of a model of the hub: branch, tag or commit.
    pub revision: Option<String>,
}

/// Writes an adapter, and for a critic its value head, to the folder `target`, which is the old one or the whole new one.
///
/// # Errors
/// When a file cannot be written; the message names it.
pub fn save(target: &Path, base: &Base, head: Head, spec: &AdapterSpec, trained: &Weights) -> Result<()> {
    let named: BTreeMap<String, Tensor> = trained
        .0
        .iter()
        .map(|(name, tensor)| (format!("{PREFIX}{name}"), tensor.shallow_clone()))
        .collect();
    replace_folder(target, |folder| {
        write_json(&folder.join(CONFIG), &config(base, head, spec))?;
        write_shard(&folder.join(TENSORS), &named.iter().collect::<Vec<_>>())
    })
}

/// Reads what [`save`] wrote for a model of this configuration: the adapter, and for a critic the tensors of its head.
///
/// # Errors
/// When a file is missing or corrupt, or its tensors are not those of `spec` on this model (one error lists them all).
pub fn load(folder: &Path, config: &ModelConfig, spec: &AdapterSpec) -> Result<(Adapter, Weights)> {
    let path = folder.join(TENSORS);
    let (mut found, mut expected) = (BTreeMap::new(), names::adapter(config, spec));
    for (name, tensor) in read_file(&path, Kind::Float, |_| true)? {
        let name = name.strip_prefix(PREFIX).map_or_else(|| name.clone(), str::to_owned);
        found.insert(name, tensor);
    }
    if config.head == Head::Value {
        expected.insert(SCORE_WEIGHT.into(), vec![1, config.hidden]);
        expected.insert(SCORE_BIAS.into(), vec![1]);
    }
    let mut found = Weights(found);
    check(&found.shapes(), &expected).with_context(|| format!("{} is no adapter of this model", path.display()))?;
    let head = [SCORE_WEIGHT, SCORE_BIAS]
        .into_iter()
        .filter_map(|name| found.0.remove_entry(name))
        .collect();
    let adapter = Adapter {
        spec: spec.clone(),
        weights: found,
    };
    Ok((adapter, Weights(head)))
}

/// The fields of `peft.LoraConfig` that say what is computed; PEFT has defaults for the others.
fn config(base: &Base, head: Head, spec: &AdapterSpec) -> Value {
    let alpha = match spec.alpha.fract() == 0.0 {
        // PEFT declares it an int.
        true => json!(spec.alpha as i64),
        false => json!(spec.alpha),
    };
    let targets: Vec<&str> = spec.targets.iter().copied().map(Projection::name).collect();
    let (task, kept) = match head {
        Head::LanguageModel => ("CAUSAL_LM", Value::Null),
        Head::Score => ("SEQ_CLS", json!(["score"])),
        Head::Value => ("TOKEN_CLS", json!(["score"])),
    };
    json!({
        "base_model_name_or_path": base.name,
        "revision": base.revision,
        "peft_type": "LORA",
        "task_type": task,
        "r": spec.rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "target_modules": targets,
        "modules_to_save": kept,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "use_rslora": false,
        "use_dora": false,
    })
}
