//! How a reward model reads a sample: as token ids of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::Result;
use serde_json::{Value, json};

use super::longest::{Longest, Unscorable};
use super::sample::ScoredSample;
use crate::tokenizer::Tokenizer;

/// A reward model's tokenizer beside that of the policy. Clones are one reader.
#[derive(Clone)]
pub(super) struct Reader {
    tokenizer: Arc<Tokenizer>,
    /// Samples whose ids another one made are tokenised again.
    fingerprint: Arc<str>,
    /// What the policy is called in the log.
    pub(super) policy: String,
    /// Nothing is read behind the end token of a chat.
    pub(super) at_end_token: bool,
    /// None: whatever comes is read.
    longest: Option<Longest>,
    /// One bit for each [`Reading`] that the log has.
    told: Arc<AtomicU8>,
}

/// What is read of a sample.
enum Reading<'a> {
    /// The policy's ids: they mean the same here.
    Ids,
    /// Messages and answer, by the reward model's own chat template.
    Chat(&'a [Value]),
    /// Prompt and answer without the policy's special tokens.
    Text,
    /// The text of another trainer's request.
    Query,
}

impl Reader {
    /// A reader with the reward model's `tokenizer`.
    ///
    /// # Errors
    /// When it cannot be compared with others.
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Result<Self> {
        Ok(Self {
            fingerprint: tokenizer.fingerprint()?,
            tokenizer,
            policy: "the policy".to_owned(),
            at_end_token: false,
            longest: None,
            told: Arc::default(),
        })
    }

    /// From now on sequences of more tokens are [`Unscorable`].
    pub(super) fn bound(&mut self, tokens: usize) {
        self.longest = Some(Longest::new(tokens, &self.tokenizer));
    }

    /// Whether the text of query `index`, of so many bytes, may be split.
    ///
    /// # Errors
    /// [`Unscorable`], which it is by its text alone.
    pub(super) fn check_text(&self, index: usize, bytes: usize) -> Result<(), Unscorable> {
        self.longest.map_or(Ok(()), |longest| longest.check_text(index, bytes))
    }

