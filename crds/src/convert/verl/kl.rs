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
            let source = "neither use_kl_loss nor use_kl_in_reward, with a coefficient above 0";
            draft.set("algorithm.kl.coef", 0.0, source);
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
    estimator(draft, term.estimator);
    if term.placement == "reward" && draft.text("algorithm.kl_ctrl.type").as_deref() == Some("adaptive") {
        let adaptive = "algorithm.kl.controller.adaptive";
        draft.set_number(&format!("{adaptive}.target"), "algorithm.kl_ctrl.target_kl")?;
        draft.set_number(&format!("{adaptive}.horizon"), "algorithm.kl_ctrl.horizon")?;
    }
    Ok(())
}

fn estimator(draft: &mut Draft, name: &str) {
    let estimator = draft.text(name).unwrap_or_default();
    match estimator.trim_end_matches('+') {
        "kl" | "k1" => draft.set("algorithm.kl.estimator", "k1", &draft.source(name)),
        "mse" | "k2" => draft.set("algorithm.kl.estimator", "k2", &draft.source(name)),
        "low_var_kl" | "k3" => draft.set("algorithm.kl.estimator", "k3", &draft.source(name)),
        "abs" => draft.set("algorithm.kl.estimator", "abs", &draft.source(name)),
        other => draft.leave(name, &format!("is {other}; here are kl, abs, mse and low_var_kl")),
    }
    if estimator.ends_with('+') {
        draft.leave(name, "the gradient is that of the estimate itself, not k2's");
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
