//! Reads a manifest: YAML text to [`PpoJob`], with errors that name file, line and field.

mod empty;
mod hint;
mod line;
mod mend;
mod merge;
mod misfit;
mod nearest;
mod shape;
mod whole;

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_yaml::Value;

pub use self::nearest::did_you_mean;
pub use self::whole::whole_number;

use self::line::line;
use self::mend::Mended;
use self::misfit::Misfit;
use self::shape::{Shape, other, unquoted};
use crate::PpoJob;
use crate::field::{self, Step};
use crate::kubernetes;
use crate::nesting;
use crate::spec::RolesSpec;

/// Why a text is not a `PpoJob` manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not YAML.
    #[error("{origin} is not valid YAML: {message}")]
    Syntax {
        /// File or other source of the text.
        origin: String,
        /// The parser's words, with line and column.
        message: String,
    },
    /// No document is a PpoJob of a version known here.
    #[error("{origin} holds no PpoJob: {found}; a manifest starts with `apiVersion: {api_version}` and `kind: PpoJob`",
            api_version = api_version())]
    NotAPpoJob {
        /// File or other source of the text.
        origin: String,
        /// What each document is instead.
        found: String,
    },
    /// More than one document is a PpoJob.
    #[error("{origin} holds {count} PpoJobs; put each into a file of its own")]
    Several {
        /// File or other source of the text.
        origin: String,
        /// How many.
        count: usize,
    },
    /// Fields that are unknown, missing or of the wrong type: all that there are, and then the rules that are broken all the same.
    #[error("{origin}{}", in_words(fields))]
    Fields {
        /// File or other source of the text.
        origin: String,
        /// At least one.
        fields: Vec<FieldError>,
    },
}

/// A field that is unknown, missing or of the wrong type, or that breaks a rule beside such fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Line of the field or of the block around it, from 1.
    pub line: Option<usize>,
    /// Path of the field, such as `spec.batch.trainBatchSize`.
    pub field: String,
    /// What is wrong and which fields or values are known.
    pub message: String,
}

fn in_words(fields: &[FieldError]) -> String {
    if let [FieldError { line, field, message }] = fields {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        return format!("{line}: {field}: {message}");
    }
    let mut words = format!(": {} errors in the manifest:", fields.len());
    for (index, FieldError { line, field, message }) in fields.iter().enumerate() {
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        // A text always takes more.
        let _ = write!(words, "\n  {}. {line}{field}: {message}", index + 1);
    }
    words
}

fn api_version() -> String {
    PpoJob::api_version(&()).into_owned()
}

/// Reads the one `PpoJob` among the YAML documents of `text`. `origin` names the text in errors: the file's path, say.
///
/// # Errors
/// When the text is not YAML, holds no or several PpoJobs, or fields are unknown, missing or of the wrong type: all of those at once, with every
/// rule that the rest breaks wherever it runs.
pub fn parse_manifest(text: &str, origin: &str) -> Result<PpoJob, ManifestError> {
    let text = without_mark(text);
    let documents = documents(text).map_err(|error| no_yaml(text, origin, &error))?;
    let kinds: Vec<_> = documents.iter().map(identify).collect();
    let jobs: Vec<usize> = (0..documents.len()).filter(|&index| kinds[index].is_ok()).collect();
    let &[index] = jobs.as_slice() else {
        return Err(match jobs.len() {
            0 => ManifestError::NotAPpoJob {
                origin: origin.into(),
                found: describe(kinds),
            },
            count => ManifestError::Several {
                origin: origin.into(),
                count,
            },
        });
    };
    let mut document = documents.into_iter().nth(index).unwrap_or_default();
    let empty = empty::choices(&document);
    remove_nulls(&mut document);
    if let Some(spec) = document.get_mut("spec") {
        whole::numbers(spec, crate::spec_schema());
    }
    let mut found = misfits(&document);
    found.extend(empty);
    let found = match found.is_empty() {
        false => found,
        true => match read(&document) {
            Ok(job) => return Ok(job),
            Err(misfit) => vec![misfit],
        },
    };
    let mended = Mended::of(document, found);
    let described = |misfit: Misfit| FieldError {
        line: line(text, index, &mended.as_written(&misfit.path)),
        field: field::path(&misfit.path),
        message: misfit.message,
    };
    Err(ManifestError::Fields {
        origin: origin.into(),
        fields: mended.wrong().into_iter().map(described).collect(),
    })
}

/// The YAML documents of a text, with what stands under merge keys (`<<`) in the blocks around them.
///
/// # Errors
/// When the text is not YAML.
pub fn documents(text: &str) -> Result<Vec<Value>, serde_yaml::Error> {
    if let Some(error) = nesting::too_deep(text) {
        return Err(error);
    }
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    let mut documents = documents.collect::<Result<Vec<Value>, _>>()?;
    documents.iter_mut().for_each(merge::apply);
    Ok(documents)
}

/// A text without the byte order mark that some editors put before it, and YAML's reader takes for a part of the first name.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

fn read(document: &Value) -> Result<PpoJob, Misfit> {
    serde_path_to_error::deserialize(document).map_err(|error| unreadable(&error))
}

/// Why the parser stopped.
fn no_yaml(text: &str, origin: &str, error: &serde_yaml::Error) -> ManifestError {
    match too_large(error) {
        Some(field) => ManifestError::Fields {
            origin: origin.into(),
            fields: vec![field],
        },
        None => ManifestError::Syntax {
            origin: origin.into(),
            message: format!("{error}{}", cause(text, error).unwrap_or_default()),
        },
    }
}

