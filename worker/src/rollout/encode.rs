//! Texts to token ids, within bounds: a tokenizer takes memory many times as large as its text.

use super::model::Model;
use super::truncate::Cut;
use crate::serving::error::ApiError;
use crate::tokenizer::Encoding;

impl Encoding {
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
