use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::StreamExt;
use serde_json::{Value, json};
use tch::Tensor;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::*;
use crate::engine::hash_runner::request;
use crate::model::Weights;
use crate::pods::Member;
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

    /// The same with engines that have the weights, and answer requests and their probe each in its way.
    fn with(engines: Vec<Router>) -> Self {
        let (runtime, publication) = (Runtime::new().unwrap(), Publication::default());
        let mut members = Vec::new();
        for (index, router) in engines.into_iter().enumerate() {
            let loaded = LoadedWeights::of(publication.policy(3));
            let router = router.route("/weight_info", get(move || async move { Json(loaded) }));
            members.push(runtime.block_on(Member::serving(&format!("job-rollout-{index}"), router)));
        }
        Self::of((members, Duration::from_secs(60)), false, runtime, publication)
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
        let mut caller = Caller::new("token".into()).unwrap();
        caller.probe_every = Duration::from_millis(10);
        let options = DealerOptions {
            members: Members::Fixed(engines),
            floor: 1,
            floor_deadline,
            caller,
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
        .publish((&bench.trained).into(), None, 4, Duration::ZERO)
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
    let silent = Router::new()
        .route("/health", get(|| async {}))
        .route("/v1/completions", post(std::future::pending::<()>));
    let bench = Bench::with(vec![silent]);
    let pending = bench.dealer.start(vec![request(1, 0..1, 1)], Duration::from_secs(1));
    let collected = pending.collect(&bench.dealer.stop, Duration::ZERO, &Live::new("test", 1));
    let words = collected.unwrap_err().to_string();
    assert!(
        words.starts_with("1 requests were not answered within 1 s; ") && words.contains("job-rollout-0"),
        "{words}"
    );
}

/// A token for each seed, of version 3.
fn answer(question: &Value) -> Json<Value> {
    let choice = |index: usize| {
        json!({"index": index, "finish_reason": "length", "token_ids": [1], "logprobs": {"token_logprobs": [-0.5]},
               "weight_versions": [{"version": "3", "start": 0, "end": 1}]})
    };
    let seeds = question["seeds"].as_array().unwrap().len();
    Json(json!({"choices": (0..seeds).map(choice).collect::<Vec<_>>()}))
}

#[test]
fn what_an_engine_holds_that_says_it_is_stuck_is_drawn_by_another() {
    let (ask, asked) = watch::channel(false);
    let hold = move || {
        ask.send_replace(true);
        std::future::pending::<()>()
    };
    let stuck = Router::new()
        .route("/health", get(|| async { StatusCode::SERVICE_UNAVAILABLE }))
        .route("/v1/completions", post(hold));
    // It answers once the other one has its share.
    let draw = move |Json(question): Json<Value>| {
        let mut asked = asked.clone();
        async move {
            asked.wait_for(|asked| *asked).await.unwrap();
            answer(&question)
        }
    };
    let well = Router::new()
        .route("/health", get(|| async {}))
        .route("/v1/completions", post(draw));
    let bench = Bench::with(vec![stuck, well]);
    let requests = (1..5).map(|length| request(length, 0..2, 1)).collect();
    let pending = bench.dealer.start(requests, Duration::from_secs(60));
    let collected = pending.collect(&bench.dealer.stop, Duration::ZERO, &Live::new("test", 1));
    let completions = collected.unwrap().completions;
    assert!(completions.len() == 4 && completions.iter().all(|samples| samples.len() == 2));
    assert!(bench.dealer.take_drawn_again() > 0);
}
