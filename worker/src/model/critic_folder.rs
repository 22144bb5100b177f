//! What a critic starts from: a saved critic, or another model's trunk under a head that may be a reward model's.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::config::{Head, ModelConfig};
use super::target::Target;
use super::weights::{Part, Weights};

/// A model folder that a critic starts from.
#[derive(Debug)]
pub struct CriticFolder {
    folder: PathBuf,
    config: ModelConfig,
    part: Part,
}

impl CriticFolder {
    /// Reads the configuration. A saved critic comes with its head. On any other model the head starts at zero, so that the first values
    /// are 0, unless it is a reward model that `keeps_score`: then its score head is the critic's, whose bias starts at zero.
    ///
    /// # Errors
    /// As [`ModelConfig::read`].
    pub fn read(folder: &Path, keeps_score: bool) -> Result<Self> {
        let config = ModelConfig::read(folder)?;
        let part = match config.head {
            Head::Value => Part::Whole,
            Head::Score if keeps_score => Part::TrunkAndScore,
            Head::Score | Head::LanguageModel => Part::Trunk,
        };
        Ok(Self {
            folder: folder.to_owned(),
            config: config.with_head(Head::Value),
            part,
        })
    }

    /// The critic's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Reads the tensors into the critic's `weights`, which are zeros.
    ///
    /// # Errors
    /// As [`Weights::fill`].
    pub fn fill(&self, weights: &Weights) -> Result<()> {
        weights.fill(&self.folder, &self.config, self.part)
    }

    /// The critic's weights, trunk and head, in tensors of their own.
    ///
    /// # Errors
    /// As [`fill`](Self::fill), and when there is no memory for them.
    pub fn load(&self, target: Target) -> Result<Weights> {
        let weights = Weights::zeros(&Part::Whole.shapes(&self.config), target)?;
        self.fill(&weights)?;
        Ok(weights)
    }
}
