//! The files that `ppo-worker sft -f` and `ppo-worker rm -f` read.

use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, bail, ensure};
use ppo_crds::run_config::Location;
use ppo_crds::spec::{DType, HubModel, OptimizerSpec, Schedule};
use ppo_crds::validate::{Problem, endless_warmup, optimizer_problems};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::pairs;
use super::preferences::{self, Preference};
use super::reading;
use crate::hub::resolve_location;
use crate::manifest::{Given, Invalid};
use crate::model::ModelConfig;
use crate::stages::Sample;
use crate::tokenizer::Tokenizer;

/// What `ppo-worker sft -f` reads.
pub type SftConfig = Training<SftData>;
/// What `ppo-worker rm -f` reads.
pub type RmConfig = Training<PreferenceData>;

/// A supervised run. Paths are relative to the file's folder.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Training<D> {
    /// What to train.
    pub model: StartModel,
    /// What to train on.
    pub data: D,
    /// Held-out examples; none are evaluated without it.
    #[serde(default)]
    pub evaluation: Option<Evaluation>,
    /// Updates.
    pub steps: u64,
    /// Examples per update. Default 32.
    #[serde(default = "batch_size")]
    pub batch_size: usize,
    /// Examples per forward and backward pass; memory only. Default: `batchSize`.
    #[serde(default)]
    pub micro_batch_size: Option<usize>,
    /// Default 1e-5.
    #[serde(default = "learning_rate")]
    pub learning_rate: f64,
    /// Updates over which the learning rate rises from 0, below `steps`. Default 0.
    #[serde(default)]
    pub warmup_steps: u64,
    /// constant, linear or cosine, the last two down to a tenth. Default constant.
    #[serde(default)]
    pub schedule: Schedule,
    /// Decoupled weight decay on matrices. Default 0.
    #[serde(default)]
    pub weight_decay: f64,
    /// Limit of the global gradient norm; 0: none. Default 1.
    #[serde(default = "max_grad_norm")]
    pub max_grad_norm: f64,
    /// Seed of the initial weights and the order of the data. Default 42.
    #[serde(default = "seed")]
    pub seed: u64,
    /// Folder the trained model is written to, in Hugging Face layout. It is replaced.
    pub output: PathBuf,
}

/// Exactly one of `path`, `hub`, `config`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartModel {
    /// Folder of a model to go on from.
    #[serde(default)]
    pub path: Option<PathBuf>,
    /// The same on the hub.
    #[serde(default)]
    pub hub: Option<HubModel>,
    /// Folder with config.json and tokenizer files: random initial weights.
    #[serde(default)]
    pub config: Option<PathBuf>,
    /// Default float32.
    #[serde(default = "float32")]
    pub dtype: DType,
}

impl StartModel {
    /// Where config.json and tokenizer are, and whether there are weights to start from.
    ///
    /// # Errors
    /// When not exactly one of the three is given.
    fn start(&self) -> anyhow::Result<(Location, bool)> {
        match (&self.path, &self.hub, &self.config) {
            (Some(path), None, None) => Ok((Location::Path(path.clone()), true)),
            (None, Some(HubModel { id, revision }), None) => {
                let (id, revision) = (id.clone(), revision.clone());
                Ok((Location::Hub { id, revision }, true))
            }
            (None, None, Some(config)) => Ok((Location::Path(config.clone()), false)),
            _ => bail!(
                "model: give exactly one of `path` and `hub` (weights to go on from) and `config` (random initial weights)"
            ),
        }
    }

    /// The folder with config.json and tokenizer, downloaded where it is on the hub, and whether it holds weights to start from.
    ///
    /// # Errors
    /// When it does not exist, or is neither in the hub's cache nor can be downloaded.
    pub fn folder(&self) -> anyhow::Result<(PathBuf, bool)> {
        let (location, has_weights) = self.start()?;
        Ok((resolve_location(&location).context("model")?, has_weights))
    }
}

/// Rows of prompts and responses.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SftData {
    /// JSONL, JSON or Parquet: a file, or a folder of them.
    pub path: PathBuf,
    /// Default `prompt`.
    #[serde(default = "prompt_field")]
    pub prompt_field: String,
    /// A text, or a list of chat messages that ends with it. Default `response`.
    #[serde(default = "response_field")]
    pub response_field: String,
    /// Render prompts through the model's chat template. Default false.
    #[serde(default)]
    pub chat_template: bool,
    /// Variables that the template gets, as a job's `prompts.chatTemplateVariables`. Default none.
    #[serde(default)]
    pub chat_template_variables: Map<String, Value>,
    /// Longest prompt in tokens; longer ones are dropped. Default 1024.
    #[serde(default = "max_length")]
    pub max_length: usize,
}

