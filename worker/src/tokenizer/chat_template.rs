//! The chat template: Jinja as transformers runs it (`utils/chat_template_utils.py`, `_compile_jinja_template`): blocks
//! trimmed, Python's methods on values, `raise_exception`, `strftime_now` and a `tojson` that is Python's `json.dumps`.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, filters, tests};
use regex::Regex;

use super::config::{SpecialTokens, TokenizerConfig};
use super::template_source::Source;
use super::{python_json, python_text, template_source};
use crate::contained::contained;

const NAME: &str = "chat_template";

/// Instructions of a template until it is given up: about a second of work. A conversation of a thousand messages takes some hundred thousand.
///
/// What a template keeps in between is not bounded: minijinja lets nobody watch `~`, `+` and `*`, and a text that a loop doubles has
/// gigabytes after a few dozen of them. A template is as much trusted as the weights beside it.
const MOST_INSTRUCTIONS: u64 = 10_000_000;

/// Bytes of the text of a conversation: several times those of the longest context that a manifest can ask for.
const MOST_BYTES: usize = 16 << 20;

/// Spaces per level of `tojson`.
const MOST_INDENT: usize = 16;

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// The template for all chats of a model folder, if it has one.
    ///
    /// # Errors
    /// When it cannot be read or does not compile; with the line.
    pub fn read(folder: &Path, config: &TokenizerConfig) -> Result<Option<Self>> {
        template_source::for_all_chats(folder, config)?
            .map(Self::of)
            .transpose()
    }

    /// The template for chats with tools, if the folder has one beside that for all chats.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_for_tools(folder: &Path, config: &TokenizerConfig) -> Result<Option<Self>> {
        template_source::for_tools(folder, config)?.map(Self::of).transpose()
    }

    fn of(Source { text, called }: Source) -> Result<Self> {
        Self::compile(&text).context(called)
    }

    /// Compiles a template.
    ///
    /// # Errors
    /// When the source is not Jinja; with the line.
    pub fn compile(source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(python_text::method);
        environment.set_fuel(Some(MOST_INSTRUCTIONS));
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", tojson);
        environment.add_filter("length", length);
        environment.add_filter("count", length);
        environment.add_test("iterable", is_iterable);
        environment.add_test("sequence", is_sequence);
        environment
            .add_template_owned(NAME, without_generation_blocks(&with_line_feeds(source))?)
            .map_err(describe)?;
        Ok(Self { environment })
    }

    /// What was compiled.
    pub fn source(&self) -> Option<String> {
        let template = self.environment.get_template(NAME).ok()?;
        Some(template.source().to_owned())
    }

    /// The messages as text. `variables` are the caller's own (`enable_thinking`), as transformers takes them: they win over
    /// those that every template has. `moment` is what `strftime_now` takes for now (in UTC); None is the clock, in local time.
    ///
    /// # Errors
    /// No messages; what the template says by `raise_exception`; the line that cannot be evaluated; a text that is too long, or that takes
    /// too long.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        special: &SpecialTokens,
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
        moment: Option<Timestamp>,
    ) -> Result<String> {
        // Nothing to answer; and minijinja 3.0 panics on `messages[::-1]` of an empty list, which Qwen's template has.
        if messages.is_empty() {
            bail!("the list of messages is empty");
        }
        let named = [
            ("bos_token", &special.bos_token),
            ("eos_token", &special.eos_token),
            ("pad_token", &special.pad_token),
            ("unk_token", &special.unk_token),
        ];
        // A token the model lacks is undefined, not none: templates ask `is defined`.
        let mut given: BTreeMap<&str, Value> = named
            .into_iter()
            .filter_map(|(name, token)| Some((name, Value::from(token.as_deref()?))))
            .collect();
        given.insert("messages", Value::from(Serde(messages)));
        given.insert("add_generation_prompt", Value::from(add_generation_prompt));
        given.insert("tools", Value::from(()));
        given.insert("documents", Value::from(()));
        let now = move |format: String| strftime(&format, moment);
        given.insert("strftime_now", Value::from_function(now));
        given.extend(
            variables
                .iter()
                .map(|(name, value)| (name.as_str(), Value::from(Serde(value)))),
        );
        let template = self.environment.get_template(NAME).map_err(describe)?;
        let mut text = Bounded::default();
        // minijinja 3.0 panics on `[::-1]` of anything empty, the text of a message too.
        contained(|| match template.render_captured_to(given, &mut text) {
            Ok(_) => Ok(()),
            Err(error) => Err(describe(error)),
        })?;
        Ok(String::from_utf8(text.0)?)
    }
}

