//! The model that is served: engine, tokenizer and what their folder says.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use ppo_crds::spec::DType;
use tch::Kind;

use super::settings::{KV_CACHE_MEBIBYTES, ModelSettings};
use crate::device;
use crate::engine::{Engine, Kernels, PolicyEngine, start_engine};
use crate::hub::resolve_location;
use crate::manifest::Invalid;
use crate::model::{ModelConfig, Weights, kind, named};
use crate::tokenizer::Tokenizer;

/// A loaded model.
pub struct Model {
    /// The name that clients call it by.
    pub name: String,
    /// Where it came from.
    pub folder: PathBuf,
    /// Its shape; `max_positions` is the longest sequence served: the cache may hold less than the model was made for.
    pub config: ModelConfig,
    /// Precision of weights and cache.
    pub kind: Kind,
    /// Text and ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Bytes that a token stands for at most.
    pub longest_token: usize,
    /// Tokens that end a response.
    pub eos_ids: Vec<u32>,
    /// Runs it.
    pub engine: Engine,
}

impl Model {
    /// Loads weights and tokenizer and starts the engine. Blocks.
    ///
    /// # Errors
    /// When the folder is no language model this engine computes, or memory does not suffice.
    pub fn load(settings: &ModelSettings) -> Result<Self> {
        let folder = resolve_location(&settings.location).context("model")?;
        let mut config = named::described("model", ModelConfig::read_language_model(&folder))?;
        let tokenizer = Arc::new(named::found("model", Tokenizer::load(&folder))?);
        let kind = precision(settings.dtype, &config);
        let longest = settings.max_length.unwrap_or(config.max_positions);
        if longest < 2 {
            let words = format!("the longest sequence is {longest} tokens: a prompt and a response need 2");
            return Err(Invalid::new(words).into());
        }
        if longest > config.max_positions {
            tracing::warn!(
                "the longest sequence asked for is {longest} tokens, {} was made for {}: serving those",
                folder.display(),
                config.max_positions
            );
        }
        config.max_positions = config.max_positions.min(longest);
        let weights = named::found("model", Weights::map(&folder, &config, kind))?;
        let policy = PolicyEngine {
            model: &config,
            kind,
            device: device::here()?,
            shares_device: false,
            kernels: Kernels::default(),
            rollout: &settings.rollout,
            sequences: settings.sequences.unwrap_or(settings.rollout.max_sequences),
            longest: config.max_positions,
            usual_cache: settings.alone.then_some(KV_CACHE_MEBIBYTES),
            policy_version: 0,
            start_deadline: settings.start_deadline,
        };
        let engine = start_engine(&policy, weights, Some(tokenizer.clone()))?;
        let held = engine.cache_tokens();
        if settings.alone && held < config.max_positions {
            tracing::warn!(
                "the key/value cache holds {held} tokens and the longest sequence would have {}: serving sequences of up to {held}; for \
                 longer ones raise --kv-cache-mebibytes",
                config.max_positions
            );
            config.max_positions = held;
        }
        Ok(Self {
            name: settings.served_name.clone(),
            folder,
            config,
            kind,
            longest_token: tokenizer.longest_token(),
            eos_ids: tokenizer.eos_ids().to_vec(),
            tokenizer,
            engine,
        })
    }

    /// Tokens of the vocabulary; ids from here on cannot be computed.
    pub fn vocabulary(&self) -> u64 {
        u64::try_from(self.config.vocab).unwrap_or(0)
    }
}

/// float16 has no kernels here and is widened without loss.
fn precision(wanted: Option<DType>, config: &ModelConfig) -> Kind {
    match (wanted, config.dtype) {
        (Some(dtype), _) => kind(dtype),
        (None, Some(Kind::BFloat16)) => Kind::BFloat16,
        (None, _) => Kind::Float,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::report::exit_code;
    use ppo_crds::run_config::Location;

    use super::*;
    use crate::{model, outcome};

    fn refusal(settings: &ModelSettings) -> String {
        let error = Model::load(settings).err().unwrap();
        let words = format!("{error:#}");
        assert_eq!(outcome::code(&error), exit_code::BAD_CONFIGURATION, "{words}");
        words
    }

    #[test]
    fn a_length_or_a_cache_that_cannot_be_is_the_fault_of_whoever_asked_for_it() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/quickstart/model");
        let config = ModelConfig::read(&source).unwrap();
        let weights = Weights::random(&config, Kind::Float, 1).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("model");
        model::save(&folder, &source, &config, weights, model::save::SHARD_BYTES).unwrap();
        let asked = || ModelSettings::alone(Location::Path(folder.clone()), "model".into());
        let short = refusal(&ModelSettings {
            max_length: Some(1),
            ..asked()
        });
        assert!(short.contains("the longest sequence is 1 tokens"), "{short}");
        let mut large = asked();
        large.rollout.kv_cache_mebibytes = Some(999_999_999);
        let large = refusal(&large);
        assert!(large.contains("--kv-cache-mebibytes"), "{large}");
    }
}
