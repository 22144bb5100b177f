//! A request with everything checked: token ids, parameters and seeds, as the engine takes them, and what the answer shows.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::echo::Echo;
use super::model::Model;
use super::protocol::{GenerateRequest, Logprobs, Stop, StreamOptions};
use super::{listing, refused};
use crate::engine::sampler::is_greedy;
use crate::engine::{Details, Request, SamplingParams};
use crate::serving::error::ApiError;
use crate::serving::limits::Limits;

/// Longest stop string, and longest name of a request, in bytes.
const LONGEST_NAME: usize = 1024;
/// vLLM's and OpenAI's default length of a completion.
const DEFAULT_TOKENS: usize = 16;

/// Which of the two paths was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

impl Dialect {
    /// Tokens of a response at most, where the request does not say. None: what the context holds.
    pub fn usual_tokens(self) -> Option<usize> {
        match self {
            Self::Completions => Some(DEFAULT_TOKENS),
            Self::Chat => None,
        }
    }
}

/// What the answer shows.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Server-sent events.
    pub stream: bool,
    /// A stream ends with counts.
    pub usage: bool,
    /// And each of its pieces has those of its choice.
    pub running_usage: bool,
    /// Text.
    pub text: bool,
    /// The prompt.
    pub echo: Echo,
    /// So many likeliest tokens beside each, with its log-probability.
    pub logprobs: Option<usize>,
    /// Token ids of prompt and response.
    pub token_ids: bool,
    /// Tokens in log-probabilities as `token_id:<id>`.
    pub tokens_as_ids: bool,
    /// The bytes of each token's text beside its log-probability.
    pub bytes: bool,
    /// Log-probabilities without the tokens they belong to.
    pub bare_logprobs: bool,
    /// Weight version of every span.
    pub weight_versions: bool,
    /// What ended the response is part of the text.
    pub include_stop: bool,
    /// The end token that is no news as the reason of an end: the tokenizer's own, where it was not to be passed over.
    pub usual_end: Option<u32>,
    /// Special tokens are not part of the text.
    pub skip_special: bool,
}

/// A request to generate.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its name, for `/abort_requests`.
    pub name: String,
    /// How the answer looks.
    pub dialect: Dialect,
    /// One for each prompt.
    pub requests: Vec<Request>,
    /// Samples of each prompt.
    pub n: usize,
    /// Texts of the prompts, where they are shown as they were sent.
    pub texts: Vec<String>,
    /// Who speaks in a chat; None: the assistant.
    pub role: Option<String>,
    /// What the answer shows.
    pub shown: Shown,
    /// Log-probabilities that the answer may list as a whole; a stream sends each as it comes.
    pub listed: usize,
}

impl Job {
    /// Checks everything that the engine would take on trust.
    ///
    /// # Errors
    /// 400 naming the field.
    pub fn new(
        model: &Model,
        limits: &Limits,
        asked: &GenerateRequest,
        dialect: Dialect,
        prompts: Vec<Vec<u32>>,
        name: String,
    ) -> Result<Self, ApiError> {
        refused::check(asked)?;
        check_request_id(&name)?;
        check_prompts(model, limits, &prompts)?;
        let n = asked.n.unwrap_or(1);
        if n == 0 {
            return Err(ApiError::field("n", "0 samples: ask for at least one"));
        }
        limits.check_samples(prompts.len().saturating_mul(n))?;
        let rooms = Rooms::of(model, &prompts);
        let echo = Echo::of(asked, dialect)?;
        let params = sampling(model, limits, asked, dialect, echo, &rooms)?;
        let responses = rooms.responses(params.max_new_tokens);
        let of_prompts = prompts.iter().map(Vec::len).fold(0, usize::saturating_add);
        limits.check_tokens(of_prompts.saturating_add(responses).saturating_mul(n))?;
        let shown = shown(model, limits, asked, dialect, echo)?;
        let greedy = is_greedy(params.temperature);
        let of_echo = shown.logprobs.filter(|_| echo != Echo::Nothing);
        let details = Details {
            // The drawn token's own number costs nothing, but a greedy one has none of its own.
            top_logprobs: shown.logprobs.filter(|count| *count > 0 || greedy),
            prompt_logprobs: prompt_logprobs(limits, asked)?.or(of_echo),
        };
        let is_endless = asked.response_tokens().or(dialect.usual_tokens()).is_none();
        let listed = checked_listed(limits, (of_prompts, responses), n, &shown, details, is_endless)?;
        let params = Arc::new(params);
        let seeds = seeds(asked, prompts.len(), n)?;
        let requests = prompts.into_iter().zip(rooms.0).zip(seeds);
        let requests = requests.map(|((prompt, room), seeds)| Request {
            prompt: prompt.into(),
            seeds,
            params: within(&params, room),
            details,
        });
        Ok(Self {
            name,
            dialect,
            requests: requests.collect(),
            n,
            texts: Vec::new(),
            role: None,
            shown,
            listed,
        })
    }

