//! Fills every default in: the profile's for the maths, exact divisors for the batch, the policy's weights for critic and
//! reference. Filling twice changes nothing, and a filled manifest runs as the short one does.

use crate::run_config::Algorithm;
use crate::spec::{
    Aggregation, AlgorithmSpec, BatchSpec, Estimator, FixedKl, KlControllerSpec, KlEstimator, KlPlacement, Overlap,
    PpoJob, PpoJobSpec, Profile, Ratio, ScoreRange, Surrogate,
};

/// Samples per forward (and backward) pass that a default goes up to.
const MICRO_BATCH: u64 = 8;

/// Optimizer updates per epoch that the default `trainBatchSize` makes (as InstructGPT-style PPO does: 4 mini-batches).
const UPDATES_PER_EPOCH: u64 = 4;

/// Cap on the importance weight of samples that another policy version drew: the default of verl's and TRL's correction, once it
/// is on.
const STALE_WEIGHT_CAP: f64 = 2.0;

/// The job with every default filled in. Fields that stay absent mean "off" or "none".
///
/// Never fails: a batch size that no default fits stays absent, and [`validate`](crate::validate) says why.
pub fn fill(job: &PpoJob) -> PpoJob {
    let mut job = job.clone();
    let spec = &mut job.spec;
    if spec.steps.is_none() {
        spec.episodes.get_or_insert(1);
    }
    fill_algorithm(&mut spec.algorithm);
    if spec.overlap == Overlap::OneStep && spec.algorithm.rollout_correction.is_none() {
        let cap = &mut spec.algorithm.truncated_importance_sampling;
        cap.get_or_insert(STALE_WEIGHT_CAP);
    }
    if spec.algorithm.advantage.estimator.has_critic() && spec.model.critic.is_none() {
        spec.model.critic = Some(spec.model.policy.clone());
    }
    if has_reference(spec) && spec.model.reference.is_none() {
        spec.model.reference = Some(spec.model.policy.clone());
    }
    fill_dtypes(spec);
    fill_batch(&mut spec.batch, spec.roles.actor.ranks());
    job
}

/// Every role computes in the actor's number format that names none of its own.
fn fill_dtypes(spec: &mut PpoJobSpec) {
    let dtype = spec.model.dtype;
    let has_reference = has_reference(spec);
    let roles = &mut spec.roles;
    roles.rollout.dtype.get_or_insert(dtype);
    if has_reference {
        roles.reference.dtype.get_or_insert(dtype);
    }
    if let Some(model) = &mut roles.reward.model {
        model.dtype.get_or_insert(dtype);
    }
}

/// Whether the run has the reference role: a KL, and no adapter whose base is the reference.
pub(crate) fn has_reference(spec: &PpoJobSpec) -> bool {
    has_kl(&spec.algorithm) && spec.model.adapter.is_none()
}

/// Whether a KL is measured: whether its coefficient is above 0.
pub(crate) fn has_kl(algorithm: &AlgorithmSpec) -> bool {
    algorithm
        .kl
        .coef
        .unwrap_or_else(|| Conventions::of(algorithm.profile).kl_coef)
        != 0.0
}

/// A profile's defaults, from the code of OpenRLHF 0.11, verl 0.9, TRL 0.24 (PPOConfig) and AlpacaFarm 0.2.
struct Conventions {
    lambda: f64,
    kl_coef: f64,
    kl_estimator: KlEstimator,
    policy_clip: (f64, f64),
    dual_clip: f64,
    value_clip: f64,
    value_coef: f64,
    score_clip: Option<ScoreRange>,
    whiten_rewards: bool,
    aggregation: Aggregation,
}

