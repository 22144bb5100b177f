//! `spec.algorithm`: the PPO maths. A field without a value takes the profile's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RolloutCorrection;

/// The PPO maths: advantage estimator, KL penalty, clipping, and whose conventions apply. A field without a value takes the
/// profile's; `ppo-worker plan` prints them all.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AlgorithmSpec {
    /// Whose conventions apply where frameworks differ, and whose defaults fill the fields left out: `default` (this
    /// project's), `openrlhf` (0.11), `verl` (0.9), `trl` (0.24 PPO), `alpacafarm` (0.2). A profile also settles what has no
    /// field, such as the kind of variance in whitening, so that a run elsewhere can be repeated exactly; but for `alpacafarm`, whose
    /// whitening and means count the places past the end of a response: values are 0 there, and in AlpacaFarm what its critic says of padding.
    #[serde(default)]
    pub profile: Profile,
    /// How rewards become advantages. OpenRLHF `algo.advantage`, verl `algorithm.adv_estimator`.
    #[serde(default)]
    pub advantage: AdvantageSpec,
    /// The penalty that holds the policy near the reference.
    #[serde(default)]
    pub kl: KlSpec,
    /// How far one step may move policy and value.
    #[serde(default)]
    pub clip: ClipSpec,
    /// Whose ratio to the policy before the step is clipped and weighs a token: `token` (its own: PPO) or `sequence` (GSPO: its whole
    /// response's, the exp of the mean of its tokens' log-ratios). `sequence` wants far narrower bounds (`clip`) and is meant for
    /// advantages that are the same on every token of a response (rloo, grpo, drGrpo). Under verl a token's gradient is by its own
    /// log-prob and its own advantage, elsewhere it is the true gradient of the response's ratio: the same where the advantages are. Under openrlhf with
    /// `truncatedImportanceSampling` or `rolloutCorrection` the ratio is to the engine's log-probs, and nothing else is weighted. Not for rloo under trl, which has
    /// a ratio of its own. Default token. OpenRLHF `actor.policy_loss_type` (ppo, gspo), verl
    /// `actor_rollout_ref.actor.policy_loss.loss_mode` (vanilla, gspo), TRL `importance_sampling_level`.
    #[serde(default)]
    pub ratio: Ratio,
    /// What the policy's loss takes of a ratio: `clipped` (PPO: -A r, held where the bounds of `clip` are passed, so that the token teaches
    /// nothing more) or `cispo` (MiniMax-M1, arXiv 2506.13585: -A w log-prob, where w is the ratio between those bounds, of which no gradient is
    /// taken, so that every token teaches). `cispo` is mostly used without a lower bound (`clip.policyLow: 1`) and with a wide upper one, and has
    /// no dual clip. With `ratio: sequence` w is the response's, as in TRL. Under trl `clip_fraction` counts only ratios above the bound with
    /// a positive advantage, elsewhere all outside the bounds. Not for rloo under trl, which takes a response as one action. Default clipped. verl
    /// `actor_rollout_ref.actor.policy_loss.loss_mode` (vanilla, cispo), TRL `loss_type` (cispo), where `epsilon_high` is the bound itself
    /// and not its distance from 1; OpenRLHF has none.
    #[serde(default)]
    pub surrogate: Surrogate,
    /// What happens to a sample's score before it becomes a reward.
    #[serde(default)]
    pub score: ScoreSpec,
    /// Weight of the value loss. 0 to 1000. Default 0.5; trl and alpacafarm 0.1, openrlhf and verl 1. TRL `vf_coef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub value_coef: Option<f64>,
    /// Weight of the entropy bonus; 0 only measures the entropy. -1000 to 1000. Default 0. OpenRLHF `actor.entropy_coef`,
    /// verl `actor_rollout_ref.actor.entropy_coeff`, TRL's newer `entropy_coef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1000.0, max = 1000.0))]
    pub entropy_coef: Option<f64>,
    /// How per-token losses become one number, over the whole update whatever its pieces (with gae under trl `tokenMean` is the
    /// mean of the micro-batches' means, as TRL's PPO has it; rloo under trl takes its policy loss by sequence): `tokenMean`,
    /// `sequenceMeanTokenMean` (mean over samples of each sample's token mean), `sequenceMeanTokenSum`,
    /// `sequenceMeanTokenSumNorm` (that, divided by `maxNewTokens`: Dr. GRPO), `tokenSum`, `paddedMean` (over batch x time,
    /// padding included). Under openrlhf `sequenceMeanTokenMean` is of the policy's loss alone, as its `actor.loss_agg_mode`: value loss, KL
    /// and entropy stay token means. With `ratio: sequence` the policy's loss is sequenceMeanTokenMean under openrlhf and verl, whatever is
    /// given. Default tokenMean, in this project's own profile sequenceMeanTokenMean with `ratio: sequence`; alpacafarm paddedMean, which `tokenMean`
    /// means there too. OpenRLHF `actor.loss_agg_mode`, verl `actor_rollout_ref.actor.loss_agg_mode`, TRL `loss_type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Aggregation")]
    pub aggregation: Option<Aggregation>,
    /// Leaves responses that did not finish by an end-of-sequence token or a stop condition out of the losses of policy, value, KL and
    /// entropy, and out of what these are divided by (DAPO's overlong filtering). Their scores still count in their groups' baselines, and
    /// their tokens in the whitening of advantages. Not with means that count padding (`paddedMean`, the default of alpacafarm). Default
    /// false. TRL `mask_truncated_completions`, whose dapo and grpo (0.24) still divide by all tokens and responses.
    #[serde(default)]
    pub mask_truncated: bool,
    /// Corrects for the difference between the policy that drew a token, by the engine's log-prob, and the one that learns from
    /// it, by the actor's: multiplies each token's loss by min(exp(old log-prob - engine log-prob), this). 0 to 1000; 0
    /// switches it off. The short form of `rolloutCorrection: {high: this}`; give at most one of the two. Default: off, the difference is
    /// only measured; with `overlap: oneStep`, where `rolloutCorrection` is left out, 2. verl
    /// `algorithm.rollout_correction.rollout_is_threshold`, TRL `vllm_importance_sampling_cap`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub truncated_importance_sampling: Option<f64>,
    /// The same correction with a choice of whose ratio is bounded, from which sides, and whether one outside the bounds is truncated or left
    /// out: IcePop is `{outside: mask, low: 0.5, high: 5}`, TRL's default `{level: sequence, outside: mask, high: 3}`. Instead of
    /// `truncatedImportanceSampling`. Default none. OpenRLHF `algo.advantage.is_correction_level`, verl `algorithm.rollout_correction`, TRL
    /// `vllm_importance_sampling_mode`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_correction: Option<RolloutCorrection>,
}