    /// Who speaks in the answer to a chat.
    pub fn role(&self) -> String {
        self.role.as_deref().unwrap_or("assistant").to_owned()
    }

    /// The prompt of the choice `index`.
    pub fn prompt(&self, index: usize) -> Option<&[u32]> {
        let request = self.requests.get(index / self.n.max(1))?;
        Some(&request.prompt)
    }

    /// Choices of the answer.
    pub fn samples(&self) -> usize {
        self.requests.len() * self.n
    }
}

/// How many tokens the context holds behind each prompt.
struct Rooms(Vec<usize>);

impl Rooms {
    fn of(model: &Model, prompts: &[Vec<u32>]) -> Self {
        let context = model.config.max_positions;
        let rooms = prompts.iter().map(|prompt| context.saturating_sub(prompt.len()));
        Self(rooms.collect())
    }

    /// Behind the longest prompt.
    fn least(&self) -> usize {
        self.0.iter().copied().min().unwrap_or(0)
    }

    /// Tokens of one longest response to each prompt.
    fn responses(&self, most: usize) -> usize {
        let responses = self.0.iter().map(|room| most.min(*room));
        responses.fold(0, usize::saturating_add)
    }
}

/// A response ends with the context at the latest, whatever it may have at most, as in vLLM (`get_max_tokens` in
/// `vllm/entrypoints/serve/utils/api_utils.py`).
fn within(params: &Arc<SamplingParams>, room: usize) -> Arc<SamplingParams> {
    if params.max_new_tokens <= room {
        return params.clone();
    }
    Arc::new(SamplingParams {
        max_new_tokens: room,
        ..(**params).clone()
    })
}

/// # Errors
/// 400 when the name that a client gives its request is too long.
pub fn check_request_id(name: &str) -> Result<(), ApiError> {
    match name.len() <= LONGEST_NAME {
        true => Ok(()),
        false => Err(ApiError::field(
            "request_id",
            format!("longer than {LONGEST_NAME} bytes"),
        )),
    }
}

fn check_prompts(model: &Model, limits: &Limits, prompts: &[Vec<u32>]) -> Result<(), ApiError> {
    if prompts.is_empty() {
        return Err(ApiError::field("prompt", "there is none"));
    }
    limits.check_prompts(prompts.len())?;
    let most = model.config.max_positions;
    for (index, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return Err(ApiError::field("prompt", format!("prompt {index} has no tokens")));
        }
        if prompt.len() >= most {
            return Err(ApiError::field(
                "prompt",
                format!(
                    "prompt {index} has {} tokens; this model's maximum context length is {most} tokens, prompt and \
                     response together",
                    prompt.len()
                ),
            ));
        }
        if let Some(id) = prompt.iter().find(|id| u64::from(**id) >= model.vocabulary()) {
            return Err(ApiError::field(
                "prompt",
                format!(
                    "token {id} of prompt {index} is outside the vocabulary of {}",
                    model.vocabulary()
                ),
            ));
        }
    }
    Ok(())
}

/// Log-probabilities that the answer lists, each with its token's text: a hundred bytes and more, for every sample again. Prompts and
/// their longest responses, one of each, have so many tokens. A stream keeps none of them.
fn checked_listed(
    limits: &Limits,
    (of_prompts, of_responses): (usize, usize),
    n: usize,
    shown: &Shown,
    details: Details,
    is_endless: bool,
) -> Result<usize, ApiError> {
    if shown.stream {
        return Ok(0);
    }
    let of_token = |top: Option<usize>| top.map_or(0, |top| top.saturating_add(1));
    let of_prompts = of_prompts.saturating_mul(of_token(details.prompt_logprobs));
    let of_responses = of_responses.saturating_mul(of_token(shown.logprobs.filter(|_| !shown.bare_logprobs)));
    let listed = of_prompts.saturating_add(of_responses).saturating_mul(n);
    let are_prompts = of_prompts > of_responses && shown.echo == Echo::Nothing;
    let field = if are_prompts { "prompt_logprobs" } else { "logprobs" };
    listing::check(limits, listed, field, is_endless && !are_prompts)?;
    Ok(listed)
}