impl Conventions {
    fn of(profile: Profile) -> Self {
        let ours = Self {
            lambda: 0.95,
            kl_coef: 0.01,
            kl_estimator: KlEstimator::K1,
            policy_clip: (0.2, 0.2),
            dual_clip: 0.0,
            value_clip: 0.2,
            value_coef: 0.5,
            score_clip: None,
            whiten_rewards: false,
            aggregation: Aggregation::TokenMean,
        };
        match profile {
            Profile::Default => ours,
            Profile::Openrlhf => Self {
                lambda: 1.0,
                value_clip: 0.5,
                value_coef: 1.0,
                score_clip: Some(ScoreRange { min: -10.0, max: 10.0 }),
                ..ours
            },
            Profile::Verl => Self {
                lambda: 1.0,
                kl_coef: 0.0,
                dual_clip: 3.0,
                value_clip: 0.5,
                value_coef: 1.0,
                ..ours
            },
            Profile::Trl => Self {
                kl_coef: 0.05,
                value_coef: 0.1,
                ..ours
            },
            Profile::Alpacafarm => Self {
                lambda: 1.0,
                kl_coef: 0.2,
                kl_estimator: KlEstimator::OneSided,
                value_coef: 0.1,
                whiten_rewards: true,
                aggregation: Aggregation::PaddedMean,
                ..ours
            },
        }
    }

    /// With the ratio of whole responses. The frameworks clip it as they clip a token's unless they are told, but for verl's dual clip, which
    /// `compute_policy_loss_gspo` does not have. Ours are the bounds of arXiv 2507.18071, section 5.1, and the mean of its equation 5.
    fn of_sequences(self, profile: Profile) -> Self {
        match profile {
            Profile::Default => Self {
                policy_clip: (3e-4, 4e-4),
                aggregation: Aggregation::SequenceMeanTokenMean,
                ..self
            },
            Profile::Verl => Self { dual_clip: 0.0, ..self },
            Profile::Openrlhf | Profile::Trl | Profile::Alpacafarm => self,
        }
    }

    /// With CISPO. `compute_policy_loss_cispo` in verl's core_algos.py reads PPO's bounds and no dual clip. The others have no lower bound, as in
    /// arXiv 2506.13585, section 3.1, and GRPOTrainer; the upper one is that of ScaleRL (arXiv 2510.13786), which TRL recommends too: its own
    /// default, 0.2, is a ratio there and would be below 1.
    fn of_cispo(self, profile: Profile) -> Self {
        let policy_clip = match profile {
            Profile::Verl => self.policy_clip,
            Profile::Default | Profile::Openrlhf | Profile::Trl | Profile::Alpacafarm => (1.0, 4.0),
        };
        Self {
            policy_clip,
            dual_clip: 0.0,
            ..self
        }
    }
}

/// The maths of a profile with an estimator where nothing else is said.
pub fn algorithm(profile: Profile, estimator: Estimator) -> Algorithm {
    algorithm_by(profile, estimator, Ratio::Token, Surrogate::Clipped)
}

/// The same with this ratio, and what the loss takes of it.
pub fn algorithm_by(profile: Profile, estimator: Estimator, ratio: Ratio, surrogate: Surrogate) -> Algorithm {
    let mut spec = AlgorithmSpec {
        profile,
        ratio,
        surrogate,
        ..AlgorithmSpec::default()
    };
    spec.advantage.estimator = estimator;
    fill_algorithm(&mut spec);
    Algorithm::of(&spec)
}

/// The bound on a profile's per-token KL estimate where none is given: OpenRLHF's compute_approx_kl bounds every estimate,
/// verl's kl_penalty its low_var_kl alone.
pub fn kl_clamp(profile: Profile, estimator: KlEstimator) -> Option<f64> {
    match (profile, estimator) {
        (Profile::Openrlhf, _) | (Profile::Verl, KlEstimator::K3) => Some(10.0),
        _ => None,
    }
}

