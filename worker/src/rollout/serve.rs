//! The process: listen, load, serve, end.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ppo_crds::pod::env;
use tch::Kind;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::args::RolloutArgs;
use super::follow::follow;
use super::model::Model;
use super::router;
use super::service::Service;
use super::settings::{Settings, VllmSettings};
use crate::engine::{Engine, Pause};
use crate::hub::check_path;
use crate::native::threads::blocking;
use crate::serving;
use crate::serving::limits::Limits;
use crate::serving::listen;

/// Time to hand back what did not finish within the grace period.
const HAND_BACK: Duration = Duration::from_secs(3);
/// Time for the engine's last pass.
const LAST_PASS: Duration = Duration::from_secs(2);
/// How often the engine is asked whether it lives.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// Serves until SIGTERM or Ctrl-C, then finishes or hands back what is in flight. Where the engine is vLLM, its `door` serves instead.
///
/// # Errors
/// Those of `door`; when the model cannot be loaded, an address is taken, or the engine failed.
pub fn main(args: RolloutArgs, door: impl FnOnce(Settings, VllmSettings) -> Result<()>) -> Result<()> {
    let device = args.device();
    let settings = args.settings()?;
    if let (Ok(job), Ok(index), Ok(attempt)) = (
        std::env::var(env::JOB),
        std::env::var(env::INDEX),
        std::env::var(env::ATTEMPT),
    ) {
        tracing::info!("rollout {index} of job {job}, attempt {attempt}");
    }
    if let Some(vllm) = settings.vllm.clone() {
        return door(settings, vllm);
    }
    device.settle("the engine")?;
    // Said before there is an address that nothing would be served at.
    check_path(&settings.model.location).context("model")?;
    let ended = serving::process(async |shutdown| {
        let listener = serving::bind(settings.address, "give another address with --host and --port").await?;
        let observed = match settings.metrics_address {
            Some(address) => Some(serving::bind(address, "give another address with --metrics-addr").await?),
            None => None,
        };
        tracing::info!("rollout server on http://{}", listener.local_addr()?);
        serve(settings, listener, observed, shutdown).await
    })?;
    match ended {
        Ended::Finished => tracing::info!("every request was answered; bye"),
        Ended::HandedBack => tracing::warn!("requests that did not finish in time were handed back unfinished"),
    }
    Ok(())
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every request was answered in full.
    Finished,
    /// Some were answered with the tokens they had, or cut.
    HandedBack,
}

/// Serves `settings` on `listener`, and metrics and probes on `observed`, until `shutdown`.
///
/// # Errors
/// When the model cannot be loaded or its engine fails.
pub async fn serve(
    settings: Settings,
    listener: TcpListener,
    observed: Option<TcpListener>,
    shutdown: impl Future<Output = ()>,
) -> Result<Ended> {
    let service = Service::new(&settings)?;
    let limits = settings.limits.clone();
    let (stop, stopped) = watch::channel(false);
    let (last, last_stopped) = watch::channel(false);
    // Probes are answered while the model loads, and until everything else has ended.
    let probes = observed.map(|observed| {
        let (router, limits) = (router::observed(service.clone()), limits.clone());
        tokio::spawn(async move { listen::serve(observed, router, &limits, last_stopped).await })
    });
    let mut api = tokio::spawn({
        let (router, limits) = (router::api(service.clone()), limits.clone());
        async move { listen::serve(listener, router, &limits, stopped).await }
    });
    let outcome = tokio::select! {
        failed = work(&service, &settings) => failed,
        () = shutdown => Ok(()),
    };
    service.stop();
    if outcome.is_ok() {
        let grace = limits.shutdown_grace.as_secs();
        tracing::info!(
            "asked to end: requests in flight have {grace} s, then they are handed back; Ctrl-C once more ends it now"
        );
    }
    let _ = stop.send(true);
    let ended = drain(&service, &limits, &mut api, outcome.is_err()).await;
    api.abort();
    let _ = last.send(true);
    if let Some(probes) = probes {
        probes.abort();
    }
    outcome.map(|()| ended)
}

