//! verl's KL, a term of the loss or of the reward, and the reference that it is to.

use crate::convert::draft::{Draft, WrongValue};
use crate::convert::row::is_null;
use crate::convert::source::set_model;

/// A place where verl adds a KL, and its settings there.
struct Term {
    placement: &'static str,
    switch: &'static str,
    coef: &'static str,
    estimator: &'static str,
}

const IN_LOSS: Term = Term {
    placement: "loss",
    switch: "actor_rollout_ref.actor.use_kl_loss",
    coef: "actor_rollout_ref.actor.kl_loss_coef",
    estimator: "actor_rollout_ref.actor.kl_loss_type",
};

const IN_REWARD: Term = Term {
    placement: "reward",
    switch: "algorithm.use_kl_in_reward",
    coef: "algorithm.kl_ctrl.kl_coef",
    estimator: "algorithm.kl_penalty",
};

impl Term {
    /// Whether it is switched on; a coefficient of 0 is no KL.
    fn acts(&self, draft: &Draft) -> Result<bool, WrongValue> {
        Ok(draft.truth(self.switch)? && draft.number(self.coef)? != Some(0.0))
    }
}

pub(super) fn kl(draft: &mut Draft) -> Result<(), WrongValue> {
    let term = match (IN_LOSS.acts(draft)?, IN_REWARD.acts(draft)?) {
        (false, false) => {
            draft.set("algorithm.kl.coef", 0.0, "no KL is switched on");
            return Ok(());
        }
        (true, true) => {
            draft.leave(
                IN_REWARD.switch,
                "the KL acts in one place: use_kl_loss is kept, algorithm.kl.placement: reward is the other",
            );
            IN_LOSS
        }
        (true, false) => IN_LOSS,
        (false, true) => IN_REWARD,
    };
    draft.set("algorithm.kl.placement", term.placement, &draft.source(term.switch));
    draft.set_number("algorithm.kl.coef", term.coef)?;
    estimator(draft, &term);
    if term.placement == "reward" && draft.text("algorithm.kl_ctrl.type").as_deref() == Some("adaptive") {
        let adaptive = "algorithm.kl.controller.adaptive";
        draft.set_number(&format!("{adaptive}.target"), "algorithm.kl_ctrl.target_kl")?;
        draft.set_number(&format!("{adaptive}.horizon"), "algorithm.kl_ctrl.horizon")?;
    }
    Ok(())
}

/// With a `+` the value is the estimate and the gradient is k2's: `backward - backward.detach() + forward.detach()` in `kl_penalty` of
/// verl/trainer/ppo/core_algos.py. A loss has a gradient and nothing else to act by; a reward has none.
fn estimator(draft: &mut Draft, term: &Term) {
    let name = term.estimator;
    let given = draft.text(name).unwrap_or_default();
    let word = given.trim_end_matches('+');
    let ours = match word {
        "kl" | "k1" => "k1",
        "mse" | "k2" => "k2",
        "low_var_kl" | "k3" => "k3",
        "abs" => "abs",
        other => {
            let why = format!(
                "{other} is not available: kl, abs, mse and low_var_kl are; see that algorithm.kl.estimator is what you want"
            );
            draft.leave(name, &why);
            return;
        }
    };
    let straight = term.placement == "loss" && given.ends_with('+');
    let source = draft.source(name);
    draft.set("algorithm.kl.estimator", if straight { "k2" } else { ours }, &source);
    if straight && ours != "k2" {
        let why = format!("the gradient is k2's there as here; only the KL in the logs differs: {word} there, k2 here");
        draft.leave(name, &why);
    }
}

pub(super) fn has_kl(draft: &Draft) -> bool {
    draft.get("algorithm.kl.coef").is_none_or(|coef| *coef != 0.0)
}

/// `ref.model.path` overrides the policy's (verl/workers/fsdp_workers.py).
pub(super) fn reference(draft: &mut Draft) -> Result<(), WrongValue> {
    let name = "actor_rollout_ref.ref.model.path";
    let Some((values, source)) = draft.values(name).filter(|(values, _)| !is_null(values)) else {
        return Ok(());
    };
    if draft.has("model.adapter") {
        draft.leave(name, "with an adapter the reference is the policy without it");
    } else if has_kl(draft) {
        set_model(draft, "model.reference", &values, &source)?;
    } else {
        draft.leave(name, "without a KL there is no reference");
    }
    Ok(())
}
