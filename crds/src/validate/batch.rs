//! Batch arithmetic: every division must be exact. Where one is not, names the number to change and the nearest ones with which every
//! division is exact that it takes part in, or the numbers that do not go together.

mod sizes;

use self::sizes::{
    ENGINES, GROUP, MICRO_ROLLOUT, MICRO_TRAIN, MIN_ENGINES, MOST_PROMPTS, PROMPTS, Sizes, TRAIN, nearest,
};
use super::Problem;
use super::doubtful::Doubtful;

use crate::geometry::{divisors, gcd};
use crate::{PpoJob, PpoJobSpec};

/// Adds the divisions that are not exact. Those that read a doubtful number are left out.
pub fn check(job: &PpoJob, doubtful: &Doubtful, problems: &mut Vec<Problem>) {
    let sizes = Sizes::of(&job.spec, doubtful);
    problems.extend(check_group(job, &sizes));
    problems.extend(check_min_engines(&sizes));
    problems.extend(check_engines(&sizes));
    problems.extend(check_ranks(&sizes));
    problems.extend(check_train(&sizes));
    problems.extend(check_micro_train(&sizes));
    problems.extend(check_micro_rollout(&sizes));
}

/// The samples of a step, where both of their numbers say something.
pub fn samples(spec: &PpoJobSpec, doubtful: &Doubtful) -> Option<u64> {
    Sizes::of(spec, doubtful).samples
}

fn check_group(job: &PpoJob, sizes: &Sizes) -> Option<Problem> {
    let (estimator, group) = (job.spec.algorithm.advantage.estimator, sizes.group?);
    if !estimator.needs_group() || group > 1 {
        return None;
    }
    let message = format!(
        "{group} sample per prompt leaves algorithm.advantage.estimator {} nothing to compare; it needs more than 1",
        estimator.name()
    );
    Some(Problem::new(GROUP, message).or(GROUP, [4, 8]))
}

fn check_min_engines(sizes: &Sizes) -> Option<Problem> {
    let (engines, min_engines) = (sizes.engines?, sizes.min_engines?);
    let message = format!("{min_engines} is more than the {engines} replicas there are");
    (min_engines > engines).then(|| Problem::new(MIN_ENGINES, message).or(MIN_ENGINES, [engines]))
}

fn check_engines(sizes: &Sizes) -> Option<Problem> {
    let (prompts, engines) = (sizes.prompts?, sizes.engines?);
    if prompts.is_multiple_of(engines) {
        return None;
    }
    let message = format!("{prompts} prompts cannot be shared equally by {engines} engines");
    let fewer_or_more = divisors(prompts)
        .into_iter()
        .filter(|&count| count >= sizes.min_engines.unwrap_or(1) && count <= 1024)
        .collect();
    Some(other_prompts(sizes, message).or(ENGINES, nearest(fewer_or_more, engines)))
}

fn check_ranks(sizes: &Sizes) -> Option<Problem> {
    let (samples, ranks) = (sizes.samples?, sizes.ranks?);
    if samples.is_multiple_of(ranks) {
        return None;
    }
    let message = format!("the {} cannot be shared equally by {ranks} actor ranks", step(sizes)?);
    Some(other_prompts(sizes, message))
}

/// A problem that another `rolloutBatchSize` puts right.
fn other_prompts(sizes: &Sizes, message: String) -> Problem {
    let fitting = sizes.fitting_prompts();
    let message = match fitting.is_empty() {
        true => format!(
            "{message}; no number up to {MOST_PROMPTS} goes with {}",
            sizes.beside_prompts()
        ),
        false => message,
    };
    Problem::new(PROMPTS, message).or(PROMPTS, fitting)
}

fn step(sizes: &Sizes) -> Option<String> {
    let (samples, prompts, group) = (sizes.samples?, sizes.prompts?, sizes.group?);
    Some(format!("{samples} samples of a step ({prompts} prompts x {group})"))
}

fn check_train(sizes: &Sizes) -> Option<Problem> {
    let train = sizes.train?;
    let step = step(sizes).filter(|_| sizes.samples.is_some_and(|samples| !samples.is_multiple_of(train)));
    let ranks = sizes.ranks.filter(|ranks| !train.is_multiple_of(*ranks));
    let message = match (step, ranks) {
        (None, None) => return None,
        (Some(step), None) => format!("{train} does not divide the {step}"),
        (None, Some(ranks)) => format!("{train} samples cannot be shared equally by {ranks} actor ranks"),
        (Some(step), Some(ranks)) => {
            format!("{train} does not divide the {step}, and cannot be shared equally by {ranks} actor ranks")
        }
    };
    let ranks = sizes.ranks.unwrap_or(1);
    let fitting = sizes.fitting_train(sizes.pass().unwrap_or(ranks));
    if !fitting.is_empty() {
        return Some(Problem::new(TRAIN, message).or(TRAIN, fitting));
    }
    let without_micro = sizes.fitting_train(ranks);
    let why = match sizes.micro_train {
        Some(micro) if !without_micro.is_empty() => format!(
            "no size that fits the step is a multiple of microTrainBatchSize {micro} x {ranks} ranks; with another microTrainBatchSize use {}",
            either(&without_micro)
        ),
        _ => format!("no size that fits the step is a multiple of {ranks} actor ranks"),
    };
    Some(Problem::new(TRAIN, format!("{message}, and {why}")))
}

fn either(sizes: &[u64]) -> String {
    let sizes: Vec<String> = sizes.iter().map(u64::to_string).collect();
    sizes.join(" or ")
}

fn check_micro_train(sizes: &Sizes) -> Option<Problem> {
    let (micro, ranks, pass) = (sizes.micro_train?, sizes.ranks?, sizes.pass()?);
    let shared = sizes.samples.filter(|samples| samples.is_multiple_of(ranks));
    let update = match sizes.has_default_train {
        // Ranks that cannot share the step are told, and a step with which this number goes, too.
        true => shared?,
        false => sizes.train?,
    };
    if update.is_multiple_of(pass) {
        return None;
    }
    let message = format!("accumulation = {update} / ({micro} x {ranks} ranks) is not whole");
    if !update.is_multiple_of(ranks) {
        let message =
            format!("{message}, whatever this number is: {ranks} ranks cannot share {update} samples equally");
        return Some(Problem::new(MICRO_TRAIN, message));
    }
    // A `trainBatchSize` that does not fit has to change: what is used instead of this number goes with what is used instead of that, too.
    let others = match check_train(sizes) {
        Some(told) if told.fixes.is_empty() => sizes.fitting_train(ranks),
        Some(told) => told.fixes.iter().map(|fix| fix.value).collect(),
        None => Vec::new(),
    };
    let common = shared.into_iter().chain(others).fold(update, gcd);
    Some(Problem::new(MICRO_TRAIN, message).or(MICRO_TRAIN, nearest(divisors(common / ranks), micro)))
}

fn check_micro_rollout(sizes: &Sizes) -> Option<Problem> {
    let (micro, samples, ranks) = (sizes.micro_rollout?, sizes.samples?, sizes.ranks?);
    // Ranks that cannot share the step are told, and a step with which this number goes, too.
    if !samples.is_multiple_of(ranks) || (samples / ranks).is_multiple_of(micro) {
        return None;
    }
    let share = samples / ranks;
    let message = format!("{micro} does not divide the {share} samples that a rank of the actor computes in a step");
    Some(Problem::new(MICRO_ROLLOUT, message).or(MICRO_ROLLOUT, nearest(divisors(share), micro)))
}
