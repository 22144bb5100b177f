//! Weights in numbers that are not read, and what to do: quantised ones first of all.

use safetensors::Dtype;
use serde_json::{Map, Value};

const QUANTISED: &str = "quantised weights (GPTQ, AWQ, FP8, bitsandbytes and others) are not read: give the model in bfloat16, float16 or \
                         float32 that they were made from";

/// Why a model with this config.json is not read, where that says that its weights are quantised. The second key is what
/// compressed-tensors wrote at first, and vLLM still reads.
pub(super) fn by_config(config: &Map<String, Value>) -> Option<String> {
    let keys = ["quantization_config", "compression_config"];
    let (key, settings) = keys
        .into_iter()
        .find_map(|key| Some((key, config.get(key).filter(|settings| !settings.is_null())?)))?;
    let said = match settings.get("quant_method").and_then(Value::as_str) {
        Some(method) => format!("says {method}"),
        None => "is set".to_owned(),
    };
    Some(format!("{key} {said}: {QUANTISED}"))
}

/// Why a tensor of such numbers is not read. A config.json may say nothing of it: older tools wrote a file of their own beside it
/// (AutoGPTQ's `quantize_config.json`).
pub(super) fn by_numbers(dtype: Dtype) -> String {
    let why = match dtype {
        Dtype::BOOL | Dtype::I64 | Dtype::U64 | Dtype::C64 => {
            "no model that is known here has such a tensor; save the model again by transformers' from_pretrained and then save_pretrained, \
             which leaves out what its class has not"
        }
        _ => QUANTISED,
    };
    format!("it is {dtype:?}, and weights are read in BF16, F16, F32 and F64; {why}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use safetensors::SafeTensors;
    use safetensors::tensor::TensorView;
    use serde_json::json;
    use tch::Kind;

    use super::*;
    use crate::model::safetensors::SINGLE;
    use crate::model::{ModelConfig, Part, Weights, save};

    #[test]
    fn a_quantised_model_is_told_by_its_method_and_to_bring_what_it_was_made_from() {
        let told = |config: Value| by_config(config.as_object().unwrap());
        for (config, words) in [
            (
                json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
                "quantization_config says gptq: quantised weights (GPTQ, AWQ, FP8, bitsandbytes",
            ),
            (
                json!({"quantization_config": {"bits": 4}}),
                "quantization_config is set: quantised",
            ),
            (
                json!({"quantization_config": null, "compression_config": {"quant_method": "compressed-tensors"}}),
                "compression_config says compressed-tensors: quantised",
            ),
        ] {
            let told = told(config).unwrap();
            assert!(
                told.starts_with(words) && told.ends_with("that they were made from"),
                "{told}"
            );
        }
        assert_eq!(told(json!({"quantization_config": null})), None);
    }

    /// The fixture of Llama with one more tensor, of eight bytes of `dtype`.
    fn with_another(folder: &Path, name: &str, dtype: Dtype) -> ModelConfig {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
        let config = ModelConfig::read(&fixture).unwrap();
        let weights = Weights::load(&fixture, &config, Kind::Float).unwrap();
        save(folder, &fixture, &config, &weights, 1 << 30).unwrap();
        let file = folder.join(SINGLE);
        let bytes = std::fs::read(&file).unwrap();
        let numbers = [0_u8; 8];
        let count = numbers.len() * 8 / dtype.bitsize();
        let another = TensorView::new(dtype, vec![count], &numbers).unwrap();
        let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        tensors.push((name.to_owned(), another));
        std::fs::write(&file, safetensors::serialize(tensors, None).unwrap()).unwrap();
        config
    }

    /// What is said of it, by whoever reads tensors and by whoever reads them into others.
    fn said_of(name: &str, dtype: Dtype) -> [Result<(), String>; 2] {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("model");
        let config = with_another(&folder, name, dtype);
        let zeros = Weights::zeros(&Part::Whole.shapes(&config), Kind::Float.into()).unwrap();
        let read = Weights::load(&folder, &config, Kind::Float).map(drop);
        let filled = zeros.fill(&folder, &config, Part::Whole);
        [read, filled].map(|said| said.map_err(|error| format!("{error:#}")))
    }

    #[test]
    fn a_tensor_in_numbers_of_no_weights_is_named_with_them_and_what_to_do() {
        let quantised = "quantised weights (GPTQ";
        for (name, dtype, words) in [
            ("model.layers.0.mlp.up_proj.qweight", Dtype::I32, quantised),
            ("model.layers.0.mlp.up_proj.scale", Dtype::F8_E4M3, quantised),
            ("model.lengths", Dtype::I64, "then save_pretrained"),
        ] {
            for said in said_of(name, dtype) {
                let said = said.unwrap_err();
                let place = format!("model.safetensors: tensor {name}: it is {dtype:?}, and weights are read in BF16");
                assert!(said.contains(&place) && said.contains(words), "{said}");
            }
        }
    }

    #[test]
    fn buffers_that_a_model_computes_by_itself_are_passed_over_in_whatever_numbers() {
        for (name, dtype) in [
            ("model.position_ids", Dtype::I64),
            ("model.layers.0.self_attn.rotary_emb.inv_freq", Dtype::F32),
            ("model.layers.0.attn.bias", Dtype::BOOL),
            ("model.layers.0.attn.masked_bias", Dtype::F32),
        ] {
            assert_eq!(said_of(name, dtype), [Ok(()), Ok(())], "{name}");
        }
    }
}
