//! Samples of a step in a form for people to read.

use anyhow::Result;
use tch::Tensor;

use crate::data::Label;
use crate::engine::FinishReason;
use crate::stages::Batch;
use crate::telemetry::{SampleRecord, TokenRecord};
use crate::tokenizer::{TextStream, Tokenizer, text_after};

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
        let texts = texts(tokenizer, &sample.prompt.ids, &sample.response)?;
        let token = |(column, text): (usize, String)| TokenRecord {
            text,
            reward: rewards[column],
            advantage: advantages[column],
            kl: kl[column],
            logprob: logprobs[column],
        };
        Ok(SampleRecord {
            prompt: sample.prompt.text.clone(),
            label: sample.prompt.label.as_ref().map(Label::shown),
            response: text_after(tokenizer, &sample.prompt.ids, &sample.response, true)?,
            score: f64::from(batch.scored.drawn.chosen.scores[row]),
            finish_reason: finish_reason(sample.finish_reason).to_owned(),
            tokens: texts.into_iter().enumerate().map(token).collect(),
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

/// What each token of a response adds to its text, special tokens too; a character of several tokens stands at the last of them.
fn texts(tokenizer: &Tokenizer, prompt: &[u32], response: &[u32]) -> Result<Vec<String>> {
    let mut stream = TextStream::after(tokenizer, prompt, false)?;
    let added = response.iter().map(|id| stream.push(tokenizer, *id));
    let mut texts: Vec<String> = added.collect::<Result<_>>()?;
    if let Some(last) = texts.last_mut() {
        last.push_str(&stream.finish(tokenizer)?);
    }
    Ok(texts)
}

fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort => "abort",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn tokenizer(name: &str) -> Tokenizer {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/tokenizer");
        Tokenizer::load(&Path::new(fixtures).join(name)).unwrap()
    }

    #[test]
    fn the_texts_of_tokens_are_the_response_with_its_spaces_and_characters_of_several_tokens() {
        for name in ["llama2", "llama3", "qwen3"] {
            let tokenizer = tokenizer(name);
            for text in [" the the the", " caf\u{e9} \u{1f9a9}!", " 1 + 1 = 2\n\n  so"] {
                let (prompt, response) = (
                    tokenizer.encode("Say", true).unwrap(),
                    tokenizer.encode(text, false).unwrap(),
                );
                let texts = texts(&tokenizer, &prompt, &response).unwrap();
                assert_eq!(texts.len(), response.len());
                let whole = text_after(&tokenizer, &prompt, &response, false).unwrap();
                assert_eq!(texts.concat(), whole, "{name}");
                assert!(!whole.contains('\u{fffd}'), "{name}: {whole:?}");
            }
        }
    }

    #[test]
    fn a_response_that_ends_inside_a_character_says_so_at_its_last_token() {
        let tokenizer = tokenizer("llama3");
        let prompt = tokenizer.encode("Say", true).unwrap();
        let mut response = tokenizer.encode(" \u{1f9a9}", false).unwrap();
        response.pop();
        let texts = texts(&tokenizer, &prompt, &response).unwrap();
        assert!(texts.last().is_some_and(|text| text.contains('\u{fffd}')), "{texts:?}");
    }
}