    /// What the reward model is called in the log.
    pub(super) fn own(&self) -> std::path::Display<'_> {
        self.tokenizer.folder().display()
    }

    /// What the reward model reads of `sample`.
    ///
    /// # Errors
    /// When a text cannot be tokenised, the chat template refuses the messages, or the sequence is [`Unscorable`].
    pub(super) fn sequence(&self, sample: &ScoredSample) -> Result<Vec<u32>> {
        let reading = self.reading(sample);
        self.tell(&reading, sample);
        let ids: Vec<u32> = match reading {
            Reading::Ids => sample.prompt_ids.iter().chain(&sample.response_ids).copied().collect(),
            Reading::Chat(messages) => self.chat(messages, sample)?,
            Reading::Text => self.text(sample)?,
            // As OpenRLHF's `serve_rm.py`: nothing is stripped or added, so a response that was cut off has no end token.
            Reading::Query => self.encode(&format!("{}{}", sample.prompt, sample.response), false, sample)?,
        };
        if ids.is_empty() {
            return Err(Unscorable::Empty { index: sample.index }.into());
        }
        if let Some(longest) = self.longest {
            longest.check_tokens(sample.index, ids.len())?;
        }
        Ok(ids)
    }

    /// Token ids of what is read of `sample` as a text.
    fn encode(&self, text: &str, special: bool, sample: &ScoredSample) -> Result<Vec<u32>> {
        self.check_text(sample.index, text.len())?;
        self.tokenizer.encode(text, special)
    }

    fn reading<'a>(&self, sample: &'a ScoredSample) -> Reading<'a> {
        match (&sample.tokenizer, &sample.messages) {
            (Some(policy), _) if *policy == self.fingerprint => Reading::Ids,
            (Some(_), Some(messages)) if self.tokenizer.has_chat_template() => Reading::Chat(messages),
            (Some(_), _) => Reading::Text,
            (None, _) => Reading::Query,
        }
    }

    /// As verl's `_switch_chat_template` (`workers/fsdp_workers.py`): the answer, without the policy's special tokens, is the last
    /// message of the chat. One that has not ended stands behind the template's prompt for it, and nothing stands behind it.
    fn chat(&self, messages: &[Value], sample: &ScoredSample) -> Result<Vec<u32>> {
        let answer = sample.visible_response.trim();
        let text = if sample.has_ended {
            let turn = json!({"role": "assistant", "content": answer});
            let whole: Vec<Value> = messages.iter().cloned().chain([turn]).collect();
            let text = self.tokenizer.render_chat_at(&whole, false, sample.moment)?;
            match self.at_end_token {
                true => self.up_to_end(text),
                false => text,
            }
        } else {
            let begun = self.tokenizer.render_chat_at(messages, true, sample.moment)?;
            format!("{begun}{answer}")
        };
        self.encode(&text, false, sample)
    }

    /// `text` without the white space behind its end token, where it has one: ChatML's templates write a line feed there.
    fn up_to_end(&self, mut text: String) -> String {
        let end = text.trim_end().len();
        let names = self.tokenizer.eos_ids().iter();
        let mut names = names.filter_map(|id| self.tokenizer.token_name(*id));
        if names.any(|name| text[..end].ends_with(&name)) {
            text.truncate(end);
        }
        text
    }

    /// Text without marks of a chat; the reward model's own EOS stands for the policy's.
    fn text(&self, sample: &ScoredSample) -> Result<Vec<u32>> {
        let end = self.tokenizer.eos_id();
        let text = format!("{}{}", sample.visible_prompt, sample.visible_response);
        let mut ids = self.encode(&text, true, sample)?;
        if ids.last().copied() == end {
            ids.pop();
        }
        ids.extend(end.filter(|_| sample.has_ended));
        Ok(ids)
    }

    /// Says once which way samples are read: scores of a model that reads what it was not trained on look like any others.
    fn tell(&self, reading: &Reading, sample: &ScoredSample) {
        let bit = match reading {
            Reading::Ids => 1,
            Reading::Chat(_) => 2,
            Reading::Text => 4,
            Reading::Query => 8,
        };
        if self.told.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let (own, policy) = (self.own(), &self.policy);
        match reading {
            Reading::Ids => tracing::info!(
                "the reward model in {own} has the tokenizer of {policy}: it reads the policy's token ids"
            ),
            Reading::Chat(_) => tracing::info!(
                "the reward model in {own} has another tokenizer than {policy}: it reads each prompt's messages and the answer by its own \
                 chat template"
            ),
            Reading::Text if sample.messages.is_some() => tracing::warn!(
                "the reward model in {own} has another tokenizer than {policy} and no chat template: it reads chats as text, without the \
                 marks of who speaks; if it was trained on chats, add chat_template.jinja to its folder"
            ),
            Reading::Text => tracing::info!(
                "the reward model in {own} has another tokenizer than {policy}: it reads prompts and answers as text, without the \
                 policy's special tokens"
            ),
            Reading::Query => {
                tracing::info!(
                    "the reward model in {own} reads the text of requests as it stands: it ends with an end token where they send one"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn reader(family: &str) -> Reader {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        Reader::new(Arc::new(Tokenizer::load(&folder.join(family)).unwrap())).unwrap()
    }

    /// A response of another tokenizer's policy to the message `Hi`.
    fn answered(response: &str, has_ended: bool) -> ScoredSample {
        ScoredSample {
            index: 0,
            prompt: "Hi".into(),
            visible_prompt: "Hi".into(),
            messages: Some(vec![json!({"role": "user", "content": "Hi"})].into()),
            moment: None,
            response: response.into(),
            visible_response: response.into(),
            has_ended,
            tokenizer: Some("another".into()),
            prompt_ids: vec![1].into(),
            response_ids: vec![2],
            label: None,
        }
    }

    #[test]
    fn a_chat_is_read_up_to_its_end_token_by_a_model_that_was_trained_there_and_else_as_its_template_writes_it() {
        let mut chatml = reader("chatml");
        let messages = [("user", "Hi"), ("assistant", "42")];
        let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
        let whole = chatml.tokenizer.render_chat(&messages, false).unwrap();
        assert!(whole.ends_with("42<|im_end|>\n"), "{whole:?}");
        let read = chatml.sequence(&answered("42", true)).unwrap();
        assert_eq!(read, chatml.tokenizer.encode(&whole, false).unwrap());
        chatml.at_end_token = true;
        let read = chatml.sequence(&answered("42", true)).unwrap();
        assert_eq!(read, chatml.tokenizer.encode(whole.trim_end(), false).unwrap());
        assert_eq!(read.last().copied(), chatml.tokenizer.eos_id());
        let begun = chatml.sequence(&answered("42", false)).unwrap();
        assert_ne!(begun.last().copied(), chatml.tokenizer.eos_id());
    }

    #[test]
    fn a_sequence_that_is_too_long_is_refused_whichever_way_it_is_read() {
        let mut reader = reader("chatml");
        reader.bound(8);
        let of_ids = |count: usize| ScoredSample {
            tokenizer: Some(reader.fingerprint.clone()),
            response_ids: vec![2; count],
            ..answered("42", true)
        };
        // As many tokens as words at the least.
        let chat = answered("a b c d e f g h i j", true);
        let text = ScoredSample {
            messages: None,
            ..chat.clone()
        };
        let query = ScoredSample {
            tokenizer: None,
            ..chat.clone()
        };
        for sample in [of_ids(8), chat, text, query] {
            let error = reader.sequence(&sample).unwrap_err();
            assert!(error.is::<Unscorable>(), "{error:#}");
        }
        assert_eq!(reader.sequence(&of_ids(7)).unwrap().len(), 8, "with the prompt's");
    }

    #[test]
    fn white_space_that_stands_behind_no_end_token_is_read() {
        // This template writes more behind the end token.
        let qwen = reader("qwen3");
        for text in ["42\n", "42<|im_end|>\n{}\n", "42<|im_start|>\n"] {
            assert_eq!(qwen.up_to_end(text.to_owned()), text);
        }
        assert_eq!(qwen.up_to_end("42<|im_end|> \n\n".to_owned()), "42<|im_end|>");
    }
}
