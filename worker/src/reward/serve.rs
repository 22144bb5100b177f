//! `ppo-worker reward`: the reward role of a PpoJob as an HTTP server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use clap::Args;
use ppo_crds::run_config::Reward;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::{RewardService, RewardSource, ServeOptions};
use crate::cli::ManifestArgs;
use crate::hub::resolve_location;
use crate::local::{kind, reward_model};
use crate::manifest::Manifest;
use crate::tokenizer::Tokenizer;

/// Arguments of `ppo-worker reward`.
#[derive(Debug, Args)]
pub struct RewardArgs {
    #[command(flatten)]
    manifest: ManifestArgs,
    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:5000")]
    listen: SocketAddr,
    /// Bearer token that callers must give.
    #[arg(long, env = "PPO_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

/// Serves the manifest's reward model and rules until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the manifest names neither, a model cannot be loaded, or the address is taken.
pub fn main(args: RewardArgs) -> Result<()> {
    let manifest = Manifest::read(&args.manifest.file)?;
    let config = manifest.resolve()?;
    ensure!(
        config.reward.model.is_some() || !config.reward.rules.is_empty(),
        "spec.roles.reward of {} has neither a model nor rules: there is nothing to serve",
        args.manifest.file.display()
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(args.listen)
            .await
            .with_context(|| format!("cannot listen on {}; is the port taken?", args.listen))?;
        tracing::info!("reward server on http://{}/get_reward", listener.local_addr()?);
        let service = RewardService::new(ServeOptions {
            token: args.token.clone(),
            ..ServeOptions::default()
        });
        let server = tokio::spawn({
            let service = service.clone();
            let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            async move {
                let shutdown = async move {
                    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                };
                service.serve(listener, shutdown).await
            }
        });
        // Probes are answered while the model loads.
        let (source, tokenizer) = tokio::task::spawn_blocking(move || sources(&config)).await??;
        service.ready(source, tokenizer)?;
        server.await?
    })
}

type Sources = (RewardSource, Option<Arc<Tokenizer>>);

/// Model and rules; a remote source is left out: a server that calls another one would only add a hop.
fn sources(config: &ppo_crds::RunConfig) -> Result<Sources> {
    let model = config.reward.model.as_ref();
    let model = model
        .map(|model| reward_model(&model.source, kind(config.model.dtype)))
        .transpose()?;
    let source = RewardSource::new(
        &Reward {
            remote: None,
            ..config.reward.clone()
        },
        model,
    )?;
    let policy = resolve_location(&config.model.policy).and_then(|folder| Tokenizer::load(&folder));
    let tokenizer = match policy {
        Ok(tokenizer) => Some(Arc::new(tokenizer)),
        Err(error) if source.needs_tokens() => return Err(error.context("a length rule counts the policy's tokens")),
        Err(error) => {
            tracing::warn!("rules see special tokens as text: {error:#}");
            None
        }
    };
    Ok((source, tokenizer))
}
