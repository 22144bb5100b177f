//! The table of every number a step produces: our name, what it is, and the names other frameworks' dashboards use.
//!
//! An alias is given only where the other framework's number means the same. So none of these is one of ours: verl's
//! `training/rollout_probs_diff_*` compares probabilities. OpenRLHF's `train/kl` is a mean per token, its `train/return` has the
//! group's baseline taken off where there is one, and its `train/values` are those of the critic while it learns. TRL's `val/ratio_var`
//! is the variance of the micro-batches' mean ratios. AlpacaFarm's `objective/rewards` has the penalty for a missing EOS in it, its
//! `ppo/returns/mean` and `ppo/val/mean` count padding, its `ppo/loss/grad_norm` is of both models after clipping, and its
//! `objective/lr` is the next step's. Under `alpacafarm` there are also the shorter names of CS336's version of it.
//!
//! Some differ in some settings: verl divides its `perf/throughput` by the GPUs; with dynamic sampling its scores and response lengths are
//! those of the groups that it learns from, where ours are of all samples drawn; TRL's `objective/scores` have the penalty for a missing
//! EOS in them where one is set, and of what TRL's PPOTrainer takes over padding ours leave the padding out: each padded slot moves its
//! `val/ratio` towards 1 and takes 1 from its `objective/entropy`. The entropies during the updates of TRL and AlpacaFarm count what the
//! policy would say at padding.

use super::definition::{Definition, Kind, Unit};

macro_rules! catalogue {
    ($($variant:ident $name:literal $kind:ident $unit:ident
        $help:literal
        verl $verl:tt trl $trl:tt alpacafarm $alpacafarm:tt openrlhf $openrlhf:tt;)*) => {
        /// A number a step produces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Metric {
            $(#[doc = $help] $variant,)*
        }

        impl Metric {
            /// Every metric, in the order people read them.
            pub const ALL: &'static [Metric] = &[$(Metric::$variant,)*];

            pub(super) fn definition(self) -> &'static Definition {
                match self {
                    $(Metric::$variant => &Definition {
                        name: $name,
                        kind: Kind::$kind,
                        unit: Unit::$unit,
                        help: $help,
                        verl: &$verl,
                        trl: &$trl,
                        alpacafarm: &$alpacafarm,
                        openrlhf: &$openrlhf,
                    },)*
                }
            }
        }
    };
}