/// Rows of prompts with a better and a worse response.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreferenceData {
    /// JSONL, JSON or Parquet: a file, or a folder of them.
    pub path: PathBuf,
    /// Default `prompt`.
    #[serde(default = "prompt_field")]
    pub prompt_field: String,
    /// The better response, as a text, or a list of chat messages that ends with it. Default `chosen`.
    #[serde(default = "chosen_field")]
    pub chosen_field: String,
    /// The worse response. Default `rejected`.
    #[serde(default = "rejected_field")]
    pub rejected_field: String,
    /// Render prompts through the model's chat template. Default false.
    #[serde(default)]
    pub chat_template: bool,
    /// Variables that the template gets, as a job's `prompts.chatTemplateVariables`. Default none.
    #[serde(default)]
    pub chat_template_variables: Map<String, Value>,
    /// Longest prompt in tokens; longer ones are dropped. Default 1024.
    #[serde(default = "max_length")]
    pub max_length: usize,
}

/// Rows as examples.
pub trait Data: DeserializeOwned {
    /// What a row becomes.
    type Example;

    /// Where the training rows lie.
    fn path(&self) -> &Path;

    /// The same, to be resolved.
    fn path_mut(&mut self) -> &mut PathBuf;

    /// The examples that lie there, for a model of this configuration.
    ///
    /// # Errors
    /// A row that does not fit, with file, line and field.
    fn read(&self, path: &Path, tokenizer: &Tokenizer, model: &ModelConfig) -> anyhow::Result<Vec<Self::Example>>;
}

impl Data for SftData {
    type Example = Sample;

    fn path(&self) -> &Path {
        &self.path
    }

    fn path_mut(&mut self) -> &mut PathBuf {
        &mut self.path
    }

    fn read(&self, path: &Path, tokenizer: &Tokenizer, model: &ModelConfig) -> anyhow::Result<Vec<Sample>> {
        pairs::read(path, self, tokenizer, model)
    }
}

impl Data for PreferenceData {
    type Example = Preference;

    fn path(&self) -> &Path {
        &self.path
    }

    fn path_mut(&mut self) -> &mut PathBuf {
        &mut self.path
    }

    fn read(&self, path: &Path, tokenizer: &Tokenizer, model: &ModelConfig) -> anyhow::Result<Vec<Preference>> {
        preferences::read(path, self, tokenizer, model)
    }
}

/// Held-out rows with the same fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Evaluation {
    /// JSONL, JSON or Parquet: a file, or a folder of them.
    pub path: PathBuf,
    /// Default 100.
    #[serde(default = "every_steps")]
    pub every_steps: u64,
    /// End, before `steps`, once this share of them is right: with sft responses that greedy decoding gives exactly, with rm pairs in the
    /// right order. Above 0, at most 1. Default: none.
    #[serde(default)]
    pub stop_at: Option<f64>,
}

