//! The process: wait for vLLM, open the door, follow the actor, end with vLLM.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use axum::http::StatusCode;

use super::router;
use super::service::Service;
use super::stall::Watch;
use super::weights::remove_others;
use crate::hub::{check_path, resolve_location};
use crate::manifest::Invalid;
use crate::model::{ModelConfig, named};
use crate::rollout::actor::Actor;
use crate::rollout::follow::follow;
use crate::rollout::settings::{Settings, VllmSettings};
use crate::serving;

/// For vLLM to load the model and answer, where the job has no longer to be ready: its image may have to be pulled, and large models take
/// minutes.
const START: Duration = Duration::from_secs(1800);
/// Between two questions whether it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Unanswered questions in a row after which it is taken for dead.
const MISSES: u32 = 3;

/// vLLM 0.32 (`dispatch_cpu_unquantized_gemm`, `reload/layerwise.py`): its CPU layers compute from packed copies, and that of
/// a tied output projection is not made anew by a reload, which only warns "ParallelLMHead: Failed to load weights".
const TIED_ON_CPU: &str = "the policy's output projection is tied to its embedding (tie_word_embeddings), and vLLM on a CPU \
    would keep the one that it was started with after every update: set spec.roles.rollout.engine to builtin, give vLLM a \
    GPU, or train a policy whose projection is its own";

/// Serves as the door of `vllm` until SIGTERM or Ctrl-C, or until vLLM is gone.
///
/// # Errors
/// When vLLM does not come up or dies, or an address is taken.
pub fn main(settings: Settings, vllm: VllmSettings) -> Result<()> {
    let deadline = vllm.start_deadline.max(START);
    let service = Service::new(&settings, vllm)?;
    let routers = (router::api(service.clone()), router::observed(service.clone()));
    let (listen, observe, limits) = (settings.address, settings.metrics_address, settings.limits.clone());
    serving::run(listen, observe, limits, routers, work(service, settings, deadline))
}

async fn work(service: Service, settings: Settings, deadline: Duration) -> Result<()> {
    remove_others(&service.folder, None).await;
    let location = settings.model.location.clone();
    check_path(&location).context("model.policy")?;
    let version = started(&service, deadline).await?;
    // vLLM has a model of the hub downloaded by now, into the cache that both have: before, both would write there at once.
    let folder = tokio::task::spawn_blocking(move || resolve_location(&location)).await?;
    let read = ModelConfig::read_language_model(&folder.context("model.policy")?);
    let mut model = named::described("model.policy", read)?;
    // As vLLM was started: no sequence is longer.
    model.max_positions = settings.model.max_length.unwrap_or(usize::MAX).min(model.max_positions);
    if model.tied && service.vllm.is_on_cpu().await? {
        return Err(Invalid::new(TIED_ON_CPU.to_owned()).into());
    }
    service.ready(model, version).await;
    tracing::info!("vLLM at {} is up with version {version}", service.vllm.address());
    stand(&service, settings.actor.as_ref(), Watch::default()).await
}

