//! The reference model of a run.

use anyhow::{Context, Result};
use ppo_crds::run_config::Location;

use crate::hub::resolve_location;
use crate::model::{Decoder, ModelConfig, Target, Weights, named};

/// The field that names it.
const FIELD: &str = "model.reference";

/// The reference model.
///
/// # Errors
/// When it cannot be loaded; [`Invalid`](crate::manifest::Invalid) where the folder is none of a model.
pub fn load(location: &Location, target: Target) -> Result<Decoder> {
    let folder = resolve_location(location).context(FIELD)?;
    let model = named::described(FIELD, ModelConfig::read_language_model(&folder))?;
    let weights = named::found(FIELD, Weights::load(&folder, &model, target))?;
    let mut decoder = Decoder::new(&model, &weights)?;
    // Its ids are the policy's.
    decoder.take_unknown();
    Ok(decoder)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::report::exit_code;
    use ppo_crds::spec::DType;

    use super::*;
    use crate::outcome;

    #[test]
    fn a_reward_model_is_no_reference() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/reward");
        let target = crate::model::target(DType::Float32).unwrap();
        let error = load(&Location::Path(folder), target).map(drop).unwrap_err();
        assert_eq!(outcome::code(&error), exit_code::BAD_CONFIGURATION);
        let said = format!("{error:#}");
        assert!(
            said.starts_with("model.reference: ") && said.contains("is no language model"),
            "{said}"
        );
    }
}