/// Whose conventions apply where frameworks differ.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// This project's.
    #[default]
    Default,
    /// OpenRLHF 0.11.
    Openrlhf,
    /// verl 0.9.
    Verl,
    /// TRL 0.24, its PPO and RLOO trainers.
    Trl,
    /// AlpacaFarm 0.2.
    Alpacafarm,
}

/// How rewards become advantages.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdvantageSpec {
    /// `gae` (PPO with a critic), `rloo` (leave-one-out baseline), `grpo` (group mean and deviation), `drGrpo` (group mean
    /// only), `reinforcePlusPlus` (whitened reward-to-go), `reinforcePlusPlusBaseline` (that after the group's mean). All but
    /// gae train without a critic; all but gae and reinforcePlusPlus need `batch.nSamplesPerPrompt` above 1. Default gae.
    /// OpenRLHF `algo.advantage.estimator` (group_norm, dr_grpo, reinforce, reinforce_baseline), verl
    /// `algorithm.adv_estimator`; TRL has a trainer for each.
    #[serde(default)]
    pub estimator: Estimator,
    /// Discount of later rewards, per token. Estimators that compare groups do not use it under openrlhf and verl, nor does rloo
    /// under trl; grpo and drGrpo only with a KL in the reward. 0 to 1. Default 1. OpenRLHF `algo.advantage.gamma`, verl
    /// `algorithm.gamma`, TRL `gamma`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub gamma: Option<f64>,
    /// GAE's lambda: 0 trusts the critic, 1 trusts the rewards. Used by gae only. 0 to 1. Default 0.95; openrlhf, verl and
    /// alpacafarm 1. OpenRLHF `algo.advantage.lambd`, verl `algorithm.lam`, TRL `lam`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub lambda: Option<f64>,
    /// Bring the step's advantages to mean 0 and deviation 1, over all tokens of all ranks (rloo under trl: over its sequences, TRL
    /// RLOO `normalize_advantages`). Default: true for gae and the two
    /// reinforcePlusPlus estimators, false for rloo, grpo and drGrpo, which have a scale of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten: Option<bool>,
    /// Whose scores' deviation grpo divides by: `group` (the prompt's own samples') or `batch` (those of all samples of the step, so that a
    /// prompt whose samples hardly differ is not blown up; Liu et al. 2025, arXiv 2508.08221). For grpo only. Default group. TRL
    /// `scale_rewards`.
    #[serde(default)]
    pub deviation: Deviation,
}

