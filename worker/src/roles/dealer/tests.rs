use axum::routing::{get, post};
use axum::{Json, Router};
use futures::StreamExt;
use tch::Tensor;
use tokio::runtime::Runtime;

use super::*;
use crate::engine::hash_runner::request;
use crate::model::Weights;
use crate::roles::Member;
use crate::rollout::weights::LoadedWeights;

struct Bench {
    runtime: Runtime,
    publication: Publication,
    /// The tensors that are trained.
    trained: Weights,
    dealer: Dealer,
}

impl Bench {
    /// A dealer of version 3 without engines.
    fn new(copies: bool) -> Self {
        let (runtime, publication) = (Runtime::new().unwrap(), Publication::default());
        Self::of((Vec::new(), Duration::from_millis(1)), copies, runtime, publication)
    }

    /// The same with one engine, which has the weights and answers no request.
    fn with_a_silent_engine() -> Self {
        let (runtime, publication) = (Runtime::new().unwrap(), Publication::default());
        let loaded = LoadedWeights::of(publication.policy(3));
        let router = Router::new()
            .route("/weight_info", get(move || async move { Json(loaded) }))
            .route("/v1/completions", post(std::future::pending::<()>));
        let engine = runtime.block_on(Member::serving("job-rollout-0", router));
        Self::of((vec![engine], Duration::from_secs(60)), false, runtime, publication)
    }

    /// Of engines that have so long to be ready.
    fn of(
        (engines, floor_deadline): (Vec<Member>, Duration),
        copies: bool,
        runtime: Runtime,
        publication: Publication,
    ) -> Self {
        let mut trained = Weights::default();
        trained.0.insert("w".into(), Tensor::from_slice(&[1.0f32, 2.0]));
        let options = DealerOptions {
            members: Members::Fixed(engines),
            floor: 1,
            floor_deadline,
            caller: Caller::new("token".into()).unwrap(),
            publication: publication.clone(),
            transfers: None,
            copies,
            live: Arc::new(Live::new("test", 1)),
        };
        let dealer = Dealer::new(
            options,
            (&trained).into(),
            3,
            runtime.handle().clone(),
            StopFlag::default(),
        );
        Self {
            runtime,
            publication,
            trained,
            dealer: dealer.unwrap(),
        }
    }

    /// As an update of the trained tensors does.
    fn update(&self) {
        self.dealer.withdraw();
        let _ = self.trained.0["w"].shallow_clone().fill_(7.0);
    }

    /// What an engine that asks for a version gets.
    fn fetched(&self, version: u64) -> Option<Vec<u8>> {
        self.runtime.block_on(async {
            let pieces = self.publication.stream(version).unwrap()?;
            Some(pieces.map(|piece| piece.unwrap()).concat().await)
        })
    }
}

#[test]
fn an_engine_that_starts_during_an_update_gets_the_version_that_it_draws_ahead_with() {
    let bench = Bench::new(true);
    let before = bench.fetched(3).unwrap();
    bench.update();
    assert_eq!(bench.fetched(3), Some(before.clone()));
    bench
        .dealer
        .publish((&bench.trained).into(), 4, Duration::ZERO)
        .unwrap();
    assert_eq!(bench.fetched(3), None);
    assert_ne!(bench.fetched(4).unwrap(), before);
}

#[test]
fn without_overlap_what_is_published_is_no_copy_and_nobody_reads_it_during_an_update() {
    let bench = Bench::new(false);
    assert!(bench.fetched(3).is_some());
    bench.update();
    assert_eq!(bench.fetched(3), None);
}

#[test]
fn samples_that_are_asked_for_ahead_fail_when_they_are_collected_and_say_why() {
    let bench = Bench::new(true);
    let collect = |requests| {
        let pending = bench.dealer.start(requests, Duration::from_secs(60));
        pending.collect(&bench.dealer.stop, Duration::ZERO, &Live::new("test", 1))
    };
    assert!(collect(Vec::new()).unwrap().completions.is_empty());
    let words = collect(vec![request(1, 0..1, 1)]).unwrap_err().to_string();
    assert!(words.contains("roles.rollout.minReplicas is 1"), "{words}");
}

#[test]
fn a_step_whose_time_is_over_names_the_engine_that_had_its_requests() {
    let bench = Bench::with_a_silent_engine();
    let pending = bench.dealer.start(vec![request(1, 0..1, 1)], Duration::from_secs(1));
    let collected = pending.collect(&bench.dealer.stop, Duration::ZERO, &Live::new("test", 1));
    let words = collected.unwrap_err().to_string();
    assert!(
        words.starts_with("1 requests were not answered within 1 s; ") && words.contains("job-rollout-0"),
        "{words}"
    );
}
