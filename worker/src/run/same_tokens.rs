//! Whether critic and reference use the policy's tokens: they receive its token ids, which mean nothing to a model with another
//! tokenizer.

use std::path::Path;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;

use crate::hub::resolve_unless_stopped;
use crate::manifest::Invalid;
use crate::model::ModelConfig;
use crate::model::named::described;
use crate::stop::StopFlag;
use crate::tokenizer::Tokenizer;

/// Looks at critic and reference before anything is loaded: a vocabulary that lacks tokens of the policy in `folder` is refused, another
/// tokenizer is told, since it may differ in what no text has. A reference in pods of its own, which is not `reference_is_here`, is not
/// looked at.
///
/// # Errors
/// [`Invalid`], naming the model and both folders; when a config.json cannot be read; [`Interrupted`](crate::stop::Interrupted).
pub fn refuse_other_tokens(
    config: &RunConfig,
    (folder, tokenizer): (&Path, &Tokenizer),
    reference_is_here: bool,
    stop: &StopFlag,
) -> Result<()> {
    let model = &config.model;
    let reference = model.reference.as_ref().filter(|_| reference_is_here);
    let others = [("model.critic", model.critic.as_ref()), ("model.reference", reference)];
    let is_other = |location: &&Location| **location != model.policy;
    for (field, location) in others {
        let Some(location) = location.filter(is_other) else {
            continue;
        };
        let other = resolve_unless_stopped(location, stop).context(field)?;
        let policy = Policy { folder, tokenizer };
        policy.refuse_smaller(field, &other)?;
        if let Some(words) = policy.another_tokenizer(field, &other) {
            tracing::warn!("{words}");
        }
    }
    Ok(())
}

/// The policy, as far as others have to fit it.
struct Policy<'a> {
    folder: &'a Path,
    tokenizer: &'a Tokenizer,
}

impl Policy<'_> {
    /// The embedding may have more rows than there are tokens, and of the policy's own no more are asked for than it has.
    fn refuse_smaller(&self, field: &str, other: &Path) -> Result<()> {
        let tokens = self.tokenizer.largest_id().map_or(0, |id| i64::from(id) + 1);
        let needed = tokens.min(described("model.policy", ModelConfig::read(self.folder))?.vocab);
        let there = described(field, ModelConfig::read(other))?.vocab;
        if there >= needed {
            return Ok(());
        }
        Err(Invalid::new(format!(
            "{field} has {there} tokens, and the policy's tokenizer {needed}, from 0: {} gets the ids of {} as they are, so it must be of the \
             same family",
            other.display(),
            self.folder.display()
        ))
        .into())
    }

    /// Words for a folder that has a tokenizer which gives other ids.
    fn another_tokenizer(&self, field: &str, other: &Path) -> Option<String> {
        if !other.join("tokenizer.json").exists() {
            return None;
        }
        let same = || -> Result<bool> { Ok(Tokenizer::load(other)?.fingerprint()? == self.tokenizer.fingerprint()?) };
        let how = match same() {
            Ok(true) => return None,
            Ok(false) => "is not the policy's".to_owned(),
            Err(error) => format!("cannot be compared with the policy's ({error:#})"),
        };
        Some(format!(
            "the tokenizer of {field} in {} {how}, in {}: it gets the policy's ids as they are, and what they mean to it only you know",
            other.display(),
            self.folder.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn fixture(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/tokenizer")
            .join(name)
    }

    /// A model's folder without weights.
    fn model(vocab: u32, tokenizer: Option<&str>) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 96, "vocab_size": vocab
        });
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            if let Some(name) = tokenizer {
                fs::copy(fixture(name).join(file), folder.path().join(file)).unwrap();
            }
        }
        folder
    }

    #[test]
    fn a_critic_without_rows_for_the_policys_tokens_is_refused_and_rows_for_nothing_are_not_asked_for() {
        let tokenizer = Tokenizer::load(&fixture("chatml")).unwrap();
        assert_eq!(tokenizer.largest_id(), Some(399));
        let refused = |policy: u32, critic: u32| {
            let (policy, critic) = (model(policy, None), model(critic, None));
            let policy = Policy {
                folder: policy.path(),
                tokenizer: &tokenizer,
            };
            policy.refuse_smaller("model.critic", critic.path()).err()
        };
        assert!(refused(512, 400).is_none());
        assert!(refused(96, 96).is_none());
        let error = refused(512, 399).unwrap();
        assert!(error.is::<Invalid>());
        let words = error.to_string();
        assert!(
            words.contains("model.critic has 399 tokens, and the policy's tokenizer 400"),
            "{words}"
        );
    }

    #[test]
    fn another_tokenizer_is_told_with_both_folders_and_a_folder_without_one_is_believed() {
        let policy = model(512, Some("chatml"));
        let tokenizer = Tokenizer::load(policy.path()).unwrap();
        let (same, other, none) = (model(512, Some("chatml")), model(512, Some("llama3")), model(512, None));
        let policy = Policy {
            folder: policy.path(),
            tokenizer: &tokenizer,
        };
        let told = |folder: &TempDir| policy.another_tokenizer("model.reference", folder.path());
        assert_eq!(told(&same), None);
        assert_eq!(told(&none), None);
        let words = told(&other).unwrap();
        for folder in [other.path(), policy.folder] {
            assert!(words.contains(&*folder.to_string_lossy()), "{words}");
        }
        assert!(words.starts_with("the tokenizer of model.reference in "), "{words}");
        fs::write(other.path().join("tokenizer.json"), "{").unwrap();
        assert!(told(&other).unwrap().contains("cannot be compared"));
    }
}
