//! One step's updates on one, two and four ranks.

use std::path::Path;
use std::sync::Arc;

use ppo_crds::manifest::parse_manifest;
use ppo_crds::run_config::RunConfig;
use ppo_crds::spec::{Aggregation, Estimator};
use ppo_crds::{Environment, resolve};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::Device;

use super::*;
use crate::actor::pieces::{Pieces, columns};
use crate::actor::rows::{mask, padded_rows};
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::ppo::shape::{ShapeInput, shape};
use crate::ranks::tests::together;
use crate::run::learners;
use crate::stages::Sample;

const SAMPLES: usize = 16;
const COLUMNS: usize = 9;
/// The longest prompt of [`Known`].
const PROMPT: usize = 2 + COLUMNS / 2;

/// A run on the tiny Llama of the fixtures. The optimizer's epsilon is so large that an update is as smooth as its gradient, and its
/// rate so that rounding shows.
fn config(train: usize, micro: usize, dtype: &str) -> RunConfig {
    let manifest = format!(
        "{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: test}}, spec: {{\
         model: {{policy: {{path: llama}}, dtype: {dtype}}}, prompts: {{source: {{path: prompts.jsonl}}, maxLength: {PROMPT}}}, \
         generation: {{maxNewTokens: {COLUMNS}}}, algorithm: {{kl: {{coef: 0.05, placement: loss}}, entropyCoef: 0.01}}, \
         batch: {{rolloutBatchSize: {SAMPLES}, nSamplesPerPrompt: 1, trainBatchSize: {train}, microTrainBatchSize: {micro}, \
         microRolloutBatchSize: 4, ppoEpochs: 2}}, \
         optimizer: {{actorLearningRate: 0.5, criticLearningRate: 0.5, epsilon: 0.5, maxGradNorm: 0.1}}, steps: 1, \
         roles: {{actor: {{gpusPerNode: 0}}, reference: {{gpusPerNode: 0}}, rollout: {{gpusPerReplica: 0}}, \
         reward: {{rules: [{{json: {{}}}}]}}}}}}}}"
    );
    let job = parse_manifest(&manifest, "test").unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let here = Environment::Laptop {
        manifest_folder: fixtures,
    };
    resolve(&job, &here).unwrap()
}

/// Ragged samples and everything that is known of them; `shuffled` in another order.
struct Known {
    samples: Vec<Sample>,
    /// Old, engine's and reference log-probs, advantages, returns, values of each sample's tokens.
    numbers: [Vec<Vec<f32>>; 6],
}

impl Known {
    fn new(shuffled: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        let mut rows: Vec<(Sample, [Vec<f32>; 6])> = (0..SAMPLES)
            .map(|_| {
                let length = random.random_range(1..=COLUMNS);
                let mut ids = |count: usize| -> Vec<u32> { (0..count).map(|_| random.random_range(3..96)).collect() };
                let sample = Sample {
                    prompt: Prompt {
                        ids: ids(2 + length / 2).into(),
                        ..Prompt::default()
                    },
                    group: 0,
                    response: ids(length),
                    rollout_logprobs: Vec::new(),
                    versions: Vec::new(),
                    finish_reason: FinishReason::Stop,
                };
                let mut numbers =
                    |low: f32, high: f32| -> Vec<f32> { (0..length).map(|_| random.random_range(low..high)).collect() };
                let old = numbers(-5.0, -4.0);
                let known = [
                    old.clone(),
                    old.clone(),
                    old,
                    numbers(-2.0, 2.0),
                    numbers(-1.0, 1.0),
                    numbers(-0.1, 0.1),
                ];
                (sample, known)
            })
            .collect();
        if shuffled {
            rows.shuffle(&mut random);
        }
        let numbers = std::array::from_fn(|which| rows.iter().map(|(_, known)| known[which].clone()).collect());
        Self {
            samples: rows.into_iter().map(|(sample, _)| sample).collect(),
            numbers,
        }
    }