impl<D: Data> Training<D> {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// When it cannot be read, has an unknown field, or a number makes no sense.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let Given { text, origin, folder } = Given::read(file)?;
        let invalid = |why: String| Invalid::new(format!("{origin} is not valid: {why}"));
        let mut config: Self = reading::read(&text).map_err(|why| match is_ppo_job(&text) {
            true => invalid("this is a PpoJob: use `ppo-worker run -f`".into()),
            false => invalid(why),
        })?;
        config.check().map_err(|error| invalid(format!("{error:#}")))?;
        let paths = [&mut config.model.path, &mut config.model.config].into_iter().flatten();
        let paths = paths.chain([config.data.path_mut(), &mut config.output]);
        for path in paths.chain(config.evaluation.as_mut().map(|evaluation| &mut evaluation.path)) {
            *path = folder.join(&*path);
        }
        config.check_output().map_err(|error| invalid(format!("{error:#}")))?;
        Ok(config)
    }

    /// Refuses to write over what training reads: nobody could start from it again.
    fn check_output(&self) -> anyhow::Result<()> {
        let output = without_links(&self.output);
        let held_out = self.evaluation.as_ref().map(|evaluation| &*evaluation.path);
        let read = [
            ("model.path", self.model.path.as_deref()),
            ("model.config", self.model.config.as_deref()),
            ("data.path", Some(self.data.path())),
            ("evaluation.path", held_out),
        ];
        for (name, given) in read {
            let Some(given) = given else { continue };
            let source = without_links(given);
            let relation = if source == output && source.is_file() {
                "is the file of"
            } else if source == output {
                "is the folder of"
            } else if source.starts_with(&output) {
                "holds"
            } else {
                continue;
            };
            bail!(
                "output: {} {relation} {name}, and output is replaced whole: give a folder beside it, such as `output: {}-trained`",
                self.output.display(),
                if name.starts_with("model.") {
                    given
                } else {
                    &self.output
                }
                .display()
            );
        }
        Ok(())
    }

    fn check(&self) -> anyhow::Result<()> {
        self.model.start()?;
        ensure!(self.steps > 0, "steps must be at least 1");
        ensure!(self.batch_size > 0, "batchSize must be at least 1");
        ensure!(self.micro_batch_size != Some(0), "microBatchSize must be at least 1");
        if let Some(problem) = optimizer_problems(&self.optimizer()).first() {
            bail!("{}: {}", own_name(problem), problem.message);
        }
        if let Some(why) = endless_warmup(self.warmup_steps, self.steps) {
            bail!("warmupSteps {why}");
        }
        if let Some(share) = self.stop_at() {
            ensure!(
                share > 0.0 && share <= 1.0,
                "evaluation.stopAt is {share}: want a share of the held-out examples, above 0 and at most 1"
            );
        }
        Ok(())
    }

    /// The share of held-out examples at which training ends.
    pub fn stop_at(&self) -> Option<f64> {
        self.evaluation.as_ref()?.stop_at
    }

    /// Examples per forward and backward pass.
    pub fn micro_batch_size(&self) -> usize {
        self.micro_batch_size.unwrap_or(self.batch_size)
    }

    /// The optimizer these fields ask for; beta2 0.999 as usual in supervised training.
    pub fn optimizer(&self) -> OptimizerSpec {
        OptimizerSpec {
            actor_learning_rate: self.learning_rate,
            beta2: 0.999,
            weight_decay: self.weight_decay,
            max_grad_norm: self.max_grad_norm,
            schedule: self.schedule,
            warmup_updates: self.warmup_steps,
            ..OptimizerSpec::default()
        }
    }
}

/// A path without links, as far as it is there.
fn without_links(path: &Path) -> PathBuf {
    let whole = absolute(path).unwrap_or_else(|_| path.to_owned());
    let resolved = |above: &Path| {
        let rest = whole.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    };
    whole.ancestors().find_map(resolved).unwrap_or_else(|| whole.clone())
}

/// What these files call a field of a PpoJob's optimizer.
fn own_name(problem: &Problem) -> &str {
    match problem.field.rsplit('.').next().unwrap_or_default() {
        "actorLearningRate" => "learningRate",
        "warmupUpdates" => "warmupSteps",
        same => same,
    }
}

fn is_ppo_job(text: &str) -> bool {
    let document: Result<serde_yaml::Value, _> = serde_yaml::from_str(text);
    document.is_ok_and(|document| document.get("kind").and_then(serde_yaml::Value::as_str) == Some("PpoJob"))
}

