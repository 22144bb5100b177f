use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt;
use ppo_crds::run_config::{Location, Reward, RewardModel};
use serde_json::Value;
use tokio::net::TcpListener;

use super::*;
use crate::data::Prompt;
use crate::engine::FinishReason;
use crate::reward::{ModelReward, RemoteOptions, RemoteReward, ScoredSample, SequenceScorer};
use crate::rollout::stand_in::taken;
use crate::serving::{Doors, serve};

fn tokenizer() -> Arc<Tokenizer> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
    Arc::new(Tokenizer::load(&folder).unwrap())
}

fn source(rules: Value) -> RewardSource {
    RewardSource::new(
        &Reward {
            model: None,
            rules: serde_json::from_value(rules).unwrap(),
            remote: None,
        },
        None,
    )
    .unwrap()
}

/// A server without sources.
fn empty(token: Option<&str>, limits: &Limits) -> Service {
    let door = Door::new(token, true).at(std::net::Ipv4Addr::LOCALHOST.into());
    Service::new("test", door, limits).unwrap()
}

fn service(token: Option<&str>, limits: &Limits, rules: Value) -> Service {
    let service = empty(token, limits);
    service.ready(source(rules), Some(tokenizer())).unwrap();
    service
}

/// Doors on free ports of this machine; the URLs without a path, the role's own and that of the probes.
async fn doors(service: Service) -> (Doors, String, String) {
    let limits = service.0.limits.clone();
    let bind = || async { TcpListener::bind("127.0.0.1:0").await.unwrap() };
    let (own, probes) = (bind().await, bind().await);
    let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
    let urls = (url(&own), url(&probes));
    let doors = Doors {
        api: (own, api(&service)),
        observed: Some((probes, observed(&service))),
        limits,
    };
    (doors, urls.0, urls.1)
}

/// Serves on this machine; the URL without a path.
async fn listen(service: Service) -> String {
    both(service).await.0
}

async fn both(service: Service) -> (String, String) {
    let (doors, url, probes) = doors(service).await;
    tokio::spawn(serve(doors, std::future::pending(), std::future::pending()));
    (url, probes)
}

