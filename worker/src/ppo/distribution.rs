//! At which temperature the policy's distribution over the vocabulary is looked at. The log-probabilities of actor, reference and old
//! policy are all of the one sampled from ([`crate::model::token_logprobs`]); only the entropy may be of another.

use ppo_crds::spec::Profile;

/// The temperature of the distribution whose entropy is measured and rewarded, of samples drawn at `temperature`: that one. `openrlhf` takes
/// the untempered logits: `Actor.forward` (`openrlhf/models/actor.py`, 0.11) asks for the entropy before `log_probs_from_logits` divides them.
pub fn entropy_temperature(temperature: f64, profile: Profile) -> f64 {
    match profile {
        Profile::Openrlhf => 1.0,
        Profile::Default | Profile::Verl | Profile::Trl | Profile::Alpacafarm => temperature,
    }
}
