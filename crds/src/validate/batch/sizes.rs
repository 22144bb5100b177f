//! The numbers of a job that must divide each other, and those that would.

use crate::PpoJobSpec;
use crate::geometry::{divisors, gcd, lcm};
use crate::validate::doubtful::Doubtful;

pub const PROMPTS: &str = "spec.batch.rolloutBatchSize";
pub const GROUP: &str = "spec.batch.nSamplesPerPrompt";
pub const TRAIN: &str = "spec.batch.trainBatchSize";
pub const MICRO_TRAIN: &str = "spec.batch.microTrainBatchSize";
pub const MICRO_ROLLOUT: &str = "spec.batch.microRolloutBatchSize";
pub const ENGINES: &str = "spec.roles.rollout.replicas";
pub const MIN_ENGINES: &str = "spec.roles.rollout.minReplicas";
const NODES: &str = "spec.roles.actor.nodes";
const GPUS: &str = "spec.roles.actor.gpusPerNode";

/// Greatest `rolloutBatchSize`: the schema's.
pub const MOST_PROMPTS: u64 = 1_048_576;

/// Greatest `trainBatchSize`: the schema's.
const MOST_TRAIN: u64 = 1_073_741_824;

/// Numbers within the schema's limits; None: not given, or doubtful.
pub struct Sizes {
    pub prompts: Option<u64>,
    pub group: Option<u64>,
    /// Prompts x group.
    pub samples: Option<u64>,
    pub engines: Option<u64>,
    pub min_engines: Option<u64>,
    pub ranks: Option<u64>,
    pub train: Option<u64>,
    /// Whether the size of an update is left to its default.
    pub has_default_train: bool,
    pub micro_train: Option<u64>,
    pub micro_rollout: Option<u64>,
}

impl Sizes {
    pub fn of(spec: &PpoJobSpec, doubtful: &Doubtful) -> Self {
        let (batch, roles) = (&spec.batch, &spec.roles);
        let sound = |field: &str, number: u32| (!doubtful.has(field)).then_some(u64::from(number));
        let given = |field: &str, number: Option<u32>| number.and_then(|number| sound(field, number));
        let prompts = sound(PROMPTS, batch.rollout_batch_size);
        let group = sound(GROUP, batch.n_samples_per_prompt);
        let has_ranks = !doubtful.has(NODES) && !doubtful.has(GPUS);
        Self {
            prompts,
            group,
            samples: prompts.zip(group).map(|(prompts, group)| prompts * group),
            engines: sound(ENGINES, roles.rollout.replicas),
            min_engines: sound(MIN_ENGINES, roles.rollout.min_replicas),
            ranks: has_ranks.then(|| roles.actor.ranks()),
            train: given(TRAIN, batch.train_batch_size),
            has_default_train: batch.train_batch_size.is_none() && !doubtful.has(TRAIN),
            micro_train: given(MICRO_TRAIN, batch.micro_train_batch_size),
            micro_rollout: given(MICRO_ROLLOUT, batch.micro_rollout_batch_size),
        }
    }

    /// Samples that all actor ranks pass through at once.
    pub fn pass(&self) -> Option<u64> {
        Some(self.micro_train? * self.ranks?)
    }

    /// Nearest `rolloutBatchSize`s with which every other number goes, as far as it says anything.
    pub fn fitting_prompts(&self) -> Vec<u64> {
        let (Some(prompts), Some(unit)) = (self.prompts, self.unit_of_prompts()) else {
            return Vec::new();
        };
        multiples(unit, prompts, MOST_PROMPTS)
    }

    fn unit_of_prompts(&self) -> Option<u64> {
        let scored = self.ranks.map(|ranks| ranks * self.micro_rollout.unwrap_or(1));
        let learned = match self.has_default_train {
            true => self.pass(),
            false => self.train,
        };
        let samples = [scored, learned].into_iter().flatten().try_fold(1, lcm)?;
        // Without a group nothing is known of samples.
        let prompts = self.group.map_or(1, |group| samples / gcd(samples, group));
        lcm(prompts, self.engines.unwrap_or(1))
    }

    /// What a `rolloutBatchSize` has to go with, in words.
    pub fn beside_prompts(&self) -> String {
        let micro_train = self.micro_train.filter(|_| self.has_default_train);
        let mut all: Vec<String> = [
            ("nSamplesPerPrompt", self.group),
            ("trainBatchSize", self.train),
            ("microTrainBatchSize", micro_train),
            ("microRolloutBatchSize", self.micro_rollout),
        ]
        .into_iter()
        .filter_map(|(name, number)| Some(format!("{name} {}", number?)))
        .collect();
        all.extend(self.ranks.map(|ranks| format!("{ranks} actor ranks")));
        all.extend(self.engines.map(|engines| format!("{engines} engines")));
        all.join(", ")
    }

    /// The nearest `trainBatchSize`s that are multiples of `unit` and divide the samples of a step.
    pub fn fitting_train(&self, unit: u64) -> Vec<u64> {
        let wanted = self.train.unwrap_or_default();
        match self.samples {
            Some(samples) if samples.is_multiple_of(unit) => {
                let updates = divisors(samples / unit).into_iter();
                nearest(updates.map(|updates| updates * unit).collect(), wanted)
            }
            Some(_) => Vec::new(),
            None => multiples(unit, wanted, MOST_TRAIN),
        }
    }
}

/// The nearest multiples of `unit` below and above `wanted`, up to `most`.
fn multiples(unit: u64, wanted: u64, most: u64) -> Vec<u64> {
    let below = wanted / unit * unit;
    let both = [Some(below), below.checked_add(unit)].into_iter().flatten();
    both.filter(|&multiple| multiple > 0 && multiple <= most).collect()
}

/// The nearest of rising `sizes` below and above `wanted`, the nearer one first.
pub fn nearest(sizes: Vec<u64>, wanted: u64) -> Vec<u64> {
    let below = sizes.iter().copied().rfind(|&size| size < wanted);
    let above = sizes.iter().copied().find(|&size| size > wanted);
    let mut both: Vec<u64> = [below, above].into_iter().flatten().collect();
    both.sort_by_key(|size| size.abs_diff(wanted));
    both
}
