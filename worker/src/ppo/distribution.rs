//! The policy's distribution over the vocabulary, with the sampling temperature applied: the same on every side.

use ppo_crds::spec::Profile;
use tch::{Kind, Tensor};

use super::grid::wide_kind;

/// Log-probs of `tokens` under the tempered distribution: log-softmax(logits / temperature), gathered. `logits` are
/// [.., vocabulary] in any kind, `tokens` [..] of int64; the result is [..] in float32 at least. Give the actor, the
/// reference and the old policy the same temperature, the one sampled with.
pub fn log_probs(logits: &Tensor, tokens: &Tensor, temperature: f64) -> Tensor {
    let tempered = logits.to_kind(wide_kind(logits.kind())) / temperature;
    let chosen = tempered.gather(-1, &tokens.unsqueeze(-1), false).squeeze_dim(-1);
    // logsumexp instead of log_softmax: no second tensor of the vocabulary's width.
    chosen - tempered.logsumexp(-1, false)
}

/// The temperature of the distribution whose entropy is measured and rewarded, of samples drawn at `temperature`: that one. `openrlhf` takes
/// the untempered logits: `Actor.forward` (`openrlhf/models/actor.py`, 0.11) asks for the entropy before `log_probs_from_logits` divides them.
pub fn entropy_temperature(temperature: f64, profile: Profile) -> f64 {
    match profile {
        Profile::Openrlhf => 1.0,
        Profile::Default | Profile::Verl | Profile::Trl | Profile::Alpacafarm => temperature,
    }
}

/// Entropy of each distribution in nats: `logits` are [.., vocabulary], the result [..] in float32 at least.
pub fn entropy(logits: &Tensor, temperature: f64, profile: Profile) -> Tensor {
    let temperature = entropy_temperature(temperature, profile);
    let kind: Kind = wide_kind(logits.kind());
    let log_probabilities = (logits.to_kind(kind) / temperature).log_softmax(-1, kind);
    // A token that cannot be sampled (log-prob -inf) adds 0, not NaN.
    let finite = log_probabilities.clamp_min(-1e30);
    -(log_probabilities.exp() * finite).sum_dim_intlist(-1, false, kind)
}