fn sampling(
    model: &Model,
    limits: &Limits,
    asked: &GenerateRequest,
    dialect: Dialect,
    echo: Echo,
    rooms: &Rooms,
) -> Result<SamplingParams, ApiError> {
    let within = |name: &'static str, value: Option<f32>, default: f32, least: f32, most: f32| {
        let value = value.unwrap_or(default);
        if (least..=most).contains(&value) {
            return Ok(value);
        }
        Err(ApiError::field(
            name,
            format!("{value} is not between {least} and {most}"),
        ))
    };
    let context = model.config.max_positions;
    let max_new_tokens = match asked.response_tokens() {
        // The engine draws one, which is not shown.
        Some(0) if echo == Echo::Alone => 1,
        Some(0) => return Err(ApiError::field("max_tokens", "0: ask for at least one token")),
        Some(tokens) if tokens > context => {
            return Err(ApiError::field(
                "max_tokens",
                format!(
                    "{tokens}, and this model's maximum context length is {context} tokens, prompt and response together"
                ),
            ));
        }
        Some(tokens) => tokens,
        None => dialect.usual_tokens().unwrap_or(context),
    };
    let min_new_tokens = asked.min_tokens.unwrap_or(0);
    let most = max_new_tokens.min(rooms.least());
    if min_new_tokens > most {
        return Err(ApiError::field(
            "min_tokens",
            format!(
                "{min_new_tokens} is more than a response may have, {most} (max_tokens, or what the context holds)"
            ),
        ));
    }
    let top_p = within("top_p", asked.top_p, 1.0, 0.0, 1.0)?;
    if top_p == 0.0 {
        return Err(ApiError::field("top_p", "0 keeps no token; temperature 0 is greedy"));
    }
    let top_k = match asked.top_k.unwrap_or(0) {
        -1 => 0,
        top_k => usize::try_from(top_k).map_err(|_| ApiError::field("top_k", format!("{top_k} is negative")))?,
    };
    let stop_token_ids = stop_tokens(model, limits, asked)?;
    // Ends of the model are kept away before the minimum though they end nothing.
    let kept_away: BTreeSet<u32> = stop_token_ids.iter().chain(&model.eos_ids).copied().collect();
    let drawable = kept_away.iter().filter(|id| u64::from(**id) < model.vocabulary());
    if min_new_tokens > 0 && drawable.count() as u64 >= model.vocabulary() {
        return Err(ApiError::field(
            "min_tokens",
            "every token ends the response, so none may be drawn first",
        ));
    }
    Ok(SamplingParams {
        temperature: within("temperature", asked.temperature, 1.0, 0.0, 100.0)?,
        top_p,
        top_k,
        min_p: within("min_p", asked.min_p, 0.0, 0.0, 1.0)?,
        max_new_tokens,
        min_new_tokens,
        stop_token_ids,
        stop: stop_strings(limits, asked)?,
        skip_special: skip_special(asked),
    })
}

fn stop_strings(limits: &Limits, asked: &GenerateRequest) -> Result<Vec<String>, ApiError> {
    let stop = match &asked.stop {
        None => Vec::new(),
        Some(Stop::One(stop)) => vec![stop.clone()],
        Some(Stop::Many(stops)) => stops.clone(),
    };
    if stop.len() > limits.stops {
        return Err(ApiError::field(
            "stop",
            format!("{} strings, at most {}", stop.len(), limits.stops),
        ));
    }
    if let Some(wrong) = stop.iter().find(|stop| stop.is_empty() || stop.len() > LONGEST_NAME) {
        return Err(ApiError::field(
            "stop",
            format!("a string of {} bytes; want 1 to {LONGEST_NAME}", wrong.len()),
        ));
    }
    if !stop.is_empty() && asked.detokenize == Some(false) {
        return Err(ApiError::field(
            "stop",
            "stop strings are looked for in text: leave detokenize true",
        ));
    }
    Ok(stop)
}

/// Whether special tokens are left out of the text, that which is shown and that in which stop strings are looked for.
fn skip_special(asked: &GenerateRequest) -> bool {
    asked.skip_special_tokens != Some(false)
}

