//! The reference role.

use anyhow::Result;
use tch::Tensor;

use super::ReferencePods;
use crate::model::Decoder;
use crate::trainer::score::Pieces;

/// The reference role: a frozen model in this process, or pods.
pub enum Reference {
    /// In this process.
    Here(Box<Decoder>),
    /// Behind HTTP.
    There(ReferencePods),
}

impl Reference {
    /// Log-probabilities of the response tokens under the tempered distribution, [samples, columns].
    ///
    /// # Errors
    /// When libtorch fails, or the pods do not answer in time.
    pub(crate) fn logprobs(&self, pieces: &Pieces, temperature: f64) -> Result<Tensor> {
        match self {
            Self::Here(decoder) => pieces.compute(|rows| Ok(rows.logprobs(decoder, temperature, false)?.0)),
            Self::There(pods) => pods.logprobs(pieces, temperature),
        }
    }
}