/// Follows the actor; returns when another vLLM is needed. The door's end is that of the pod, and so of a vLLM that is stuck; that a probe
/// failed would lead to the same five minutes later, without a word of why.
async fn stand(service: &Service, actor: Option<&Actor>, watch: Watch) -> Result<()> {
    let following = async {
        match actor {
            Some(actor) => follow(service, actor).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = alive(service) => ended,
        () = following => Ok(()),
        words = watch.stuck(service) => bail!("{words} The pod has to be made anew"),
        words = service.ended() => bail!("{words}: the pod has to be made anew"),
    }
}

/// Waits until vLLM answers; the version that it has.
async fn started(service: &Service, deadline: Duration) -> Result<u64> {
    let ends = Instant::now() + deadline;
    loop {
        match service.vllm.health().await {
            Ok(()) => return version(service).await,
            Err(error) if Instant::now() > ends => {
                return Err(error).with_context(|| format!("waited {} s for vLLM to start", deadline.as_secs()));
            }
            Err(_) => tokio::time::sleep(HEARTBEAT).await,
        }
    }
}

/// The version that vLLM has. An older release cannot tell, and takes none.
async fn version(service: &Service) -> Result<u64> {
    match service.vllm.version().await {
        Err(error) if error.status == StatusCode::NOT_FOUND => {
            let release = service.vllm.release().await?;
            let words = format!(
                "vLLM {release} has no /weight_info: the door is made for vLLM 0.32 and 0.33 with VLLM_SERVER_DEV_MODE=1. Name an image of \
                 one of them, in the chart's value vllm.image or for the container vllm in spec.roles.rollout.template"
            );
            Err(Invalid::new(words).into())
        }
        version => Ok(version?),
    }
}

/// Returns when vLLM is gone: its pod has to be made anew.
async fn alive(service: &Service) -> Result<()> {
    let mut misses = 0;
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        match service.vllm.health().await {
            Ok(()) => misses = 0,
            Err(error) if misses + 1 == MISSES => bail!("{error}, {MISSES} times in a row"),
            Err(_) => misses += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use axum::{Json, Router};
    use ppo_crds::run_config::Location;
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::serving::Limits;
    use crate::vllm::stand_in::{QUICK, ask, counters, door, settings, silent};

    fn at(location: Location) -> Settings {
        let mut settings = settings(Limits::default());
        settings.model.location = location;
        settings
    }

    /// A door whose vLLM listens there, or will.
    fn door_at(listener: &TcpListener) -> Service {
        let vllm = VllmSettings {
            address: listener.local_addr().unwrap().to_string(),
            folder: "unused".into(),
            start_deadline: START,
        };
        Service::new(&settings(Limits::default()), vllm).unwrap()
    }

    /// A door whose vLLM has not started.
    async fn door_before() -> Service {
        door_at(&TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    /// What nobody can download: that it was looked for is told by an error.
    fn of_hub() -> Settings {
        at(Location::Hub {
            id: "no/such/model".into(),
            revision: "main".into(),
        })
    }

    #[tokio::test]
    async fn a_model_of_the_hub_is_looked_for_once_vllm_has_started_and_so_has_downloaded_it() {
        let waits = work(door_before().await, of_hub(), START);
        let early = tokio::time::timeout(Duration::from_millis(200), waits).await;
        assert!(early.is_err(), "it waits for vLLM");
        let (service, asked) = door(None, "unused".into()).await;
        let error = work(service, of_hub(), START).await.unwrap_err();
        assert!(format!("{error:#}").contains("want owner/name"), "{error:#}");
        assert!(asked.lock().iter().any(|asked| asked == "/health"));
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_told_before_vllm_is_waited_for() {
        let nowhere = at(Location::Path("/nowhere/model".into()));
        let error = work(door_before().await, nowhere, START).await.unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere/model"), "{error:#}");
    }

    #[tokio::test]
    async fn a_vllm_that_does_not_start_in_time_ends_the_door() {
        let error = work(door_before().await, of_hub(), Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("waited 0 s for vLLM to start"), "{error:#}");
    }

    #[tokio::test]
    async fn a_vllm_that_is_well_by_its_own_word_and_computes_nothing_ends_the_door() {
        let service = silent(|_| counters(7, 9, 0.5), false).await;
        let _asking = ask(&service).await;
        let ended = tokio::time::timeout(Duration::from_secs(20), stand(&service, None, QUICK)).await;
        let words = ended.unwrap().unwrap_err().to_string();
        assert!(words.contains("has computed nothing for"), "{words}");
        assert!(
            words.ends_with("does its GPU hang? The pod has to be made anew"),
            "{words}"
        );
    }

    #[tokio::test]
    async fn a_vllm_that_is_too_old_for_the_door_ends_it_for_good_and_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let service = door_at(&listener);
        let release = || async { Json(json!({"version": "0.11.0"})) };
        let router = Router::new()
            .route("/health", get(|| async {}))
            .route("/version", get(release));
        tokio::spawn(axum::serve(listener, router).into_future());
        let error = work(service, of_hub(), START).await.unwrap_err();
        assert!(error.is::<Invalid>(), "another try ends the same way: {error:#}");
        assert!(error.to_string().starts_with("vLLM 0.11.0 has no"), "{error:#}");
    }
}
