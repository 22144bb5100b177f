//! New weights for vLLM: a stream becomes a file of safetensors that vLLM reads. Memory holds one piece of it. The file is in the actor's
//! number format; vLLM's loader copies it into parameters of its own (`default_weight_loader` in `model_executor/model_loader/weight_utils.py`).

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures::Stream;
use tokio::io::AsyncWriteExt;

use super::service::Service;
use crate::model::ModelConfig;
use crate::rollout::follow::Follower;
use crate::rollout::weights::attempt::PolicyVersion;
use crate::rollout::weights::incoming::{Incoming, most_bytes};
use crate::serving::error::ApiError;

/// Bytes written at once.
const PIECE: usize = 1 << 20;

impl Follower for Service {
    fn policy(&self) -> impl Future<Output = Option<PolicyVersion>> + Send {
        let model = self.model().ok().filter(|_| !self.updates.is_running());
        std::future::ready(model.and_then(|_| self.held()))
    }

    async fn take<S, E>(&self, policy: PolicyVersion, stream: S) -> Result<(), ApiError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
        E: std::fmt::Display + Send,
    {
        let update = self.updates.begin()?;
        self.newest_attempt.admit(policy.attempt)?;
        let version = policy.version;
        let limit = self.limits.update_deadline(most_bytes(self.model()?));
        let number = self.folders.fetch_add(1, Ordering::Relaxed);
        let unfinished = Unfinished(Some(self.folder.join(format!("{NAME}{version}-{number}"))));
        let writing = write(unfinished.folder(), self.model()?, stream, self.limits.body_timeout);
        let written = tokio::time::timeout(limit, writing).await;
        written.unwrap_or_else(|_| Err(ApiError::late(limit)))?;
        let folder = unfinished.finish();
        // From here on there is no way back, so nothing here is cut short by a sender that goes.
        let service = self.clone();
        let loading = async move {
            let _update = update;
            let began = Instant::now();
            // It may be left paused, or with half of the weights: only another vLLM is sure not to be.
            let reload = async {
                let reloaded = service.vllm.reload(&folder, version, limit).await;
                reloaded.inspect_err(|error| service.end(format!("vLLM's weights are in doubt: {error}")))
            };
            if let Err(error) = service.change(policy, reload).await {
                // The folder that it has loaded last stays: vLLM remembers it as its model's.
                remove(&folder).await;
                return Err(error);
            }
            remove_others(&service.folder, Some(&folder)).await;
            let seconds = began.elapsed().as_secs_f64();
            tracing::info!("vLLM has the weights of version {version}; it took {seconds:.3} s");
            Ok(())
        };
        tokio::spawn(loading).await.map_err(ApiError::internal)?
    }
}

/// A folder that is removed unless it is finished: also when the sender goes and the request with it.
struct Unfinished(Option<PathBuf>);

impl Unfinished {
    fn folder(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new(""))
    }

    fn finish(mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(folder) = self.0.take() {
            // One file, and nothing may be left to a runtime that ends.
            removed(&folder, std::fs::remove_dir_all(&folder));
        }
    }
}

/// Writes the stream, which is a safetensors file but for the digest behind it.
async fn write<S, E>(folder: &Path, model: &ModelConfig, stream: S, patience: Duration) -> Result<(), ApiError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let failed = |error: std::io::Error| {
        let words = format!("{}: {error}; the old weights stay", folder.display());
        ApiError::internal(words)
    };
    let mut incoming = Incoming::new(stream, patience);
    let (header, plan) = incoming.header(model).await?;
    tokio::fs::create_dir_all(folder).await.map_err(failed)?;
    let file = tokio::fs::File::create(folder.join("model.safetensors")).await;
    let mut file = file.map_err(failed)?;
    file.write_all(&header).await.map_err(failed)?;
    for tensor in plan {
        let mut left = tensor.bytes;
        while left > 0 {
            let piece = incoming.piece(left.min(PIECE)).await?;
            left -= piece.len();
            file.write_all(&piece).await.map_err(failed)?;
        }
        incoming.end_tensor(&tensor);
    }
    incoming.check_end().await?;
    file.flush().await.map_err(failed)
}

/// Begins the name of a folder of weights.
const NAME: &str = "version-";

/// Removes what earlier updates, or an earlier process, left in `folder`. The newest stays: vLLM remembers it as its model's.
pub async fn remove_others(folder: &Path, newest: Option<&Path>) {
    let Ok(mut entries) = tokio::fs::read_dir(folder).await else {
        return;
    };
    while let Ok(Some(entry)) = entries.next_entry().await {
        let path = entry.path();
        let is_ours = entry.file_name().to_string_lossy().starts_with(NAME);
        if is_ours && newest != Some(path.as_path()) {
            remove(&path).await;
        }
    }
}

async fn remove(folder: &Path) {
    removed(folder, tokio::fs::remove_dir_all(folder).await);
}

fn removed(folder: &Path, outcome: std::io::Result<()>) {
    match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!("{} cannot be removed: {error}", folder.display());
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
