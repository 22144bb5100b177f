//! The process: wait for vLLM, open the door, follow the actor, end with vLLM.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::router;
use super::service::Service;
use super::weights::remove_others;
use crate::hub::resolve_location;
use crate::manifest::Invalid;
use crate::model::ModelConfig;
use crate::rollout::follow::follow;
use crate::rollout::settings::{Settings, VllmSettings};
use crate::serving;

/// For vLLM to load the model and answer: its image may have to be pulled, and large models take minutes.
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
    let service = Service::new(&settings, vllm)?;
    let routers = (router::api(service.clone()), router::observed(service.clone()));
    let (listen, observe, limits) = (settings.address, settings.metrics_address, settings.limits.clone());
    serving::run(listen, observe, limits, routers, work(service, settings))
}

async fn work(service: Service, settings: Settings) -> Result<()> {
    remove_others(&service.folder, None).await;
    let location = settings.model.location.clone();
    let folder = tokio::task::spawn_blocking(move || resolve_location(&location)).await?;
    let mut model = ModelConfig::read(&folder.context("model.policy")?)?;
    // As vLLM was started: no sequence is longer.
    model.max_positions = settings.model.max_length.unwrap_or(usize::MAX).min(model.max_positions);
    let version = started(&service).await?;
    if model.tied && service.vllm.is_on_cpu().await? {
        return Err(Invalid::new(TIED_ON_CPU.to_owned()).into());
    }
    service.ready(model, version).await;
    tracing::info!("vLLM at {} is up with version {version}", service.vllm.address());
    let following = async {
        match &settings.actor {
            Some(actor) => follow(&service, actor).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        ended = alive(&service) => ended,
        () = following => Ok(()),
        words = service.ended() => bail!("{words}: the pod has to be made anew"),
    }
}

/// Waits until vLLM answers; the version that it has.
async fn started(service: &Service) -> Result<u64> {
    let ends = Instant::now() + START;
    loop {
        match service.vllm.health().await {
            Ok(()) => return Ok(service.vllm.version().await?),
            Err(error) if Instant::now() > ends => {
                return Err(error).with_context(|| format!("waited {} s for vLLM to start", START.as_secs()));
            }
            Err(_) => tokio::time::sleep(HEARTBEAT).await,
        }
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
