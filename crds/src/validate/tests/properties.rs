//! What holds for any numbers.

use proptest::prelude::*;

use super::*;
use crate::spec::{Estimator, Profile};
use crate::{Geometry, fill, resolve};

prop_compose! {
    /// Sizes small enough to collide often, with some of the greatest there are.
    fn any_size()(small in 0u32..50, pick in 0u32..24) -> u32 {
        match pick { 0 => u32::MAX, 1 => 1 << 20, 2 => 1 << 30, _ => small }
    }
}

prop_compose! {
    fn any_job()(
        prompts in any_size(), group in any_size(), epochs in any_size(),
        train in proptest::option::of(any_size()), micro_train in proptest::option::of(any_size()),
        micro_rollout in proptest::option::of(any_size()),
        actor in (any_size(), any_size()), reference in (any_size(), any_size()),
        replicas in any_size(), min_replicas in any_size(),
        profile in proptest::sample::select(vec![Profile::Default, Profile::Verl]),
        estimator in proptest::sample::select(vec![Estimator::Gae, Estimator::Rloo]),
    ) -> PpoJob {
        let mut job = job("", RULE);
        let batch = &mut job.spec.batch;
        (batch.rollout_batch_size, batch.n_samples_per_prompt, batch.ppo_epochs) = (prompts, group, epochs);
        (batch.train_batch_size, batch.micro_train_batch_size, batch.micro_rollout_batch_size) = (train, micro_train, micro_rollout);
        let roles = &mut job.spec.roles;
        (roles.actor.nodes, roles.actor.gpus_per_node) = actor;
        (roles.reference.nodes, roles.reference.gpus_per_node) = reference;
        (roles.rollout.replicas, roles.rollout.min_replicas) = (replicas, min_replicas);
        job.spec.algorithm.profile = profile;
        job.spec.algorithm.advantage.estimator = estimator;
        job
    }
}

prop_compose! {
    /// Mostly valid: few ranks and engines.
    fn small_job()(
        prompts in 1u32..65, group in 1u32..9, train in proptest::option::of(1u32..129),
        micro_train in proptest::option::of(1u32..9), micro_rollout in proptest::option::of(1u32..9),
        actor in 0u32..5, reference in 0u32..5, replicas in 1u32..5,
    ) -> PpoJob {
        let mut job = job("", RULE);
        let batch = &mut job.spec.batch;
        (batch.rollout_batch_size, batch.n_samples_per_prompt) = (prompts, group);
        (batch.train_batch_size, batch.micro_train_batch_size, batch.micro_rollout_batch_size) = (train, micro_train, micro_rollout);
        job.spec.roles.actor.gpus_per_node = actor;
        job.spec.roles.reference.gpus_per_node = reference;
        job.spec.roles.rollout.replicas = replicas;
        job
    }
}

fn check_fixes(job: &PpoJob) {
    let before = problems(job);
    for problem in &before {
        for fix in &problem.fixes {
            let after = problems(&fixed(job, fix));
            assert!(
                count(&after, &problem.field) < count(&before, &problem.field),
                "{problem}\nafter {fix:?}: {after:?}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn no_numbers_make_validation_or_the_arithmetic_panic(job in any_job()) {
        let valid = problems(&job).is_empty();
        let _ = warnings(&job);
        prop_assert!(!valid || Geometry::of(&job).is_some());
    }

    #[test]
    fn a_valid_job_has_a_geometry_whose_products_give_back_the_batch(job in small_job()) {
        prop_assume!(problems(&job).is_empty());
        let geometry = Geometry::of(&job).unwrap();
        let batch = fill(&job).spec.batch;
        let (train, micro) = (u64::from(batch.train_batch_size.unwrap()), u64::from(batch.micro_train_batch_size.unwrap()));
        prop_assert_eq!(geometry.updates_per_epoch * train, geometry.samples_per_step);
        prop_assert_eq!(geometry.accumulation_steps * micro * geometry.actor_ranks, train);
        prop_assert_eq!(geometry.prompts_per_engine * u64::from(job.spec.roles.rollout.replicas), u64::from(batch.rollout_batch_size));
        prop_assert!(resolve(&job, &Environment::cluster()).is_ok());
    }

    #[test]
    fn every_suggestion_fits_when_it_is_followed(job in prop_oneof![any_job(), small_job()]) {
        check_fixes(&job);
    }

    #[test]
    fn filling_twice_changes_nothing_and_a_filled_job_runs_as_the_short_one(job in prop_oneof![any_job(), small_job()]) {
        let filled = fill(&job);
        prop_assert_eq!(&fill(&filled), &filled);
        let environment = Environment::cluster();
        if let Ok(config) = resolve(&job, &environment) {
            prop_assert_eq!(resolve(&filled, &environment), Ok(config));
        }
    }
}
