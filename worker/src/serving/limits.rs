//! Limits on what one client, and all clients together, may ask for.

use std::time::Duration;

use super::error::ApiError;
use crate::pace;

/// Stop strings that a request may have at all: further ones are not even read.
pub const MOST_STOPS: usize = 256;

/// Prompts that a request may have at all, as vLLM's `VLLM_MAX_COMPLETION_PROMPTS`: further ones are not even read.
pub const MOST_PROMPTS: usize = 1024;

/// How long the engine may take for one step's generation before the run fails with a reason.
pub const GENERATION_DEADLINE: Duration = Duration::from_secs(6 * 3600);

/// How long a pod may take for one answer, after which it says what would help. It has other questions before it, and this is for all of them.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(1800);

/// Bounds on connections, requests and waits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Open connections; further ones wait in the kernel's queue.
    pub connections: usize,
    /// A client must send its headers within this time, and an idle connection is closed after it.
    pub header_timeout: Duration,
    /// Bytes of a request's headers, to within a factor of two.
    pub header_bytes: usize,
    /// A client must send its body within this time.
    pub body_timeout: Duration,
    /// Bytes of a body, streamed weights apart.
    pub body_bytes: usize,
    /// What makes a body shorter, in words for who sent one that is too long.
    pub shorter_body: &'static str,
    /// Bytes of all long bodies that are being read and parsed; short ones come to 64 KiB a connection, and one long one more may be read.
    pub all_body_bytes: usize,
    /// A client that takes no byte of its answer for this long is cut.
    pub write_timeout: Duration,
    /// Bytes of all long answers that were written and that their clients have not taken; short ones come to 64 KiB a connection.
    pub unread_bytes: usize,
    /// Samples inside, waiting and running; further requests get 429.
    pub samples: usize,
    /// Tokens of one request, prompts and longest responses of all its samples.
    pub request_tokens: usize,
    /// Prompts of one request; at most [`MOST_PROMPTS`].
    pub prompts: usize,
    /// Likeliest tokens that may be listed, as vLLM's `--max-logprobs`.
    pub logprobs: usize,
    /// Log-probabilities with their tokens that one answer may list.
    pub listed: usize,
    /// Stop strings, and stop token ids, of one request; of the first at most [`MOST_STOPS`].
    pub stops: usize,
    /// Longest time from a request to its answer.
    pub request_timeout: Duration,
    /// Longest time to load new weights, however few: see [`update_deadline`](Self::update_deadline).
    pub update_timeout: Duration,
    /// Time to finish what is in flight after SIGTERM; then it is handed back with finish reason `abort`.
    pub shutdown_grace: Duration,
}

impl Limits {
    /// Longest time to load new weights of so many bytes.
    pub fn update_deadline(&self, bytes: u64) -> Duration {
        pace::lengthened(self.update_timeout, bytes, pace::LEAST_RATE)
    }

    /// # Errors
    /// 400 when a request has more prompts than it may.
    pub fn check_prompts(&self, prompts: usize) -> Result<(), ApiError> {
        if prompts <= self.prompts {
            return Ok(());
        }
        let words = format!("{prompts} prompts in one request, at most {}", self.prompts);
        Err(ApiError::field("prompt", words))
    }

    /// # Errors
    /// 400 when a request asks for more samples than there is ever room for.
    pub fn check_samples(&self, samples: usize) -> Result<(), ApiError> {
        if samples <= self.samples {
            return Ok(());
        }
        let words = format!(
            "{samples} samples in one request, at most {}: send fewer at once",
            self.samples
        );
        Err(ApiError::field("n", words))
    }

    /// # Errors
    /// 400 when prompts and longest responses of a request come to more tokens than they may.
    pub fn check_tokens(&self, tokens: usize) -> Result<(), ApiError> {
        if tokens <= self.request_tokens {
            return Ok(());
        }
        Err(ApiError::bad(format!(
            "the request may come to {tokens} tokens, at most {} in one request: send fewer prompts or samples at once",
            self.request_tokens
        )))
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2048,
            header_timeout: Duration::from_secs(30),
            header_bytes: 64 << 10,
            body_timeout: Duration::from_secs(60),
            body_bytes: 16 << 20,
            shorter_body: "send less at once",
            all_body_bytes: 256 << 20,
            write_timeout: Duration::from_secs(60),
            unread_bytes: 1 << 30,
            samples: 16_384,
            request_tokens: 64 << 20,
            prompts: MOST_PROMPTS,
            logprobs: 20,
            listed: 8 << 20,
            stops: MOST_STOPS,
            request_timeout: Duration::from_secs(3600),
            update_timeout: pace::LEAST,
            // A pod has 30 seconds (the operator's GRACE_SECONDS): five are left to hand back and to exit.
            shutdown_grace: Duration::from_secs(25),
        }
    }
}