/// Status and JSON of a POST.
async fn post(url: &str, body: impl Into<String>, token: Option<&str>) -> (u16, Value) {
    let client = crate::http_client::builder().build().unwrap();
    let mut request = client
        .post(url)
        .header("content-type", "application/json")
        .body(body.into());
    if let Some(token) = token {
        request = request.header("authorization", token);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn get(url: &str) -> u16 {
    let client = crate::http_client::builder().build().unwrap();
    client.get(url).send().await.unwrap().status().as_u16()
}

fn exact() -> Value {
    json!([{"exactMatch": {}}])
}

#[tokio::test]
async fn a_request_of_openrlhf_is_scored_at_both_paths() {
    let url = listen(service(None, &Limits::default(), exact())).await;
    let body = json!({
        "query": ["<|im_start|>2+2?4<|im_end|>", "<|endoftext|><|im_start|>3+3?7"],
        "prompts": ["<|im_start|>2+2?", "<|im_start|>3+3?"],
        "labels": ["4", "6"],
    });
    let wanted = json!({"rewards": [1.0, 0.0], "scores": [1.0, 0.0], "extra_logs": {"reward/exactMatch": [1.0, 0.0]}});
    for path in ["/", "/get_reward"] {
        assert_eq!(
            post(&format!("{url}{path}"), body.to_string(), None).await,
            (200, wanted.clone())
        );
    }
}

#[tokio::test]
async fn a_server_of_this_machine_scores_for_no_web_page_that_calls_it_by_a_name_of_its_own() {
    let url = listen(service(None, &Limits::default(), exact())).await;
    let client = crate::http_client::builder().build().unwrap();
    let request = client
        .post(&url)
        .json(&json!({"query": ["4"], "prompts": [""], "labels": ["4"]}));
    let rebound = request.header("host", "evil.example:5000").send().await.unwrap();
    assert_eq!(rebound.status(), 403);
}

#[tokio::test]
async fn a_path_or_method_that_it_has_not_is_told_in_words() {
    let url = listen(service(None, &Limits::default(), exact())).await;
    let client = crate::http_client::builder().build().unwrap();
    for (path, status) in [("/get_rewards", 404), ("/get_reward", 405)] {
        let answer = client.get(format!("{url}{path}")).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        let said: Value = answer.json().await.unwrap();
        assert!(said["error"]["message"].as_str().unwrap().contains(path), "{said}");
    }
}

#[tokio::test]
async fn the_old_form_with_queries_alone_is_scored_as_a_whole() {
    let rules = json!([{"regex": {"pattern": "^a.*4$"}}]);
    let url = listen(service(None, &Limits::default(), rules)).await;
    let (status, answer) = post(&url, json!({"query": ["a 4<|im_end|>", "b 4"]}).to_string(), None).await;
    assert_eq!((status, &answer["rewards"]), (200, &json!([1.0, 0.0])));
    assert_eq!(
        post(&url, json!({"query": []}).to_string(), None).await.1["rewards"],
        json!([])
    );
}

#[tokio::test]
async fn rules_read_the_response_behind_a_prompt_that_was_decoded_otherwise_or_cut() {
    let rules = json!([{"regex": {"pattern": "^4$"}}]);
    let url = listen(service(None, &Limits::default(), rules)).await;
    let body = json!({
        "query": ["<|im_start|>What is 2+2?\n4<|im_end|>", "<|endoftext|> of all that was said, what is 2+2? 4"],
        "prompts": ["<|im_start|> What is 2+2 ?\n", "Now, of all that was said, what is 2+2?"],
    });
    let (status, answer) = post(&url, body.to_string(), None).await;
    assert_eq!((status, &answer["rewards"]), (200, &json!([1.0, 1.0])), "{answer}");
}

#[tokio::test]
async fn our_client_and_our_server_agree_with_scoring_in_place() {
    let rules = json!([{"weight": 2, "numericMatch": {}}, {"length": {"max": 3, "slope": 10}}]);
    let url = listen(service(Some("secret"), &Limits::default(), rules.clone())).await;
    let tokenizer = tokenizer();
    let samples: Vec<_> = (0..10)
        .map(|index| {
            let ids = tokenizer.encode("What is it?", true).unwrap();
            let prompt = Prompt {
                index,
                text: "What is it?".into(),
                ids: ids.into(),
                label: Some("3".into()),
                ..Prompt::default()
            };
            let response = format!("{} is {index}<|im_end|>", "it ".repeat(index));
            let ids = tokenizer.encode(&response, false).unwrap();
            ScoredSample::new(&tokenizer, index, &prompt, &ids, FinishReason::Stop).unwrap()
        })
        .collect();
    let spec = json!({"urls": [format!("{url}/get_reward"), url], "batchSize": 3});
    let options = RemoteOptions {
        token: Some("secret".into()),
        ..RemoteOptions::from(&serde_json::from_value::<ppo_crds::spec::RemoteRewardSpec>(spec).unwrap())
    };
    let remote = RemoteReward::new(options).unwrap().score(&samples).await.unwrap();
    let here = source(rules).score(&samples).await.unwrap();
    assert_eq!(remote.scores, here.scores);
    assert!(here.scores.iter().any(|score| *score > 2.0) && here.scores.iter().any(|score| *score < 1.0));
    for (name, values) in here.extra {
        assert_eq!(remote.extra[&name], values, "{name}");
    }
}

#[tokio::test]
async fn requests_that_are_wrong_are_told_why() {
    let limits = Limits {
        body_bytes: 500,
        samples: 3,
        ..Limits::default()
    };
    let url = listen(service(None, &limits, exact())).await;
    let cases = [
        ("{", 400, "EOF"),
        ("{}", 400, "missing field `query`"),
        ("{\"query\": \"x\"}", 400, "invalid type"),
        (
            "{\"query\": [\"x\"], \"prompts\": []}",
            422,
            "prompts has 0 entries for 1 queries",
        ),
        (
            "{\"query\": [\"x\"], \"labels\": [\"1\", \"2\"]}",
            422,
            "labels has 2 entries for 1 queries",
        ),
        (
            "{\"query\": [\"x\"], \"policy\": {\"tokenizer\": \"t\", \"prompt_ids\": [], \"response_ids\": [[1]], \
             \"visible_prompts\": [\"\"], \"visible_responses\": [\"x\"]}}",
            422,
            "policy.prompt_ids has 0 entries for 1 queries",
        ),
        (
            "{\"query\": [\"x\"], \"prompts\": [\"y\"]}",
            422,
            "query[0] does not contain prompts[0]",
        ),
        (
            "{\"query\": [\"x\"], \"labels\": [null]}",
            422,
            "labels[0]: rule exactMatch needs a label",
        ),
        (
            "{\"query\": [\"x\", \"x\", \"x\", \"x\"]}",
            413,
            "4 queries in one request, at most 3",
        ),
    ];
    for (body, status, message) in cases {
        let (found, answer) = post(&url, body, None).await;
        let text = answer["error"]["message"].as_str().unwrap();
        assert!(
            found == status && text.contains(message),
            "{body}: {found} {text} wants {status} {message}"
        );
        assert_eq!(answer["error"]["code"], status);
    }
    let (status, answer) = post(&url, json!({"query": ["x".repeat(1000)]}).to_string(), None).await;
    assert_eq!(status, 413, "{answer}");
}

#[tokio::test]
async fn a_token_guards_scores_and_not_probes() {
    let (url, probes) = both(service(Some("secret"), &Limits::default(), exact())).await;
    let body = || json!({"query": []}).to_string();
    for token in [
        None,
        Some("Bearer wrong"),
        Some("secret"),
        Some("Basic secret"),
        Some("Bearer"),
    ] {
        assert_eq!(post(&url, body(), token).await.0, 401, "{token:?}");
    }
    assert_eq!(post(&url, body(), Some("Bearer secret")).await.0, 200);
    assert_eq!(post(&url, body(), Some("bearer secret")).await.0, 200);
    assert_eq!(get(&format!("{url}/healthz")).await, 200);
    assert_eq!(get(&format!("{url}/readyz")).await, 401);
    for path in ["healthz", "readyz", "metrics"] {
        assert_eq!(get(&format!("{probes}/{path}")).await, 200, "{path}");
    }
}

#[tokio::test]
async fn a_server_whose_model_still_loads_is_alive_and_not_ready() {
    let service = empty(None, &Limits::default());
    let url = listen(service.clone()).await;
    assert_eq!(
        (
            get(&format!("{url}/healthz")).await,
            get(&format!("{url}/readyz")).await
        ),
        (200, 503)
    );
    assert_eq!(post(&url, json!({"query": []}).to_string(), None).await.0, 503);
    service.ready(source(exact()), None).unwrap();
    assert_eq!(get(&format!("{url}/readyz")).await, 200);
    assert!(service.ready(source(exact()), None).is_err());
}

#[test]
fn a_rule_that_counts_tokens_needs_a_tokenizer() {
    let service = empty(None, &Limits::default());
    let error = service
        .ready(source(json!([{"length": {"max": 3}}])), None)
        .unwrap_err();
    assert!(error.to_string().contains("counts tokens"), "{error}");
}

/// A source whose calls hang: a remote that accepts and never answers. And what is told when a call has come that far.
async fn hanging() -> (RewardSource, Arc<tokio::sync::Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let called = Arc::new(tokio::sync::Notify::new());
    let caller = called.clone();
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok(connection) = listener.accept().await {
            open.push(connection);
            caller.notify_one();
        }
    });
    let remote = serde_json::from_value(json!({"urls": [url]})).unwrap();
    let reward = Reward {
        model: None,
        rules: Vec::new(),
        remote: Some(remote),
    };
    (RewardSource::new(&reward, None).unwrap(), called)
}