    fn lesson(&self) -> Lesson<'_> {
        let tensor = |which: usize| padded_rows(&self.numbers[which], COLUMNS);
        Lesson {
            samples: &self.samples,
            mask: mask(&self.samples, COLUMNS),
            old_logprobs: tensor(0),
            rollout_logprobs: tensor(1),
            reference_logprobs: Some(tensor(2)),
            advantages: tensor(3),
            returns: tensor(4),
            values: Some(tensor(5)),
        }
    }
}

/// The tiny Llama of the fixtures as actor and critic of a rank, which computes on one thread.
fn begin(config: &RunConfig, ranks: &Ranks) -> (Actor, Critic) {
    tch::set_num_threads(1);
    let llama = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama");
    let (actor, critic) = learners(config, &llama, None, 1, ranks).unwrap();
    (actor, critic.unwrap())
}

/// Old log-probabilities and values of the samples, as the forward stage asks for them. A pass is kept where it can be.
fn score(
    actor: &mut Actor,
    critic: &mut Critic,
    (config, ranks): (&RunConfig, &Ranks),
    samples: &[Sample],
) -> [Tensor; 2] {
    let live = Arc::new(Live::new("test", 1));
    let pieces = Pieces::of(config, 0, samples, COLUMNS, ranks.count(), &live);
    let scored = [
        actor.old_logprobs(&pieces, ranks, config).unwrap(),
        critic.old_values(&pieces, ranks).unwrap(),
    ];
    let keeps = config.keeps_first_pass(ranks.count() as u64);
    assert_eq!([actor.kept.is_some(), critic.kept.is_some()], [keeps; 2]);
    scored
}

/// Weights of policy and critic after one step, and what the step says of itself, of every rank.
fn learn(count: usize, config: &RunConfig, shuffled: bool) -> Vec<(Vec<f32>, [Option<f64>; 5])> {
    learn_after(count, config, shuffled, |_, _, _, _| ())
}

/// The same after `before`, which gets actor, critic and samples.
fn learn_after(
    count: usize,
    config: &RunConfig,
    shuffled: bool,
    before: impl Fn(&mut Actor, &mut Critic, &Ranks, &[Sample]) + Sync,
) -> Vec<(Vec<f32>, [Option<f64>; 5])> {
    together(count, |ranks| {
        let known = Known::new(shuffled);
        let (mut actor, mut critic) = begin(config, &ranks);
        before(&mut actor, &mut critic, &ranks, &known.samples);
        let update = Update {
            config,
            step: 0,
            kl_coefficient: 0.05,
            lesson: &known.lesson(),
            ranks: &ranks,
            live: &Live::new("test", 1),
        };
        let learnt = update.run(&mut actor, Some(&mut critic)).unwrap();
        assert!(actor.kept.is_none() && critic.kept.is_none());
        let flat = |weights: crate::model::Weights| {
            let tensors: Vec<Tensor> = weights.0.into_values().map(|tensor| tensor.reshape([-1])).collect();
            Tensor::cat(&tensors, 0).to_kind(Kind::Float).to_device(Device::Cpu)
        };
        let both = [
            flat(actor.learner.parameters.weights()),
            flat(critic.learner.parameters.weights()),
        ];
        let numbers = [
            learnt.policy_loss(),
            learnt.value_loss(),
            learnt.actor_grad_norm(),
            learnt.critic_grad_norm(),
            Some(learnt.policy_stats.ratio_max),
        ];
        (Vec::<f32>::try_from(Tensor::cat(&both, 0)).unwrap(), numbers)
    })
}

fn close(left: &[f32], right: &[f32], tolerance: f32) {
    let greatest = left
        .iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max);
    assert!(greatest <= tolerance, "differ by {greatest}");
}

