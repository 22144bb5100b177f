//! Log-probabilities of given tokens, without holding all logits at once.

use anyhow::{Result, ensure};
use tch::{Device, Tensor};

use super::decoder::Decoder;
use super::filler::{filled, without_filler};
use crate::native::training;

/// Logits kept for the backward pass, bytes of float32; more are computed twice.
const KEPT_BYTES: i64 = 128 << 20;
/// The same on a GPU: what is not kept is a product more of the output projection.
const KEPT_GPU_BYTES: i64 = 1 << 30;

/// Log-probabilities and, if asked for, entropies, one per row.
#[derive(Debug)]
pub struct TokenLogprobs {
    /// `[rows]`, float32, nats.
    pub logprobs: Tensor,
    /// Entropy of each row's distribution: `[rows]`, float32, nats.
    pub entropy: Option<Tensor>,
}

/// Which entropy is wanted beside log-probabilities.
#[derive(Clone, Copy, Debug)]
pub struct Entropy {
    /// Of its distribution, which may be another than that of the log-probabilities.
    pub temperature: f64,
    /// Whether a loss is made of it.
    pub is_learnt: bool,
}

/// Tokens whose log-probabilities are asked for.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// `[rows]`, int64, where the hidden states are.
    pub ids: &'a Tensor,
    /// The greatest of them, as whoever made them knows: a GPU would have to be waited for.
    pub greatest: i64,
}

impl<'a> Targets<'a> {
    /// Looks for the greatest of `ids`.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn of(ids: &'a Tensor) -> Result<Self> {
        let greatest = match ids.numel() {
            0 => 0,
            _ => ids.f_max()?.f_int64_value(&[])?,
        };
        Ok(Self { ids, greatest })
    }
}

/// Log-probability of `targets` under the distribution that `hidden` rows (`[rows, hidden]`, as
/// [`Decoder::hidden`] gives them) predict at `temperature`, and the `entropy` that is wanted of it.
///
/// # Errors
/// When the decoder has no output projection, a temperature is not positive, or libtorch fails.
pub fn token_logprobs(
    decoder: &Decoder,
    hidden: &Tensor,
    Targets { ids, greatest }: Targets<'_>,
    temperature: f64,
    entropy: Option<Entropy>,
) -> Result<TokenLogprobs> {
    for temperature in [temperature, entropy.map_or(temperature, |wanted| wanted.temperature)] {
        ensure!(
            temperature > 0.0,
            "temperature is {temperature}: log-probabilities need a positive one"
        );
    }
    let head = decoder.lm_head()?;
    let rows = ids.numel();
    let filler = decoder.filler(rows);
    let kept_bytes = match hidden.device() {
        Device::Cpu => KEPT_BYTES,
        _ => KEPT_GPU_BYTES,
    };
    let (hidden, targets) = (filled(hidden, filler)?, filled(ids, filler)?);
    let vocab = decoder.config().vocab;
    // Those behind the vocabulary read its last row, where there are such.
    let has_unknown = decoder.takes_unknown() && greatest >= vocab;
    let known = has_unknown.then(|| targets.f_clamp_max(vocab - 1)).transpose()?;
    let in_vocabulary = known.as_ref().unwrap_or(&targets);
    let at = |temperature, wants_entropy| {
        training::token_logprobs(
            &hidden,
            &head.weight,
            in_vocabulary,
            temperature,
            kept_bytes,
            wants_entropy,
        )
    };
    let is_its_own = entropy.is_some_and(|wanted| wanted.temperature == temperature);
    let (mut logprobs, tempered) = at(temperature, is_its_own)?;
    if known.is_some() {
        logprobs = without_row(&logprobs, (&hidden, &head.weight), &targets, temperature)?;
    }
    let entropy = match entropy {
        Some(wanted) if !is_its_own => {
            // One pass has one temperature: this is the output projection once more, forward only where nobody learns from it.
            let _no_grad = (!wanted.is_learnt).then(tch::no_grad_guard);
            Some(at(wanted.temperature, true)?.1)
        }
        wanted => wanted.map(|_| tempered),
    };
    let real = |tensor: Tensor| without_filler(&tensor, rows as i64);
    Ok(TokenLogprobs {
        logprobs: real(logprobs)?,
        entropy: entropy.map(real).transpose()?,
    })
}

/// `logprobs` `[rows]`, which are the last token's for `targets` behind the vocabulary: there those of a token whose logit is 0.
fn without_row(
    logprobs: &Tensor,
    (hidden, weight): (&Tensor, &Tensor),
    targets: &Tensor,
    temperature: f64,
) -> Result<Tensor> {
    let (vocab, _) = weight.size2()?;
    let logit = training::wide_linear(hidden, &weight.f_narrow(0, vocab - 1, 1)?, None)?;
    let logit = logit.f_squeeze_dim(1)?.f_div_scalar(temperature)?;
    let behind = targets.f_ge(vocab)?;
    Ok(logprobs.f_sub(&logit.f_mul(&behind.f_to_kind(logit.kind())?)?)?)
}

