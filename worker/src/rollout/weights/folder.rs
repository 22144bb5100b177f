//! Weights from a folder that this process sees.

use std::path::PathBuf;

use serde::Deserialize;

use super::Version;
use super::digest::{Hash, digest};
use crate::engine::staging::NewWeights;
use crate::model::Weights;
use crate::native::threads::blocking;
use crate::rollout::model::Model;
use crate::serving::error::ApiError;

/// Body of an update from a folder.
#[derive(Clone, Debug, Deserialize)]
pub struct FolderUpdate {
    /// Folder with safetensors in Hugging Face layout.
    pub path: PathBuf,
    /// The policy version they are.
    pub weight_version: Version,
    /// [`digest`] that they must have in the server's dtype.
    #[serde(default)]
    pub digest: Option<String>,
}

/// Reads and checks them, aside: files are read and hashed for as long as it takes while the engine goes on.
///
/// # Errors
/// 400 when they do not fit the model, or have another digest.
pub async fn load(model: &Model, asked: FolderUpdate) -> Result<(NewWeights, Hash), ApiError> {
    let (config, kind) = (model.config.clone(), model.kind);
    let read = move || {
        if !asked.path.is_dir() {
            return Err(ApiError::field(
                "path",
                format!("{} is no folder that this server sees", asked.path.display()),
            ));
        }
        let weights = Weights::load(&asked.path, &config, kind)
            .map_err(|error| ApiError::field("path", format!("{error:#}; the old weights stay")))?;
        let found = digest(&weights).map_err(|error| ApiError::internal(format!("{error:#}")))?;
        if let Some(wanted) = asked
            .digest
            .filter(|wanted| !wanted.eq_ignore_ascii_case(&found.to_string()))
        {
            return Err(ApiError::field(
                "digest",
                format!(
                    "the tensors in {} have {found}, not {wanted}: were they written by another process? The old weights stay",
                    asked.path.display()
                ),
            ));
        }
        Ok((weights.into(), found))
    };
    blocking(read).await.map_err(ApiError::internal)?
}