#[test]
fn one_two_and_four_ranks_and_any_micro_batch_make_the_same_updates_up_to_rounding() {
    let start = learn(
        1,
        &{
            let mut still = config(8, 2, "float32");
            still.optimizer.actor_learning_rate = 0.0;
            still.optimizer.critic_learning_rate = 0.0;
            still
        },
        false,
    );
    let (alone, numbers) = learn(1, &config(8, 2, "float32"), false).remove(0);
    let moved = alone
        .iter()
        .zip(&start[0].0)
        .map(|(after, before)| (after - before).abs());
    assert!(
        moved.fold(0.0, f32::max) > 1e-2,
        "the updates are too small to tell anything"
    );
    for (count, micro) in [(1, 8), (2, 1), (2, 4), (4, 1), (4, 2)] {
        same(count, &config(8, micro, "float32"), &(alone.clone(), numbers));
    }
}

/// Every rank of `count` ends with these weights and says these numbers, but for rounding.
fn same(count: usize, config: &RunConfig, (alone, numbers): &(Vec<f32>, [Option<f64>; 5])) {
    for (weights, its) in learn(count, config, false) {
        close(&weights, alone, 2e-5);
        for (its, alone) in its.iter().zip(numbers) {
            let (its, alone) = (its.unwrap(), alone.unwrap());
            assert!(
                (its - alone).abs() <= 1e-4 * alone.abs().max(1e-2),
                "{count} ranks: {its} for {alone}"
            );
        }
    }
}

#[test]
fn a_mean_over_padding_has_the_same_padding_in_any_micro_batch_and_on_any_number_of_ranks() {
    let padded = |micro: usize| {
        let mut config = config(8, micro, "float32");
        config.algorithm.aggregation = Aggregation::PaddedMean;
        config
    };
    let alone = learn(1, &padded(8), false).remove(0);
    for (count, micro) in [(1, 1), (2, 2)] {
        same(count, &padded(micro), &alone);
    }
}

#[test]
fn trls_mean_over_sequences_is_the_same_in_any_micro_batch_and_on_any_number_of_ranks() {
    let rloo = |micro: usize| {
        let mut config = config(8, micro, "float32");
        (config.algorithm.profile, config.algorithm.estimator) = (Profile::Trl, Estimator::Rloo);
        config
    };
    let alone = learn(1, &rloo(8), false).remove(0);
    for (count, micro) in [(1, 1), (1, 2), (2, 2)] {
        same(count, &rloo(micro), &alone);
    }
}

#[test]
fn only_alpacafarm_pads_to_the_longest_response_allowed() {
    let columns_of = |profile: Profile, allowed: u32| {
        let mut config = config(8, 2, "float32");
        config.algorithm.profile = profile;
        config.generation.max_new_tokens = allowed;
        columns(&config, &Known::new(false).samples)
    };
    let longest = Known::new(false)
        .samples
        .iter()
        .map(|sample| sample.response.len())
        .max()
        .unwrap();
    assert_eq!(columns_of(Profile::Alpacafarm, 50), 50);
    for profile in [Profile::Default, Profile::Openrlhf, Profile::Verl, Profile::Trl] {
        assert_eq!(columns_of(profile, 50), longest);
    }
}

#[test]
fn under_trl_only_responses_shorter_than_the_longest_have_their_score_and_a_value_in_a_slot_of_its_own() {
    let mut config = config(8, 2, "float32");
    config.algorithm.profile = Profile::Trl;
    config.generation.max_new_tokens = 50;
    let samples = Known::new(false).samples;
    let time = columns(&config, &samples);
    let mask = mask(&samples, time);
    let input = ShapeInput {
        old_logprobs: &mask,
        ref_logprobs: None,
        mask: &mask,
        scores: &Tensor::ones([SAMPLES as i64], (Kind::Float, Device::Cpu)),
        finished: None,
        lengths: None,
    };
    let rewards = shape(&config.algorithm, 0.0, &input).unwrap().rewards;
    let valued = value_mask(Profile::Trl, &mask).unwrap();
    let mut full = 0;
    for (row, sample) in samples.iter().enumerate() {
        let (row, length) = (row as i64, sample.response.len());
        full += usize::from(length == time);
        let place = length.min(time - 1) as i64;
        assert_eq!(rewards.double_value(&[row, place]), 1.0);
        assert_eq!(valued.get(row).sum(Kind::Int64).int64_value(&[]), place + 1);
    }
    assert!((1..SAMPLES).contains(&full));
}