fn batch_size() -> usize {
    32
}
fn learning_rate() -> f64 {
    1e-5
}
fn max_grad_norm() -> f64 {
    1.0
}
fn seed() -> u64 {
    42
}
fn float32() -> DType {
    DType::Float32
}
fn prompt_field() -> String {
    "prompt".into()
}
fn response_field() -> String {
    "response".into()
}
fn chosen_field() -> String {
    "chosen".into()
}
fn rejected_field() -> String {
    "rejected".into()
}
fn max_length() -> usize {
    1024
}
fn every_steps() -> u64 {
    100
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<SftConfig> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sft.yaml");
        std::fs::write(&file, text).unwrap();
        SftConfig::read(&file)
    }

    #[test]
    fn paths_are_relative_to_the_file_and_defaults_are_filled_in() {
        let config = read("{model: {path: m}, data: {path: /d.jsonl}, steps: 3, output: out}").unwrap();
        assert!(config.output.is_absolute() && config.output.ends_with("out"));
        assert_eq!(config.data.path, Path::new("/d.jsonl"));
        assert_eq!((config.batch_size, config.learning_rate), (32, 1e-5));
    }

    #[test]
    fn a_model_of_the_hub_is_its_newest_where_no_revision_is_given() {
        let config = read("{model: {hub: {id: owner/name}}, data: {path: d}, steps: 3, output: o}").unwrap();
        let (id, revision) = ("owner/name".to_owned(), "main".to_owned());
        assert_eq!(config.model.start().unwrap(), (Location::Hub { id, revision }, true));
        let both = read("{model: {hub: {id: a/b}, config: c}, data: {path: d}, steps: 3, output: o}").unwrap_err();
        assert!(
            format!("{both:#}").contains("exactly one of `path` and `hub`"),
            "{both:#}"
        );
    }

    #[test]
    fn a_warm_up_may_leave_one_update_and_gradients_need_no_bound() {
        let text = "{model: {path: m}, data: {path: d}, steps: 20, output: o, warmupSteps: 19, maxGradNorm: 0}";
        let config = read(text).unwrap();
        assert_eq!((config.warmup_steps, config.max_grad_norm), (19, 0.0));
    }

    #[test]
    fn a_model_is_not_written_over_the_one_that_it_starts_from() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("models/m")).unwrap();
        std::os::unix::fs::symlink("models", folder.path().join("link")).unwrap();
        let read = |model: &str, output: &str| {
            let file = folder.path().join("sft.yaml");
            let text = format!("{{model: {model}, data: {{path: d}}, steps: 1, output: {output}}}");
            std::fs::write(&file, text).unwrap();
            SftConfig::read(&file).map(drop).map_err(|error| format!("{error:#}"))
        };
        for (output, words) in [
            ("models/m", "is the folder of model.path"),
            ("link/m", "is the folder of model.path"),
            ("link", "holds model.path"),
            (".", "holds model.path"),
        ] {
            let error = read("{path: models/m}", output).unwrap_err();
            assert!(
                error.contains(words) && error.contains("give a folder beside it"),
                "{error}"
            );
        }
        read("{path: models/m}", "models/m-trained").unwrap();
        read("{path: elsewhere}", "models/m").unwrap();
        read("{config: models/m}", "models/m").unwrap_err();
        read("{path: models/m}", "models/m/out").unwrap();
    }

    #[test]
    fn a_model_is_not_written_over_the_data_that_it_learns_from() {
        let read = |data: &str, held_out: &str, output: &str| {
            let text = format!(
                "{{model: {{path: m}}, data: {{path: {data}}}, evaluation: {{path: {held_out}}}, steps: 1, output: {output}}}"
            );
            self::read(&text).map(drop).map_err(|error| format!("{error:#}"))
        };
        let error = read("sft/train.jsonl", "held-out.jsonl", "sft").unwrap_err();
        assert!(error.contains("holds data.path"), "{error}");
        let error = read("train.jsonl", "sft", "sft").unwrap_err();
        assert!(error.contains("is the folder of evaluation.path"), "{error}");
        read("data/train.jsonl", "data/held-out.jsonl", "data/sft").unwrap();
    }

    #[test]
    fn preferences_have_fields_of_their_own() {
        let text = "{model: {path: m}, data: {path: d, rejectedField: worse}, steps: 1, output: o}";
        let config: RmConfig = serde_yaml::from_str(text).unwrap();
        assert_eq!(
            (&config.data.chosen_field[..], &config.data.rejected_field[..]),
            ("chosen", "worse")
        );
        let error = serde_yaml::from_str::<RmConfig>(&text.replace("rejectedField", "responseField")).unwrap_err();
        assert!(error.to_string().contains("responseField"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            (
                "{model: {path: m}, data: {path: d}, steps: 3, output: o, stepz: 1}",
                "stepz",
            ),
            (
                "{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, spec: {}}",
                "this is a PpoJob: use `ppo-worker run -f`",
            ),
            (
                "{model: {}, data: {path: d}, steps: 3, output: o}",
                "exactly one of `path`",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 0, output: o}",
                "steps must be at least 1",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 1, output: o, learningRate: .nan}",
                "learningRate: is not a finite number",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 1, output: o, learningRate: 3}",
                "learningRate: 3.0 is out of range; it must be 0 to 1",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 1, output: o, weightDecay: -0.1}",
                "weightDecay: -0.1 is out of range; it must be 0 to 10",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 1, output: o, maxGradNorm: -1}",
                "maxGradNorm: -1.0 is out of range; it must be 0 to 1000000",
            ),
            (
                "{model: {path: m}, data: {path: d}, steps: 20, output: o, warmupSteps: 20}",
                "warmupSteps is 20, and the run has 20 updates: the learning rate rises to the end; it must be below 20",
            ),
            (
                "{model: {path: m}, data: {path: d}, evaluation: {path: d, stopAt: 30}, steps: 1, output: o}",
                "evaluation.stopAt is 30: want a share",
            ),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