fn fill_algorithm(algorithm: &mut AlgorithmSpec) {
    let profile = algorithm.profile;
    let theirs = match algorithm.ratio {
        Ratio::Token => Conventions::of(profile),
        Ratio::Sequence => Conventions::of(profile).of_sequences(profile),
    };
    let theirs = match algorithm.surrogate {
        Surrogate::Clipped => theirs,
        Surrogate::Cispo => theirs.of_cispo(profile),
    };

    let advantage = &mut algorithm.advantage;
    advantage.gamma.get_or_insert(1.0);
    advantage.lambda.get_or_insert(theirs.lambda);
    // The group estimators without a critic have a scale of their own, which whitening would take away.
    let own_scale = matches!(
        advantage.estimator,
        Estimator::Rloo | Estimator::Grpo | Estimator::DrGrpo
    );
    advantage.whiten.get_or_insert(!own_scale);

    let kl = &mut algorithm.kl;
    kl.coef.get_or_insert(theirs.kl_coef);
    // GRPO (arXiv 2402.03300) is constant over a response's tokens: its KL is a term of the loss, estimated by k3. OpenRLHF
    // keeps it in the token rewards.
    let constant = matches!(advantage.estimator, Estimator::Grpo | Estimator::DrGrpo) && profile != Profile::Openrlhf;
    let placement = *kl.placement.get_or_insert(if constant {
        KlPlacement::Loss
    } else {
        KlPlacement::Reward
    });
    let estimator = *kl.estimator.get_or_insert(match placement {
        // The gradient of k1 in the loss is 0 on average.
        KlPlacement::Loss => KlEstimator::K3,
        KlPlacement::Reward => theirs.kl_estimator,
    });
    kl.controller.get_or_insert(KlControllerSpec {
        fixed: Some(FixedKl {}),
        adaptive: None,
    });
    kl.clamp = kl.clamp.or(kl_clamp(profile, estimator));

    let (low, high) = theirs.policy_clip;
    algorithm.clip.policy_low.get_or_insert(low);
    algorithm.clip.policy_high.get_or_insert(high);
    algorithm.clip.dual.get_or_insert(theirs.dual_clip);
    algorithm.clip.value.get_or_insert(theirs.value_clip);

    let score = &mut algorithm.score;
    score.clip = score.clip.take().or(theirs.score_clip);
    score.scale.get_or_insert(1.0);
    score.whiten_rewards.get_or_insert(theirs.whiten_rewards);

    algorithm.value_coef.get_or_insert(theirs.value_coef);
    algorithm.entropy_coef.get_or_insert(0.0);
    algorithm.aggregation.get_or_insert(theirs.aggregation);
}

/// Fills in what the actor's `ranks` share equally. Reference and reward model take a step's samples piece by piece, whichever copy is free.
fn fill_batch(batch: &mut BatchSpec, ranks: u64) {
    let samples = u64::from(batch.rollout_batch_size) * u64::from(batch.n_samples_per_prompt);
    if samples == 0 || ranks == 0 {
        return;
    }
    if batch.train_batch_size.is_none() {
        let unit = ranks.saturating_mul(u64::from(batch.micro_train_batch_size.unwrap_or(1)).max(1));
        let quarter = samples / UPDATES_PER_EPOCH;
        let fits = samples.is_multiple_of(UPDATES_PER_EPOCH) && quarter > 0 && quarter.is_multiple_of(unit);
        let size = if fits { quarter } else { samples };
        batch.train_batch_size = size.is_multiple_of(unit).then(|| u32::try_from(size).ok()).flatten();
    }
    if let (Some(train), None) = (batch.train_batch_size, batch.micro_train_batch_size) {
        batch.micro_train_batch_size = micro(u64::from(train), ranks);
    }
    if batch.micro_rollout_batch_size.is_none() {
        batch.micro_rollout_batch_size = micro(samples, ranks);
    }
}

/// Greatest batch up to [`MICRO_BATCH`] that divides the share of `samples` that each of `ranks` has.
fn micro(samples: u64, ranks: u64) -> Option<u32> {
    if samples == 0 || !samples.is_multiple_of(ranks) {
        return None;
    }
    let share = samples / ranks;
    let size = (1..=MICRO_BATCH).rev().find(|&size| share.is_multiple_of(size))?;
    u32::try_from(size).ok()
}
