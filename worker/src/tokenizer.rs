//! Text to token ids and back, and the chat template.
//!
//! A model folder in Hugging Face layout says all of it: `tokenizer.json` (vocabulary and rules), `tokenizer_config.json`
//! (names of special tokens, chat template), `special_tokens_map.json` (names of an older folder), `chat_template.jinja` and
//! `additional_chat_templates/` (win over templates inside the configuration), `generation_config.json` or `config.json` (the ids that end
//! a response).

mod chat_template;
mod config;
mod encoding;
mod python_json;
mod python_text;
mod stream;
mod template_source;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokenizers::AddedToken;

pub use chat_template::ChatTemplate;
pub(crate) use chat_template::fixed_moment;
pub use config::{SpecialTokens, TokenizerConfig};
pub use encoding::Encoding;
pub use stream::TextStream;
pub(crate) use stream::{CONTEXT, LONGEST_PENDING, LONGEST_SILENT, text_after};

use crate::contained::contained;
use crate::hub::{foreign, only_a_pointer};

/// A model's tokenizer. Shared between threads behind an `Arc`; every method takes `&self`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    config: TokenizerConfig,
    /// What is wrong with it is told to who renders a chat: plain text needs none.
    template: Option<Result<ChatTemplate, String>>,
    /// The one for chats with tools, where that is another one.
    tool_template: Option<Result<ChatTemplate, String>>,
    moment: Option<jiff::Timestamp>,
    eos_ids: Vec<u32>,
    folder: PathBuf,
    fingerprint: OnceLock<Arc<str>>,
    puts_space: OnceLock<bool>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("folder", &self.folder)
            .field("eos_ids", &self.eos_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the tokenizer of the model in `folder`.
    ///
    /// # Errors
    /// Names the file that is missing or malformed and what would fix it. A folder without `tokenizer_config.json`, without
    /// a chat template or without EOS ids is legal here: who needs one of them asks and gets the error then.
    pub fn load(folder: &Path) -> Result<Self> {
        Self::load_at(folder, fixed_moment()?)
    }

    /// As [`load`](Self::load). `moment` is what the chat template takes for now (in UTC); None is the clock, in local time.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_at(folder: &Path, moment: Option<jiff::Timestamp>) -> Result<Self> {
        let file = folder.join("tokenizer.json");
        let bytes = std::fs::read(&file).with_context(|| missing_tokenizer(folder, &file))?;
        // The crate panics where the JSON of a part ends early.
        let parse = || tokenizers::Tokenizer::from_bytes(&bytes).map_err(|cause| anyhow!("{cause}"));
        let mut inner = contained(parse).map_err(|cause| {
            let why = only_a_pointer(&bytes).unwrap_or("not a tokenizer this version understands");
            anyhow!("{}: {why}: {cause:#}", file.display())
        })?;
        // The file may carry the settings of the script that saved it; transformers resets both on every call.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|cause| anyhow!("{}: {cause}", file.display()))?;

        let config = TokenizerConfig::read(folder, |token| inner.token_to_id(token).is_some())?;
        settle_added(&mut inner, &config).map_err(|cause| anyhow!("{}: {cause}", file.display()))?;
        let words = |error: anyhow::Error| format!("{error:#}");
        let template = ChatTemplate::read(folder, &config).map_err(words).transpose();
        let tool_template = ChatTemplate::read_for_tools(folder, &config);
        let tool_template = tool_template.map_err(words).transpose();
        let mut eos_ids = config::model_eos_ids(folder)?;
        if let Some(token) = &config.special.eos_token {
            let id = inner.token_to_id(token).with_context(|| {
                format!(
                    "{}: eos_token {token:?} is not in the vocabulary of tokenizer.json; the two files belong to \
                     different models",
                    folder.join("tokenizer_config.json").display()
                )
            })?;
            eos_ids.push(id);
        }
        eos_ids.sort_unstable();
        eos_ids.dedup();
        Ok(Self {
            inner,
            config,
            template,
            tool_template,
            moment,
            eos_ids,
            folder: folder.to_owned(),
            fingerprint: OnceLock::new(),
            puts_space: OnceLock::new(),
        })
    }

    /// Token ids of `text`. With `special`, what the model expects around a text (BOS for Llama) is added; strings of
    /// special tokens inside the text become those tokens either way.
    ///
    /// # Errors
    /// When the text cannot be split by the tokenizer's own rules (a vocabulary without an unknown token).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        // Llama's and Gemma's classes in transformers rebuild the post-processor from add_bos_token and add_eos_token
        // (tokenization_llama_fast.py, update_post_processor); every other class leaves it to tokenizer.json.
        // Without a BOS to add, transformers' own refuse to load; what tokenizer.json says is left.
        let own = special
            && self.config.class_adds_bos()
            && (self.bos_id().is_some() || self.config.add_bos_token == Some(false));
        let encode = || {
            self.inner
                .encode_fast(text, special && !own)
                .map_err(|cause| anyhow!("{cause}"))
        };
        let encoding = contained(encode).with_context(|| format!("tokenizer of {}", self.folder.display()))?;
        if !own {
            return Ok(encoding.get_ids().to_vec());
        }
        let bos = self
            .config
            .add_bos_token
            .unwrap_or(true)
            .then(|| self.bos_id())
            .flatten();
        let eos = self
            .config
            .add_eos_token
            .unwrap_or(false)
            .then(|| self.eos_id())
            .flatten();
        Ok(bos
            .into_iter()
            .chain(encoding.get_ids().iter().copied())
            .chain(eos)
            .collect())
    }

    /// Token ids of `text` where it stands behind another one: SentencePiece's tokenizers (Llama 2, Mistral) put a space before every text,
    /// which is then left out.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_behind(&self, text: &str) -> Result<Vec<u32>> {
        if self.puts_space()? {
            // Characters that no word has in it: a token of their own, unless the vocabulary has one of two of them.
            for anchor in ["\n", "\u{1}"] {
                let before = self.encode(anchor, false)?;
                let ids = self.encode(&format!("{anchor}{text}"), false)?;
                if let Some(ids) = ids.strip_prefix(&before[..]) {
                    return Ok(ids.to_vec());
                }
            }
        }
        self.encode(text, false)
    }

    /// Whether two texts that were encoded each on its own have a space between them.
    pub(crate) fn puts_space(&self) -> Result<bool> {
        if let Some(known) = self.puts_space.get() {
            return Ok(*known);
        }
        let letter = self.encode("a", false)?;
        let two = self.decode(&[&letter[..], &letter].concat(), false)?;
        Ok(*self.puts_space.get_or_init(|| two.contains(' ')))
    }

    /// Bytes of the longest entry of the vocabulary, added tokens too: a token stands for no more, unless it is the unknown one.
    pub fn longest_token(&self) -> usize {
        self.inner.get_vocab(true).keys().map(String::len).max().unwrap_or(1)
    }

    /// Text of `ids`; ids outside the vocabulary are left out. `skip_special` leaves out special tokens.
    ///
    /// # Errors
    /// When the tokenizer's decoder refuses the tokens.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        let decode = || self.inner.decode(ids, skip_special).map_err(|cause| anyhow!("{cause}"));
        contained(decode).with_context(|| format!("tokenizer of {}: decoding", self.folder.display()))
    }

    /// Chat messages (objects with `role` and `content`) as the text the model was trained on. With
    /// `add_generation_prompt` it ends where the assistant's answer begins.
    ///
    /// # Errors
    /// Without a chat template, with one that cannot be used, or when the template refuses the messages.
    pub fn render_chat(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String> {
        self.render_chat_with(messages, add_generation_prompt, &Map::new())
    }

    /// As [`render_chat`](Self::render_chat), with `variables` for the template beside its own, which they override.
    ///
    /// # Errors
    /// As [`render_chat`](Self::render_chat).
    pub fn render_chat_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<String> {
        self.render(messages, add_generation_prompt, variables, self.moment)
    }

    /// As [`render_chat`](Self::render_chat), with another [`moment`](Self::moment), where one is given.
    ///
    /// # Errors
    /// As [`render_chat`](Self::render_chat).
    pub fn render_chat_at(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        moment: Option<jiff::Timestamp>,
    ) -> Result<String> {
        self.render(messages, add_generation_prompt, &Map::new(), moment.or(self.moment))
    }

    fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
        moment: Option<jiff::Timestamp>,
    ) -> Result<String> {
        // As transformers' `get_chat_template`: the default one of two may not look at tools.
        let has_tools = variables.get("tools").is_some_and(|tools| !tools.is_null());
        let template = self.tool_template.as_ref().filter(|_| has_tools);
        let template = template.or(self.template.as_ref()).with_context(|| {
            format!(
                "{} has no chat template (neither chat_template.jinja nor chat_template in tokenizer_config.json); give \
                 plain text (a job chatTemplate: false, a server /v1/completions), or add the template of the model's family",
                self.folder.display()
            )
        })?;
        let usable = template.as_ref().map_err(|wrong| anyhow!("{wrong}"));
        usable?
            .render(messages, &self.config.special, add_generation_prompt, variables, moment)
            .with_context(|| format!("chat template of {}", self.folder.display()))
    }

    /// Token ids of chat messages. The template writes BOS itself where the model wants one, so none is added.
    ///
    /// # Errors
    /// As [`render_chat`](Self::render_chat) and [`encode`](Self::encode).
    pub fn encode_chat(&self, messages: &[Value], add_generation_prompt: bool) -> Result<Vec<u32>> {
        self.encode_chat_with(messages, add_generation_prompt, &Map::new())
    }

    /// As [`encode_chat`](Self::encode_chat), with `variables` for the template.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat).
    pub fn encode_chat_with(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        variables: &Map<String, Value>,
    ) -> Result<Vec<u32>> {
        let text = self.render_chat_with(messages, add_generation_prompt, variables)?;
        self.encode(&text, false)
    }

    /// True when the model has a chat template, be it one that cannot be used.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// What makes a text of messages: the chat template's source and the special tokens that it may write. None without one that can be used.
    pub fn template_content(&self) -> Option<String> {
        let template = self.template.as_ref()?.as_ref().ok()?;
        Some(format!("{}\n{:?}", template.source()?, self.config.special))
    }

    /// What the chat template takes for now; None is the clock.
    pub fn moment(&self) -> Option<jiff::Timestamp> {
        self.moment
    }

    /// Ids that end a response, ascending: those of `generation_config.json` (else `config.json`) and the tokenizer's
    /// own `eos_token`, as vLLM has it. May be empty.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }

    /// The tokenizer's own end token.
    pub fn own_eos_id(&self) -> Option<u32> {
        self.id_of(&self.config.special.eos_token)
    }

    /// The [tokenizer's own](Self::own_eos_id), else the least of [`eos_ids`](Self::eos_ids).
    pub fn eos_id(&self) -> Option<u32> {
        self.own_eos_id().or_else(|| self.eos_ids.first().copied())
    }

    /// The token a text begins with.
    pub fn bos_id(&self) -> Option<u32> {
        self.id_of(&self.config.special.bos_token)
    }

    /// The token that fills a batch. Nothing may infer a mask from it: it often equals EOS.
    pub fn pad_id(&self) -> Option<u32> {
        self.id_of(&self.config.special.pad_token)
    }

    /// Name of a token (its vocabulary entry, not its text).
    pub fn token_name(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The greatest id of a token, the added ones included; None where there are no tokens.
    pub fn largest_id(&self) -> Option<u32> {
        self.inner.get_vocab(true).values().copied().max()
    }

    /// The model folder this tokenizer came from.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The same text for tokenizers that give the same ids for every text: of all that the files say it counts what makes ids of a
    /// text, and what is put around one, not how ids become text or which of them have a role. Processes compare it over the network.
    ///
    /// # Errors
    /// When the tokenizer cannot be written out.
    pub fn fingerprint(&self) -> Result<Arc<str>> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(known.clone());
        }
        let content = self
            .inner
            .to_string(false)
            .map_err(|cause| anyhow!("{}: {cause}", self.folder.display()))?;
        let content: Value =
            serde_json::from_str(&content).with_context(|| format!("tokenizer of {}", self.folder.display()))?;
        let mut hash = Sha256::new();
        hash.update(format!("{:?}\n", self.encode("", true)?));
        for part in ["model", "normalizer", "pre_tokenizer"] {
            hash.update(format!("{}\n", content[part]));
        }
        let added = content["added_tokens"].as_array().into_iter().flatten();
        for token in added.filter_map(Value::as_object) {
            // A token is found in a text alike, special or not.
            let rules = token.iter().filter(|(name, _)| *name != "special");
            hash.update(format!("{:?}\n", rules.collect::<Vec<_>>()));
        }
        let text: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(self.fingerprint.get_or_init(|| text.into()).clone())
    }

    /// As [`eos_id`](Self::eos_id), for who cannot do without.
    ///
    /// # Errors
    /// When [`eos_ids`](Self::eos_ids) is empty: responses could only end by length.
    pub fn require_eos(&self) -> Result<u32> {
        self.eos_id().with_context(|| {
            format!(
                "{} names no end token: set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
                self.folder.display()
            )
        })
    }

    fn id_of(&self, token: &Option<String>) -> Option<u32> {
        self.inner.token_to_id(token.as_deref()?)
    }
}

