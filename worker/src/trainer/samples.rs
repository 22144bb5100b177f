//! Samples of a step in a form for people to read.

use anyhow::Result;
use tch::Tensor;

use crate::data::Label;
use crate::engine::FinishReason;
use crate::stages::Batch;
use crate::telemetry::{SampleRecord, TokenRecord};
use crate::tokenizer::{Tokenizer, text_after};

/// The first `count` samples of a step, decoded, with reward, advantage and KL of each token. The last token's reward is that of
/// the slot after it, too, where TRL has the score: a sample's rewards sum up to what shaping gave it.
///
/// # Errors
/// When the tokenizer cannot decode a token.
pub fn describe(batch: &Batch, tokenizer: &Tokenizer, count: usize) -> Result<Vec<SampleRecord>> {
    let columns = |tensor: &Tensor, row: usize| -> Result<Vec<f64>> {
        Ok(Vec::<f64>::try_from(
            tensor.f_get(row as i64)?.f_to_kind(tch::Kind::Double)?,
        )?)
    };
    let describe = |(row, sample): (usize, &crate::stages::Sample)| {
        let mut rewards = columns(&batch.shaped.rewards, row)?;
        let after: f64 = rewards.split_off(sample.response.len()).into_iter().sum();
        if let Some(last) = rewards.last_mut() {
            *last += after;
        }
        let advantages = columns(&batch.advantages.advantages, row)?;
        let kl = columns(&batch.shaped.kl, row)?;
        let logprobs = columns(&batch.scored.old_logprobs, row)?;
        let token = |(column, id): (usize, &u32)| {
            Ok(TokenRecord {
                text: tokenizer.decode(&[*id], false)?,
                reward: rewards[column],
                advantage: advantages[column],
                kl: kl[column],
                logprob: logprobs[column],
            })
        };
        Ok(SampleRecord {
            prompt: sample.prompt.text.clone(),
            label: sample.prompt.label.as_ref().map(Label::shown),
            response: text_after(tokenizer, &sample.prompt.ids, &sample.response, true)?,
            score: f64::from(batch.scored.drawn.chosen.scores[row]),
            finish_reason: finish_reason(sample.finish_reason).to_owned(),
            tokens: sample.response.iter().enumerate().map(token).collect::<Result<_>>()?,
        })
    };
    batch
        .scored
        .samples()
        .iter()
        .enumerate()
        .take(count)
        .map(describe)
        .collect()
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}