/// Whose scores' deviation grpo divides by.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Deviation {
    /// The prompt's samples'.
    #[default]
    Group,
    /// The step's samples'.
    Batch,
}

impl Deviation {
    /// Whether it is the default.
    pub fn is_of_group(&self) -> bool {
        *self == Self::Group
    }
}

/// How rewards become advantages.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Estimator {
    /// Generalised advantage estimation with a critic (Schulman et al. 2015).
    #[default]
    Gae,
    /// REINFORCE with the mean of the group's other samples as baseline (Ahmadian et al. 2024).
    Rloo,
    /// Group mean subtracted, group deviation divided.
    Grpo,
    /// Group mean subtracted.
    DrGrpo,
    /// Reward-to-go, whitened.
    ReinforcePlusPlus,
    /// Group mean subtracted, then as REINFORCE++.
    ReinforcePlusPlusBaseline,
}

impl Estimator {
    /// The word used in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gae => "gae",
            Self::Rloo => "rloo",
            Self::Grpo => "grpo",
            Self::DrGrpo => "drGrpo",
            Self::ReinforcePlusPlus => "reinforcePlusPlus",
            Self::ReinforcePlusPlusBaseline => "reinforcePlusPlusBaseline",
        }
    }

    /// Whether the estimator learns a value function.
    pub fn has_critic(self) -> bool {
        self == Self::Gae
    }

    /// Whether the estimator compares the samples of a group, and so needs more than one.
    pub fn needs_group(self) -> bool {
        matches!(
            self,
            Self::Rloo | Self::Grpo | Self::DrGrpo | Self::ReinforcePlusPlusBaseline
        )
    }
}

