//! Requests that can never run, and the reason.

use super::blocks::Blocks;
use super::request::Request;
use super::sequence::StopRules;

/// Why a request cannot run here, now or ever.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to condition the first token on.
    #[error("the prompt is empty: the model needs at least one token")]
    EmptyPrompt,
    /// `max_new_tokens` is 0.
    #[error("maxNewTokens is 0: ask for at least one token")]
    NoTokens,
    /// A stop string is empty.
    #[error("a stop string is empty: it would end every response at once")]
    EmptyStop,
    /// Stop strings without a tokenizer.
    #[error("stop strings need a tokenizer and this engine has none: give stop token ids instead")]
    NoTokenizer,
    /// The prompt leaves no room for a response.
    #[error("the prompt has {prompt} tokens; the model holds {max_positions}, so at most {} fit", max_positions.saturating_sub(1))]
    TooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Longest sequence the model can hold.
        max_positions: usize,
    },
    /// The longest response asked for does not fit the cache even alone.
    #[error(
        "a prompt of {prompt} tokens with up to {response} new ones needs {needed} cache blocks, the cache has {total}: \
         raise kvCacheMebibytes or lower maxNewTokens"
    )]
    CacheTooSmall {
        /// Tokens of the prompt.
        prompt: usize,
        /// New tokens the request may draw.
        response: usize,
        /// Blocks for both.
        needed: usize,
        /// Blocks of the cache.
        total: usize,
    },
}

/// Refuses what no amount of waiting would make fit.
pub(super) fn admit(request: &Request, rules: &StopRules, blocks: &Blocks) -> Result<(), Refusal> {
    let (prompt, params) = (request.prompt.len(), &request.params);
    let max_positions = rules.max_positions;
    if prompt == 0 {
        return Err(Refusal::EmptyPrompt);
    }
    if params.max_new_tokens == 0 {
        return Err(Refusal::NoTokens);
    }
    if params.stop.iter().any(String::is_empty) {
        return Err(Refusal::EmptyStop);
    }
    if !params.stop.is_empty() && rules.detokenize.is_none() {
        return Err(Refusal::NoTokenizer);
    }
    if prompt >= max_positions {
        return Err(Refusal::TooLong { prompt, max_positions });
    }
    let response = params.max_new_tokens.min(max_positions - prompt);
    // The last token drawn is never computed.
    let (needed, total) = (blocks.needed(prompt + response - 1), blocks.total());
    if needed > total {
        return Err(Refusal::CacheTooSmall {
            prompt,
            response,
            needed,
            total,
        });
    }
    Ok(())
}
