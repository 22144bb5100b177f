use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::ListenerExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::data::Label;

/// A server on this machine; `answer` gets the number of the call, counted from 0, and the samples' queries.
async fn server<F, R>(answer: F) -> (String, Arc<AtomicUsize>)
where
    F: Fn(usize, Vec<String>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response> + Send,
{
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let handler = move |body: Bytes| async move {
        let request: ScoreRequest = serde_json::from_slice(&body).unwrap();
        answer(counter.fetch_add(1, Ordering::SeqCst), request.query).await
    };
    (listen(Router::new().route("/get_reward", post(handler))).await, calls)
}

async fn listen(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/get_reward", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

/// A URL on which nothing listens.
async fn dead() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}/get_reward", listener.local_addr().unwrap())
}

fn options(urls: &[&String]) -> RemoteOptions {
    RemoteOptions {
        urls: urls.iter().map(|url| url.to_string()).collect(),
        // For ordinary work on a busy machine: who waits for it sets its own.
        timeout: Duration::from_secs(60),
        max_retries: 3,
        max_concurrency: 2,
        batch_size: 2,
        max_body_bytes: 10_000,
        backoff_base: Duration::from_millis(1),
        backoff_cap: Duration::from_millis(50),
        token: None,
    }
}

/// Samples 100, 101, ..; the response of each is its number.
fn samples(count: usize) -> Vec<ScoredSample> {
    let sample = |index: usize| ScoredSample {
        index,
        prompt: "n=".into(),
        visible_prompt: "n=".into(),
        messages: None,
        moment: None,
        has_ended: true,
        tokenizer: None,
        response: index.to_string(),
        visible_response: index.to_string(),
        prompt_ids: Vec::new().into(),
        response_ids: Vec::new(),
        label: index.is_multiple_of(2).then(|| "even".into()),
    };
    (100..100 + count).map(sample).collect()
}

/// Scores each query by the number in it.
fn good(query: &[String]) -> Response {
    let rewards: Vec<f64> = query.iter().map(|text| text[2..].parse().unwrap()).collect();
    axum::Json(json!({"rewards": rewards})).into_response()
}

async fn score(options: RemoteOptions, count: usize) -> Result<Scores, String> {
    let remote = RemoteReward::new(options).unwrap();
    remote
        .score(&samples(count))
        .await
        .map_err(|error| format!("{error:#}"))
}

fn numbers(count: usize) -> Vec<f32> {
    (100..100 + count).map(|number| number as f32).collect()
}

#[tokio::test]
async fn samples_are_spread_over_urls_and_scores_keep_their_order() {
    let ((first, first_calls), (second, second_calls)) = (
        server(|_, query| async move { good(&query) }).await,
        server(|_, query| async move { good(&query) }).await,
    );
    assert_eq!(score(options(&[&first, &second]), 9).await.unwrap().scores, numbers(9));
    assert_eq!(
        (first_calls.load(Ordering::SeqCst), second_calls.load(Ordering::SeqCst)),
        (3, 2)
    );
    // Fewer samples than a batch each still use both.
    let wide = RemoteOptions {
        batch_size: 64,
        ..options(&[&first, &second])
    };
    assert_eq!(score(wide, 9).await.unwrap().scores, numbers(9));
    assert_eq!(
        (first_calls.load(Ordering::SeqCst), second_calls.load(Ordering::SeqCst)),
        (4, 3)
    );
}

#[tokio::test]
async fn a_call_carries_query_prompts_labels_and_the_token() {
    let seen = Arc::new(Mutex::new(None));
    let store = seen.clone();
    let handler = move |headers: HeaderMap, axum::Json(body): axum::Json<Value>| async move {
        *store.lock() = Some((headers["authorization"].to_str().unwrap().to_owned(), body));
        axum::Json(json!({"rewards": [1, 2]}))
    };
    let url = listen(Router::new().route("/get_reward", post(handler))).await;
    score(
        RemoteOptions {
            token: Some("secret".into()),
            ..options(&[&url])
        },
        2,
    )
    .await
    .unwrap();
    let (authorization, body) = seen.lock().take().unwrap();
    assert_eq!(authorization, "Bearer secret");
    assert_eq!(
        body,
        json!({"query": ["n=100", "n=101"], "prompts": ["n=", "n="], "labels": ["even", null]})
    );
}