#[test]
fn all_ranks_hold_the_same_bits_and_the_same_number_of_ranks_gives_them_again() {
    for dtype in ["float32", "bfloat16"] {
        let first = learn(2, &config(8, 2, dtype), false);
        assert!(first[0] == first[1], "{dtype}: the ranks differ");
        assert!(
            learn(2, &config(8, 2, dtype), false) == first,
            "{dtype}: a second run differs"
        );
    }
}

#[test]
fn the_order_of_the_samples_of_one_update_does_not_matter() {
    let config = config(SAMPLES, 2, "float32");
    let in_order = learn(2, &config, false).remove(0).0;
    close(&learn(2, &config, true).remove(0).0, &in_order, 2e-5);
}

#[test]
fn bfloat16_on_two_ranks_is_as_close_to_one_as_its_precision_allows() {
    let alone = learn(1, &config(8, 4, "bfloat16"), false).remove(0).0;
    let shared = learn(2, &config(8, 4, "bfloat16"), false).remove(0).0;
    close(&shared, &alone, 2e-2);
}

#[test]
fn every_rank_knows_which_numbers_of_the_policy_a_step_changed() {
    let config = config(8, 4, "bfloat16");
    for count in [1, 2, 3] {
        together(count, |ranks| {
            let known = Known::new(false);
            let (mut actor, mut critic) = begin(&config, &ranks);
            actor.mark_changes(&config).unwrap();
            for step in 0..2 {
                let before = actor.learner.parameters.weights().deep_clone().unwrap();
                let update = Update {
                    config: &config,
                    step,
                    kl_coefficient: 0.05,
                    lesson: &known.lesson(),
                    ranks: &ranks,
                    live: &Live::new("test", 1),
                };
                update.run(&mut actor, Some(&mut critic)).unwrap();
                let changed = actor.learner.parameters.changed().unwrap().unwrap();
                let after = actor.learner.parameters.weights();
                let mut differs = 0;
                for (name, range) in changed.places {
                    let mut marked = Vec::new();
                    let bits = changed.marks.read().unwrap();
                    bits.each(range, |places| marked.extend(places)).unwrap();
                    let differ = before.0[&name]
                        .ne_tensor(&after.0[&name])
                        .view([-1])
                        .nonzero()
                        .view([-1]);
                    let differ = Vec::<i64>::try_from(differ).unwrap();
                    differs += differ.len();
                    // A number that an update moved and the next moved back is marked too.
                    assert!(differ.iter().all(|place| marked.binary_search(place).is_ok()), "{name}");
                    let extra = marked.len() - differ.len();
                    assert!(extra <= marked.len() / 2, "{extra} of {} in {name}", marked.len());
                }
                assert!(differs > 0);
            }
        });
    }
}

#[test]
fn a_step_that_keeps_its_first_pass_makes_the_updates_of_one_that_does_not() {
    let alone = learn(1, &config(8, 2, "float32"), false).remove(0).0;
    for (count, micro) in [(1, 2), (1, 8), (2, 4), (4, 2)] {
        let config = config(8, micro, "float32");
        let scored = learn_after(count, &config, false, |actor, critic, ranks, samples| {
            drop(score(actor, critic, (&config, ranks), samples));
        });
        scored.iter().for_each(|(weights, _)| close(weights, &alone, 2e-5));
    }
}

#[test]
fn what_is_kept_or_not_the_old_log_probabilities_and_values_are_the_same_up_to_rounding() {
    let scored = |count: usize, micro: usize| {
        let config = config(8, micro, "float32");
        let of_ranks = together(count, |ranks| {
            let (mut actor, mut critic) = begin(&config, &ranks);
            let known = Known::new(false);
            let both = score(&mut actor, &mut critic, (&config, &ranks), &known.samples);
            assert!(both.iter().all(|tensor| !tensor.requires_grad()));
            Vec::<f32>::try_from(Tensor::stack(&both, 0).reshape([-1])).unwrap()
        });
        of_ranks.into_iter().next().unwrap()
    };
    let none = scored(1, 2);
    assert!(none.iter().filter(|number| **number != 0.0).count() > SAMPLES);
    for (count, micro) in [(1, 8), (2, 4), (4, 2)] {
        close(&scored(count, micro), &none, 2e-5);
    }
}

