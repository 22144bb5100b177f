//! Texts to token ids, within bounds: a tokenizer takes memory many times as large as its text.

use std::sync::Arc;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::model::Model;
use super::truncate::Cut;
use crate::serving::error::ApiError;

/// Bytes of the texts that are split at once. Each takes up to 170 bytes meanwhile: every piece is a string with its offsets.
const AT_ONCE: usize = 8 << 20;

/// Room for texts that are being split.
#[derive(Debug)]
pub struct Encoding(Arc<Semaphore>);

impl Default for Encoding {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE >> 10)))
    }
}

impl Encoding {
    /// Waits for room for texts that are split one after the other, the longest of so many bytes.
    ///
    /// # Errors
    /// None in a server that runs: the room is never closed.
    pub async fn enter(&self, longest: usize) -> Result<OwnedSemaphorePermit, AcquireError> {
        let kibibytes = longest.div_ceil(1 << 10).clamp(1, AT_ONCE >> 10);
        let kibibytes = u32::try_from(kibibytes).unwrap_or(u32::MAX);
        self.0.clone().acquire_many_owned(kibibytes).await
    }

    /// Token ids of the texts of field `param`, made aside: a long text must not hold up other requests. One that is longer than all that the
    /// model's context can stand for is `cut` before.
    ///
    /// # Errors
    /// 400 when a text that may not be cut has more bytes than tokens of the model's context can stand for (as vLLM's renderers do,
    /// `_text_len_check` in `renderers/params.py`), or the tokenizer cannot split it.
    pub async fn encode(
        &self,
        model: &Model,
        mut texts: Vec<String>,
        special: bool,
        cut: Cut,
        param: &'static str,
    ) -> Result<Vec<Vec<u32>>, ApiError> {
        let tokens = model.config.max_positions;
        let most = tokens.saturating_mul(model.longest_token);
        let fit = texts.iter_mut().all(|text| cut.shortens(text, most));
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        if !fit {
            return Err(ApiError::field(
                param,
                format!(
                    "a text of {longest} bytes; this model's maximum context length is {tokens} tokens, and those are at most {most} bytes"
                ),
            ));
        }
        let room = self.enter(longest).await.map_err(ApiError::internal)?;
        let tokenizer = model.tokenizer.clone();
        let encode = move || {
            // It goes on when the client has gone.
            let _room = room;
            let ids = texts.iter().map(|text| tokenizer.encode(text, special));
            ids.collect::<anyhow::Result<Vec<_>>>()
        };
        tokio::task::spawn_blocking(encode)
            .await
            .map_err(ApiError::internal)?
            .map_err(|error| ApiError::field(param, format!("{error:#}")))
    }
}
