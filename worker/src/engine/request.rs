//! What is asked of the engine and what it answers. Tokens travel as ids.

use std::sync::Arc;

/// How the tokens of a response are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this. 1 keeps all.
    pub top_p: f32,
    /// Keep this many most likely tokens. 0 keeps all.
    pub top_k: usize,
    /// Keep tokens at least this likely relative to the most likely one. 0 keeps all.
    pub min_p: f32,
    /// A response ends at this many tokens.
    pub max_new_tokens: usize,
    /// Before this many tokens no stop condition ends the response, and stop tokens are not drawn.
    pub min_new_tokens: usize,
    /// Tokens that end a response (the model's EOS ids included); the token itself is part of the response.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end a response; the tokens up to and including the one that completes the string are kept.
    pub stop: Vec<String>,
}

/// One prompt and the samples wanted of it. The prompt is computed once for all of them.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids; at least one.
    pub prompt: Arc<[u32]>,
    /// One sample per seed. A sample depends on prompt, parameters, weights and its own seed, on nothing else.
    pub seeds: Vec<u64>,
    /// How every sample of the request is drawn.
    pub params: Arc<SamplingParams>,
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string.
    Stop,
    /// `max_new_tokens` or the model's context length.
    Length,
    /// The request was withdrawn; the tokens so far are valid.
    Abort,
}

/// One finished sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Token ids of the response, without the prompt's.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the tempered, truncated distribution it was drawn from; 0 when greedy is exact.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Policy version that produced each token.
    pub versions: Vec<u64>,
}
