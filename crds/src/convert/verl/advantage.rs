//! verl's estimators, and the groups that they learn from.

use crate::convert::draft::{Draft, WrongValue};
use crate::convert::dynamic;

/// verl's estimators that are not here (verl/trainer/ppo/core_algos.py): the nearest, and in what theirs differs.
const OTHERS: &[(&str, &str, &str)] = &[
    ("remax", "rloo", "its baseline is the score of a greedy response"),
    ("gpg", "drGrpo", "its advantages are larger the more scores are 0"),
    (
        "opo",
        "drGrpo",
        "its baseline weighs scores by their responses' lengths",
    ),
    ("grpo_passk", "grpo", "it learns from the best sample of a prompt alone"),
    (
        "gdpo",
        "grpo",
        "it divides each reward by its own deviation, then adds them up and whitens",
    ),
    ("optimal_token_baseline", "rloo", TOKEN_BASELINE),
    ("tir_optimal_token_baseline", "rloo", TOKEN_BASELINE),
];

const TOKEN_BASELINE: &str = "its baseline is one of each token, weighed by the variance so far";

/// What learns from single samples, without a critic as all of those do.
const OF_SINGLES: &str = "reinforcePlusPlus";

/// One that is not here is replaced by the nearest, which is said; grpo without the deviation is drGrpo.
pub(super) fn estimator(draft: &mut Draft) -> Result<(), WrongValue> {
    let (name, field) = ("algorithm.adv_estimator", "algorithm.advantage.estimator");
    if let Some(other) = draft.other_word(name) {
        let other = other.to_lowercase();
        let source = draft.source(name);
        draft.unsay(&source);
        if let Some((_, group, differs)) = OTHERS.iter().find(|(theirs, ..)| *theirs == other) {
            let samples = draft.count("actor_rollout_ref.rollout.n")?.unwrap_or(1);
            let nearest = if samples > 1 { *group } else { OF_SINGLES };
            let why =
                format!("is {other}, which is not here: {differs}. {nearest} is nearest and takes its place ({field})");
            draft.set(field, nearest, &format!("nearest to {source}"));
            draft.leave(name, &why);
        } else {
            let why = format!(
                "{other} is not here, nor known to be near to one that is: gae learns from a critic, rloo, grpo, drGrpo and \
                 reinforcePlusPlusBaseline from the samples of a prompt, reinforcePlusPlus from single ones"
            );
            draft.placeholder(field, field, "gae", &why);
        }
    }
    let by_deviation = "algorithm.norm_adv_by_std_in_grpo";
    let is_grpo = draft.get(field).is_some_and(|estimator| estimator == "grpo");
    if is_grpo && !draft.truth(by_deviation)? {
        draft.set(field, "drGrpo", &draft.source(by_deviation));
    }
    Ok(())
}

/// As in recipe/dapo/dapo_ray_trainer.py: batches of `gen_batch_size` prompts are drawn until `train_batch_size` of their groups differ.
pub(super) fn filter_groups(draft: &mut Draft) -> Result<(), WrongValue> {
    let of = |name: &str| format!("algorithm.filter_groups.{name}");
    if !draft.truth(&of("enable"))? {
        return Ok(());
    }
    let (batches, train) = (
        of("max_num_gen_batches"),
        draft.count("data.train_batch_size")?.unwrap_or(1).max(1),
    );
    let of_a_batch = draft.count("data.gen_batch_size")?.unwrap_or(train);
    let most = draft.count_or_off(&batches)?;
    let draws = most.filter(|batches| *batches > 0).map(|count| {
        let draws = count.saturating_mul(of_a_batch).div_ceil(train);
        (
            draws,
            format!("{} x {of_a_batch} / {train} prompts", draft.source(&batches)),
        )
    });
    if !dynamic::sample(draft, &of("enable"), draws) {
        return Ok(());
    }
    let end = "a step that has not found enough groups that differ in so many draws takes groups of equal scores; verl ends the run there, or \
               draws on where max_num_gen_batches is 0";
    draft.leave("batch.dynamicSampling.maxDraws", end);
    let metric = of("metric");
    let other = draft
        .text(&metric)
        .filter(|metric| !["score", "seq_reward", "seq_final_reward", "null"].contains(&metric.as_str()));
    if let Some(other) = other {
        let why = format!(
            "is {other}; here groups are compared by score, with every source of roles.reward in it: one of right answers of different \
             lengths differs where a rule looks at the length"
        );
        draft.leave(&metric, &why);
    }
    Ok(())
}
