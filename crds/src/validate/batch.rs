//! Batch arithmetic: every division must be exact. Where one is not, names the number to change and the nearest ones that fit.

use super::Problem;
use crate::geometry::{divisors, gcd, lcm};
use crate::{PpoJob, PpoJobSpec};

const PROMPTS: &str = "spec.batch.rolloutBatchSize";
const GROUP: &str = "spec.batch.nSamplesPerPrompt";
const TRAIN: &str = "spec.batch.trainBatchSize";
const MICRO_TRAIN: &str = "spec.batch.microTrainBatchSize";
const MICRO_ROLLOUT: &str = "spec.batch.microRolloutBatchSize";
const ENGINES: &str = "spec.roles.rollout.replicas";
const MIN_ENGINES: &str = "spec.roles.rollout.minReplicas";

/// Greatest `rolloutBatchSize`: the schema's.
const MOST_PROMPTS: u64 = 1_048_576;

/// Whether the arithmetic reads this field.
pub fn reads(field: &str) -> bool {
    field.starts_with("spec.batch.")
        || [ENGINES, MIN_ENGINES].contains(&field)
        || (field.starts_with("spec.roles.") && field.contains("PerNode"))
        || (field.starts_with("spec.roles.") && field.ends_with(".nodes"))
}

/// The numbers of a job that must divide each other, all within the schema's limits.
struct Sizes {
    prompts: u64,
    group: u64,
    /// Prompts x group.
    samples: u64,
    engines: u64,
    min_engines: u64,
    actor_ranks: u64,
    train: Option<u64>,
    micro_train: Option<u64>,
    micro_rollout: Option<u64>,
}

impl Sizes {
    fn of(spec: &PpoJobSpec) -> Self {
        let batch = &spec.batch;
        let (prompts, group) = (
            u64::from(batch.rollout_batch_size),
            u64::from(batch.n_samples_per_prompt),
        );
        Self {
            prompts,
            group,
            samples: prompts * group,
            engines: u64::from(spec.roles.rollout.replicas),
            min_engines: u64::from(spec.roles.rollout.min_replicas),
            actor_ranks: spec.roles.actor.ranks(),
            train: batch.train_batch_size.map(u64::from),
            micro_train: batch.micro_train_batch_size.map(u64::from),
            micro_rollout: batch.micro_rollout_batch_size.map(u64::from),
        }
    }

    /// `trainBatchSize`, when it is given and fits the step and the actor's ranks.
    fn fitting_train(&self) -> Option<u64> {
        self.train
            .filter(|train| self.samples.is_multiple_of(*train) && train.is_multiple_of(self.actor_ranks))
    }

    /// Samples that one actor rank passes through at once, over all ranks.
    fn pass(&self) -> Option<u64> {
        self.micro_train.map(|micro| micro * self.actor_ranks)
    }

    /// Nearest `rolloutBatchSize`s with which every other number fits as far as it can.
    fn fitting_prompts(&self) -> Vec<u64> {
        let train = self.train.filter(|train| train.is_multiple_of(self.actor_ranks));
        let scored = self.actor_ranks.checked_mul(self.micro_rollout.unwrap_or(1));
        let learned = train.or_else(|| self.pass()).unwrap_or(1);
        let unit = scored.and_then(|scored| lcm(scored, learned));
        let unit = unit.and_then(|unit| lcm(unit / gcd(unit, self.group), self.engines));
        unit.map(|unit| multiples(unit, self.prompts)).unwrap_or_default()
    }
}

/// Adds the divisions that are not exact.
pub fn check(job: &PpoJob, problems: &mut Vec<Problem>) {
    let sizes = Sizes::of(&job.spec);
    problems.extend(check_group(job));
    problems.extend(check_min_engines(&sizes));
    problems.extend(check_engines(&sizes));
    problems.extend(check_ranks(&sizes));
    // With ranks that cannot share the step no other size fits either.
    if sizes.samples.is_multiple_of(sizes.actor_ranks) {
        problems.extend(check_train(&sizes));
        problems.extend(check_micro_train(&sizes));
        problems.extend(check_micro_rollout(&sizes));
    }
}

fn check_group(job: &PpoJob) -> Option<Problem> {
    let (estimator, group) = (
        job.spec.algorithm.advantage.estimator,
        job.spec.batch.n_samples_per_prompt,
    );
    if !estimator.needs_group() || group > 1 {
        return None;
    }
    let name = serde_json::to_value(estimator).unwrap_or_default();
    let message = format!(
        "{group} sample per prompt leaves algorithm.advantage.estimator {} nothing to compare; it needs more than 1",
        name.as_str().unwrap_or_default()
    );
    Some(Problem::new(GROUP, message).or(GROUP, [4, 8]))
}

