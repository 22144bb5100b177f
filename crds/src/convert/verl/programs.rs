//! verl's programs: those that take the settings of `main_ppo`, and what to do instead of the others.

/// Ends of their names. Those of the recipes dapo, entropy and dynamo, and whatever else is a `main_ppo`, take its settings.
const PROGRAMS: [&str; 6] = [
    "main_ppo",
    "main_ppo_sync",
    "main_ppo_split",
    "main_dapo",
    "main_entropy",
    "main_dynamo",
];

const OWN_ALGORITHM: &str = "has an algorithm of its own, which is not here; for one that is, convert its settings with \
                             verl.trainer.main_ppo in front, and algorithm.adv_estimator as you want it";

/// Ends of the names of the others, and what to do instead.
const OTHERS: &[(&str, &str)] = &[
    ("sft_trainer", SUPERVISED),
    ("sft_trainer_ray", SUPERVISED),
    ("main_generation", DRAWS),
    ("main_generation_server", DRAWS),
    (
        "main_eval",
        "scores responses that are there; here a job scores held-out prompts while it trains (spec.evaluation)",
    ),
    ("fully_async_main", FULLY_ASYNC),
    ("grpo_main", FULLY_ASYNC),
    (
        "vla.main_ppo",
        "trains a model that acts on pictures; models are text only here",
    ),
    ("gvpo_main_ppo", OWN_ALGORITHM),
    ("spo_main_ppo", OWN_ALGORITHM),
    ("main_dance", OWN_ALGORITHM),
    ("main_flowrl", OWN_ALGORITHM),
    ("main_gkd", OWN_ALGORITHM),
    ("main_prime", OWN_ALGORITHM),
    ("main_rep_exp", OWN_ALGORITHM),
    ("main_spin", OWN_ALGORITHM),
    ("main_sppo", OWN_ALGORITHM),
];

const SUPERVISED: &str =
    "trains a supervised model, not by PPO: `ppo-worker sft -f sft.yaml` does that (docs/model-and-reward.md)";

const DRAWS: &str =
    "draws responses and trains nothing: `ppo-worker rollout --model DIR` serves a model to draw from (docs/server.md)";

/// What a step is there: `ppo_mini_batch_size * require_batches` prompts an update, new weights every `trigger_parameter_sync_step` of
/// them (verl/experimental/fully_async_policy).
const FULLY_ASYNC: &str = "draws on while it learns, from samples of several policies; nearest is `overlap: oneStep`, one step ahead: \
                           convert its settings with verl.experimental.one_step_off_policy.main_ppo in front, and with \
                           data.train_batch_size = ppo_mini_batch_size x require_batches x trigger_parameter_sync_step";

/// Whether a word is a program whose settings are read: a file, or a module with its package in front, which no folder's name has.
pub fn starts(word: &str) -> bool {
    let file = word.strip_suffix(".py");
    let module = Some(word).filter(|word| word.contains('.') && !word.contains('/'));
    let is_named = |name: &str| PROGRAMS.iter().any(|program| name.ends_with(program));
    file.or(module).is_some_and(is_named) && !word.contains('=') && other(word).is_none()
}

/// What to do instead of a program that is not read.
pub fn other(word: &str) -> Option<&'static str> {
    let module = word.strip_suffix(".py").unwrap_or(word).replace('/', ".");
    let is_named = |(name, _): &&(&str, &str)| module.ends_with(name) && !module.contains('=');
    OTHERS.iter().find(is_named).map(|(_, instead)| *instead)
}
