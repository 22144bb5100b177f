//! The reference role.

use anyhow::Result;
use tch::Tensor;

use crate::model::Decoder;
use crate::trainer::score::Pieces;

/// The reference role: a frozen model in this process.
pub enum Reference {
    /// In this process.
    Here(Decoder),
}

impl Reference {
    /// Log-probabilities of the response tokens under the tempered distribution, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails.
    pub(crate) fn logprobs(&self, pieces: &Pieces, temperature: f64) -> Result<Tensor> {
        match self {
            Self::Here(decoder) => pieces.compute(|rows| Ok(rows.logprobs(decoder, temperature, false)?.0)),
        }
    }
}
