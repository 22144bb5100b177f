//! A reward model as a source of scores: sequences by token ids, batched by a token budget.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use crossbeam_channel::{Receiver, Sender};

use super::sample::ScoredSample;
use crate::native::threads::blocking;
use crate::tokenizer::Tokenizer;

/// Sequences times longest sequence of one forward of a run's reward model.
pub const BATCH_TOKENS: usize = 16_384;

/// A model that gives one number to each token sequence.
pub trait SequenceScorer: Send {
    /// One score per sequence, in order. A score depends on its own sequence only.
    ///
    /// # Errors
    /// When the model cannot run (out of memory, a token outside its vocabulary).
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>>;
}

/// A reward model with its tokenizer.
pub struct ModelReward {
    copies: Copies,
    tokenizer: Arc<Tokenizer>,
    /// Of its tokenizer: samples whose ids another one made are tokenised again.
    fingerprint: Arc<str>,
    /// Of the model, where somebody compares it.
    digest: Option<String>,
    batch_tokens: usize,
}

impl ModelReward {
    /// Copies of a reward model, one for each device, with its own tokenizer. `batch_tokens` bounds sequences times longest sequence of one forward (a
    /// single longer sequence still runs).
    ///
    /// # Errors
    /// When the tokenizer cannot be compared with others.
    pub fn new(copies: Vec<Box<dyn SequenceScorer>>, tokenizer: Arc<Tokenizer>, batch_tokens: usize) -> Result<Self> {
        Ok(Self {
            copies: Copies::new(copies),
            fingerprint: tokenizer.fingerprint()?,
            tokenizer,
            digest: None,
            batch_tokens: batch_tokens.max(1),
        })
    }

    /// The same with the digest of the model, which is told with every score.
    #[must_use]
    pub fn with_digest(self, digest: String) -> Self {
        let digest = Some(digest);
        Self { digest, ..self }
    }

    /// Digest of the model, where it was given.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// One score per sample. The forward runs on a thread of its own, with whichever copy is free; calls take turns where none is.
    ///
    /// # Errors
    /// When a text cannot be tokenised or the model fails; names the samples.
    pub async fn score(&self, samples: &[ScoredSample]) -> Result<Vec<f32>> {
        let sequences = samples
            .iter()
            .map(|sample| {
                self.sequence(sample)
                    .with_context(|| format!("sample {}", sample.index))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut scores = vec![0.0; samples.len()];
        for batch in batches(sequences.iter().map(Vec::len), self.batch_tokens) {
            let input: Vec<Vec<u32>> = batch.iter().map(|&at| sequences[at].clone()).collect();
            let copies = self.copies.clone();
            let output = blocking(move || copies.borrow()?.scores(&input))
                .await
                .context("the reward model's thread died")?
                .with_context(|| {
                    format!(
                        "reward model on {} samples from {}",
                        batch.len(),
                        samples[batch[0]].index
                    )
                })?;
            if output.len() != batch.len() {
                bail!(
                    "the reward model gave {} scores for {} sequences",
                    output.len(),
                    batch.len()
                );
            }
            for (at, score) in batch.into_iter().zip(output) {
                scores[at] = score;
            }
        }
        Ok(scores)
    }

    /// The policy's own ids where they mean the same here. Else the text without the policy's special tokens, ended by the
    /// reward model's EOS; or, where text is all there is (another trainer's request), as OpenRLHF's `serve_rm` has it.
    fn sequence(&self, sample: &ScoredSample) -> Result<Vec<u32>> {
        match &sample.tokenizer {
            Some(policy) if *policy == self.fingerprint => {
                Ok(sample.prompt_ids.iter().chain(&sample.response_ids).copied().collect())
            }
            Some(_) => {
                let text = format!("{}{}", sample.visible_prompt, sample.visible_response);
                let mut ids = self.tokenizer.encode(&text, true)?;
                if ids.last().copied() != self.tokenizer.eos_id() {
                    ids.extend(self.tokenizer.eos_id());
                }
                Ok(ids)
            }
            None => self.query_sequence(&format!("{}{}", sample.prompt, sample.response)),
        }
    }

    /// As `serve_rm.py`: pad and EOS are stripped from both ends, one EOS ends the text, nothing else is added.
    fn query_sequence(&self, text: &str) -> Result<Vec<u32>> {
        let (pad, eos) = (self.tokenizer.pad_id(), self.tokenizer.eos_id());
        let filler = |id: &u32| Some(*id) == pad || Some(*id) == eos;
        let ids = self.tokenizer.encode(text, false)?;
        let first = ids.iter().position(|id| !filler(id)).unwrap_or(ids.len());
        let last = ids.iter().rposition(|id| !filler(id)).map_or(first, |at| at + 1);
        let ids: Vec<u32> = ids[first..last].iter().copied().chain(eos).collect();
        if ids.is_empty() {
            bail!("an empty text has no score");
        }
        Ok(ids)
    }
}

/// Copies of one model that wait for work.
#[derive(Clone)]
struct Copies {
    free: Receiver<Box<dyn SequenceScorer>>,
    give_back: Sender<Box<dyn SequenceScorer>>,
}

impl Copies {
    fn new(copies: Vec<Box<dyn SequenceScorer>>) -> Self {
        let (give_back, free) = crossbeam_channel::bounded(copies.len());
        for copy in copies {
            // It has room for all of them.
            let _ = give_back.send(copy);
        }
        Self { free, give_back }
    }

    /// The next free one, until it is dropped.
    fn borrow(&self) -> Result<Borrowed> {
        Ok(Borrowed {
            copy: Some(self.free.recv().context("the reward model has no copy")?),
            give_back: self.give_back.clone(),
        })
    }
}

/// A copy that comes back also from a call that panics: it keeps nothing from one call to the next.
struct Borrowed {
    copy: Option<Box<dyn SequenceScorer>>,
    give_back: Sender<Box<dyn SequenceScorer>>,
}

impl Borrowed {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        let copy = self.copy.as_mut().context("the reward model was given back")?;
        copy.scores(sequences)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        if let Some(copy) = self.copy.take() {
            let _ = self.give_back.send(copy);
        }
    }
}

/// Indices of the sequences of each forward, by their lengths: longest first, so that little is padding.
pub fn batches(lengths: impl Iterator<Item = usize>, batch_tokens: usize) -> Vec<Vec<usize>> {
    let lengths: Vec<usize> = lengths.collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(lengths[at]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for at in order {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * lengths[batch[0]] <= batch_tokens => batch.push(at),
            _ => batches.push(vec![at]),
        }
    }
    batches
}

#[cfg(test)]
mod tests;
