//! Log-probabilities of given tokens, without holding all logits at once.

use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

use super::decoder::Decoder;

/// Log-probabilities and, if asked for, entropies, one per row.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `[rows]`, float32, nats.
    pub logprobs: Tensor,
    /// Entropy of each row's tempered distribution: `[rows]`, float32, nats.
    pub entropy: Option<Tensor>,
}

/// Log-probability of `targets` (`[rows]`, int64) under the distribution that `hidden` rows (`[rows, hidden]`, as
/// [`Decoder::hidden`] gives them) predict at `temperature`, and that distribution's entropy.
///
/// # Errors
/// When the decoder has no output projection, the temperature is not positive, or libtorch fails.
pub fn token_logprobs(
    decoder: &Decoder,
    hidden: &Tensor,
    targets: &Tensor,
    temperature: f64,
    want_entropy: bool,
) -> Result<TokenLogprobs> {
    ensure!(
        temperature > 0.0,
        "temperature is {temperature}: log-probabilities need a positive one"
    );
    let logits = decoder
        .logits(hidden)?
        .f_to_kind(Kind::Float)?
        .f_div_scalar(temperature)?;
    let all = logits.f_log_softmax(-1, Kind::Float)?;
    let logprobs = all.f_gather(1, &targets.f_unsqueeze(1)?, false)?.f_squeeze_dim(1)?;
    let entropy = if want_entropy {
        Some(
            all.f_exp()?
                .f_mul(&all)?
                .f_sum_dim_intlist(-1, false, Kind::Float)?
                .f_neg()?,
        )
    } else {
        None
    };
    Ok(TokenLogprobs { logprobs, entropy })
}