#[tokio::test]
async fn scoring_that_takes_too_long_is_answered_and_shutdown_does_not_wait_for_it() {
    let quick = Limits {
        request_timeout: Duration::from_millis(30),
        ..Limits::default()
    };
    let service = empty(None, &quick);
    service.ready(hanging().await.0, None).unwrap();
    let (status, answer) = post(&listen(service).await, json!({"query": ["x"]}).to_string(), None).await;
    assert_eq!(status, 504);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("not scored within 0.03 s"),
        "{answer}"
    );

    let hurried = Limits {
        shutdown_grace: Duration::from_millis(20),
        ..Limits::default()
    };
    let service = empty(None, &hurried);
    let (source, called) = hanging().await;
    service.ready(source, None).unwrap();
    let (doors, url, _) = doors(service).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async { drop(stopped.await) };
    let serving = tokio::spawn(serve(doors, std::future::pending(), shutdown));
    let client = crate::http_client::builder().build().unwrap();
    let call = tokio::spawn(client.post(&url).json(&json!({"query": ["x"]})).send());
    called.notified().await;
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(20), serving)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    call.abort();
}

#[tokio::test]
async fn a_source_that_fails_is_the_servers_error() {
    let remote = serde_json::from_value(json!({"urls": ["http://127.0.0.1:9/"], "maxRetries": 0})).unwrap();
    let source = RewardSource::new(
        &Reward {
            model: None,
            rules: Vec::new(),
            remote: Some(remote),
        },
        None,
    )
    .unwrap();
    let service = empty(None, &Limits::default());
    service.ready(source, None).unwrap();
    let (status, answer) = post(&listen(service).await, json!({"query": ["x"]}).to_string(), None).await;
    assert_eq!(status, 500);
    assert!(
        answer["error"]["message"].as_str().unwrap().contains("cannot connect"),
        "{answer}"
    );
}

