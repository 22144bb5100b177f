//! Reads a manifest: YAML text to [`PpoJob`], with errors that name file, line and field.

use kube::Resource;
use serde::Deserialize;
use serde_yaml::Value;

use crate::PpoJob;

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
    /// A field is unknown, missing or of the wrong type.
    #[error("{origin}{}: {field}: {message}", line.map(|line| format!(":{line}")).unwrap_or_default())]
    Field {
        /// File or other source of the text.
        origin: String,
        /// Line of the field or of the block around it, from 1.
        line: Option<usize>,
        /// Path of the field, such as `spec.batch.trainBatchSize`.
        field: String,
        /// What is wrong and which fields or values are known.
        message: String,
    },
}

fn api_version() -> String {
    PpoJob::api_version(&()).into_owned()
}

/// Reads the one `PpoJob` among the YAML documents of `text`. `origin` names the text in errors: the file's path, say.
///
/// # Errors
/// When the text is not YAML, holds no or several PpoJobs, or a field is unknown, missing or of the wrong type.
pub fn parse_manifest(text: &str, origin: &str) -> Result<PpoJob, ManifestError> {
    let documents = serde_yaml::Deserializer::from_str(text)
        .map(Value::deserialize)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| ManifestError::Syntax {
            origin: origin.into(),
            message: error.to_string(),
        })?;
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
    // Read again from the text, not from the value: only then the parser knows lines.
    let Some(document) = serde_yaml::Deserializer::from_str(text).nth(index) else {
        return Err(ManifestError::NotAPpoJob {
            origin: origin.into(),
            found: "the document is gone".into(),
        });
    };
    refuse_unknown_top_level(&documents[index], origin)?;
    if let Some(spec) = documents[index].get("spec") {
        refuse_other_shapes(spec, crate::spec_schema(), "spec", origin)?;
    }
    serde_path_to_error::deserialize(document).map_err(|error| field_error(&error, origin))
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

/// kube's derived object ignores unknown fields beside `spec`; the API server does not.
fn refuse_unknown_top_level(document: &Value, origin: &str) -> Result<(), ManifestError> {
    const KNOWN: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
    let keys = document.as_mapping().into_iter().flat_map(|mapping| mapping.keys());
    let unknown = keys.filter_map(Value::as_str).find(|key| !KNOWN.contains(key));
    let Some(key) = unknown else { return Ok(()) };
    let message = format!(
        "unknown field; known here: {}{}",
        KNOWN.join(", "),
        did_you_mean(key, &KNOWN)
    );
    Err(ManifestError::Field {
        origin: origin.into(),
        line: None,
        field: key.into(),
        message,
    })
}

/// serde reads a list as a block whose fields come in order, and YAML's reader a number as a text; the API server does neither.
fn refuse_other_shapes(
    value: &Value,
    schema: &serde_json::Value,
    path: &str,
    origin: &str,
) -> Result<(), ManifestError> {
    let refused = |message: &str| {
        Err(ManifestError::Field {
            origin: origin.into(),
            line: None,
            field: path.into(),
            message: message.into(),
        })
    };
    match (value, schema.get("type").and_then(serde_json::Value::as_str)) {
        (Value::Sequence(_), Some("object")) => refused("a list is given where a block of fields is needed"),
        (Value::Number(_) | Value::Bool(_), Some("string")) => refused("is a text: put it in quotes"),
        (Value::Sequence(items), _) => {
            let Some(schema) = schema.get("items") else {
                return Ok(());
            };
            let mut items = items.iter().enumerate();
            items.try_for_each(|(index, item)| refuse_other_shapes(item, schema, &format!("{path}[{index}]"), origin))
        }
        (Value::Mapping(fields), _) => {
            let mut known = fields.iter().filter_map(|(name, value)| {
                let name = name.as_str()?;
                Some((name, value, schema.get("properties")?.get(name)?))
            });
            known.try_for_each(|(name, value, schema)| {
                refuse_other_shapes(value, schema, &format!("{path}.{name}"), origin)
            })
        }
        _ => Ok(()),
    }
}

fn field_error(error: &serde_path_to_error::Error<serde_yaml::Error>, origin: &str) -> ManifestError {
    let line = error.inner().location().map(|location| location.line());
    let path = error.path().to_string();
    let (field, message) = explain(path.trim_start_matches('.'), &error.inner().to_string());
    ManifestError::Field {
        origin: origin.into(),
        line,
        field,
        message,
    }
}

/// Puts serde's words into field path and sentence. serde quotes names in backticks: the offender first, then what it knows.
fn explain(path: &str, words: &str) -> (String, String) {
    // yaml_serde puts path and position around the message; both are told apart already.
    let words = words.split(" at line ").next().unwrap_or(words);
    let path_here = if path == "." { "" } else { path };
    let words = words.strip_prefix(&format!("{path_here}: ")).unwrap_or(words);
    let quoted: Vec<&str> = words.split('`').skip(1).step_by(2).collect();
    let Some((&name, known)) = quoted.split_first() else {
        return (path_here.into(), words.into());
    };
    let already_there = path_here.rsplit('.').next() == Some(name);
    let inside = match path_here {
        "" => name.to_string(),
        _ if already_there => path_here.to_string(),
        _ => format!("{path_here}.{name}"),
    };
    if words.contains("unknown field `") {
        let known_here = if known.is_empty() {
            "none".into()
        } else {
            known.join(", ")
        };
        return (
            inside,
            format!("unknown field; known here: {known_here}{}", did_you_mean(name, known)),
        );
    }
    if words.contains("missing field `") {
        return (inside, "missing; it has no default".into());
    }
    if words.contains("unknown variant `") {
        let known_here = known.join(", ");
        return (
            path_here.into(),
            format!("{name} is not one of {known_here}{}", did_you_mean(name, known)),
        );
    }
    (path_here.into(), words.into())
}

