use std::convert::Infallible;

use futures::StreamExt;
use tch::Kind;
use tempfile::TempDir;

use super::*;
use crate::model::Weights;
use crate::rollout::weights::frame;
use crate::vllm::stand_in::{Asked, door, model};

/// A door whose vLLM fails at `fails`, where its weights are written, and a stream of weights for it.
struct Bench {
    service: Service,
    asked: Asked,
    folder: TempDir,
    pieces: Vec<Vec<u8>>,
}

impl Bench {
    async fn new(fails: Option<&'static str>) -> Self {
        let folder = TempDir::new().unwrap();
        let (service, asked) = door(fails, folder.path().to_owned()).await;
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
    bench.service.take(7, bench.stream()).await.unwrap();
    assert_eq!(bench.service.version(), Some(7));
    let asked = bench.asked.lock().unwrap();
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
    let error = bench.service.take(7, bench.stream()).await.unwrap_err();
    assert!(error.message.contains("out of memory"), "{error}");
    assert_eq!(bench.service.version(), None);
    let ended = tokio::time::timeout(Duration::from_secs(20), bench.service.ended()).await;
    assert!(ended.unwrap().contains("vLLM's weights are in doubt"));
}

#[tokio::test]
async fn a_stream_that_breaks_off_changes_nothing_and_leaves_no_file() {
    let bench = Bench::new(None).await;
    let half = bench.stream().take(bench.pieces.len() / 2);
    bench.service.take(7, half).await.unwrap_err();
    assert_eq!((bench.service.version(), bench.folders()), (Some(6), 0));
    assert!(bench.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_sender_that_goes_before_all_is_written_leaves_no_file() {
    let bench = Bench::new(None).await;
    let half = bench.stream().take(bench.pieces.len() / 2);
    let (service, stream) = (bench.service.clone(), half.chain(futures::stream::pending()));
    let sending = tokio::spawn(async move { service.take(7, stream).await });
    until(|| bench.folders() == 1).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    until(|| bench.folders() == 0).await;
    bench.service.take(7, bench.stream()).await.unwrap();
    assert_eq!((bench.service.version(), bench.folders()), (Some(7), 1));
}

#[tokio::test]
async fn a_sender_that_goes_while_vllm_loads_does_not_let_another_update_in_between() {
    let bench = Bench::new(None).await;
    // A request that is being answered: the new weights wait for its end.
    let (held, _) = bench.service.hold().await.unwrap();
    let (service, stream) = (bench.service.clone(), bench.stream());
    let sending = tokio::spawn(async move { service.take(7, stream).await });
    until(|| bench.service.version().is_none()).await;
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    let error = bench.service.take(8, bench.stream()).await.unwrap_err();
    assert_eq!(error.status, axum::http::StatusCode::CONFLICT);
    drop(held);
    until(|| bench.service.version() == Some(7)).await;
}
