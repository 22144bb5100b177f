//! Weights from a folder that this process sees.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use super::Version;
use crate::engine::staging::NewWeights;
use crate::model::Weights;
use crate::model::digest::{Hash, digest};
use crate::native::threads::blocking;
use crate::rollout::model::Model;
use crate::rollout::updates::Update;
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

/// Reads and checks them, aside: files are read and hashed for as long as it takes while the engine goes on. They are read to their end when
/// the client has gone, and until then the `update` runs: no other one fills the memory with as many weights again.
///
/// # Errors
/// 400 when they do not fit the model, or have another digest.
pub async fn load(model: &Model, asked: FolderUpdate, update: Arc<Update>) -> Result<(NewWeights, Hash), ApiError> {
    let (config, kind) = (model.config.clone(), model.kind);
    let read = move || {
        let _update = update;
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

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::{Request, State};
    use axum::http::StatusCode;
    use axum::http::header::CONTENT_TYPE;
    use futures::FutureExt;
    use serde_json::json;

    use super::super::{UploadQuery, update};
    use crate::rollout::stand_in::{engine, server_of, taken};
    use crate::serving::limits::Limits;
    use crate::serving::query::Query;

    #[test]
    fn while_weights_are_still_read_whose_client_has_gone_no_others_are() {
        let service = server_of(engine(), Limits::default());
        let (runtime, give_back) = taken();
        let load = || {
            let body = json!({"path": "/nowhere", "weight_version": 1}).to_string();
            let request = Request::post("/update_weights").header(CONTENT_TYPE, "application/json");
            let request = request.body(Body::from(body)).unwrap();
            update(State(service.clone()), Query(UploadQuery::default()), request)
        };
        runtime.block_on(async {
            assert!(load().now_or_never().is_none(), "they are read aside");
            let again = load().now_or_never().unwrap().unwrap_err();
            assert_eq!(again.status, StatusCode::CONFLICT, "{again}");
            drop(give_back);
            service.updates.none().await;
            let error = load().await.unwrap_err();
            assert!(error.message.contains("/nowhere is no folder"), "{error}");
        });
    }
}