fn stop_tokens(model: &Model, limits: &Limits, asked: &GenerateRequest) -> Result<Vec<u32>, ApiError> {
    let mut ids = asked.stop_token_ids.clone().unwrap_or_default();
    // A job asks for the model's own beside as many of its own.
    let most = limits.stops.saturating_add(model.eos_ids.len());
    if ids.len() > most {
        return Err(ApiError::field(
            "stop_token_ids",
            format!("{} ids, at most {most}", ids.len()),
        ));
    }
    if asked.ignore_eos != Some(true) {
        ids.extend(&model.eos_ids);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn shown(
    model: &Model,
    limits: &Limits,
    asked: &GenerateRequest,
    dialect: Dialect,
    echo: Echo,
) -> Result<Shown, ApiError> {
    let is = |flag: Option<bool>| flag == Some(true);
    let logprobs = match (dialect, asked.logprobs) {
        // 0 and 1 are flags too, as for vLLM (pydantic's lax mode).
        (_, None | Some(Logprobs::Flag(false))) | (Dialect::Chat, Some(Logprobs::Count(0))) => None,
        (Dialect::Completions, Some(Logprobs::Count(count))) => Some(count),
        (Dialect::Chat, Some(Logprobs::Flag(true) | Logprobs::Count(1))) => Some(asked.top_logprobs.unwrap_or(0)),
        (Dialect::Completions, Some(Logprobs::Flag(true))) => {
            return Err(ApiError::field(
                "logprobs",
                "want a number of likeliest tokens, 0 for none",
            ));
        }
        (Dialect::Chat, Some(Logprobs::Count(_))) => {
            return Err(ApiError::field(
                "logprobs",
                "want true or false; top_logprobs is the number",
            ));
        }
    };
    if let Some(count) = logprobs.filter(|count| *count > limits.logprobs) {
        let field = match dialect {
            Dialect::Completions => "logprobs",
            Dialect::Chat => "top_logprobs",
        };
        let words = format!("{count} likeliest tokens, at most {}", limits.logprobs);
        return Err(ApiError::field(field, words));
    }
    if dialect == Dialect::Chat && logprobs.is_none() && asked.top_logprobs.is_some_and(|count| count > 0) {
        return Err(ApiError::field("top_logprobs", "needs logprobs: true"));
    }
    let bare_logprobs = is(asked.return_bare_logprobs);
    if bare_logprobs && (dialect == Dialect::Chat || logprobs != Some(0)) {
        return Err(ApiError::field(
            "return_bare_logprobs",
            "needs logprobs: 0 of /v1/completions, and shows no likeliest tokens",
        ));
    }
    let options = asked.stream_options.unwrap_or_default();
    if options != StreamOptions::default() && asked.stream != Some(true) {
        return Err(ApiError::field("stream_options", "needs stream: true"));
    }
    Ok(Shown {
        stream: is(asked.stream),
        usage: is(options.include_usage),
        running_usage: is(options.include_usage) && is(options.continuous_usage_stats),
        text: asked.detokenize != Some(false),
        echo,
        logprobs,
        token_ids: is(asked.return_token_ids),
        tokens_as_ids: is(asked.return_tokens_as_token_ids),
        bytes: dialect == Dialect::Chat,
        bare_logprobs,
        weight_versions: is(asked.return_weight_versions),
        include_stop: is(asked.include_stop_str_in_output),
        usual_end: model.tokenizer.own_eos_id().filter(|_| !is(asked.ignore_eos)),
        skip_special: skip_special(asked),
    })
}

fn prompt_logprobs(limits: &Limits, asked: &GenerateRequest) -> Result<Option<usize>, ApiError> {
    let Some(count) = asked.prompt_logprobs else {
        return Ok(None);
    };
    if asked.stream == Some(true) {
        return Err(ApiError::field("prompt_logprobs", "not with stream: ask without it"));
    }
    let count = usize::try_from(count).ok().filter(|count| *count <= limits.logprobs);
    count.map(Some).ok_or_else(|| {
        ApiError::field(
            "prompt_logprobs",
            format!("want 0 to {} likeliest tokens", limits.logprobs),
        )
    })
}

/// Seeds by prompt: those given, else `seed + i` for sample i of each prompt as vLLM has it, else random ones.
fn seeds(asked: &GenerateRequest, prompts: usize, n: usize) -> Result<Vec<Vec<u64>>, ApiError> {
    match (&asked.seeds, asked.seed) {
        (Some(_), Some(_)) => Err(ApiError::field("seeds", "give seed or seeds, not both")),
        (Some(seeds), None) if seeds.len() != prompts * n => Err(ApiError::field(
            "seeds",
            format!(
                "{} seeds for {prompts} prompts of {n} samples: want one for each",
                seeds.len()
            ),
        )),
        (Some(seeds), None) => Ok(seeds
            .chunks(n)
            .map(|seeds| seeds.iter().map(|seed| seed.0).collect())
            .collect()),
        (None, Some(seed)) => {
            let of_prompt: Vec<u64> = (0..n as u64).map(|sample| seed.0.wrapping_add(sample)).collect();
            Ok(vec![of_prompt; prompts])
        }
        (None, None) => Ok((0..prompts).map(|_| (0..n).map(|_| rand::random()).collect()).collect()),
    }
}
