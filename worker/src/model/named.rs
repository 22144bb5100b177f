//! A model that cannot be read, by the field that names it: whether another try would end the same way.

use std::io;

use anyhow::{Error, Result};

use crate::manifest::Invalid;

/// What was read in a folder that the manifest names in `field`.
///
/// # Errors
/// [`Invalid`] with the field where a file is not there; everything else under the field's name: a disk that does not answer may do so next
/// time.
pub fn found<T>(field: &str, read: Result<T>) -> Result<T> {
    read.map_err(|error| {
        let is_lost = lasts(&error) && error.chain().any(|cause| cause.is::<io::Error>());
        under(field, error, is_lost)
    })
}

/// What was read of the `config.json` in a folder that the manifest names in `field`.
///
/// # Errors
/// As [`found`], and [`Invalid`] too where the file says that this is no model for the place. One that is damaged is no mistake of whoever
/// named it.
pub fn described<T>(field: &str, read: Result<T>) -> Result<T> {
    read.map_err(|error| {
        let is_damaged = error.chain().any(|cause| cause.is::<serde_json::Error>());
        let is_another = lasts(&error) && !is_damaged;
        under(field, error, is_another)
    })
}

/// Whether no part of an error may pass. As where a path is [looked at](crate::hub::check_path), what should be in a file is not there.
fn lasts(error: &Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    let mut failures = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    failures.all(|failure| matches!(failure.kind(), NotFound | NotADirectory | IsADirectory))
}

fn under(field: &str, error: Error, is_invalid: bool) -> Error {
    match is_invalid && !error.is::<Invalid>() {
        true => Invalid::new(format!("{field}: {error:#}")).into(),
        false => error.context(field.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anyhow::Context;
    use ppo_crds::report::exit_code;

    use super::*;
    use crate::model::{ModelConfig, RewardModel};
    use crate::outcome;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn a_folder_that_lacks_a_file_is_the_fault_of_the_field_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for named in [folder.path(), &file] {
            let errors = [
                described("model.policy", ModelConfig::read(named)).map(drop),
                found("model.policy", Tokenizer::load(named)).map(drop),
            ];
            for error in errors.map(Result::unwrap_err) {
                let words = format!("{error:#}");
                assert_eq!(outcome::code(&error), exit_code::BAD_CONFIGURATION, "{words}");
                assert!(words.starts_with("model.policy: "), "{words}");
            }
        }
    }

    #[test]
    fn a_model_of_another_kind_is_the_fault_of_the_field_and_a_damaged_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |config: &str| {
            fs::write(folder.path().join("config.json"), config).unwrap();
            let field = "roles.reward.model.source";
            let error = described(field, RewardModel::configuration(folder.path())).unwrap_err();
            assert!(
                format!("{error:#}").starts_with("roles.reward.model.source: "),
                "{error:#}"
            );
            (outcome::code(&error), format!("{error:#}"))
        };
        let (code, words) = refused(
            r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
                "intermediate_size": 96, "vocab_size": 128}"#,
        );
        assert_eq!(code, exit_code::BAD_CONFIGURATION);
        assert!(words.contains("is not a reward model"), "{words}");
        let (code, words) = refused(r#"{"architectures": ["MixtralForCausalLM"]}"#);
        assert_eq!(code, exit_code::BAD_CONFIGURATION);
        assert!(words.contains("MixtralForCausalLM"), "{words}");
        assert_eq!(refused("{").0, 1);
    }

    #[test]
    fn a_disk_that_does_not_answer_may_do_so_next_time() {
        let error =
            || Err::<(), _>(Error::from(io::Error::from(io::ErrorKind::TimedOut)).context("reading config.json"));
        for read in [found("model.critic", error()), described("model.critic", error())] {
            let error = read.unwrap_err();
            assert_eq!(outcome::code(&error), 1);
            assert!(
                format!("{error:#}").starts_with("model.critic: reading config.json: "),
                "{error:#}"
            );
        }
        // And so may memory that ran out.
        let error = found("model.critic", Err::<(), _>(Error::msg("out of memory"))).unwrap_err();
        assert_eq!(outcome::code(&error), 1);
        let invalid = Err::<(), _>(Invalid::new("x".into())).context("y");
        assert_eq!(
            outcome::code(&found("model.critic", invalid).unwrap_err()),
            exit_code::BAD_CONFIGURATION
        );
    }
}