/// The most likely token of each row of hidden states, the first of several: `[rows]`, int64. Logits are float32, as those
/// of an engine that decodes greedily: in bfloat16 many a row has several that are the greatest.
///
/// # Errors
/// As [`token_logprobs`].
pub fn likeliest(decoder: &Decoder, hidden: &Tensor) -> Result<Tensor> {
    likeliest_of(hidden, &decoder.lm_head()?.weight, KEPT_BYTES)
}

/// The same by an output projection's `weight`, with no more logits at once than take `most_bytes`, or one row's.
fn likeliest_of(hidden: &Tensor, weight: &Tensor, most_bytes: i64) -> Result<Tensor> {
    let (vocab, _) = weight.size2()?;
    let rows = (most_bytes / (4 * vocab)).max(1);
    let pieces = hidden.f_split(rows, 0)?;
    let tokens = pieces
        .iter()
        .map(|rows| Ok(training::wide_linear(rows, weight, None)?.f_argmax(-1, false)?));
    Ok(Tensor::f_cat(&tokens.collect::<Result<Vec<Tensor>>>()?, 0)?)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::model::{ModelConfig, TokenBatch, Weights};
    use crate::native::random;

    /// Hidden states, a projection wide enough for several slices, targets, and weights of the loss's two terms.
    fn problem(kind: Kind) -> (Tensor, Tensor, Tensor, Tensor, Tensor) {
        let normal = |dims: &[i64]| Tensor::randn(dims, (Kind::Float, tch::Device::Cpu)).to_kind(kind);
        let leaf = |tensor: Tensor| tensor.set_requires_grad(true);
        random::seeded(3, || {
            let targets = Tensor::randint(1500, [37], (Kind::Int64, tch::Device::Cpu));
            (
                leaf(normal(&[37, 24])),
                leaf(normal(&[1500, 24])),
                targets,
                normal(&[37]),
                normal(&[37]),
            )
        })
    }

    fn gradients(kind: Kind, compute: impl Fn(&Tensor, &Tensor, &Tensor) -> (Tensor, Tensor)) -> Vec<Tensor> {
        let (hidden, weight, targets, first, second) = problem(kind);
        let (logprobs, entropy) = compute(&hidden, &weight, &targets);
        let loss = (&logprobs * &first).sum(None) + (&entropy * &second).sum(None);
        loss.backward();
        vec![logprobs.detach(), entropy.detach(), hidden.grad(), weight.grad()]
    }

    fn naive(hidden: &Tensor, weight: &Tensor, targets: &Tensor) -> (Tensor, Tensor) {
        let all = (hidden.linear::<&Tensor>(weight, None).to_kind(Kind::Double) / 0.7).log_softmax(-1, Kind::Double);
        let entropy = -(all.exp() * &all).sum_dim_intlist(-1, false, Kind::Double);
        (all.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1), entropy)
    }

    fn sliced(kept_bytes: i64) -> impl Fn(&Tensor, &Tensor, &Tensor) -> (Tensor, Tensor) {
        move |hidden, weight, targets| training::token_logprobs(hidden, weight, targets, 0.7, kept_bytes, true).unwrap()
    }

    fn distance(a: &Tensor, b: &Tensor) -> f64 {
        let b = b.to_kind(Kind::Double);
        ((a.to_kind(Kind::Double) - &b).abs().max() / b.abs().max()).double_value(&[])
    }

    #[test]
    fn slices_give_the_values_and_gradients_of_the_whole() {
        // The inputs of the float32 problem, in float64: the same numbers.
        let wide = |hidden: &Tensor, weight: &Tensor, targets: &Tensor| {
            naive(&hidden.to_kind(Kind::Double), &weight.to_kind(Kind::Double), targets)
        };
        let expected = gradients(Kind::Float, wide);
        for (what, (ours, whole)) in gradients(Kind::Float, sliced(0)).iter().zip(&expected).enumerate() {
            assert!(distance(ours, whole) < 1e-5, "{what}: {}", distance(ours, whole));
        }
    }

    #[test]
    fn kept_logits_and_recomputed_ones_give_the_same_bits() {
        for kind in [Kind::Float, Kind::BFloat16] {
            let (kept, recomputed) = (gradients(kind, sliced(1 << 30)), gradients(kind, sliced(0)));
            assert!(kept.iter().zip(&recomputed).all(|(a, b)| a.equal(b)));
        }
    }

    #[test]
    fn bfloat16_is_as_near_as_its_rounding_allows() {
        // The same bfloat16 inputs; logits are float32, gradients are rounded a few times on their way, each time by 0.2 %.
        let wide = |hidden: &Tensor, weight: &Tensor, targets: &Tensor| {
            naive(&hidden.to_kind(Kind::Double), &weight.to_kind(Kind::Double), targets)
        };
        let expected = gradients(Kind::BFloat16, wide);
        let near = [1e-5, 1e-5, 0.015, 0.015];
        for (what, (ours, whole)) in gradients(Kind::BFloat16, sliced(0)).iter().zip(&expected).enumerate() {
            assert!(distance(ours, whole) < near[what], "{what}: {}", distance(ours, whole));
        }
    }

    #[test]
    fn the_likeliest_token_is_told_by_logits_that_are_not_rounded_to_bfloat16() {
        let mut numbers = [0f32; 128];
        // Logits 256.5 and 257 of rows of ones: in bfloat16 both are 256.
        numbers[10..12].copy_from_slice(&[256.0, 0.5]);
        numbers[18..20].copy_from_slice(&[256.0, 1.0]);
        let weight = Tensor::from_slice(&numbers).view([64, 2]).to_kind(Kind::BFloat16);
        let hidden = Tensor::ones([5, 2], (Kind::BFloat16, tch::Device::Cpu));
        // One row at a time, two, and all of them.
        for most_bytes in [0, 2 * 4 * 64, 1 << 20] {
            let tokens = likeliest_of(&hidden, &weight, most_bytes).unwrap();
            assert_eq!(Vec::<i64>::try_from(tokens).unwrap(), [9; 5]);
        }
    }

    #[test]
    fn an_id_behind_a_companions_vocabulary_is_a_row_of_zeros() {
        check_unknown(Device::Cpu);
    }

    #[test]
    #[ignore = "needs a GPU: make test-gpu"]
    fn so_it_is_on_a_gpu() {
        check_unknown(crate::device::here().unwrap());
    }

    fn check_unknown(device: Device) {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/llama");
        let config = ModelConfig::read(folder.as_ref()).unwrap();
        let weights = Weights::random(&config, Kind::Float, 1).unwrap().on(device).unwrap();
        let mut decoder = Decoder::new(&config, &weights).unwrap();
        let _no_grad = tch::no_grad_guard();
        let behind = config.vocab + 7;
        let batch = TokenBatch::new(&[vec![1, 2, u32::try_from(behind).unwrap(), 3]]).unwrap();
        let refused = decoder.hidden(&batch).unwrap_err().to_string();
        assert!(refused.contains("is outside the vocabulary"), "{refused}");

        decoder.take_unknown();
        let hidden = decoder.hidden(&batch).unwrap();
        let targets = Tensor::from_slice(&[2, behind, 3, 4]).to_device(device);
        let found = token_logprobs(&decoder, &hidden, Targets::of(&targets).unwrap(), 0.7, None)
            .unwrap()
            .logprobs;
        let logits = decoder.logits(&hidden).unwrap() / 0.7;
        // What its row of the output projection would give, which has no part in the sum either.
        let padded = logits.constant_pad_nd([0, 8]);
        let expected = padded.gather(1, &targets.unsqueeze(1), false).squeeze_dim(1) - logits.logsumexp(-1, false);
        assert!(distance(&found, &expected) < 1e-5, "{found} is not {expected}");
        // The embedding's row, too: what comes before it is as it was, and what comes after is not that of another token.
        let of = |id: i64| {
            let batch = TokenBatch::new(&[vec![1, 2, u32::try_from(id).unwrap(), 3]]).unwrap();
            decoder.hidden(&batch).unwrap()
        };
        let other = of(config.vocab - 1);
        assert!(distance(&hidden.narrow(0, 0, 2), &other.narrow(0, 0, 2)) < 1e-6);
        assert!(hidden.get(3) != other.get(3) && hidden.get(3) == of(behind + 1).get(3));
    }

    #[test]
    fn a_nan_is_not_hidden() {
        let (hidden, weight, targets, ..) = problem(Kind::Float);
        let _no_grad = tch::no_grad_guard();
        let _ = hidden.get(5).fill_(f64::NAN);
        let (logprobs, entropy) = sliced(0)(&hidden, &weight, &targets);
        assert!(logprobs.double_value(&[5]).is_nan() && entropy.double_value(&[5]).is_nan());
        assert!(logprobs.double_value(&[4]).is_finite());
    }

    #[test]
    fn a_target_outside_the_vocabulary_is_an_error() {
        let (hidden, weight, ..) = problem(Kind::Float);
        let targets = Tensor::full([37], 1500, (Kind::Int64, tch::Device::Cpu));
        let error = training::token_logprobs(&hidden, &weight, &targets, 1.0, 0, true).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("target 1500 is outside the vocabulary of 1500"),
            "{error}"
        );
    }
}
