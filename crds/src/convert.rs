//! From another framework's command line to a manifest: `ppo-worker convert`. Pure: a script's text in, a manifest out.
//!
//! Each framework's flags are a table of [`row::Row`]s, which the migration page is written from; what follows from several
//! flags is in its `finish`.

mod adapter;
mod arguments;
mod arithmetic;
mod cluster;
mod config_file;
mod correction;
mod critic;
mod dialect;
mod draft;
mod dynamic;
mod families;
mod final_answer;
mod framework;
mod held_out;
mod known;
mod openrlhf;
mod other_loss;
mod other_program;
mod overlong;
mod page;
mod quoted;
mod render;
mod row;
mod schedule;
mod shell;
mod source;
mod trl;
mod verl;

use serde_json::{Map, Value, json};

pub use config_file::Reader;
pub use draft::{Note, NoteKind, WrongValue};
pub use framework::Framework;
pub use page::migration_page;
pub use shell::{Unreadable, quote};

use crate::geometry::Geometry;
use crate::{Environment, PpoJob, ValidationErrors, validate};
use draft::Draft;
use shell::Word;

/// What became of a command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversion {
    /// The job; it is valid on this machine.
    pub job: PpoJob,
    /// Its manifest, with a comment for each field and each flag that is not in it.
    pub manifest: String,
    /// What is not in the manifest, what must be replaced in it, and what a cluster would refuse of it.
    pub notes: Vec<Note>,
}

/// Why a command line is no manifest.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConvertError {
    /// A quote is open, or a variable's value too long.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// No command of the framework.
    #[error("no {} command and no flags are in what was given; its commands here are {}", .0.name(), .0.programs())]
    NoCommand(Framework),
    /// A program of the framework that is none of those commands.
    #[error("`{program}` {instead}")]
    OtherProgram {
        /// Its name.
        program: String,
        /// What it does, and what to do instead.
        instead: &'static str,
    },
    /// More than one command of the framework.
    #[error("there are several {0} commands; convert them one by one")]
    Several(&'static str),
    /// Variables or commands that only a shell could replace: all of them.
    #[error("{}", not_known(.0))]
    NotKnown(Vec<NotKnown>),
    /// A word that belongs to no flag.
    #[error("`{word}` belongs to no flag; {wanted} is wanted")]
    Stray {
        /// The word.
        word: String,
        /// The form of a flag.
        wanted: &'static str,
    },
    /// Flags that the framework does not have.
    #[error("{}", unknown(.framework, .flags))]
    Unknown {
        /// Its name.
        framework: &'static str,
        /// All of them.
        flags: Vec<UnknownFlag>,
    },
    /// TRL has a trainer for each algorithm.
    #[error(
        "TRL's PPO, RLOO and GRPO trainers share flags: put the script's name (ppo.py, rloo.py, grpo.py) in front of them"
    )]
    WhichTrainer,
    /// The file of flags that TRL's command line names.
    #[error(
        "--config {path} cannot be read: {why}; its path is taken from the folder in which convert is run: run it there, or give what is in \
         the file as flags"
    )]
    ConfigFile {
        /// As it was given.
        path: String,
        /// What the system, or its reader, says.
        why: String,
    },
    /// A script in Python that makes a configuration by itself.
    #[error(
        "`{config}(...)` is Python, which is not read: give its arguments as flags of the same names behind `{command}`, the model as \
         --model_name_or_path (sft_model_path of PPO) and the data set as --dataset_name"
    )]
    InPython {
        /// The class.
        config: &'static str,
        /// What takes its arguments.
        command: &'static str,
    },
    /// A value that its flag cannot have.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// The run cannot be as the flags say.
    #[error("these flags make no job that can run:\n{errors}{}", sources.iter().map(|source| format!("\n  {source}")).collect::<String>())]
    Invalid {
        /// What is wrong.
        errors: ValidationErrors,
        /// Where the fields are from.
        sources: Vec<String>,
    },
}

/// A variable or command that only a shell could replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKnown {
    /// As it was written; of what a command gave to a variable, the variable.
    pub what: String,
    /// Where.
    pub flag: String,
}

fn not_known(words: &[NotKnown]) -> String {
    let one = |NotKnown { what, flag }: &NotKnown| {
        let named = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '{');
        let remedy = match what.strip_prefix('$') {
            Some(name) if named(name) => "set it in front of the command (NAME=value), export it, or write the value",
            Some(own) if !own.starts_with('(') => "only the running script has it: write the value in its place",
            _ => "run it yourself and write its result",
        };
        format!("{what} in `{}` is not known here: {remedy}", flag.trim())
    };
    words.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// A flag that the framework does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownFlag {
    /// As it was given.
    pub flag: String,
    /// The nearest that it has; None where none is near.
    pub nearest: Option<String>,
}