/// The text of a conversation while it grows, up to a bound: a few messages may be written many times.
#[derive(Default)]
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MOST_BYTES {
            let most = MOST_BYTES >> 20;
            return Err(io::Error::other(format!(
                "the conversation has more than {most} MiB of text"
            )));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Python's Jinja ends every line of a template by a line feed alone, whatever ends it in the file.
fn with_line_feeds(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// `{% generation %}` marks the assistant's tokens for training on them; it prints nothing and changes nothing.
fn without_generation_blocks(source: &str) -> Result<String> {
    let begin = Regex::new(r"\{%([-+]?)\s*generation\s*([-+]?)%\}")?;
    let end = Regex::new(r"\{%([-+]?)\s*endgeneration\s*([-+]?)%\}")?;
    let source = begin.replace_all(source, "{%${1} if true ${2}%}");
    Ok(end.replace_all(&source, "{%${1} endif ${2}%}").into_owned())
}

/// The moment that `SOURCE_DATE_EPOCH` (seconds, the reproducible-builds convention) names: a template that prints the date then prints
/// the same one in every run.
///
/// # Errors
/// When it is set and no such moment.
pub(crate) fn fixed_moment() -> Result<Option<Timestamp>> {
    let Ok(seconds) = std::env::var("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let moment = seconds
        .parse()
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment
        .map(Some)
        .with_context(|| format!("SOURCE_DATE_EPOCH={seconds:?}: want seconds since 1970"))
}

/// Python's `datetime.now().strftime(format)`.
fn strftime(format: &str, moment: Option<Timestamp>) -> Result<String, Error> {
    let time = match moment {
        Some(moment) => moment.to_zoned(TimeZone::UTC),
        None => Timestamp::now().to_zoned(TimeZone::system()),
    };
    let refuse = |cause| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now({format:?}): {cause}"),
        )
    };
    BrokenDownTime::from(&time).to_string(as_python(format)).map_err(refuse)
}

/// `format` with those directives that Python has otherwise, whose moment has no zone and whose locale is C. What is none is left as it stands.
fn as_python(format: &str) -> String {
    let mut text = String::new();
    let mut rest = format.chars();
    while let Some(next) = rest.next() {
        match (next, rest.as_str().chars().next()) {
            ('%', Some('Z' | 'z')) => {}
            ('%', Some('f')) => text.push_str("%6f"),
            ('%', Some('c')) => text.push_str("%a %b %e %H:%M:%S %Y"),
            ('%', Some('x')) => text.push_str("%m/%d/%y"),
            ('%', Some(other @ ('E' | 'L' | 'N' | 'Q' | 'q' | ':'))) => text.extend(['%', '%', other]),
            ('%', Some(other)) => text.extend(['%', other]),
            ('%', None) => text.push_str("%%"),
            (other, _) => {
                text.push(other);
                continue;
            }
        }
        rest.next();
    }
    text
}

fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if let Some(indent) = indent.filter(|indent| *indent > MOST_INDENT) {
        let words = format!("tojson: indent is {indent}, at most {MOST_INDENT} is written");
        return Err(Error::new(ErrorKind::InvalidOperation, words));
    }
    let style = python_json::Style {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        separators: options
            .get::<Option<Vec<String>>>("separators")?
            .and_then(|pair| <[String; 2]>::try_from(pair).ok()),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let plain = serde_json::to_value(value)
        .map_err(|cause| Error::new(ErrorKind::InvalidOperation, "tojson: not a JSON value").with_source(cause))?;
    Ok(Value::from_safe_string(python_json::dumps(&plain, &style)))
}

/// Python's `len`, of which an undefined value has 0 (jinja2's `runtime.py`, `Undefined.__len__`) and none has none.
fn length(value: &Value) -> Result<usize, Error> {
    match value.is_undefined() {
        true => Ok(0),
        false => filters::length(value),
    }
}

/// Whether Python's `iter` takes a value (jinja2's `tests.py`, `test_iterable`): it refuses none, over which minijinja loops no times.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && tests::is_iterable(value)
}

/// Whether Python's value has a length and places (jinja2's `tests.py`, `test_sequence`): a text, a map and what is not defined have, too.
fn is_sequence(value: &Value) -> bool {
    let kinds = [ValueKind::Undefined, ValueKind::String, ValueKind::Seq, ValueKind::Map];
    kinds.contains(&value.kind())
}

fn describe(error: Error) -> anyhow::Error {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    if error.kind() == ErrorKind::OutOfFuel {
        return anyhow!(
            "{line}given up after {MOST_INSTRUCTIONS} instructions: a loop goes on and on, or the conversation is too long"
        );
    }
    // Of the text that is written.
    if let Some(cause) = error.source().filter(|_| error.kind() == ErrorKind::WriteFailure) {
        return anyhow!("{cause}");
    }
    match error.detail() {
        Some(detail) => anyhow!("{line}{detail}"),
        None => anyhow!("{line}{error}"),
    }
}