/// A model that likes everything.
struct Fond;

impl SequenceScorer for Fond {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        Ok(vec![1.0; sequences.len()])
    }
}

/// A server of a model and nothing else.
fn of_model(model: ModelReward) -> Service {
    let reward = Reward {
        model: Some(RewardModel {
            source: Location::Path("unused".into()),
            weight: 1.0,
            dtype: None,
        }),
        rules: Vec::new(),
        remote: None,
    };
    let model = crate::reward::Reward::Here(model);
    let service = empty(None, &Limits::default());
    service
        .ready(RewardSource::new(&reward, Some(model)).unwrap(), None)
        .unwrap();
    service
}

#[tokio::test]
async fn a_query_that_is_longer_than_any_sequence_may_be_is_refused_by_its_place_and_both_lengths() {
    let model = ModelReward::new(vec![Box::new(Fond)], tokenizer(), 3).unwrap();
    let url = listen(of_model(model.made_for(8).refusing_beyond(5))).await;
    for (query, begins, most) in [
        // As many tokens as words at the least.
        (
            "a b c d e f g h i j".to_owned(),
            "query[1] has 1",
            "a sequence has at most 8 here",
        ),
        (
            "x".repeat(1 << 20),
            "query[1] is a text of 1048576 bytes;",
            "at most 8 tokens here",
        ),
    ] {
        let (status, answer) = post(&url, json!({"query": ["x", query]}).to_string(), None).await;
        let words = answer["error"]["message"].as_str().unwrap();
        assert!(
            status == 422 && words.starts_with(begins) && words.contains(most),
            "{status} {words}"
        );
    }
    let (status, answer) = post(&url, json!({"query": ["x", "a b"]}).to_string(), None).await;
    assert_eq!((status, &answer["rewards"]), (200, &json!([1.0, 1.0])));
    let (status, answer) = post(&url, json!({"query": ["x", ""]}).to_string(), None).await;
    let words = answer["error"]["message"].as_str().unwrap();
    assert!(
        status == 422 && words.starts_with("query[1] is an empty text,"),
        "{status} {words}"
    );
}

#[test]
fn what_is_asked_is_read_aside_so_that_probes_are_answered_meanwhile() {
    let service = service(None, &Limits::default(), exact());
    let (runtime, give_back) = taken();
    runtime.block_on(async {
        let unlabelled = json!({"query": ["x"], "labels": [null]}).to_string();
        let request = Request::post("/").header("content-type", "application/json");
        let request = request.body(Body::from(unlabelled)).unwrap();
        let mut asking = Box::pin(score(State(service), request));
        assert!(asking.as_mut().now_or_never().is_none());
        drop(give_back);
        let refused = asking.await.unwrap_err();
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    });
}

#[tokio::test]
async fn an_answer_says_which_model_scored_and_a_model_alone_needs_no_prompt() {
    let model = ModelReward::new(vec![Box::new(Fond)], tokenizer(), 100).unwrap();
    let service = of_model(model.with_digest("12ab".into()));
    let query = json!({"query": ["x"], "prompts": ["y"]}).to_string();
    let (_, answer) = post(&listen(service).await, query, None).await;
    assert_eq!(
        (&answer["rewards"], &answer["model_digest"]),
        (&json!([1.0]), &json!("12ab"))
    );
    let rules = listen(self::service(None, &Limits::default(), json!([{"json": {}}]))).await;
    let (_, answer) = post(&rules, json!({"query": ["x"]}).to_string(), None).await;
    assert!(
        answer["rewards"].is_array() && answer.get("model_digest").is_none(),
        "{answer}"
    );
}