/// A whole number of more than 64 bits, which the parser reads and has no place for: the text is YAML all the same.
fn too_large(error: &serde_yaml::Error) -> Option<FieldError> {
    let message = error.to_string();
    let (field, found) = message.split_once(": invalid type: integer `")?;
    let (number, _) = found.split_once("` as ")?;
    Some(FieldError {
        line: error.location().map(|location| location.line()),
        field: field.into(),
        message: format!("{number} is out of range; no field takes such a number"),
    })
}

/// Words for what the parser's own do not tell.
fn cause(text: &str, error: &serde_yaml::Error) -> Option<String> {
    match nesting::is_too_deep(error) {
        true => Some("; no field lies as deep inside of lists and blocks: look for a bracket that is left open".into()),
        false => tab(text, error),
    }
}

/// Words for a tab that a line is indented by, where the parser stopped there: an editor shows it as blanks.
fn tab(text: &str, error: &serde_yaml::Error) -> Option<String> {
    let number = error.location()?.line();
    let line = text.lines().nth(number.checked_sub(1)?)?;
    let mut indent = line.chars().take_while(|c| c.is_whitespace());
    indent
        .any(|c| c == '\t')
        .then(|| format!("; line {number} begins with a tab, and YAML indents with spaces"))
}

/// A field without a value is left out, as for the API server: a block whose fields are all commented out, say.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Sequence(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Everything of a document that cannot be read.
fn misfits(document: &Value) -> Vec<Misfit> {
    const KNOWN: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    let mut shape = Shape::default();
    // kube's derived object ignores unknown fields beside `spec`; the API server does not.
    let fields = document.as_mapping().into_iter().flatten();
    let named = fields.filter_map(|(name, value)| Some((name.as_str()?, value)));
    for (name, value) in named.filter(|(name, _)| !KNOWN.contains(name)) {
        shape.unknown(name, value, &KNOWN);
    }
    shape.inside(Step::Field("metadata".into()), |shape| match document.get("metadata") {
        Some(metadata @ Value::Mapping(_)) => check_kubernetes::<ObjectMeta>(metadata, shape),
        Some(given) => shape.refuse(other(given, "object")),
        None => shape.refuse("missing; it has no default".into()),
    });
    shape.inside(Step::Field("spec".into()), |shape| match document.get("spec") {
        Some(spec) => shape.check(spec, crate::spec_schema()),
        None => shape.refuse("missing; it has no default".into()),
    });
    for (_, path) in RolesSpec::TEMPLATES {
        let template = path.split('.').try_fold(document, |value, name| value.get(name));
        if let Some(template) = template {
            shape.below(path.split('.').map(|name| Step::Field(name.into())), |shape| {
                check_kubernetes::<PodTemplateSpec>(template, shape)
            });
        }
    }
    shape.misfits
}

/// Checks a block of one of Kubernetes' own types, which the schema leaves open.
fn check_kubernetes<T: serde::de::DeserializeOwned + serde::Serialize + JsonSchema>(given: &Value, shape: &mut Shape) {
    match serde_path_to_error::deserialize::<_, T>(given.clone()) {
        Ok(read) => {
            let [given, read] =
                [serde_json::to_value(given), serde_json::to_value(read)].map(Result::unwrap_or_default);
            for steps in kubernetes::lost(&given, &read) {
                let known = kubernetes::beside::<T>(&steps);
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                let nearest = match steps.last() {
                    Some(Step::Field(name)) => did_you_mean(name, &known),
                    Some(Step::Item(_)) | None => String::new(),
                };
                shape.below(steps, |shape| shape.refuse(format!("{}{nearest}", kubernetes::UNKNOWN)));
            }
        }
        Err(error) => {
            let Misfit { path, message, .. } = unreadable(&error);
            let message = match at(given, &path) {
                Some(value @ (Value::Number(_) | Value::Bool(_))) if message.ends_with("expected a string") => {
                    unquoted(value)
                }
                Some(_) | None => message,
            };
            shape.below(path, |shape| shape.refuse(message));
        }
    }
}

fn at<'a>(block: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(block, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(index) => value.get(*index),
    })
}

fn unreadable(error: &serde_path_to_error::Error<serde_yaml::Error>) -> Misfit {
    use serde_path_to_error::Segment;
    let path = error.path().iter().filter_map(|segment| match segment {
        Segment::Map { key } => Some(Step::Field(key.clone())),
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Enum { .. } | Segment::Unknown => None,
    });
    Misfit::new(path.collect(), error.inner().to_string())
}

/// Whether a document is a PpoJob; else what it is, in words.
fn identify(document: &Value) -> Result<(), String> {
    let text = |key: &str| document.get(key).and_then(Value::as_str);
    match (text("apiVersion"), text("kind")) {
        (Some(version), Some("PpoJob")) if version == api_version() => Ok(()),
        (Some(version), Some("PpoJob")) => Err(format!("`apiVersion` is {version}")),
        (None, Some("PpoJob")) => Err("`apiVersion` is missing".into()),
        (_, Some(kind)) => Err(format!("`kind` is {kind}")),
        (Some(_), None) => Err("`kind` is missing".into()),
        (None, None) if document.is_null() => Err("a document is empty".into()),
        (None, None) => Err("`apiVersion` and `kind` are missing".into()),
    }
}

fn describe(kinds: Vec<Result<(), String>>) -> String {
    let found: Vec<_> = kinds.into_iter().filter_map(Result::err).collect();
    if found.is_empty() {
        "it is empty".into()
    } else {
        found.join(", ")
    }
}

#[cfg(test)]
pub(crate) mod tests;
