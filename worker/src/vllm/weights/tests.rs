use std::convert::Infallible;

use futures::StreamExt;
use tch::Kind;
use tempfile::TempDir;

use super::*;
use crate::model::Weights;
use crate::rollout::weights::frame;
use crate::serving::limits::Limits;
use crate::vllm::stand_in::{Asked, door_within, model};

/// A door whose vLLM fails at `fails`, where its weights are written, and a stream of weights for it.
struct Bench {
    service: Service,
    asked: Asked,
    folder: TempDir,
    pieces: Vec<Vec<u8>>,
}

impl Bench {
    async fn new(fails: Option<&'static str>) -> Self {
        Self::within(Limits::default(), fails).await
    }

    async fn within(limits: Limits, fails: Option<&'static str>) -> Self {
        let folder = TempDir::new().unwrap();
        let (service, asked) = door_within(limits, fails, folder.path().to_owned()).await;
        let weights = Weights::random(&model(), Kind::Float, 1).unwrap();
        let pieces = frame::pieces(weights).unwrap().map(Result::unwrap);
        Self {
            service,
            asked,
            folder,
            pieces: pieces.collect(),
        }
    }

    fn stream(&self) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + Unpin + 'static {
        let pieces = self.pieces.clone().into_iter();
        futures::stream::iter(pieces.map(|piece| Ok(piece.into())))
    }

    fn folders(&self) -> usize {
        std::fs::read_dir(self.folder.path()).unwrap().count()
    }
}

/// A version of the actor's second attempt.
fn given(version: u64) -> PolicyVersion {
    PolicyVersion {
        attempt: Some(2),
        version,
    }
}

async fn until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
}

#[tokio::test]
async fn vllm_reloads_from_the_folder_between_a_pause_and_a_resume_with_its_caches_emptied() {
    let bench = Bench::new(None).await;
    bench.service.take(given(7), bench.stream()).await.unwrap();
    assert_eq!(bench.service.held(), Some(given(7)));
    let asked = bench.asked.lock();
    let paths: Vec<&str> = asked.iter().map(|asked| asked.split(' ').next().unwrap()).collect();
    let expected = [
        "/is_paused",
        "/pause?mode=wait",
        "/collective_rpc",
        "/update_weight_version",
        "/weight_info",
        "/reset_prefix_cache",
        "/resume",
    ];
    assert_eq!(paths, expected);
    let folder = bench.folder.path().join("version-7-0");
    assert!(asked[2].contains(folder.to_str().unwrap()), "{}", asked[2]);
}

#[tokio::test]
async fn a_reload_that_fails_half_way_leaves_no_version_and_ends_the_door() {
    let bench = Bench::new(Some("/collective_rpc")).await;
    let error = bench.service.take(given(7), bench.stream()).await.unwrap_err();
    assert!(error.message.contains("out of memory"), "{error}");
    assert_eq!(bench.service.held(), None);
    let ended = tokio::time::timeout(Duration::from_secs(20), bench.service.ended()).await;
    assert!(ended.unwrap().contains("vLLM's weights are in doubt"));
}

#[tokio::test]
async fn weights_that_requests_kept_from_vllm_leave_the_folder_that_it_has_loaded_and_no_other() {
    let limits = Limits {
        update_timeout: Duration::from_secs(2),
        ..Limits::default()
    };
    let bench = Bench::within(limits, None).await;
    bench.service.take(given(7), bench.stream()).await.unwrap();
    let (_held, _) = bench.service.hold().await.unwrap();
    let error = bench.service.take(given(8), bench.stream()).await.unwrap_err();
    assert_eq!(error.status, axum::http::StatusCode::GATEWAY_TIMEOUT);
    let entries = std::fs::read_dir(bench.folder.path()).unwrap();
    let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["version-7-0"]);
}

#[tokio::test]
async fn a_stream_that_breaks_off_changes_nothing_and_leaves_no_file() {
    let bench = Bench::new(None).await;
    let half = bench.stream().take(bench.pieces.len() / 2);
    bench.service.take(given(7), half).await.unwrap_err();
    assert_eq!((bench.service.held().unwrap().version, bench.folders()), (6, 0));
    assert!(bench.asked.lock().is_empty());
}

#[tokio::test]
async fn a_sender_that_goes_before_all_is_written_leaves_no_file() {
    let bench = Bench::new(None).await;
    let half = bench.stream().take(bench.pieces.len() / 2);
    let (service, stream) = (bench.service.clone(), half.chain(futures::stream::pending()));
    let sending = tokio::spawn(async move { service.take(given(7), stream).await });
    until(|| bench.folders() == 1).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    until(|| bench.folders() == 0).await;
    bench.service.take(given(7), bench.stream()).await.unwrap();
    assert_eq!((bench.service.held(), bench.folders()), (Some(given(7)), 1));
}

#[tokio::test]
async fn a_sender_that_goes_while_vllm_loads_does_not_let_another_update_in_between() {
    let bench = Bench::new(None).await;
    // A request that is being answered: the new weights wait for its end.
    let (held, _) = bench.service.hold().await.unwrap();
    let (service, stream) = (bench.service.clone(), bench.stream());
    let sending = tokio::spawn(async move { service.take(given(7), stream).await });
    until(|| bench.service.held().is_none()).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    let error = bench.service.take(given(8), bench.stream()).await.unwrap_err();
    assert_eq!(error.status, axum::http::StatusCode::CONFLICT);
    drop(held);
    until(|| bench.service.held() == Some(given(7))).await;
}

#[tokio::test]
async fn an_older_attempt_brings_no_weights_and_its_own_are_not_those_of_a_newer_one() {
    let bench = Bench::new(None).await;
    let of = |attempt| PolicyVersion { attempt, version: 7 };
    assert_eq!(
        bench.service.held().unwrap().attempt,
        None,
        "vLLM has started with them"
    );
    bench.service.take(of(Some(1)), bench.stream()).await.unwrap();
    assert_ne!(bench.service.held(), Some(given(7)));
    bench.service.take(given(7), bench.stream()).await.unwrap();
    let error = bench.service.take(of(Some(1)), bench.stream()).await.unwrap_err();
    assert_eq!(error.status, axum::http::StatusCode::CONFLICT);
    assert_eq!(bench.service.held(), Some(given(7)));
}

#[tokio::test]
async fn whoever_asks_what_vllm_has_while_more_is_on_its_way_is_told_once_it_is_there() {
    let bench = Bench::new(None).await;
    let (send, body) = tokio::sync::mpsc::channel(1);
    let (service, stream) = (bench.service.clone(), tokio_stream::wrappers::ReceiverStream::new(body));
    let sending = tokio::spawn(async move { service.take(given(7), stream).await });
    let mut pieces = bench.stream();
    send.send(pieces.next().await.unwrap()).await.unwrap();
    until(|| bench.folders() == 1).await;
    let asked = tokio::spawn(crate::vllm::router::weight_info(axum::extract::State(
        bench.service.clone(),
    )));
    while let Some(piece) = pieces.next().await {
        send.send(piece).await.unwrap();
    }
    drop(send);
    sending.await.unwrap().unwrap();
    assert_eq!(asked.await.unwrap().unwrap().0.policy(), Ok(given(7)));
}
