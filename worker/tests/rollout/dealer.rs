//! A step's requests at engines that are full, or that go and come back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ppo_crds::run_config::Location;
use ppo_crds::spec::{DType, Role};
use ppo_worker::actor::parameters::Parameters;
use ppo_worker::engine::{Completion, Details, Request, SamplingParams};
use ppo_worker::model::digest::digest;
use ppo_worker::model::save::SHARD_BYTES;
use ppo_worker::model::{MergedWeights, ModelConfig, Weights, save};
use ppo_worker::pods::{Caller, Members};
use ppo_worker::roles::{Dealer, DealerOptions, Pending, Publication};
use ppo_worker::rollout::{Model, ModelSettings};
use ppo_worker::serving::Limits;
use ppo_worker::stop::StopFlag;
use ppo_worker::telemetry::Live;
use serde_json::json;
use tch::{Device, Kind, Tensor};
use tokio::runtime::Handle;

use crate::support::{LONG, Server, Wanted, make_model};

/// Tokens of a sample.
const TOKENS: usize = 400;

/// A dealer for one engine, of the weights that the engine has started with.
fn dealer(server: &Server, floor_deadline: Duration) -> Dealer {
    dealer_of(server, &server.folder.path().join("model"), 1, floor_deadline)
}

/// An attempt's dealer for one engine, of the weights in `folder` as version 0.
fn dealer_of(server: &Server, folder: &Path, attempt: u32, floor_deadline: Duration) -> Dealer {
    let config = ModelConfig::read(folder).unwrap();
    let weights = Weights::load(folder, &config, Kind::Float).unwrap();
    dealer_with(server, (&weights).into(), attempt, floor_deadline)
}

/// The same of weights that are there.
fn dealer_with(server: &Server, weights: MergedWeights, attempt: u32, floor_deadline: Duration) -> Dealer {
    let address = server.url.strip_prefix("http://").unwrap();
    let options = DealerOptions {
        members: Members::of("job", Role::Rollout, 1, address).unwrap(),
        floor: 1,
        floor_deadline,
        caller: Caller::new("none".to_owned()).unwrap(),
        publication: Publication::new(attempt),
        transfers: None,
        copies: false,
        live: Arc::new(Live::new("job", 1)),
    };
    let (runtime, stop) = (Handle::current(), StopFlag::default());
    Dealer::new(options, weights, 0, runtime, stop).unwrap()
}

/// Asks for samples of `count` prompts, one each.
fn ask(dealer: &Dealer, count: u32) -> Pending {
    dealer.start(requests(count, 1.0), LONG)
}

/// Requests for a sample of each of `count` prompts.
fn requests(count: u32, temperature: f32) -> Vec<Request> {
    let params = Arc::new(SamplingParams {
        temperature,
        top_p: 1.0,
        top_k: 0,
        min_p: 0.0,
        max_new_tokens: TOKENS,
        min_new_tokens: 0,
        stop_token_ids: Vec::new(),
        stop: Vec::new(),
        skip_special: true,
    });
    let request = |number| Request {
        prompt: [5, 6, number].into(),
        seeds: vec![u64::from(number)],
        params: params.clone(),
        details: Details::default(),
    };
    (0..count).map(request).collect()
}