catalogue! {
    Reward "reward" Gauge None
        "Mean over samples of the sum of shaped token rewards: score and KL penalty together."
        verl["critic/rewards/mean"] trl["objective/rlhf_reward"] alpacafarm["objective/shaped_rewards"] openrlhf[];
    RewardMax "reward_max" Gauge None
        "Greatest sum of a sample's shaped token rewards."
        verl["critic/rewards/max"] trl[] alpacafarm[] openrlhf[];
    RewardMin "reward_min" Gauge None
        "Least sum of a sample's shaped token rewards."
        verl["critic/rewards/min"] trl[] alpacafarm[] openrlhf[];
    Score "score" Gauge None
        "Mean score of the samples drawn, as the reward role gave it."
        verl["critic/score/mean"] trl["objective/scores"] alpacafarm[] openrlhf["train/reward"];
    ScoreMax "score_max" Gauge None
        "Greatest score of a sample."
        verl["critic/score/max"] trl[] alpacafarm[] openrlhf[];
    ScoreMin "score_min" Gauge None
        "Least score of a sample."
        verl["critic/score/min"] trl[] alpacafarm[] openrlhf[];
    ScoreStd "score_std" Gauge None
        "Standard deviation of the scores."
        verl[] trl[] alpacafarm[] openrlhf[];
    GroupsEqual "groups_equal" Gauge Ratio
        "Share of the groups drawn whose samples all have the same score: they teach group estimators nothing; only with more than one sample per prompt."
        verl[] trl["frac_reward_zero_std"] alpacafarm[] openrlhf[];
    NonScoreReward "non_score_reward" Gauge None
        "Mean over samples of the reward that is not score: the KL penalty."
        verl[] trl["objective/non_score_reward"] alpacafarm["objective/non_score_rewards"] openrlhf[];
    Kl "kl" Gauge Nats
        "Mean over samples of the summed KL estimate to the reference; absent without a reference."
        verl[] trl["objective/kl"] alpacafarm["objective/kl_sum_seq"] openrlhf[];
    KlCoefficient "kl_coefficient" Gauge None
        "KL coefficient this step used."
        verl["actor/kl_coef"] trl[] alpacafarm["objective/kl_coef"] openrlhf[];
    ApproxKl "approx_kl" Gauge Nats
        "Mean KL estimate between the policy before and during the update, per token."
        verl["actor/ppo_kl"] trl["policy/approxkl_avg"] alpacafarm["ppo/policy/approxkl"] openrlhf["train/ppo_kl"];
    PolicyLoss "policy_loss" Gauge None
        "Clipped policy loss."
        verl["actor/pg_loss"] trl["loss/policy_avg"] alpacafarm["ppo/loss/policy", "loss/policy"] openrlhf["train/policy_loss"];
    ValueLoss "value_loss" Gauge None
        "Clipped value loss, before its coefficient."
        verl["critic/vf_loss"] trl["loss/value_avg"] alpacafarm["ppo/loss/value", "loss/value"] openrlhf["train/critic_loss"];
    Entropy "entropy" Gauge Nats
        "Entropy of the policy, averaged as `algorithm.aggregation` says: per token with `tokenMean`, and with `sequenceMeanTokenMean` under openrlhf."
        verl["actor/entropy"] trl["policy/entropy_avg"] alpacafarm["ppo/policy/entropy", "loss/entropy", "policy/entropy"] openrlhf[];
    SequenceEntropy "sequence_entropy" Gauge Nats
        "Mean over samples of minus the summed log-probabilities of the response's tokens before the step's updates."
        verl[] trl["objective/entropy"] alpacafarm[] openrlhf[];
    KlLoss "kl_loss" Gauge Nats
        "KL term of the loss, averaged as the entropy is, before its coefficient; only with the KL placed in the loss."
        verl["actor/kl_loss"] trl[] alpacafarm[] openrlhf[];
    TotalLoss "total_loss" Gauge None
        "What was minimised: policy, value, entropy and KL terms with their coefficients."
        verl[] trl[] alpacafarm["ppo/loss/total", "loss/total"] openrlhf[];
    ClipFraction "clip_fraction" Gauge Ratio
        "Share of tokens whose policy ratio was clipped."
        verl["actor/pg_clipfrac"] trl["policy/clipfrac_avg"] alpacafarm["ppo/policy/clipfrac"] openrlhf["train/ppo_clip_ratio"];
    DualClipFraction "dual_clip_fraction" Gauge Ratio
        "Share of tokens whose policy loss was held by the dual clip; only with `algorithm.clip.dual`."
        verl["actor/pg_clipfrac_lower"] trl[] alpacafarm[] openrlhf[];
    ValueClipFraction "value_clip_fraction" Gauge Ratio
        "Share of tokens whose value was clipped."
        verl["critic/vf_clipfrac"] trl["val/clipfrac_avg"] alpacafarm["ppo/val/clipfrac"] openrlhf[];
    RatioMean "ratio_mean" Gauge None
        "Mean probability ratio of the updated policy to the one that generated."
        verl[] trl["val/ratio"] alpacafarm["policy/ratio"] openrlhf[];
    RatioVariance "ratio_variance" Gauge None
        "Variance of the probability ratio over all tokens of the step's updates."
        verl[] trl[] alpacafarm[] openrlhf[];
    RatioMax "ratio_max" Gauge None
        "Greatest probability ratio."
        verl[] trl[] alpacafarm[] openrlhf[];
    ExplainedVariance "explained_variance" Gauge None
        "Explained variance of the returns by the critic; 1 is perfect, below 0 worse than a constant."
        verl["critic/vf_explained_var"] trl[] alpacafarm[] openrlhf[];
    ActorGradNorm "actor_grad_norm" Gauge None
        "Gradient norm of the actor before clipping."
        verl["actor/grad_norm"] trl[] alpacafarm["loss/grad_norm"] openrlhf[];
    CriticGradNorm "critic_grad_norm" Gauge None
        "Gradient norm of the critic before clipping."
        verl["critic/grad_norm"] trl[] alpacafarm[] openrlhf[];
    ActorLearningRate "actor_learning_rate" Gauge None
        "Learning rate of the actor."
        verl["actor/lr"] trl["lr"] alpacafarm[] openrlhf["train/actor_lr"];
    CriticLearningRate "critic_learning_rate" Gauge None
        "Learning rate of the critic."
        verl["critic/lr"] trl[] alpacafarm[] openrlhf["train/critic_lr"];
    AdvantageMean "advantage_mean" Gauge None
        "Mean advantage over tokens."
        verl["critic/advantages/mean"] trl[] alpacafarm["policy/advantage"] openrlhf[];
    AdvantageStd "advantage_std" Gauge None
        "Standard deviation of the advantage over tokens."
        verl[] trl[] alpacafarm[] openrlhf[];
    AdvantageMin "advantage_min" Gauge None
        "Least advantage of a token."
        verl["critic/advantages/min"] trl[] alpacafarm[] openrlhf[];
    AdvantageMax "advantage_max" Gauge None
        "Greatest advantage of a token."
        verl["critic/advantages/max"] trl[] alpacafarm[] openrlhf[];
    ReturnMean "return_mean" Gauge None
        "Mean return over tokens."
        verl["critic/returns/mean"] trl[] alpacafarm[] openrlhf[];
    ReturnStd "return_std" Gauge None
        "Standard deviation of the return over tokens."
        verl[] trl[] alpacafarm[] openrlhf[];
    ReturnMin "return_min" Gauge None
        "Least return of a token."
        verl["critic/returns/min"] trl[] alpacafarm[] openrlhf[];
    ReturnMax "return_max" Gauge None
        "Greatest return of a token."
        verl["critic/returns/max"] trl[] alpacafarm[] openrlhf[];
    ValueMean "value_mean" Gauge None
        "Mean critic value over tokens."
        verl["critic/values/mean"] trl[] alpacafarm["policy/value"] openrlhf[];
    ValueStd "value_std" Gauge None
        "Standard deviation of the critic value over tokens."
        verl[] trl[] alpacafarm[] openrlhf[];
    ValueMin "value_min" Gauge None
        "Least critic value of a token."
        verl["critic/values/min"] trl[] alpacafarm[] openrlhf[];
    ValueMax "value_max" Gauge None
        "Greatest critic value of a token."
        verl["critic/values/max"] trl[] alpacafarm[] openrlhf[];
    ResponseLength "response_length" Gauge Tokens
        "Mean length of the responses."
        verl["response_length/mean"] trl[] alpacafarm[] openrlhf["train/response_length"];
    ResponseLengthMax "response_length_max" Gauge Tokens
        "Length of the longest response."
        verl["response_length/max"] trl[] alpacafarm[] openrlhf[];
    ResponseLengthMin "response_length_min" Gauge Tokens
        "Length of the shortest response."
        verl["response_length/min"] trl[] alpacafarm[] openrlhf[];
    ResponseClipped "response_clipped" Gauge Ratio
        "Share of responses cut off at the greatest length."
        verl["response_length/clip_ratio"] trl[] alpacafarm[] openrlhf[];
    EosFinished "eos_finished" Gauge Ratio
        "Share of responses that ended by EOS or a stop condition."
        verl[] trl[] alpacafarm[] openrlhf[];
    LogprobDifference "logprob_difference" Gauge Nats
        "Mean absolute difference between the log-probabilities of the rollout engine and of the actor."
        verl[] trl[] alpacafarm[] openrlhf[];
    LogprobDifferenceMax "logprob_difference_max" Gauge Nats
        "Greatest absolute difference between the log-probabilities of the rollout engine and of the actor."
        verl[] trl[] alpacafarm[] openrlhf[];
    CorrectionOutside "correction_outside" Gauge Ratio
        "Share of response tokens whose ratio of actor to engine, taken as `algorithm.rolloutCorrection` takes it, is outside its bounds: truncated, or left out of the policy loss; only where one is set."
        verl[] trl[] alpacafarm[] openrlhf[];
    CorrectionWeight "correction_weight" Gauge None
        "Mean over response tokens of what they weigh by `algorithm.rolloutCorrection`; only where one is set."
        verl[] trl[] alpacafarm[] openrlhf[];
    Staleness "staleness" Gauge None
        "Mean over response tokens of how many policy versions the one that drew the token was behind the one that learns from it."
        verl[] trl[] alpacafarm[] openrlhf[];
    StalenessMax "staleness_max" Gauge None
        "Most policy versions that a response token was behind; never above 1, and 0 without overlap."
        verl[] trl[] alpacafarm[] openrlhf[];
    Samples "samples" Counter None
        "Samples of the step."
        verl[] trl[] alpacafarm[] openrlhf[];
    SamplesSeen "samples_seen" Gauge None
        "Samples of all steps so far, this one included."
        verl[] trl["episode"] alpacafarm[] openrlhf[];
    SamplesDrawnAgain "samples_drawn_again" Counter None
        "Samples whose engine failed before it answered: another one drew them, with the same tokens."
        verl[] trl[] alpacafarm[] openrlhf[];
    Draws "draws" Gauge None
        "How many times the step drew prompts until enough groups differed in score; only with `batch.dynamicSampling`."
        verl["train/num_gen_batches"] trl[] alpacafarm[] openrlhf[];
    PromptTokens "prompt_tokens" Counter Tokens
        "Prompt tokens of the step, each prompt counted once per sample."
        verl[] trl[] alpacafarm[] openrlhf[];
    GeneratedTokens "generated_tokens" Counter Tokens
        "Generated tokens of the step."
        verl[] trl[] alpacafarm[] openrlhf[];
    GenerationTokensPerSecond "generation_tokens_per_second" Gauge TokensPerSecond
        "Generated tokens per second, from asking for the samples until the last was there."
        verl[] trl[] alpacafarm[] openrlhf[];
    TokensPerSecond "tokens_per_second" Gauge TokensPerSecond
        "Prompt and generated tokens per second of the whole step."
        verl["perf/throughput"] trl[] alpacafarm[] openrlhf[];
    EosTokens "eos_tokens" Gauge None
        "Responses of the step that ended by EOS or a stop condition."
        verl[] trl["val/num_eos_tokens"] alpacafarm[] openrlhf[];
    EvaluationScore "evaluation_score" Gauge None
        "Mean score on the held-out prompts."
        verl[] trl[] alpacafarm[] openrlhf[];
    EvaluationPassRate "evaluation_pass_rate" Gauge Ratio
        "Share of the samples of held-out prompts that passed (pass@1)."
        verl[] trl[] alpacafarm[] openrlhf[];
    EvaluationPassAtN "evaluation_pass_at_n" Gauge Ratio
        "Share of held-out prompts of which at least one sample passed (pass@n); only with `evaluation.nSamplesPerPrompt` above 1."
        verl[] trl[] alpacafarm[] openrlhf[];
    EvaluationResponseLength "evaluation_response_length" Gauge Tokens
        "Mean length of the responses to held-out prompts."
        verl[] trl[] alpacafarm[] openrlhf[];
    Episode "episode" Gauge None
        "Passes over the prompts, this one included."
        verl[] trl[] alpacafarm[] openrlhf[];
    PolicyVersion "policy_version" Gauge None
        "Number of completed steps the policy has learnt from."
        verl[] trl[] alpacafarm[] openrlhf[];
    StepSeconds "step_seconds" Histogram Seconds
        "Wall-clock time of the step."
        verl["timing_s/step"] trl[] alpacafarm[] openrlhf[];
}