#[tokio::test]
async fn a_label_is_sent_as_the_row_has_it() {
    let seen = Arc::new(Mutex::new(Value::Null));
    let store = seen.clone();
    let handler = move |axum::Json(body): axum::Json<Value>| async move {
        *store.lock() = body["labels"].clone();
        axum::Json(json!({"rewards": [1, 2, 3]}))
    };
    let url = listen(Router::new().route("/get_reward", post(handler))).await;
    let labels = json!([{"tests": ["a", 1.5]}, 42, null]);
    let mut samples = samples(3);
    for (sample, label) in samples.iter_mut().zip(labels.as_array().unwrap()) {
        sample.label = Label::of(label.clone()).unwrap();
    }
    let remote = RemoteReward::new(RemoteOptions {
        batch_size: 3,
        ..options(&[&url])
    });
    remote.unwrap().score(&samples).await.unwrap();
    assert_eq!(*seen.lock(), labels);
}

#[tokio::test]
async fn what_can_pass_is_tried_again() {
    for status in [500, 502, 503, 408, 429] {
        let (url, calls) = server(move |call, query| async move {
            if call == 0 {
                StatusCode::from_u16(status).unwrap().into_response()
            } else {
                good(&query)
            }
        })
        .await;
        assert_eq!(score(options(&[&url]), 2).await.unwrap().scores, numbers(2), "{status}");
        assert_eq!(calls.load(Ordering::SeqCst), 2, "{status}");
    }
}

