//! TRL's programs: its commands and the scripts that are called after a trainer, and what to do instead of the others.

/// A trainer whose flags are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trainer {
    Ppo,
    Rloo,
    Grpo,
}

/// Names of the others, and what to do instead.
const OTHERS: &[(&str, &str)] = &[
    (
        "sft",
        "trains a supervised model, not by PPO: `ppo-worker sft -f sft.yaml` does that (docs/model-and-reward.md)",
    ),
    ("reward", REWARD),
    ("reward_modeling", REWARD),
    (
        "async_grpo",
        "draws on while it learns, with settings of its own; nearest is `overlap: oneStep`, one step ahead: convert its flags with `trl grpo` \
         in front, and write that into the manifest",
    ),
    (
        "vllm-serve",
        "serves a model: a job runs its own engines, and `ppo-worker rollout --model DIR` serves one alone (docs/server.md)",
    ),
    ("dpo", PAIRS),
    ("kto", PAIRS),
    ("online_dpo", PAIRS),
    ("nash_md", PAIRS),
    ("xpo", PAIRS),
    ("cpo", PAIRS),
    ("orpo", PAIRS),
    ("bco", PAIRS),
    ("gkd", "distils a teacher; here a policy learns from rewards alone"),
];

const REWARD: &str = "trains a reward model: `ppo-worker rm -f rm.yaml` does that (docs/model-and-reward.md)";

const PAIRS: &str = "learns from which response is preferred, as nothing here does; nearest is `trl rloo` or `trl grpo` with a reward \
                     model, which `ppo-worker rm -f rm.yaml` makes of such data (docs/model-and-reward.md)";

/// Whether a word is a program whose flags are read.
pub fn starts(word: &str) -> bool {
    let trainer = word.strip_prefix("trl.scripts.").unwrap_or(word);
    ["ppo", "rloo", "grpo"].contains(&trainer) || trainer_of_script(word).is_some()
}

/// The trainer that a script's name tells of.
fn trainer_of_script(word: &str) -> Option<Trainer> {
    let file = word.strip_suffix(".py")?.rsplit('/').next()?;
    trainer_in(file)
}

/// The trainer that a name holds.
pub(super) fn trainer_in(name: &str) -> Option<Trainer> {
    // `grpo` holds `rpo`, and none of the names holds another.
    let trainers = [("grpo", Trainer::Grpo), ("rloo", Trainer::Rloo), ("ppo", Trainer::Ppo)];
    let found = trainers
        .into_iter()
        .find_map(|(word, trainer)| name.contains(word).then_some(trainer));
    found.filter(|_| !name.contains("async_grpo"))
}

/// What to do instead of a program that is not read: `trl sft`, `trl.scripts.sft`, `sft.py`.
pub fn other(words: &str) -> Option<&'static str> {
    let of_script = || words.strip_suffix(".py")?.rsplit('/').next();
    let command = ["trl ", "trl.scripts."]
        .iter()
        .find_map(|front| words.strip_prefix(front));
    let name = command.or_else(of_script)?;
    let is_named = |(other, _): &&(&str, &str)| *other == name || (*other == "async_grpo" && name.contains(other));
    OTHERS.iter().find(is_named).map(|(_, instead)| *instead)
}