#[test]
fn an_update_takes_the_pass_that_is_kept_and_no_other_steps() {
    let mut config = config(SAMPLES, SAMPLES, "float32");
    config.batch.ppo_epochs = 1;
    // Far from what the weights say, so that it can be told apart.
    let ratio = |of_step: u64| {
        let all = learn_after(1, &config, false, |actor, critic, ranks, samples| {
            drop(score(actor, critic, (&config, ranks), samples));
            for kept in [&mut actor.kept, &mut critic.kept].into_iter().flatten() {
                kept.pass.0 = &kept.pass.0 * 0.0 + 3.0;
                kept.step = of_step;
            }
        });
        all[0].1[4].unwrap()
    };
    // Old log-probabilities are -5 to -4.
    assert!(ratio(0) > (3.0f64 + 4.0).exp());
    assert!(ratio(1) < (3.0f64 + 4.0).exp());
}

/// Entropy and gradient norm of one update in which nothing else is learnt from; its pass is kept from before where `keeps`.
fn entropy_alone(profile: Profile, temperature: f64, coefficient: f64, keeps: bool) -> [f64; 2] {
    let mut config = config(SAMPLES, SAMPLES, "float32");
    (config.algorithm.profile, config.generation.temperature) = (profile, temperature);
    (config.algorithm.entropy_coef, config.batch.ppo_epochs) = (coefficient, 1);
    let ranks = Ranks::alone();
    let (mut actor, mut critic) = begin(&config, &ranks);
    let mut known = Known::new(false);
    known.numbers[3]
        .iter_mut()
        .flatten()
        .for_each(|advantage| *advantage = 0.0);
    if keeps {
        drop(score(&mut actor, &mut critic, (&config, &ranks), &known.samples));
    }
    let lesson = Lesson {
        reference_logprobs: None,
        ..known.lesson()
    };
    let update = Update {
        config: &config,
        step: 0,
        kl_coefficient: 0.0,
        lesson: &lesson,
        ranks: &ranks,
        live: &Live::new("test", 1),
    };
    let learnt = update.run(&mut actor, None).unwrap();
    [learnt.entropy(), learnt.actor_grad_norm()].map(Option::unwrap)
}

#[test]
fn under_openrlhf_the_temperature_changes_neither_the_entropy_that_is_measured_nor_what_is_learnt_from_it() {
    let near = |left: f64, right: f64| (left - right).abs() <= 1e-5 * right.abs();
    for coefficient in [0.0, 0.01] {
        for keeps in [false, true] {
            let of = |profile, temperature| entropy_alone(profile, temperature, coefficient, keeps);
            let untempered = of(Profile::Default, 1.0);
            let [entropy, norm] = of(Profile::Openrlhf, 0.25);
            assert!(near(entropy, untempered[0]), "{entropy} for {}", untempered[0]);
            assert!(near(norm, untempered[1]), "{norm} for {}", untempered[1]);
            let [entropy, norm] = of(Profile::Default, 0.25);
            assert!(entropy < untempered[0] - 1e-3, "{entropy} for {}", untempered[0]);
            assert_eq!(
                coefficient > 0.0,
                !near(norm, untempered[1]),
                "{norm} for {}",
                untempered[1]
            );
        }
    }
}

#[test]
fn the_policys_loss_is_told_without_the_entropy_and_the_kl_of_the_whole_loss() {
    let told = |entropy_coef: f64| {
        let mut still = config(8, 2, "float32");
        still.optimizer.actor_learning_rate = 0.0;
        still.algorithm.entropy_coef = entropy_coef;
        let (_, [policy, ..]) = learn(1, &still, false).remove(0);
        policy.unwrap()
    };
    let (without, with) = (told(0.0), told(3.0));
    assert!((without - with).abs() < 1e-6, "{without} and {with}");
}

