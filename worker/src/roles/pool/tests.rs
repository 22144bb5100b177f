use std::sync::atomic::{AtomicU32, Ordering};

use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;

use super::*;

/// One more than the question.
#[derive(Debug, Deserialize, Serialize)]
struct Next(u32);

impl Answer for Next {
    fn digest(&self) -> Option<&str> {
        None
    }
}

/// A pod that says `status` to the first `refusals` questions and answers the others, and how often it was asked.
async fn pod(name: &str, status: StatusCode, refusals: u32) -> (Member, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counted = asked.clone();
    let answer = async move |Json(question): Json<u32>| match counted.fetch_add(1, Ordering::Relaxed) < refusals {
        true => Err((status, "out of memory")),
        false => Ok(Json(Next(question + 1))),
    };
    let member = Member::serving(name, Router::new().route("/x", post(answer))).await;
    (member, asked)
}

fn pool(members: Vec<Member>) -> Pool {
    Pool::new(
        (Role::Reference, SameModel::new("model.reference", None)),
        (Members::Fixed(members), 1),
        Caller::new("token".into()).unwrap(),
        StopFlag::default(),
        Arc::new(Live::new("test", 1)),
    )
}

async fn ask(pool: &Pool, questions: &[u32]) -> Result<Vec<u32>> {
    pool.ask_all("/x", questions, |_, answer: Next| Ok(answer.0)).await
}

#[tokio::test]
async fn a_pod_that_fails_at_a_question_three_times_ends_the_run_by_its_name() {
    let (member, asked) = pod("job-reference-0", StatusCode::INTERNAL_SERVER_ERROR, u32::MAX).await;
    let url = member.url("/x");
    let error = format!("{:#}", ask(&pool(vec![member]), &[1]).await.unwrap_err());
    assert!(error.contains("3 tries failed: reference job-reference-0"), "{error}");
    assert!(error.contains(&url) && error.contains("out of memory"), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn what_one_pod_fails_at_another_one_answers() {
    let (broken, _) = pod("job-reference-0", StatusCode::INTERNAL_SERVER_ERROR, u32::MAX).await;
    let (whole, _) = pod("job-reference-1", StatusCode::OK, 0).await;
    let answers = ask(&pool(vec![broken, whole]), &[1, 2, 3]).await;
    assert_eq!(answers.unwrap(), [2, 3, 4]);
}

#[tokio::test]
async fn a_pod_that_still_loads_or_has_too_much_to_do_is_asked_for_as_long_as_it_takes() {
    let answered = async |status: StatusCode| {
        let (member, asked) = pod("job-reference-0", status, MOST_FAILURES).await;
        let answers = ask(&pool(vec![member]), &[1]).await.unwrap();
        (answers, asked.load(Ordering::Relaxed))
    };
    let (loads, busy) = (StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS);
    let both = futures::join!(answered(loads), answered(busy));
    assert_eq!(both, ((vec![2], MOST_FAILURES + 1), (vec![2], MOST_FAILURES + 1)));
}

#[tokio::test]
async fn a_pod_that_answers_again_is_waited_for_no_longer() {
    let (member, asked) = pod("job-reference-0", StatusCode::SERVICE_UNAVAILABLE, 1).await;
    let pool = pool(vec![member]);
    ask(&pool, &[1]).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert_eq!(pool.live.report().waiting_for, "");
}

#[tokio::test]
async fn a_question_that_fails_late_in_a_long_stage_has_as_long_as_one_that_fails_early() {
    let asked = Arc::new(AtomicU32::new(0));
    let answer = async move |Json(question): Json<u32>| {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The last question comes when the stage has taken longer than a question that fails may.
        match question == 7 && asked.fetch_add(1, Ordering::Relaxed) == 0 {
            true => Err(StatusCode::SERVICE_UNAVAILABLE),
            false => Ok(Json(Next(question + 1))),
        }
    };
    let member = Member::serving("job-reference-0", Router::new().route("/x", post(answer))).await;
    let mut pool = pool(vec![member]);
    pool.patience = Duration::from_millis(200);
    let questions: Vec<u32> = (0..8).collect();
    assert_eq!(ask(&pool, &questions).await.unwrap().len(), 8);
}

#[tokio::test]
async fn a_pod_that_does_not_come_back_in_time_ends_the_run() {
    let (member, _) = pod("job-reference-0", StatusCode::SERVICE_UNAVAILABLE, u32::MAX).await;
    let mut pool = pool(vec![member]);
    pool.patience = Duration::ZERO;
    let error = format!("{:#}", ask(&pool, &[1]).await.unwrap_err());
    assert!(
        error.starts_with("no answer within 0 s: reference job-reference-0"),
        "{error}"
    );
}
