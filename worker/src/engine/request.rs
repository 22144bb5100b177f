//! What is asked of the engine and what it answers. Tokens travel as ids.

use std::sync::Arc;
use std::time::Duration;

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
    /// Before this many tokens no stop token is drawn or ends the response, nor is an end token of the model drawn that would not end it; up to this many none completes a stop string that does.
    pub min_new_tokens: usize,
    /// Tokens that end a response (the model's EOS ids included); the token itself is part of the response.
    pub stop_token_ids: Vec<u32>,
    /// Strings that end a response; the tokens up to and including the one that completes the string are kept.
    pub stop: Vec<String>,
    /// Stop strings are looked for in text without special tokens.
    pub skip_special: bool,
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
    /// What is told beside tokens and their log-probabilities. Changes no token.
    pub details: Details,
}

/// Numbers that cost more than the tokens alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// So many of the likeliest tokens at each token of a response. Some(0) lists none, but gives greedy tokens the
    /// log-probability of the untempered distribution.
    pub top_logprobs: Option<usize>,
    /// The log-probability of every prompt token but the first, with so many of the likeliest ones beside it.
    pub prompt_logprobs: Option<usize>,
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Its id.
    pub token: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// How likely a given token was where it stood, under the untempered distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// Its log-probability.
    pub logprob: f32,
    /// 1 for the likeliest token.
    pub rank: usize,
    /// The likeliest tokens, likeliest first.
    pub top: Vec<TokenLogprob>,
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
    /// At each token the likeliest ones that could have been drawn, likeliest first; empty unless the request asked.
    pub top_logprobs: Vec<Vec<TokenLogprob>>,
    /// Score of each prompt token but the first; None unless the request asked, or when it ended before they were known.
    pub prompt_logprobs: Option<Arc<[TokenScore]>>,
}

/// What happens to a request while it is made.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The request's number, as its ticket tells.
    pub request: u64,
    /// Index of the sample among the request's seeds.
    pub sample: usize,
    /// What happened.
    pub news: News,
}

/// One piece of news of a sample.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A token was drawn.
    Token {
        /// Its id and log-probability.
        drawn: TokenLogprob,
        /// The likeliest tokens there, as in [`Completion::top_logprobs`].
        top: Vec<TokenLogprob>,
        /// Policy version that produced it.
        version: u64,
        /// Why the sample is done with it. None: another token follows.
        ended: Option<FinishReason>,
    },
    /// The sample was withdrawn: it is done with the tokens it has.
    Withdrawn,
}

/// How long a sample waited, until the engine had drawn what it waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// For its first, since the request was handed in.
    First(Duration),
    /// For a further one, since the one before.
    Next(Duration),
    /// For all of them: a stop condition or its length has ended it.
    All(Spent),
}

/// Where the time of a sample went, from its request to its last token, and for how much (`FinishedRequestStats` in
/// `vllm/v1/metrics/stats.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Until the first pass began that computed some of it.
    pub queued: Duration,
    /// From then until its first token.
    pub prefill: Duration,
    /// From its first token to its last.
    pub decode: Duration,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of its response.
    pub generation_tokens: usize,
}