fn unknown(framework: &str, flags: &[UnknownFlag]) -> String {
    let one = |UnknownFlag { flag, nearest }: &UnknownFlag| match nearest {
        Some(nearest) if nearest == flag => format!(
            "{flag} is a setting of {framework}'s that this command does not have: leave it out; docs/migration.md lists those that it has"
        ),
        Some(nearest) => format!("{flag} is no setting of {framework}; the nearest is {nearest}"),
        None => format!("{flag} is no setting of {framework}; docs/migration.md lists those that are known"),
    };
    flags.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// The manifest of a command line or script. `environment` gives the variables that the script does not set.
///
/// # Errors
/// When the text holds no command of the framework, a flag is unknown, or what it asks for cannot run; when it names a file of flags.
pub fn convert(
    framework: Framework,
    script: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Conversion, ConvertError> {
    convert_with_files(framework, script, environment, &|_| Err("no file is read here".into()))
}

/// As [`convert`]; `read` gives the files of flags that the command line names.
///
/// # Errors
/// As [`convert`], and when such a file cannot be read.
pub fn convert_with_files(
    framework: Framework,
    script: &str,
    environment: &dyn Fn(&str) -> Option<String>,
    read: Reader<'_>,
) -> Result<Conversion, ConvertError> {
    if let Some((config, command)) = config_file::in_python(script, framework) {
        return Err(ConvertError::InPython { config, command });
    }
    let commands = commands(framework, script, environment)?;
    let (launcher, flags) = arguments::of_framework(commands, framework)?;
    let flags = config_file::with_file(flags, framework, read)?;
    let dialect = framework.dialect(&launcher, &flags)?;
    let launcher = launcher.into_iter().map(|word: Word| word.text).collect();
    let arguments = arguments::read(&flags, launcher, &dialect)?;
    let mut draft = Draft::new(dialect.name, dialect.rows, arguments.given, arguments.launcher)?;
    (dialect.finish)(&mut draft)?;
    draft.set("algorithm.profile", framework.word(), "whose conventions apply");
    complete(&mut draft);
    families::tell(&mut draft);
    let name = name(framework, &draft);
    let job = fit(&mut draft, &name)?;
    cluster::tell(&mut draft, &job);
    let mut notes = draft.notes.clone();
    notes.sort_by_key(|note| note.kind);
    Ok(Conversion {
        manifest: render::render(framework.name(), &job, &draft.settings, &notes),
        job,
        notes,
    })
}

/// The commands of a script. Where none is of the framework, those that its arguments would choose count too.
fn commands(
    framework: Framework,
    script: &str,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<Vec<Word>>, ConvertError> {
    let opened = |commands| quoted::opened(commands, framework.starts(), environment);
    let is_there = |commands: &[Vec<Word>]| {
        commands
            .iter()
            .any(|words| arguments::program(words, framework).is_some())
    };
    let run = opened(shell::commands(script, environment)?)?;
    if is_there(&run) {
        return Ok(run);
    }
    let all = opened(shell::all_commands(script, environment)?)?;
    if is_there(&all) {
        return Ok(all);
    }
    match other_program::named(script, framework) {
        Some((program, instead)) => Err(ConvertError::OtherProgram { program, instead }),
        None => Ok(run),
    }
}

/// Fills what a manifest cannot be without with a place that must be replaced, and takes out what contradicts.
fn complete(draft: &mut Draft) {
    if !draft.has("model.policy") {
        let why = "the flags name no model";
        draft.placeholder("model.policy", "model.policy.path", "/models/policy", why);
    }
    if !draft.has("prompts.source") {
        let why = "the flags name no prompts";
        draft.placeholder("prompts.source", "prompts.source.path", "/data/prompts.jsonl", why);
    }
    // A rule made of flags is of the length alone.
    let is_scored = ["model", "remote"]
        .iter()
        .any(|source| draft.has(&format!("roles.reward.{source}")));
    if !is_scored && !final_answer::is_compared(draft) {
        let urls = json!(["http://reward:5000/get_reward"]);
        let why = "the flags name no reward model and no server: serve your reward function (docs/model-and-reward.md), or use rules, \
                   of which mathMatch compares final answers of mathematics";
        draft.placeholder("roles.reward", "roles.reward.remote.urls", urls, why);
    }
    if draft.has("model.critic") && !draft.has_critic() {
        draft.unset("model.critic");
        draft.leave("critic", "only the estimator gae has a critic");
    }
    if draft.get("algorithm.kl.coef").is_some_and(|coef| coef == 0.0) {
        draft.unset("algorithm.kl.controller");
        draft.unset("algorithm.kl.placement");
    }
}

fn name(framework: Framework, draft: &Draft) -> String {
    let given = ["logger.wandb.run_name", "trainer.experiment_name", "run_name"];
    let given = given
        .iter()
        .find_map(|name| draft.is_given(name).then(|| draft.text(name)).flatten());
    let estimator = draft
        .get("algorithm.advantage.estimator")
        .and_then(Value::as_str)
        .unwrap_or("ppo");
    let text = given.unwrap_or_else(|| format!("{}-{estimator}", framework.word()));
    let plain: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let name: String = plain
        .trim_start_matches(|c: char| !c.is_ascii_lowercase())
        .chars()
        .take(40)
        .collect();
    match name.trim_end_matches('-') {
        "" => framework.word().into(),
        name => name.into(),
    }
}

/// The job of a draft. Micro-batches that do not divide are made smaller, and engines fewer: neither changes a result.
fn fit(draft: &mut Draft, name: &str) -> Result<PpoJob, ConvertError> {
    const FREE: [&str; 3] = [
        "batch.microTrainBatchSize",
        "batch.microRolloutBatchSize",
        "roles.rollout.replicas",
    ];
    let environment = Environment::Laptop {
        manifest_folder: "".into(),
    };
    // Each round settles at least one field, so there are no more rounds than fields.
    for round in 0..=FREE.len() {
        let job = job(draft, name)?;
        let errors = match validate(&job, &environment) {
            Ok(()) if Geometry::of(&job).is_some() => return Ok(job),
            Ok(()) => ValidationErrors { problems: Vec::new() },
            Err(errors) => errors,
        };
        let mut settled = false;
        for field in FREE.iter().filter(|_| round < FREE.len()) {
            let Some(Some(given)) = draft.get(field).map(Value::as_u64) else {
                continue;
            };
            let path = format!("spec.{field}");
            let fixes = errors.problems.iter().flat_map(|problem| &problem.fixes);
            let concerned = errors.problems.iter().any(|problem| problem.field == path)
                || (field.ends_with("replicas") && fixes.clone().any(|fix| fix.field == path));
            let smaller = fixes
                .filter(|fix| fix.field == path && fix.value < given)
                .map(|fix| fix.value)
                .max();
            if let Some(smaller) = smaller.filter(|_| concerned) {
                draft.set(field, smaller, &format!("{given} does not divide"));
                draft.leave(
                    field,
                    &format!("{given} does not divide here; {smaller} does, with the same results"),
                );
                settled = true;
            }
        }
        if !settled {
            let named = |setting: &&draft::Setting| {
                errors
                    .problems
                    .iter()
                    .any(|problem| problem.field == format!("spec.{}", setting.field))
            };
            let sources = draft
                .settings
                .iter()
                .filter(named)
                .map(|setting| format!("spec.{} is from {}", setting.field, setting.source))
                .collect();
            return Err(ConvertError::Invalid { errors, sources });
        }
    }
    job(draft, name)
}

fn job(draft: &Draft, name: &str) -> Result<PpoJob, ConvertError> {
    let mut spec = Map::new();
    for setting in &draft.settings {
        put(&mut spec, &setting.field, setting.value.clone());
    }
    let manifest =
        json!({"apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name}, "spec": spec});
    // A number that no field can hold: larger than 32 bits, say.
    serde_path_to_error::deserialize(&manifest).map_err(|error| {
        let field = error.path().to_string();
        let at = draft
            .settings
            .iter()
            .find(|setting| format!("spec.{}", setting.field) == field);
        ConvertError::Value(WrongValue {
            flag: at.map_or(field, |setting| setting.source.clone()),
            message: error.inner().to_string(),
        })
    })
}

fn put(block: &mut Map<String, Value>, field: &str, value: Value) {
    match field.split_once('.') {
        None => {
            block.insert(field.into(), value);
        }
        Some((name, below)) => {
            let inner = block.entry(name).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                put(inner, below, value);
            }
        }
    }
}

#[cfg(test)]
mod tests;