/// The penalty that holds the policy near the reference.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlSpec {
    /// Weight of the KL (its first value, with an adaptive controller). 0: no penalty, and no reference role. 0 to 1000.
    /// Default 0.01; verl 0 (0.001 is usual there), trl 0.05, alpacafarm 0.2. OpenRLHF `algo.kl.init_coef`, verl
    /// `algorithm.kl_ctrl.kl_coef` or `actor_rollout_ref.actor.kl_loss_coef`, TRL `beta`, in PPO `kl_coef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub coef: Option<f64>,
    /// Per-token estimate, with d = log-prob - reference log-prob: `k1` = d, `k2` = d^2/2, `k3` = exp(-d) - 1 + d,
    /// `abs` = |d|, `oneSided` = max(d, 0). Default k1 (alpacafarm: oneSided), and k3 when the KL is placed in the loss. OpenRLHF `algo.kl.estimator`, verl
    /// `algorithm.kl_penalty` (kl, mse, low_var_kl, abs), TRL `kl_estimator`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KlEstimator")]
    pub estimator: Option<KlEstimator>,
    /// Where the penalty acts: `reward` (subtracted from each token's reward) or `loss` (added to the loss, where k2 has the gradient of
    /// KL(policy || reference), k3 that of KL(reference || policy), and k1 none on average). Default reward; loss for grpo and drGrpo, but not under openrlhf. OpenRLHF `algo.kl.use_loss`, verl `algorithm.use_kl_in_reward` and
    /// `actor_rollout_ref.actor.use_kl_loss`; TRL PPO knows reward only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "KlPlacement")]
    pub placement: Option<KlPlacement>,
    /// Whether the coefficient stays (`fixed: {}`) or follows a target (`adaptive`). Exactly one of the two. Default fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<KlControllerSpec>,
    /// Bound on the absolute per-token estimate; 0 switches it off. 0 to 1000000. Default off; openrlhf 10, and verl 10 with
    /// k3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub clamp: Option<f64>,
    /// The run stops with reason Diverged when a step's mean sequence KL is above this. Above 0. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e9), extend("exclusiveMinimum" = true))]
    pub stop_above: Option<f64>,
}

/// Per-token KL estimate (Schulman's note on KL approximation).
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KlEstimator {
    /// The log-ratio: unbiased, of either sign.
    #[default]
    K1,
    /// Half the squared log-ratio.
    K2,
    /// Unbiased and never negative.
    K3,
    /// The log-ratio's absolute value.
    Abs,
    /// The log-ratio where it is positive, else 0.
    OneSided,
}

/// Where the KL penalty acts.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum KlPlacement {
    /// Subtracted from each token's reward.
    #[default]
    Reward,
    /// Added to the loss.
    Loss,
}

/// Whether the KL coefficient stays or follows a target. Exactly one of `fixed`, `adaptive`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KlControllerSpec {
    /// The coefficient stays as it is. verl `kl_ctrl.type: fixed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedKl>,
    /// The coefficient rises above the target KL and falls below it. verl `kl_ctrl.type: adaptive`, OpenRLHF with
    /// `algo.kl.target` set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKl>,
}

/// The coefficient stays as it is: `fixed: {}`.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FixedKl {}

/// After each step the coefficient is multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) x samples / horizon; under alpacafarm x 0.1,
/// whatever the horizon.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AdaptiveKl {
    /// Mean sequence KL to hold, in nats; under openrlhf and verl the mean over samples of each one's mean per token (openrlhf with
    /// the KL in the loss: the mean over the step's updates of the loss's KL term). Above 0. OpenRLHF `algo.kl.target`, verl
    /// `kl_ctrl.target_kl`.
    #[schemars(range(min = 0.0, max = 1e9), extend("exclusiveMinimum" = true))]
    pub target: f64,
    /// Samples over which the coefficient adapts: greater is slower. Above a fifth of a step's
    /// samples (but under alpacafarm), so that the coefficient stays above 0; 10000 is usual. OpenRLHF `algo.kl.horizon`, verl `kl_ctrl.horizon`.
    #[schemars(range(min = 0.0, max = 1e12), extend("exclusiveMinimum" = true))]
    pub horizon: f64,
}

/// Whose ratio to the policy before the step is clipped and weighs a token.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Ratio {
    /// Its own.
    #[default]
    Token,
    /// Its response's: the geometric mean of its tokens' (GSPO, Zheng et al. 2025).
    Sequence,
}

/// What the policy's loss takes of a ratio.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Surrogate {
    /// The ratio, clipped (PPO, Schulman et al. 2017).
    #[default]
    Clipped,
    /// The log-prob, by the clipped ratio as a weight (CISPO, MiniMax 2025).
    Cispo,
}