#[tokio::test]
async fn what_cannot_pass_is_not_tried_again_and_names_everything() {
    for status in [400, 401, 404, 422, 302] {
        let (url, calls) =
            server(
                move |_, _| async move { (StatusCode::from_u16(status).unwrap(), "no  such\nmodel").into_response() },
            )
            .await;
        let error = score(options(&[&url]), 2).await.unwrap_err();
        for part in [
            &url,
            &status.to_string(),
            "samples 100 to 101",
            "try 1 of 4; not tried again",
            "\"no such model\"",
        ] {
            assert!(error.contains(part), "{error} wants {part}");
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{status}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_error_says_which_url_to_put_into_the_manifest() {
    for (status, target) in [
        (301, "/v2/get_reward"),
        (307, "https://reward.example/get_reward"),
        (308, "get_reward/"),
    ] {
        let answer = move || (StatusCode::from_u16(status).unwrap(), [(LOCATION, target)]).into_response();
        let (url, calls) = server(move |_, _| async move { answer() }).await;
        let error = score(options(&[&url]), 2).await.unwrap_err();
        let whole = Url::parse(&url).unwrap().join(target).unwrap();
        let words = format!(
            "it redirects to {whole}, and redirects are not followed; if that is the reward server, put it into roles.reward.remote.urls"
        );
        assert!(error.contains(&words) && error.contains(&status.to_string()), "{error}");
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{status}");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_asked_for_again_and_one_that_is_no_json_is_not() {
    let broken = |number: usize| match number {
        0 => r#"{"rewards": [1.0, 2."#,
        _ => r#"{"rewards": [1.0, 2.0]}"#,
    };
    let (url, calls) = server(move |number, _| async move { broken(number).into_response() }).await;
    assert_eq!(score(options(&[&url]), 2).await.unwrap().scores, [1.0, 2.0]);
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    for answer in ["", "rewards: [1.0]"] {
        let (url, calls) = server(move |_, _| async move { answer.into_response() }).await;
        score(options(&[&url]), 2).await.unwrap_err();
        assert_eq!(calls.load(Ordering::SeqCst), 1, "{answer:?}");
    }
}

#[tokio::test]
async fn a_user_and_a_password_in_a_url_are_sent_and_not_shown() {
    let answer = |headers: HeaderMap| async move {
        let given = headers
            .get(AUTHORIZATION)
            .is_some_and(|value| value == "Basic anVkZ2U6c2VjcmV0");
        if given {
            StatusCode::BAD_GATEWAY
        } else {
            StatusCode::UNAUTHORIZED
        }
    };
    let url = listen(Router::new().route("/get_reward", post(answer))).await;
    let url = url.replace("http://", "http://judge:secret@");
    let error = score(options(&[&url]), 1).await.unwrap_err();
    assert!(
        error.contains("remote reward http://***@127.0.0.1") && error.contains("502 Bad Gateway"),
        "{error}"
    );
    assert!(!error.contains("judge") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_failure_that_lasts_ends_after_the_last_try() {
    let (url, calls) = server(|_, _| async { (StatusCode::BAD_GATEWAY, "down").into_response() }).await;
    let error = score(options(&[&url]), 1).await.unwrap_err();
    assert!(
        error.contains("(try 4 of 4): ") && error.contains("502 Bad Gateway: answer begins \"down\""),
        "{error}"
    );
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn a_server_that_hangs_meets_the_deadline() {
    let (url, calls) = server(|call, query| async move {
        if call == 0 {
            std::future::pending::<()>().await;
        }
        good(&query)
    })
    .await;
    // Long enough for a call that does not hang.
    let hanging_once = RemoteOptions {
        timeout: Duration::from_secs(2),
        ..options(&[&url])
    };
    assert_eq!(score(hanging_once, 1).await.unwrap().scores, numbers(1));
    assert!(calls.load(Ordering::SeqCst) >= 2);

    let (url, _) = server(|_, _| std::future::pending()).await;
    let short = RemoteOptions {
        timeout: Duration::from_millis(200),
        max_retries: 0,
        ..options(&[&url])
    };
    let error = score(short, 1).await.unwrap_err();
    assert!(error.contains("no complete answer within 200ms"), "{error}");
}

#[tokio::test]
async fn an_answer_that_drips_meets_the_deadline() {
    let (url, _) = server(|_, _| async {
        let drops = futures::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Some((Ok::<_, std::io::Error>(" "), ()))
        });
        Body::from_stream(drops).into_response()
    })
    .await;
    let short = RemoteOptions {
        timeout: Duration::from_millis(60),
        max_retries: 1,
        ..options(&[&url])
    };
    let error = score(short, 1).await.unwrap_err();
    assert!(error.contains("no complete answer within 60ms"), "{error}");
}

#[tokio::test]
async fn a_dead_url_beside_a_living_one_costs_nothing_but_a_try() {
    let (dead, (live, calls)) = (dead().await, server(|_, query| async move { good(&query) }).await);
    assert_eq!(score(options(&[&dead, &live]), 6).await.unwrap().scores, numbers(6));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let error = score(options(&[&dead]), 1).await.unwrap_err();
    assert!(
        error.contains(&dead) && error.contains("cannot connect: Connection refused"),
        "{error}"
    );
}

#[tokio::test]
async fn every_answer_counts_as_progress_and_a_server_that_is_asked_again_is_named() {
    let (url, calls) = server(|call, query| async move {
        match call {
            1 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            2 => std::future::pending().await,
            _ => good(&query),
        }
    })
    .await;
    let mut remote = RemoteReward::new(RemoteOptions {
        max_concurrency: 1,
        ..options(&[&url])
    })
    .unwrap();
    let live = Arc::new(Live::new("test", 1));
    remote.report_to(live.clone());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let asked = std::time::Instant::now();
    let samples = samples(4);
    let hangs = async {
        while calls.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = remote.score(&samples) => panic!("the second batch hangs"),
        in_time = tokio::time::timeout(Duration::from_secs(50), hangs) => in_time.unwrap(),
    }
    let report = live.report();
    assert!(report.seconds_since_progress < asked.elapsed().as_secs_f64());
    assert_eq!(report.waiting_for, url);
}

#[tokio::test]
async fn a_server_that_answers_again_is_waited_for_no_longer() {
    let (url, _) = server(|call, query| async move {
        match call {
            0 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            _ => good(&query),
        }
    })
    .await;
    let mut remote = RemoteReward::new(options(&[&url])).unwrap();
    let live = Arc::new(Live::new("test", 1));
    remote.report_to(live.clone());
    remote.score(&samples(1)).await.unwrap();
    assert_eq!(live.report().waiting_for, "");
}

#[tokio::test]
async fn a_connection_that_was_idle_is_left_to_the_server_that_may_be_closing_it() {
    let connections = Arc::new(AtomicUsize::new(0));
    let counter = connections.clone();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/get_reward", listener.local_addr().unwrap());
    let listener = listener.tap_io(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let router = Router::new().route("/get_reward", post(|| async { axum::Json(json!({"rewards": [1]})) }));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let remote = RemoteReward::new(options(&[&url])).unwrap();
    let samples = samples(1);
    remote.score(&samples).await.unwrap();
    tokio::time::sleep(UVICORN_IDLE + Duration::from_millis(200)).await;
    remote.score(&samples).await.unwrap();
    assert_eq!(connections.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn retry_after_is_obeyed_up_to_the_cap() {
    let (url, calls) = server(|call, query| async move {
        let busy = [(RETRY_AFTER, if call == 0 { "0.2" } else { "3600" })];
        if call < 2 {
            (StatusCode::TOO_MANY_REQUESTS, busy).into_response()
        } else {
            good(&query)
        }
    })
    .await;
    // Waits of its own would be a few milliseconds.
    let options = RemoteOptions {
        backoff_cap: Duration::from_millis(300),
        ..options(&[&url])
    };
    let began = std::time::Instant::now();
    let scoring = tokio::time::timeout(Duration::from_secs(60), score(options, 1));
    let scores = scoring.await.expect("an hour is longer than the cap").unwrap();
    assert!(began.elapsed() >= Duration::from_millis(200 + 300));
    assert_eq!(scores.scores, numbers(1));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn answers_that_are_not_scores_are_refused() {
    let cases = [
        (
            "{\"rewards\": [1]}",
            "rewards has 1 numbers for 2 samples; a server that scores one sample a call needs roles.reward.remote.batchSize: 1",
        ),
        ("{\"rewards\": 0.5}", "batchSize: 1"),
        (" [1, 2]", "the answer is a list; want {\"rewards\": [number, ..]}"),
        ("{\"rewards\": [1, 2, 3]}", "rewards has 3 numbers for 2 samples"),
        (
            "{\"rewards\": [1, null]}",
            "rewards of sample 101 is null, want a finite number",
        ),
        (
            "{\"rewards\": [1, 1e300]}",
            "rewards of sample 101 is 1e300, want a finite number",
        ),
        ("{\"rewards\": [NaN, 1]}", "scores must be finite"),
        ("{\"scores\": []}", "scores has 0 numbers for 2 samples"),
        ("{\"reward\": [1, 2]}", "neither \"rewards\" nor \"scores\""),
        ("<html>proxy</html>", "want {\"rewards\": [number, ..]}"),
        ("", "(empty answer)"),
    ];
    for (body, message) in cases {
        let (url, calls) = server(move |_, _| async move { body.into_response() }).await;
        let error = score(options(&[&url]), 2).await.unwrap_err();
        assert!(
            error.contains(message)
                && error.contains(&url)
                && error.contains("not tried again")
                && error.contains("200 OK"),
            "{error} wants {message}"
        );
        assert_eq!(calls.load(Ordering::SeqCst), 1, "the same answer would come again");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_cut_off() {
    let (url, _) = server(|_, _| async {
        Body::from_stream(futures::stream::repeat_with(|| {
            Ok::<_, std::io::Error>("x".repeat(1000))
        }))
        .into_response()
    })
    .await;
    let error = score(options(&[&url]), 1).await.unwrap_err();
    assert!(error.contains("longer than 10000 bytes"), "{error}");
}

#[tokio::test]
async fn what_a_server_declares_as_optional_may_be_null() {
    let (url, _) = server(|_, query| async move {
        axum::Json(json!({"rewards": vec![1.0; query.len()], "scores": null, "extra_logs": null})).into_response()
    })
    .await;
    assert_eq!(score(options(&[&url]), 3).await.unwrap().scores, [1.0; 3]);
}

#[tokio::test]
async fn extra_logs_are_kept_for_every_sample() {
    let (url, _) = server(|call, query| async move {
        let name = ["a", "b"][call];
        axum::Json(json!({"rewards": vec![-1; query.len()], "scores": vec![0.5; query.len()], "extra_logs": {name: 3, "short": true}}))
            .into_response()
    })
    .await;
    let one = RemoteOptions {
        max_concurrency: 1,
        ..options(&[&url])
    };
    let scores = score(one, 3).await.unwrap();
    assert_eq!(scores.scores, [-1.0; 3], "rewards are what is optimised");
    assert_eq!(scores.extra["scores"], [0.5; 3]);
    assert_eq!(scores.compared, [0.5; 3], "scores are what groups are left out by");
    assert_eq!(scores.extra["a"][..2], [3.0, 3.0]);
    assert_eq!(scores.extra["short"], [1.0; 3], "true is 1, as in a list");
    assert!(scores.extra["a"][2].is_nan() && scores.extra["b"][0].is_nan() && scores.extra["b"][2] == 3.0);
}

#[tokio::test]
async fn a_further_log_that_does_not_fit_is_left_out_and_ends_no_run() {
    for (logs, why) in [
        (
            json!({"x": [1, "2"]}),
            "extra_logs.x has the string \"2\", want finite numbers",
        ),
        (json!({"x": "true"}), "extra_logs.x has the string \"true\", want"),
        (json!({"x": [[1], [2]]}), "extra_logs.x has the list [1], want"),
        (json!({"x": [1, 1e300]}), "extra_logs.x has the number 1e+300, want"),
        (json!({"x": [1], "y": {}}), "extra_logs.x has 1 numbers for 2 samples"),
        (
            json!([1, 2]),
            "extra_logs is the list [1,2], want {\"name\": [number, ..]}",
        ),
    ] {
        let mut answer = json!({"rewards": [1, 2], "extra_logs": logs});
        let read = read_answer(answer.to_string().as_bytes(), &samples(2)).unwrap();
        assert_eq!(read.scores, Scores::of(vec![1.0, 2.0]), "{logs}");
        let left_out = read.left_out.unwrap();
        assert!(left_out.starts_with(why), "{left_out}");

        // The others stay.
        if logs.is_object() {
            answer["extra_logs"]["z"] = json!([3, true]);
            let (url, _) = server(move |_, _| {
                let answer = answer.clone();
                async move { axum::Json(answer).into_response() }
            })
            .await;
            let scores = score(options(&[&url]), 2).await.unwrap();
            assert_eq!(scores.scores, [1.0, 2.0]);
            assert_eq!(
                scores.extra.into_iter().collect::<Vec<_>>(),
                [("z".to_owned(), vec![3.0, 1.0])]
            );
        }
    }
}

#[test]
fn null_in_a_further_log_is_a_sample_without_a_number() {
    let answer = json!({"rewards": [1, 2], "extra_logs": {"some": [null, 3], "none": null}});
    let read = read_answer(answer.to_string().as_bytes(), &samples(2)).unwrap();
    assert_eq!(read.left_out, None);
    let (some, none) = (&read.scores.extra["some"], &read.scores.extra["none"]);
    assert!(some[0].is_nan() && some[1] == 3.0, "{some:?}");
    assert!(none.len() == 2 && none.iter().all(|number| number.is_nan()), "{none:?}");
}

#[tokio::test]
async fn as_many_calls_as_may_be_are_in_flight_and_no_more() {
    let in_flight = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let (counter, pair) = (in_flight.clone(), Arc::new(tokio::sync::Barrier::new(2)));
    let (url, _) = server(move |_, query| {
        let (counter, pair) = (counter.clone(), pair.clone());
        async move {
            let now = counter.0.fetch_add(1, Ordering::SeqCst) + 1;
            counter.1.fetch_max(now, Ordering::SeqCst);
            pair.wait().await;
            // A third that may not be here comes meanwhile.
            tokio::time::sleep(Duration::from_millis(10)).await;
            counter.0.fetch_sub(1, Ordering::SeqCst);
            good(&query)
        }
    })
    .await;
    let scoring = tokio::time::timeout(Duration::from_secs(50), score(options(&[&url]), 12));
    let scores = scoring.await.expect("no two calls met").unwrap();
    assert_eq!(scores.scores, numbers(12));
    assert_eq!(in_flight.1.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn https_is_spoken() {
    // A server without TLS behind an https URL: the handshake fails, with a cause that says so.
    let url = server(|_, query| async move { good(&query) })
        .await
        .0
        .replace("http://", "https://");
    let error = score(
        RemoteOptions {
            max_retries: 0,
            ..options(&[&url])
        },
        1,
    )
    .await
    .unwrap_err();
    assert!(
        error.contains(&url) && error.contains("received corrupt message"),
        "{error}"
    );
}

#[test]
fn urls_and_tokens_are_checked_before_any_call() {
    let error = |urls: &[&str], token: Option<&str>| {
        let urls: Vec<String> = urls.iter().map(|url| url.to_string()).collect();
        let options = RemoteOptions {
            token: token.map(str::to_owned),
            ..options(&urls.iter().collect::<Vec<_>>())
        };
        format!("{:#}", RemoteReward::new(options).unwrap_err())
    };
    assert!(error(&[], None).contains("want at least one URL"));
    assert!(error(&["host:5000/x"], None).contains("want http:// or https://"));
    assert!(error(&["not a url"], None).contains("\"not a url\" is not a URL"));
    assert!(error(&["http://a"], Some("a\nb")).contains("PPO_REWARD_TOKEN"));
}