fn check_min_engines(sizes: &Sizes) -> Option<Problem> {
    let Sizes {
        engines, min_engines, ..
    } = *sizes;
    let message = format!("{min_engines} is more than the {engines} replicas there are");
    (min_engines > engines).then(|| Problem::new(MIN_ENGINES, message).or(MIN_ENGINES, [engines]))
}

fn check_engines(sizes: &Sizes) -> Option<Problem> {
    let Sizes {
        prompts,
        engines,
        min_engines,
        ..
    } = *sizes;
    if prompts.is_multiple_of(engines) {
        return None;
    }
    let message = format!("{prompts} prompts cannot be shared equally by {engines} engines");
    let fewer_or_more = divisors(prompts)
        .into_iter()
        .filter(|&count| count >= min_engines && count <= 1024)
        .collect();
    Some(
        Problem::new(PROMPTS, message)
            .or(PROMPTS, sizes.fitting_prompts())
            .or(ENGINES, nearest(fewer_or_more, engines)),
    )
}

fn check_ranks(sizes: &Sizes) -> Option<Problem> {
    let Sizes {
        samples,
        prompts,
        group,
        actor_ranks,
        ..
    } = *sizes;
    if samples.is_multiple_of(actor_ranks) {
        return None;
    }
    let message = format!(
        "the {samples} samples of a step ({prompts} prompts x {group}) cannot be shared equally by {actor_ranks} actor ranks"
    );
    Some(Problem::new(PROMPTS, message).or(PROMPTS, sizes.fitting_prompts()))
}

fn check_train(sizes: &Sizes) -> Option<Problem> {
    let Sizes {
        samples,
        prompts,
        group,
        actor_ranks,
        ..
    } = *sizes;
    let train = sizes.train?;
    let wrong = if !samples.is_multiple_of(train) {
        format!("{train} does not divide the {samples} samples of a step ({prompts} prompts x {group})")
    } else if !train.is_multiple_of(actor_ranks) {
        format!("{train} samples cannot be shared equally by {actor_ranks} actor ranks")
    } else {
        return None;
    };
    let unit = sizes
        .pass()
        .filter(|pass| samples.is_multiple_of(*pass))
        .unwrap_or(actor_ranks);
    let fitting = divisors(samples / unit)
        .into_iter()
        .map(|updates| updates * unit)
        .collect();
    Some(Problem::new(TRAIN, wrong).or(TRAIN, nearest(fitting, train)))
}

fn check_micro_train(sizes: &Sizes) -> Option<Problem> {
    let (micro, pass) = (sizes.micro_train?, sizes.pass()?);
    // A `trainBatchSize` that does not fit is told first: with another one this number may be right.
    let update = match sizes.train {
        Some(_) => sizes.fitting_train()?,
        None => sizes.samples,
    };
    if update.is_multiple_of(pass) {
        return None;
    }
    let ranks = sizes.actor_ranks;
    let message = format!("accumulation = {update} / ({micro} x {ranks} ranks) is not whole");
    Some(Problem::new(MICRO_TRAIN, message).or(MICRO_TRAIN, nearest(divisors(update / ranks), micro)))
}

fn check_micro_rollout(sizes: &Sizes) -> Option<Problem> {
    let micro = sizes.micro_rollout?;
    let share = sizes.samples / sizes.actor_ranks;
    if share.is_multiple_of(micro) {
        return None;
    }
    let message = format!("{micro} does not divide the {share} samples that a rank of the actor computes in a step");
    Some(Problem::new(MICRO_ROLLOUT, message).or(MICRO_ROLLOUT, nearest(divisors(share), micro)))
}

/// The nearest multiples of `unit` below and above `wanted`, within what `rolloutBatchSize` may be.
fn multiples(unit: u64, wanted: u64) -> Vec<u64> {
    let below = wanted / unit * unit;
    let both = [Some(below), below.checked_add(unit)].into_iter().flatten();
    both.filter(|&prompts| prompts > 0 && prompts <= MOST_PROMPTS).collect()
}

/// The nearest of rising `sizes` below and above `wanted`, the nearer one first.
fn nearest(sizes: Vec<u64>, wanted: u64) -> Vec<u64> {
    let below = sizes.iter().copied().rfind(|&size| size < wanted);
    let above = sizes.iter().copied().find(|&size| size > wanted);
    let mut both: Vec<u64> = [below, above].into_iter().flatten().collect();
    both.sort_by_key(|size| size.abs_diff(wanted));
    both
}
