//! One sample while it is generated.

use std::sync::Arc;

use super::request::SamplingParams;
use super::request::{Completion, Details, FinishReason, Request, TokenLogprob, TokenScore};
use super::runner::{Draw, Drawn};
use super::stop::StopCheck;

/// Names a sequence, in order of arrival: the smaller is the older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    /// Number of the request, counted at submission.
    pub request: u64,
    /// Index of the sample among the request's seeds.
    pub sample: usize,
}

/// One sample: its prompt and the response so far.
#[derive(Debug)]
pub struct Sequence {
    /// Which sample of which request.
    pub id: SequenceId,
    prompt: Arc<[u32]>,
    params: Arc<SamplingParams>,
    details: Details,
    seed: u64,
    response: Completion,
    stop: StopCheck,
}

impl Sequence {
    /// A sequence with nothing generated yet.
    pub fn new(id: SequenceId, request: &Request, seed: u64) -> Self {
        let response = Completion {
            tokens: vec![],
            logprobs: vec![],
            finish_reason: FinishReason::Abort,
            versions: vec![],
            top_logprobs: vec![],
            prompt_logprobs: None,
        };
        Self {
            id,
            prompt: request.prompt.clone(),
            params: request.params.clone(),
            details: request.details,
            seed,
            response,
            stop: StopCheck::after(&request.prompt, &request.params),
        }
    }

    /// Tokens of prompt and response.
    pub fn length(&self) -> usize {
        self.prompt.len() + self.response.tokens.len()
    }

    /// Whether a token was drawn already.
    pub fn has_begun(&self) -> bool {
        !self.response.tokens.is_empty()
    }

    /// The `count` tokens from position `start`, prompt and response in one.
    pub fn tokens(&self, start: usize, count: usize) -> Vec<u32> {
        self.prompt
            .iter()
            .chain(&self.response.tokens)
            .skip(start)
            .take(count)
            .copied()
            .collect()
    }

    /// The next token to draw. Its random stream goes on at the token's index, whatever was recomputed in between.
    pub fn draw(&self, rules: &StopRules) -> Draw {
        Draw {
            params: self.params.clone(),
            ends: rules.ends.clone(),
            seed: self.seed,
            index: self.response.tokens.len(),
            top: self.details.top_logprobs,
        }
    }

    /// Tokens to list beside each scored prompt token; None when the prompt's tokens are not to be scored, or are already.
    pub fn scores_prompt(&self) -> Option<usize> {
        self.details.prompt_logprobs.filter(|_| !self.has_begun())
    }

    /// Whether each drawn token comes with the likeliest ones.
    pub fn wants_top(&self) -> bool {
        self.details.top_logprobs.is_some()
    }

    /// Takes the scores of the prompt's tokens.
    pub fn set_prompt_logprobs(&mut self, scores: Arc<[TokenScore]>) {
        self.response.prompt_logprobs = Some(scores);
    }

    /// Appends a token that `version` of the policy drew; says why the response is now complete, if it is.
    pub fn push(
        &mut self,
        drawn: Drawn,
        top: Option<Vec<TokenLogprob>>,
        version: u64,
        check: &StopRules,
    ) -> Option<FinishReason> {
        self.response.tokens.push(drawn.token);
        self.response.logprobs.push(drawn.logprob);
        self.response.versions.push(version);
        self.response.top_logprobs.extend(top);
        let room = check.max_positions.saturating_sub(self.length());
        self.stop
            .after_token(&self.response.tokens, &self.params, room, check.detokenize.as_ref())
    }

    /// The response as it stands.
    pub fn finish(self, reason: FinishReason) -> Completion {
        Completion {
            finish_reason: reason,
            ..self.response
        }
    }
}

/// What ends a response beside its own parameters.
#[derive(Clone)]
pub struct StopRules {
    /// Longest sequence the model can hold.
    pub max_positions: usize,
    /// The model's own end tokens. They end a response only where its parameters name them, and are kept away before the minimum either way,
    /// as in vLLM (`update_from_generation_config` in `sampling_params.py`).
    pub ends: Arc<[u32]>,
    /// Reads stop strings; without it requests with stop strings are refused.
    pub detokenize: Option<super::stop::Detokenize>,
}
