//! What is allowed but most likely not meant.

use std::fmt;

use serde::Serialize;

use super::{endless_warmup, pass_score};
use crate::defaults::{has_kl, has_reference};
use crate::spec::{
    Aggregation, AlgorithmSpec, Engine, Estimator, Gang, KlEstimator, KlPlacement, OptimizerSpec, Overlap, Profile,
    Ratio, ReferenceSpec,
};
use crate::{Geometry, PpoJob, fill};

/// Something allowed but most likely not meant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// Path of the field.
    pub field: String,
    /// What follows from it, and what to do.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What is allowed in a job but most likely not meant.
pub fn warnings(job: &PpoJob) -> Vec<Warning> {
    let spec = fill(job).spec;
    let (generation, algorithm) = (&spec.generation, &spec.algorithm);
    let mut found = Vec::new();
    let mut warn = |when: bool, field: &str, message: &str| {
        if when {
            found.push(Warning {
                field: field.into(),
                message: message.into(),
            });
        }
    };
    let truncated =
        "samples come from a truncated distribution, log-probs from the whole one, so the policy ratio is biased";
    warn(
        generation.top_p < 1.0,
        "spec.generation.topP",
        &format!("{truncated}; use 1"),
    );
    warn(
        generation.top_k > 0,
        "spec.generation.topK",
        &format!("{truncated}; use 0"),
    );
    warn(
        generation.min_p > 0.0,
        "spec.generation.minP",
        &format!("{truncated}; use 0"),
    );
    warn(
        generation.min_new_tokens > 0,
        "spec.generation.minNewTokens",
        "until then no sample can stop, log-probs are of the distribution in which it can, so the policy ratio is biased; use 0",
    );
    let loss = algorithm.kl.placement == Some(KlPlacement::Loss);
    warn(
        loss && algorithm.kl.coef != Some(0.0) && algorithm.kl.estimator == Some(KlEstimator::K1),
        "spec.algorithm.kl.estimator",
        "k1 in the loss has an expected gradient of zero, so the penalty does nothing; use k2 or k3",
    );
    warn(
        spec.overlap == Overlap::OneStep && algorithm.truncated_importance_sampling == Some(0.0),
        "spec.algorithm.truncatedImportanceSampling",
        "is 0, so with overlap: oneStep samples of the version before are learnt from as if the present one had drawn them; \
         leave it out for 2, or give a cap",
    );
    let score = &algorithm.score;
    warn(
        score.missing_eos_penalty.is_some_and(|penalty| penalty > 0.0) && score.scale.is_some_and(|scale| scale < 0.0),
        "spec.algorithm.score.missingEosPenalty",
        "is subtracted before score.scale, which is negative: a response that does not finish gains by it; remove the \
         scale, and give the sources of spec.roles.reward negative weights",
    );
    // Of what the profile fills in nobody has to be told that it rests.
    let given = &job.spec.algorithm;
    let shapes_kl = given.kl.estimator.is_some() || given.kl.placement.is_some() || given.kl.clamp.is_some();
    warn(
        shapes_kl && given.kl.coef.is_none() && !has_kl(algorithm),
        "spec.algorithm.kl",
        "does nothing here: coef is left out, and this profile's is 0, so there is no penalty and no reference; give coef, or remove \
         spec.algorithm.kl",
    );
    let estimator = algorithm.advantage.estimator;
    warn(
        given.score.whiten_rewards == Some(true) && !matches!(estimator, Estimator::Gae | Estimator::ReinforcePlusPlus),
        "spec.algorithm.score.whitenRewards",
        "does nothing here: gae and reinforcePlusPlus alone learn from whitened token rewards; remove it",
    );
    warn(
        given.aggregation.is_some() && (algorithm.profile, estimator) == (Profile::Trl, Estimator::Rloo),
        "spec.algorithm.aggregation",
        "does nothing to the policy loss, which with rloo under trl is the mean over sequences, one ratio each; remove it, or use \
         another profile",
    );
    let settled = algorithm.ratio == Ratio::Sequence && matches!(algorithm.profile, Profile::Openrlhf | Profile::Verl);
    let another = |way: Aggregation| way != Aggregation::SequenceMeanTokenMean;
    warn(
        settled && given.aggregation.is_some_and(another),
        "spec.algorithm.aggregation",
        "does nothing to the policy loss, which with ratio: sequence is sequenceMeanTokenMean under openrlhf and verl; use that, or another \
         profile",
    );
    warn(
        given.advantage.gamma.is_some_and(|gamma| gamma != 1.0) && !discounts(algorithm),
        "spec.algorithm.advantage.gamma",
        "does nothing here: this estimator does not discount under this profile; remove it",
    );
    let roles = &spec.roles;
    let no_reference = match spec.model.adapter {
        _ if !has_kl(algorithm) => {
            "the KL coefficient is 0, so no reference runs; remove it, or give algorithm.kl.coef"
        }
        _ => "with an adapter the reference is the policy without it, in the actor's pods; remove it, or model.adapter",
    };
    warn(
        !has_reference(&spec) && roles.reference != ReferenceSpec::default(),
        "spec.roles.reference",
        &format!("does nothing here: {no_reference}"),
    );
    warn(
        roles.rollout.engine == Engine::Builtin && roles.rollout.gpus_per_replica > 1,
        "spec.roles.rollout.gpusPerReplica",
        "the builtin engine computes on one GPU, the others stay idle; use 1 and more replicas, or engine: vllm, which splits the model",
    );
    warn(
        spec.scheduling.gang == Gang::Kueue && spec.scheduling.queue.is_empty(),
        "spec.scheduling.queue",
        "is empty, and gang is kueue: on a cluster the job waits until it names a LocalQueue of its namespace",
    );
    warn(
        spec.optimizer.actor_learning_rate == 0.0,
        "spec.optimizer.actorLearningRate",
        "is 0, so the policy never changes",
    );
    let pass_score = pass_score::doubtful(&spec);
    warn(
        pass_score.is_some(),
        "spec.evaluation.passScore",
        pass_score.as_deref().unwrap_or_default(),
    );
    // How many updates the episodes make the data alone says.
    let updates = spec
        .steps
        .zip(Geometry::of(job))
        .map(|(steps, geometry)| steps.saturating_mul(geometry.updates_per_step));
    let endless = updates.and_then(|updates| warms_up_to_the_end(&spec.optimizer, updates));
    let (field, message) = endless.unwrap_or_default();
    warn(!message.is_empty(), field, &message);
    let warmup = spec.optimizer.critic_warmup_steps;
    warn(
        warmup > 0 && !algorithm.advantage.estimator.has_critic(),
        "spec.optimizer.criticWarmupSteps",
        "the policy rests in these steps although there is no critic to warm up",
    );
    warn(
        spec.steps.is_some_and(|steps| steps <= warmup),
        "spec.optimizer.criticWarmupSteps",
        "is not below spec.steps, so the policy never changes; lower it, or make more steps",
    );
    found
}