/// Gives the added tokens what the configuration says of them, over what tokenizer.json says: the white space that they take, and whether
/// they are special. Special is every token with a role, too, which may have been added as a plain one and named after that; a text without
/// special tokens would end with its end token. So does transformers when it loads a folder (`tokenization_utils_fast.py`, `__init__`).
fn settle_added(inner: &mut tokenizers::Tokenizer, config: &TokenizerConfig) -> tokenizers::Result<()> {
    let SpecialTokens {
        bos_token,
        eos_token,
        pad_token,
        unk_token,
    } = &config.special;
    let known = inner.get_added_tokens_decoder();
    let known: HashMap<&str, &AddedToken> = known.values().map(|token| (token.content.as_str(), token)).collect();
    let mut wanted: BTreeMap<&str, AddedToken> = known.iter().map(|(name, token)| (*name, (*token).clone())).collect();
    wanted.extend(config.added.iter().map(|token| (token.content.as_str(), token.clone())));
    let roles = [bos_token, eos_token, pad_token, unk_token].into_iter().flatten();
    for name in roles.chain(&config.other_special) {
        let token = wanted
            .entry(name)
            .or_insert_with(|| AddedToken::from(name.as_str(), true));
        token.special = true;
    }
    // One that the vocabulary lacks would get an id that the model may not have.
    wanted.retain(|name, token| {
        inner.token_to_id(name).is_some() && known.get(name).is_none_or(|known| **known != *token)
    });
    if !wanted.is_empty() {
        inner.add_tokens(wanted.into_values())?;
    }
    Ok(())
}

fn missing_tokenizer(folder: &Path, file: &Path) -> String {
    if !folder.exists() {
        return format!("model folder {} does not exist", folder.display());
    }
    // One that has its config.json lacks the tokenizer alone.
    let other = foreign::told(folder).filter(|_| !folder.join("config.json").exists());
    let hint = if let Some(other) = other {
        other
    } else if folder.join("tokenizer.model").exists() {
        "the folder has only tokenizer.model (SentencePiece); save it again with \
         transformers' AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
    } else {
        "a model folder in Hugging Face layout has one; copy it from the model this one was made from"
    };
    format!("cannot read {}: {hint}", file.display())
}

#[cfg(test)]
mod tests;