/// Tokens of each sample.
fn lengths(pending: Pending) -> Vec<usize> {
    let collect = || pending.collect(&StopFlag::default(), Duration::ZERO, &Live::new("job", 1));
    let generated = tokio::task::block_in_place(collect).unwrap();
    generated
        .completions
        .iter()
        .map(|samples| samples[0].tokens.len())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_engine_refuses_is_asked_again_and_what_it_took_is_not_lost() {
    let limits = Limits {
        samples: 3,
        ..Limits::default()
    };
    let wanted = Wanted {
        limits,
        ..Wanted::default()
    };
    let server = Server::start_with(wanted).await;
    // Nothing is done before all have asked.
    server.ok("/pause?mode=keep", json!({})).await;
    let dealer = dealer(&server, LONG);
    let pending = ask(&dealer, 6);
    server.until("a refusal", async || dealer.take_drawn_again() > 0).await;
    server.ok("/resume", json!({})).await;
    assert_eq!(lengths(pending), [TOKENS; 6]);
    let drawn = server.metric("vllm:generation_tokens_total").await;
    assert_eq!(drawn, (6 * TOKENS) as f64, "no token was drawn twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_took_longer_than_engines_may_goes_on_when_one_is_made_anew() {
    let limits = Limits {
        shutdown_grace: Duration::ZERO,
        ..Limits::default()
    };
    let wanted = |address: Option<String>| Wanted {
        limits: limits.clone(),
        address,
        ..Wanted::default()
    };
    let mut server = Server::start_with(wanted(None)).await;
    let floor_deadline = Duration::from_secs(5);
    let dealer = dealer(&server, floor_deadline);
    // It has the requests, and does nothing with them for longer than engines may take to be ready.
    server.ok("/pause?mode=keep", json!({})).await;
    let pending = ask(&dealer, 2);
    server.until_busy().await;
    tokio::time::sleep(floor_deadline + Duration::from_secs(1)).await;
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.begin_stop();
    server.ended().await;
    let _anew = Server::start_with(wanted(Some(address))).await;
    assert_eq!(lengths(pending), [TOKENS; 2]);
    assert_eq!(dealer.take_drawn_again(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn greedy_answers_over_http_are_those_of_an_engine_in_the_process_and_no_logits_are_read_for_them() {
    let server = Server::start().await;
    let dealer = dealer(&server, LONG);
    let pending = dealer.start(requests(3, 0.0), LONG);
    let folder = server.folder.path().join("model");
    let mut here = ModelSettings::alone(Location::Path(folder), "here".to_owned());
    here.rollout.kv_cache_mebibytes = Some(16);
    let (far, near) = tokio::task::block_in_place(|| {
        let far = pending.collect(&StopFlag::default(), Duration::ZERO, &Live::new("job", 1));
        let engine = Model::load(&here).unwrap().engine;
        (far.unwrap(), engine.generate(requests(3, 0.0), LONG).unwrap())
    });
    assert_eq!(far.completions, near);
    assert_eq!(near[0][0].logprobs, [0.0; TOKENS]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_has_under_the_same_number_is_not_the_policy_unless_this_attempt_gave_it() {
    let server = Server::start().await;
    let drawn = |dealer: &Dealer| {
        let pending = dealer.start(requests(2, 0.0), LONG);
        let collect = || pending.collect(&StopFlag::default(), Duration::ZERO, &Live::new("job", 1));
        let generated = tokio::task::block_in_place(collect).unwrap();
        let tokens = |samples: &Vec<Completion>| samples[0].tokens.clone();
        generated.completions.iter().map(tokens).collect::<Vec<_>>()
    };
    let here = |folder: &Path| {
        let mut here = ModelSettings::alone(Location::Path(folder.to_owned()), "here".to_owned());
        here.rollout.kv_cache_mebibytes = Some(16);
        let draw = || Model::load(&here).unwrap().engine.generate(requests(2, 0.0), LONG);
        let generated = tokio::task::block_in_place(draw).unwrap();
        generated
            .iter()
            .map(|samples| samples[0].tokens.clone())
            .collect::<Vec<_>>()
    };
    // The engine's own weights, those of the first attempt and those of the second are all version 0.
    let mut before = here(&server.folder.path().join("model"));
    for attempt in [1, 2] {
        let folder = server.folder.path().join(format!("attempt-{attempt}"));
        make_model(&folder, u64::from(attempt));
        let wanted = here(&folder);
        assert_ne!(wanted, before);
        let dealer = dealer_of(&server, &folder, attempt, LONG);
        assert_eq!(drawn(&dealer), wanted, "attempt {attempt}");
        before = wanted;
    }
}

/// The policy of the first attempt, in bfloat16 and in training.
fn trained(folder: &Path) -> (Weights, Parameters) {
    let config = ModelConfig::read(folder).unwrap();
    let mut weights = Weights::load(folder, &config, Kind::BFloat16).unwrap();
    let mut parameters = Parameters::adopt(&mut weights).unwrap();
    parameters.mark_changes().unwrap();
    (weights, parameters)
}

/// Every twentieth number becomes a quarter larger.
fn step(parameters: &mut Parameters) {
    parameters.clear_marks().unwrap();
    let count = parameters.count();
    parameters
        .change_master(0, count, |weights, _| {
            let places = Tensor::arange(weights.size1()?, (Kind::Int64, Device::Cpu));
            let far = places.remainder(20).eq(0).to_kind(Kind::Float);
            let _ = weights.shallow_clone().f_mul_(&(far * 0.25 + 1.0))?;
            Ok(())
        })
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_the_version_before_gets_what_changed_and_draws_what_all_of_the_weights_draw() {
    let server = Server::start().await;
    let (weights, mut parameters) = trained(&server.folder.path().join("model"));
    let dealer = dealer_with(&server, (&weights).into(), 1, LONG);
    let draw = || {
        let pending = dealer.start(requests(2, 1.0), LONG);
        let collect = || pending.collect(&StopFlag::default(), Duration::ZERO, &Live::new("job", 1));
        tokio::task::block_in_place(collect).unwrap().completions
    };
    // The same weights in an engine that loads them.
    let here = |version: u64| {
        let folder = server.folder.path().join(format!("version-{version}"));
        let config = ModelConfig::read(&server.folder.path().join("model")).unwrap();
        let tokenizer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
        save(&folder, &tokenizer, &config, &weights, SHARD_BYTES).unwrap();
        let mut here = ModelSettings::alone(Location::Path(folder), "here".to_owned());
        (here.rollout.kv_cache_mebibytes, here.dtype) = (Some(16), Some(DType::Float32));
        let draw = || Model::load(&here).unwrap().engine.generate(requests(2, 1.0), LONG);
        tokio::task::block_in_place(draw).unwrap()
    };
    let same = |drawn: &[Vec<Completion>], wanted: &[Vec<Completion>]| {
        let of = |completions: &[Vec<Completion>]| {
            let each = completions.iter().flatten();
            each.map(|one| (one.tokens.clone(), one.logprobs.clone()))
                .collect::<Vec<_>>()
        };
        of(drawn) == of(wanted)
    };
    let publish = |parameters: &Parameters, version: u64| {
        let changed = parameters.changed().unwrap();
        tokio::task::block_in_place(|| dealer.publish((&weights).into(), changed.as_ref(), version, LONG)).unwrap();
    };
    let held = async || server.get_json("/weight_info").await;
    assert!(same(&draw(), &here(0)));
    for version in 1..4 {
        dealer.withdraw();
        step(&mut parameters);
        if version == 3 {
            // Somebody else gives it other weights: it says so, and gets all of them.
            let folder = server.folder.path().join("model");
            server
                .ok("/update_weights", json!({"path": folder, "weight_version": "7"}))
                .await;
        }
        publish(&parameters, version);
        let held = held().await;
        assert_eq!(held["weight_version"], version.to_string());
        let all = digest(&weights).unwrap().to_string();
        assert_eq!(held["digest"] == all, version == 3, "{held}");
        assert!(same(&draw(), &here(version)), "version {version}");
    }
}