impl Surrogate {
    /// Whether it is the default.
    pub fn is_clipped(&self) -> bool {
        *self == Self::Clipped
    }
}

/// How far one step may move policy and value.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClipSpec {
    /// The policy ratio is clipped at 1 - this; at 1 there is no lower bound. 0 to 1. Default 0.2, in this project's own profile 0.0003 with
    /// `ratio: sequence`; 1 with `surrogate: cispo`, but under verl. OpenRLHF `actor.eps_clip` or `eps_clip_low_high`, verl
    /// `actor_rollout_ref.actor.clip_ratio_low`, TRL `epsilon`, in PPO `cliprange`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub policy_low: Option<f64>,
    /// The policy ratio is clipped at 1 + this; greater than `policyLow` is "clip higher". 0 to 1000. Default 0.2, in this project's own
    /// profile 0.0004 with `ratio: sequence`; 4 with `surrogate: cispo`, but under verl: a ratio of 5 (ScaleRL, arXiv 2510.13786). OpenRLHF
    /// `actor.eps_clip` or `eps_clip_low_high`, verl `actor_rollout_ref.actor.clip_ratio_high`, TRL `epsilon_high` (with cispo
    /// 1 less than that), in PPO `cliprange`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub policy_high: Option<f64>,
    /// Dual clip's c: with a negative advantage A the token's loss is at most -c A. Above 1, at most 1000; 0 switches it off.
    /// Default off; verl 3, but off with `ratio: sequence` or `surrogate: cispo`, which has none. OpenRLHF `actor.dual_clip`, verl `actor_rollout_ref.actor.clip_ratio_c`, TRL GRPO `delta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1000.0))]
    pub dual: Option<f64>,
    /// The new value is clipped to within this of the old one; 0 switches value clipping off. 0 to 1000000. Default 0.2;
    /// openrlhf and verl 0.5. OpenRLHF `critic.value_clip`, verl `critic.cliprange_value`, TRL `cliprange_value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub value: Option<f64>,
}

/// What happens to a sample's score before it becomes a reward: the penalty is subtracted, the result scaled, then clipped, and at
/// last the token rewards are whitened.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreSpec {
    /// Range that scores are clipped to. Default none; openrlhf [-10, 10]. OpenRLHF `reward.clip_range`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<ScoreRange>,
    /// Factor on the score. -1000000 to 1000000. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1e6, max = 1e6))]
    pub scale: Option<f64>,
    /// Subtracted from the score of a response that did not finish by an end-of-sequence token or a stop condition. 0 to
    /// 1000000. Default none. TRL `missing_eos_penalty`; related to OpenRLHF `reward.stop_properly_penalty_coef`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1e6))]
    pub missing_eos_penalty: Option<f64>,
    /// Bring the shaped per-token rewards to deviation 1, mean kept, before advantages. Used by gae and reinforcePlusPlus only.
    /// Default false; alpacafarm true. TRL `whiten_rewards`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whiten_rewards: Option<bool>,
}

/// A closed range; `min` below `max`.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ScoreRange {
    /// Scores below become this. Below `max`.
    #[schemars(range(min = -1e12, max = 1e12))]
    pub min: f64,
    /// Scores above become this. Above `min`.
    #[schemars(range(min = -1e12, max = 1e12))]
    pub max: f64,
}

/// How per-token losses become one number.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, Hash, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Aggregation {
    /// Mean over all response tokens of the update.
    #[default]
    TokenMean,
    /// Mean over samples of each sample's token mean.
    SequenceMeanTokenMean,
    /// Mean over samples of each sample's token sum.
    SequenceMeanTokenSum,
    /// Sequence mean of token sums over the longest response allowed (Dr. GRPO).
    SequenceMeanTokenSumNorm,
    /// Sum over all response tokens of the update.
    TokenSum,
    /// Mean over batch x time, padding included (AlpacaFarm).
    PaddedMean,
}
