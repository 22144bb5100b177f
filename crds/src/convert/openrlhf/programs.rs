//! OpenRLHF's programs: those that train by PPO, and what to do instead of the others.

const PACKAGE: &str = "openrlhf.cli.";

/// What follows the package in the others' names, and what to do instead.
const OTHERS: &[(&str, &str)] = &[
    (
        "train_sft",
        "trains a supervised model, not by PPO: `ppo-worker sft -f sft.yaml` does that (docs/model-and-reward.md)",
    ),
    (
        "train_rm",
        "trains a reward model: `ppo-worker rm -f rm.yaml` does that (docs/model-and-reward.md)",
    ),
    (
        "serve_rm",
        "serves a reward model: `ppo-worker reward -f job.yaml` does that, in the same protocol (docs/server.md)",
    ),
    (
        "batch_inference",
        "draws responses and trains nothing: `ppo-worker rollout --model DIR` serves a model to draw from (docs/server.md)",
    ),
    ("", "does not train by PPO, and nothing here does what it does"),
];

/// Whether a word is a program whose flags are read.
pub fn starts(word: &str) -> bool {
    word.contains(PACKAGE) && other(word).is_none()
}

/// What to do instead of a program that is not read.
pub fn other(word: &str) -> Option<&'static str> {
    let (_, name) = word.split_once(PACKAGE)?;
    let others = (!name.starts_with("train_ppo")).then_some(OTHERS)?;
    let found = others.iter().find(|(start, _)| name.starts_with(start));
    found.map(|(_, instead)| *instead)
}