/// The field that makes the warm-up as long as a run of `updates`, and what to do; None where it ends before.
fn warms_up_to_the_end(optimizer: &OptimizerSpec, updates: u64) -> Option<(&'static str, String)> {
    let warmup = optimizer.warmup_of(updates);
    let message = endless_warmup(warmup, updates)?;
    Some(match optimizer.warmup_ratio {
        Some(ratio) => (
            "spec.optimizer.warmupRatio",
            format!(
                "is {ratio}, which is {warmup} of the run's {updates} updates: the learning rate rises to the end; lower it, or make more \
                 steps"
            ),
        ),
        None => ("spec.optimizer.warmupUpdates", message),
    })
}

/// Whether the discount acts: where an advantage is a reward-to-go (`ppo/advantage.rs` of the worker).
fn discounts(algorithm: &AlgorithmSpec) -> bool {
    match (algorithm.profile, algorithm.advantage.estimator) {
        (_, Estimator::Gae | Estimator::ReinforcePlusPlus) => true,
        (Profile::Openrlhf | Profile::Verl, _) | (Profile::Trl, Estimator::Rloo) => false,
        (_, Estimator::Grpo | Estimator::DrGrpo) => {
            has_kl(algorithm) && algorithm.kl.placement == Some(KlPlacement::Reward)
        }
        (_, Estimator::Rloo | Estimator::ReinforcePlusPlusBaseline) => true,
    }
}