/// Loads the model and watches its engine; returns only when something is wrong.
async fn work(service: &Service, settings: &Settings) -> Result<()> {
    let model = settings.model.clone();
    let model = blocking(move || Model::load(&model))
        .await
        .map_err(|error| anyhow!("loading the model: {error}"))??;
    let precision = match model.kind {
        Kind::BFloat16 => "bfloat16",
        _ => "float32",
    };
    tracing::info!(
        "serving {} as {:?}, sequences of up to {} tokens in {precision}",
        model.folder.display(),
        model.name,
        model.config.max_positions
    );
    let engine = model.engine.clone();
    service.ready(model);
    match &settings.actor {
        None => alive(&engine).await,
        Some(actor) => tokio::select! {
            failed = alive(&engine) => failed,
            () = follow(service, actor) => Ok(()),
        },
    }
}

/// Returns when the engine is over, or ends no pass: another process has to be made.
async fn alive(engine: &Engine) -> Result<()> {
    loop {
        if let Some(failure) = engine.failure() {
            bail!(failure);
        }
        tokio::time::sleep(HEARTBEAT).await;
    }
}

/// Lets requests in flight finish, then hands back the rest with finish reason `abort`.
async fn drain(service: &Service, limits: &Limits, api: &mut tokio::task::JoinHandle<()>, is_broken: bool) -> Ended {
    let grace = if is_broken {
        Duration::ZERO
    } else {
        limits.shutdown_grace
    };
    // What a pause had frozen could never finish; without grace it is not to.
    if let (true, false, Ok(model)) = (service.is_paused(), grace.is_zero(), service.model()) {
        model.engine.resume();
    }
    let mut ended = Ended::Finished;
    if tokio::time::timeout(grace, &mut *api).await.is_err() {
        ended = Ended::HandedBack;
        if let Ok(model) = service.model() {
            // Each request's own answer follows; whether the pause itself was confirmed changes nothing.
            drop(model.engine.pause(Pause::Abort));
        }
        if tokio::time::timeout(HAND_BACK, &mut *api).await.is_err() {
            tracing::warn!("clients did not take their answers in time and are cut");
        }
    }
    if let Ok(model) = service.model() {
        let engine = model.engine.clone();
        let stopped = tokio::task::spawn_blocking(move || engine.shutdown(LAST_PASS)).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::warn!("the engine's last pass did not end in time");
        }
    }
    ended
}

#[cfg(test)]
mod tests {
    use axum::extract::State;

    use super::*;
    use crate::engine::EngineConfig;
    use crate::engine::hash_runner::{HashRunner, request};
    use crate::rollout::info::{health, healthz, readyz};
    use crate::rollout::stand_in::server_of;

    /// A pass takes longer than it may.
    fn slow_engine() -> Engine {
        let make = || {
            let mut runner = HashRunner::new(100, 16, 1000);
            runner.pace = Duration::from_secs(3);
            Ok(runner)
        };
        let config = EngineConfig {
            pass_deadline: Duration::from_millis(50),
            ..EngineConfig::default()
        };
        Engine::start(make, config).unwrap()
    }

    #[tokio::test]
    async fn an_engine_that_ends_no_pass_fails_the_probes_and_ends_the_server_and_one_without_work_does_not() {
        let engine = slow_engine();
        let service = server_of(engine.clone(), Limits::default());
        let early = tokio::time::timeout(2 * HEARTBEAT, alive(&engine)).await;
        assert!(early.is_err() && healthz(State(service.clone())).await.is_ok());
        let _ticket = engine.submit(request(5, 0..1, 5)).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), alive(&engine)).await;
        let why = ended.unwrap().unwrap_err().to_string();
        assert!(why.contains("a pass has not ended for 0.05 s"), "{why}");
        assert_eq!(healthz(State(service.clone())).await.unwrap_err().message, why);
        assert_eq!(readyz(State(service.clone())).await.unwrap_err().message, why);
        assert_eq!(health(State(service)).await.status(), 503);
    }
}