fn did_you_mean(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (distance(&name.to_lowercase(), &candidate.to_lowercase()), candidate))
        .min();
    match nearest {
        Some((distance, candidate)) if distance <= 2 => format!(" (did you mean {candidate}?)"),
        _ => String::new(),
    }
}

/// Levenshtein distance.
pub(crate) fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(from != *to)).min(above + 1).min(row[j] + 1);
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small job with further blocks of the spec and the given `roles`, for the tests of this crate.
    pub(crate) fn job(blocks: &str, roles: &str) -> PpoJob {
        let text = format!(
            "apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n  model: {{policy: {{path: /models/p}}}}\n  \
             prompts: {{source: {{path: /data/p.jsonl}}, labelField: answer}}\n  roles: {{{roles}}}\n  {blocks}\n"
        );
        parse_manifest(&text, "job.yaml").unwrap()
    }

    fn error(spec: &str) -> String {
        let text = format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{spec}");
        parse_manifest(&text, "job.yaml").unwrap_err().to_string()
    }

    const MODEL: &str = "  model: {policy: {path: p}}\n";
    const REST: &str = "  prompts: {source: {path: d}}\n  roles: {reward: {rules: [{json: {}}]}}\n";

    #[test]
    fn an_unknown_field_is_named_with_its_path_its_line_and_what_is_known() {
        let message = error(&format!("{MODEL}{REST}  batch:\n    trainBatchsize: 3\n"));
        assert_eq!(
            message,
            "job.yaml:9: spec.batch.trainBatchsize: unknown field; known here: rolloutBatchSize, nSamplesPerPrompt, \
             microRolloutBatchSize, trainBatchSize, microTrainBatchSize, ppoEpochs (did you mean trainBatchSize?)"
        );
    }

    #[test]
    fn a_missing_field_is_named_with_its_path() {
        assert_eq!(
            error("  model: {}\n"),
            "job.yaml:5: spec.model.policy: missing; it has no default"
        );
        assert_eq!(error(MODEL), "job.yaml:5: spec.prompts: missing; it has no default");
    }

    #[test]
    fn a_wrong_type_is_named_with_its_path_and_both_types() {
        let message = error(&format!("{MODEL}{REST}  batch: {{rolloutBatchSize: many}}\n"));
        assert!(
            message.starts_with("job.yaml:8: spec.batch.rolloutBatchSize: invalid type: string \"many\", expected u32"),
            "{message}"
        );
    }

    #[test]
    fn a_list_is_no_block() {
        assert_eq!(
            error(&format!("{MODEL}{REST}  batch: []\n")),
            "job.yaml: spec.batch: a list is given where a block of fields is needed"
        );
        let rules = "  prompts: {source: {path: d}}\n  roles: {reward: {rules: [[]]}}\n";
        assert!(error(&format!("{MODEL}{rules}")).contains("spec.roles.reward.rules[0]: a list is given"));
    }

    #[test]
    fn a_number_is_no_text() {
        assert_eq!(
            error(&format!("{MODEL}{REST}  generation: {{stop: [1]}}\n")),
            "job.yaml: spec.generation.stop[0]: is a text: put it in quotes"
        );
    }

    #[test]
    fn an_unknown_value_is_answered_with_the_known_ones() {
        let message = error(&format!(
            "{MODEL}{REST}  algorithm: {{advantage: {{estimator: gea}}}}\n"
        ));
        assert!(
            message.contains("spec.algorithm.advantage.estimator: gea is not one of gae, rloo"),
            "{message}"
        );
        assert!(message.ends_with("(did you mean gae?)"), "{message}");
    }

    #[test]
    fn a_text_that_is_no_ppo_job_says_what_it_is() {
        let message = |text: &str| parse_manifest(text, "x.yaml").unwrap_err().to_string();
        assert!(
            message("").contains("it is empty") || message("").contains("a document is empty"),
            "{}",
            message("")
        );
        assert!(message("kind: PpoJob").contains("`apiVersion` is missing"));
        assert!(message("apiVersion: ppojob.dev/v1alpha1").contains("`kind` is missing"));
        assert!(message("apiVersion: v1\nkind: Pod").contains("`kind` is Pod"));
        assert!(message("apiVersion: ppojob.dev/v2\nkind: PpoJob").contains("`apiVersion` is ppojob.dev/v2"));
        assert!(message("a: [").contains("not valid YAML"));
        assert!(message("apiVersion: v1\nkind: Pod").contains("starts with `apiVersion: ppojob.dev/v1alpha1`"));
    }

    #[test]
    fn the_ppo_job_is_found_among_other_documents_and_two_are_refused() {
        let job = format!(
            "---\napiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetadata: {{name: math}}\nspec:\n{MODEL}{REST}"
        );
        let text = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: rl}}\n{job}");
        assert_eq!(
            parse_manifest(&text, "x").unwrap().metadata.name.as_deref(),
            Some("math")
        );
        assert!(
            parse_manifest(&format!("{text}{job}"), "x")
                .unwrap_err()
                .to_string()
                .contains("holds 2 PpoJobs")
        );
    }

    #[test]
    fn a_misspelt_top_level_field_is_refused() {
        let text =
            format!("apiVersion: ppojob.dev/v1alpha1\nkind: PpoJob\nmetdata: {{name: math}}\nspec:\n{MODEL}{REST}");
        let message = parse_manifest(&text, "x").unwrap_err().to_string();
        assert!(
            message.contains("metdata: unknown field") && message.contains("did you mean metadata?"),
            "{message}"
        );
    }
}