#[test]
fn a_step_that_diverges_names_the_stage_the_step_and_the_number() {
    let config = config(SAMPLES, SAMPLES, "float32");
    let ranks = Ranks::alone();
    // Advantages are the actor's, returns the critic's.
    for (which, words) in [
        (3, "update_actor of step 1: diverged in step 1: the policy loss is NaN"),
        (4, "update_critic of step 1: diverged in step 1: the value loss is NaN"),
    ] {
        let mut known = Known::new(false);
        known.numbers[which][0][0] = f32::NAN;
        let (mut actor, mut critic) = begin(&config, &ranks);
        let update = Update {
            config: &config,
            step: 0,
            kl_coefficient: 0.05,
            lesson: &known.lesson(),
            ranks: &ranks,
            live: &Live::new("test", 1),
        };
        let error = update.run(&mut actor, Some(&mut critic)).unwrap_err();
        assert!(error.is::<Diverged>());
        let said = format!("{error:#}");
        assert!(said.starts_with(words), "{said}");
    }
}

/// What one step learns that leaves out the samples that `truncated` names, whose advantages, returns and old numbers are `theirs`.
fn learn_without(truncated: impl Fn(usize) -> bool, theirs: f32, profile: Profile) -> (Vec<f32>, [Option<f64>; 3]) {
    let mut config = config(8, 2, "float32");
    config.algorithm.profile = profile;
    let ranks = Ranks::alone();
    let (mut actor, mut critic) = begin(&config, &ranks);
    let mut known = Known::new(false);
    for at in (0..SAMPLES).filter(|&at| truncated(at)) {
        known.samples[at].finish_reason = FinishReason::Length;
        let numbers = known.numbers.iter_mut().flat_map(|of_samples| &mut of_samples[at]);
        numbers.for_each(|number| *number = theirs);
    }
    let lesson = known.lesson().without_truncated().unwrap();
    let update = Update {
        config: &config,
        step: 0,
        kl_coefficient: 0.05,
        lesson: &lesson,
        ranks: &ranks,
        live: &Live::new("test", 1),
    };
    let learnt = update.run(&mut actor, Some(&mut critic)).unwrap();
    let weights = [actor.learner.parameters.weights(), critic.learner.parameters.weights()];
    let tensors = weights.into_iter().flat_map(|weights| weights.0.into_values());
    let flat: Vec<Tensor> = tensors
        .map(|tensor| tensor.reshape([-1]).to_kind(Kind::Float))
        .collect();
    let numbers = [
        learnt.policy_loss(),
        learnt.value_loss(),
        Some(learnt.policy_stats.count),
    ];
    (Vec::<f32>::try_from(Tensor::cat(&flat, 0)).unwrap(), numbers)
}

#[test]
fn nothing_is_learnt_from_a_response_that_was_cut_off_where_those_are_left_out() {
    let third = |at: usize| at.is_multiple_of(3);
    for profile in [Profile::Default, Profile::Trl] {
        let (weights, numbers) = learn_without(third, 0.5, profile);
        let (others, other_numbers) = learn_without(third, -3.0, profile);
        assert_eq!(numbers, other_numbers, "{profile:?}");
        close(&weights, &others, 0.0);

        let samples = Known::new(false).samples;
        let kept = samples.iter().enumerate().filter(|(at, _)| !third(*at));
        let kept: usize = kept.map(|(_, sample)| sample.response.len()).sum();
        assert_eq!(numbers[2], Some(2.0 * kept as f64), "of two epochs");

        let (all, numbers) = learn_without(|_| true, 0.5, profile);
        assert_eq!(numbers, [Some(0.0); 3], "{profile:?}");
        let nothing_learnt = learn_without(|_| true, -3.0, profile).0;
        close(&all, &nothing_learnt, 0.0);
        assert!(all.iter().all(|weight| weight.is_finite()) && all != weights);
    }
}
