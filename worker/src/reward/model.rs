//! A reward model as a source of scores: sequences by token ids, batched by a token budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use crossbeam_channel::{Receiver, Sender};
use futures::{StreamExt, TryStreamExt, stream};

use super::longest::Unscorable;
use super::reading::Reader;
use super::sample::ScoredSample;
use crate::model::budget::batches;
use crate::native::threads::blocking;
use crate::telemetry::Live;
use crate::tokenizer::{Encoding, Tokenizer};

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
    reader: Reader,
    encoding: Encoding,
    /// Of the model, where somebody compares it.
    digest: Option<String>,
    batch_tokens: usize,
    /// Tokens of the longest sequence that it was made for, where that is known.
    context: Option<usize>,
    /// Whether the log has that a sequence is longer.
    told_longer: AtomicBool,
    /// See [`ModelReward::report_to`].
    live: Option<Arc<Live>>,
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
            reader: Reader::new(tokenizer)?,
            encoding: Encoding::default(),
            digest: None,
            batch_tokens: batch_tokens.max(1),
            context: None,
            told_longer: AtomicBool::new(false),
            live: None,
        })
    }

    /// The same with the digest of the model, which is told with every score.
    #[must_use]
    pub fn with_digest(self, digest: String) -> Self {
        let digest = Some(digest);
        Self { digest, ..self }
    }

    /// The same with the tokens of the longest sequence that it was made for: longer ones are warned about.
    #[must_use]
    pub fn made_for(self, tokens: usize) -> Self {
        let context = Some(tokens);
        Self { context, ..self }
    }

    /// The same for a server: what is longer than a run's `longest` sequence, than a whole pass and than what it was made for is refused.
    #[must_use]
    pub fn refusing_beyond(mut self, longest: usize) -> Self {
        let most = longest.max(self.batch_tokens).max(self.context.unwrap_or(0));
        self.reader.bound(most);
        self
    }

    /// The same with what the log calls the policy whose samples it scores.
    #[must_use]
    pub fn of_policy(mut self, name: String) -> Self {
        self.reader.policy = name;
        self
    }

    /// The same for a model that was trained to score at the end token, and not at what its chat template writes behind that.
    #[must_use]
    pub fn scored_at_end_token(mut self) -> Self {
        self.reader.at_end_token = true;
        self
    }

    /// From now on `live` is told of every forward that is done.
    pub fn report_to(&mut self, live: Arc<Live>) {
        self.live = Some(live);
    }

    /// Digest of the model, where it was given.
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Whether the text of query `index`, of so many bytes, may be split.
    ///
    /// # Errors
    /// [`Unscorable`], where it [refuses](Self::refusing_beyond) any.
    pub(super) fn check_text(&self, index: usize, bytes: usize) -> Result<(), Unscorable> {
        self.reader.check_text(index, bytes)
    }

    /// Warns, once, of sequences of up to `longest` tokens where it was made for shorter ones.
    pub fn warn_beyond(&self, longest: usize) {
        let Some(context) = self.context.filter(|context| *context < longest) else {
            return;
        };
        if !self.told_longer.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a sequence may have {longest} tokens, the context of the reward model in {} has {context}: beyond it its scores mean \
                 little; lower prompts.maxLength or generation.maxNewTokens",
                self.reader.own()
            );
        }
    }

    /// One score per sample. Forwards run on threads of their own, as many at once as there are copies; calls take turns where none is free.
    ///
    /// # Errors
    /// When a text cannot be tokenised or the model fails; names the samples.
    pub async fn score(&self, samples: &[ScoredSample]) -> Result<Vec<f32>> {
        let sequences = self.sequences(samples).await?;
        self.warn_beyond(sequences.iter().map(Vec::len).max().unwrap_or(0));
        // Not a closure: the compiler cannot prove that one over borrowed sequences may be sent to another thread.
        let mut forwards = Vec::new();
        for batch in batches(sequences.iter().map(Vec::len), self.batch_tokens) {
            forwards.push(self.forward(batch, &sequences, samples));
        }
        let done = stream::iter(forwards)
            .buffered(self.copies.count)
            .try_collect::<Vec<_>>();
        let mut scores = vec![0.0; samples.len()];
        for (batch, output) in done.await? {
            for (at, score) in batch.into_iter().zip(output) {
                scores[at] = score;
            }
        }
        Ok(scores)
    }

    /// What is read of the samples. Aside: to split texts takes long enough to hold up other requests.
    async fn sequences(&self, samples: &[ScoredSample]) -> Result<Vec<Vec<u32>>> {
        let length = |sample: &ScoredSample| sample.prompt.len() + sample.response.len();
        let longest = samples.iter().map(length).max().unwrap_or(0);
        let splitting = self.encoding.enter(longest).await?;
        let (reader, samples) = (self.reader.clone(), samples.to_vec());
        let asker = Arc::new(());
        let asked = Arc::downgrade(&asker);
        let read = move || {
            let _splitting = splitting;
            let read = |sample: &ScoredSample| {
                // For who has gone meanwhile no further one is split.
                ensure!(asked.strong_count() > 0, "nobody waits for the scores any more");
                let sequence = reader.sequence(sample);
                sequence.with_context(|| format!("sample {}", sample.index))
            };
            samples.iter().map(read).collect::<Result<Vec<_>>>()
        };
        let sequences = blocking(read).await.context("the reward model's tokenizer died")?;
        drop(asker);
        sequences
    }

    /// The scores of a batch, behind the places of its sequences.
    async fn forward(
        &self,
        batch: Vec<usize>,
        sequences: &[Vec<u32>],
        samples: &[ScoredSample],
    ) -> Result<(Vec<usize>, Vec<f32>)> {
        let input: Vec<Vec<u32>> = batch.iter().map(|&at| sequences[at].clone()).collect();
        let copies = self.copies.clone();
        let asker = Arc::new(());
        let asked = Arc::downgrade(&asker);
        let forward = move || {
            let mut copy = copies.borrow()?;
            // Who asked may have gone while others had the copies.
            ensure!(asked.strong_count() > 0, "nobody waits for the scores any more");
            copy.scores(&input)
        };
        let output = blocking(forward)
            .await
            .context("the reward model's thread died")?
            .with_context(|| {
                format!(
                    "reward model on {} samples from {}",
                    batch.len(),
                    samples[batch[0]].index
                )
            })?;
        drop(asker);
        if output.len() != batch.len() {
            bail!(
                "the reward model gave {} scores for {} sequences",
                output.len(),
                batch.len()
            );
        }
        if let Some(live) = &self.live {
            live.goes_on();
        }
        Ok((batch, output))
    }
}

/// Copies of one model that wait for work.
#[derive(Clone)]
struct Copies {
    free: Receiver<Box<dyn SequenceScorer>>,
    give_back: Sender<Box<dyn SequenceScorer>>,
    count: usize,
}

impl Copies {
    fn new(copies: Vec<Box<dyn SequenceScorer>>) -> Self {
        let count = copies.len();
        let (give_back, free) = crossbeam_channel::bounded(count);
        for copy in copies {
            // It has room for all of them.
            let _ = give_back.send(copy);
        }
        Self { free, give_back, count }
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

#[cfg(test)]
mod tests;
