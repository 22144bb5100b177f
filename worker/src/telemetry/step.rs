//! What the trainer reports: plain data, one struct per kind of line in the run's folder.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::{Metric, Stage};

/// One step. In JSON it is one flat object: `step`, `total_steps`, ..., a key per metric, and the objects `extra`
/// (whatever else there is to say, such as `reward/<source>`) and `stages` (seconds). A number that is not finite is null.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepReport {
    /// Steps completed, this one included: the first step is 1.
    pub step: u64,
    /// Steps the run will have.
    pub total_steps: u64,
    /// Passes over the prompts, this one included.
    pub episode: u64,
    /// Version of the policy this step's updates made.
    pub policy_version: u64,
    /// Samples of the step.
    pub samples: u64,
    /// The step's numbers. What does not apply (no critic, say) is left out.
    pub metrics: BTreeMap<Metric, f64>,
    /// Numbers without a place in the catalogue: `reward/<source>` per reward source, a reward server's extra logs.
    pub extra: BTreeMap<String, f64>,
    /// How long each stage took. A stage may occur twice; its times add up. Evaluations after the step and the checkpoint before it
    /// are told of here, and are not in `wall`.
    pub stages: Vec<(Stage, Duration)>,
    /// Wall-clock time of the step.
    pub wall: Duration,
}

/// The source of the reward whose scores a number of [`StepReport::extra`] is the mean of: `exactMatch` of `reward/exactMatch`. A further
/// log of a source, `reward/remote/latency`, is no score.
pub(crate) fn reward_source(name: &str) -> Option<&str> {
    name.strip_prefix("reward/").filter(|source| !source.contains('/'))
}

impl StepReport {
    /// Sets a metric.
    pub fn set(&mut self, metric: Metric, value: f64) {
        self.metrics.insert(metric, value);
    }

    /// A metric's value; the metrics that are fields of the report come from those.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::PolicyVersion => Some(self.policy_version as f64),
            Metric::Samples => Some(self.samples as f64),
            // Every step has as many.
            Metric::SamplesSeen => Some(self.step as f64 * self.samples as f64),
            Metric::Episode => Some(self.episode as f64),
            Metric::StepSeconds => Some(self.wall.as_secs_f64()),
            _ => self.metrics.get(&metric).copied(),
        }
    }

    /// Every number of the step in the catalogue's order.
    pub fn values(&self) -> impl Iterator<Item = (Metric, f64)> + '_ {
        Metric::ALL
            .iter()
            .filter_map(|metric| Some((*metric, self.get(*metric)?)))
    }

    /// Seconds per stage in the order of a step, those of a stage that occurred twice added up.
    pub fn stage_seconds(&self) -> BTreeMap<Stage, f64> {
        let mut seconds = BTreeMap::new();
        for (stage, time) in &self.stages {
            *seconds.entry(*stage).or_insert(0.0) += time.as_secs_f64();
        }
        seconds
    }

    /// Reads a line of metrics.jsonl. Keys of other versions of this program are skipped; null is NaN.
    fn from_map(map: &Map<String, Value>) -> Option<StepReport> {
        let whole = |key: &str| map.get(key).and_then(Value::as_u64);
        let object = |key: &str| map.get(key).and_then(Value::as_object).into_iter().flatten();
        let mut report = StepReport {
            step: whole("step")?,
            total_steps: whole("total_steps").unwrap_or(0),
            episode: whole("episode").unwrap_or(0),
            policy_version: whole("policy_version").unwrap_or(0),
            samples: whole("samples").unwrap_or(0),
            extra: object("extra")
                .map(|(name, value)| (name.clone(), number(value)))
                .collect(),
            stages: object("stages")
                .filter_map(|(name, value)| Some((Stage::from_name(name)?, seconds(number(value))?)))
                .collect(),
            wall: map
                .get("step_seconds")
                .and_then(|value| seconds(number(value)))
                .unwrap_or_default(),
            metrics: BTreeMap::new(),
        };
        for metric in Metric::ALL
            .iter()
            .filter(|metric| report.get(**metric).is_none())
            .collect::<Vec<_>>()
        {
            if let Some(value) = map.get(metric.name()) {
                report.set(*metric, number(value));
            }
        }
        Some(report)
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn seconds(value: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(value).ok()
}

impl Serialize for StepReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Map::new();
        map.insert("step".into(), self.step.into());
        map.insert("total_steps".into(), self.total_steps.into());
        map.insert("episode".into(), self.episode.into());
        map.insert("policy_version".into(), self.policy_version.into());
        map.insert("samples".into(), self.samples.into());
        for (metric, value) in self.values() {
            map.entry(metric.name()).or_insert_with(|| value.into());
        }
        let extra: Map<String, Value> = self
            .extra
            .iter()
            .map(|(name, value)| (name.clone(), (*value).into()))
            .collect();
        map.insert("extra".into(), extra.into());
        let stages: Map<String, Value> = self
            .stage_seconds()
            .into_iter()
            .map(|(stage, value)| (stage.name().into(), value.into()))
            .collect();
        map.insert("stages".into(), stages.into());
        map.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StepReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = Map::deserialize(deserializer)?;
        StepReport::from_map(&map).ok_or_else(|| serde::de::Error::missing_field("step"))
    }
}

/// One evaluation on the held-out prompts.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct EvaluationReport {
    /// Completed steps at the time; 0 is before training.
    pub step: u64,
    /// Prompts answered.
    pub prompts: u64,
    /// Samples of each. Absent where it is 1.
    #[serde(default = "one_sample", skip_serializing_if = "is_one_sample")]
    pub n_samples_per_prompt: u64,
    /// Mean score.
    #[serde(deserialize_with = "null_is_nan")]
    pub score: f64,
    /// Share of samples whose score reached the pass score (pass@1), 0 to 1.
    #[serde(deserialize_with = "null_is_nan")]
    pub pass_rate: f64,
    /// Share of prompts of which at least one sample did (pass@n), 0 to 1. Absent with one sample a prompt, where it is pass@1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_at_n: Option<f64>,
    /// Mean response length in tokens.
    #[serde(deserialize_with = "null_is_nan")]
    pub response_length: f64,
    /// Wall-clock seconds it took.
    #[serde(deserialize_with = "null_is_nan")]
    pub seconds: f64,
    /// What it comes to on each test set, by its name. Absent without `evaluation.setField`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, SetReport>,
}

impl EvaluationReport {
    /// The evaluation's numbers under their catalogue names, of all prompts together.
    pub fn values(&self) -> impl Iterator<Item = (Metric, f64)> {
        figures(self.score, self.pass_rate, self.pass_at_n, self.response_length)
    }
}

/// What an evaluation comes to on the prompts of one test set; the fields are those of [`EvaluationReport`].
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct SetReport {
    /// Prompts answered.
    pub prompts: u64,
    /// Mean score.
    #[serde(deserialize_with = "null_is_nan")]
    pub score: f64,
    /// pass@1.
    #[serde(deserialize_with = "null_is_nan")]
    pub pass_rate: f64,
    /// pass@n. Absent with one sample a prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_at_n: Option<f64>,
    /// Mean response length in tokens.
    #[serde(deserialize_with = "null_is_nan")]
    pub response_length: f64,
}

impl SetReport {
    /// Its numbers, each under the catalogue name of the same number of all prompts.
    pub fn values(&self) -> impl Iterator<Item = (Metric, f64)> {
        figures(self.score, self.pass_rate, self.pass_at_n, self.response_length)
    }
}

/// Those that are there, each under its catalogue name.
fn figures(
    score: f64,
    pass_rate: f64,
    pass_at_n: Option<f64>,
    response_length: f64,
) -> impl Iterator<Item = (Metric, f64)> {
    let values = [
        (Metric::EvaluationScore, Some(score)),
        (Metric::EvaluationPassRate, Some(pass_rate)),
        (Metric::EvaluationPassAtN, pass_at_n),
        (Metric::EvaluationResponseLength, Some(response_length)),
    ];
    values.into_iter().filter_map(|(metric, value)| Some((metric, value?)))
}

fn one_sample() -> u64 {
    1
}

fn is_one_sample(count: &u64) -> bool {
    *count == 1
}

/// One decoded sample.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct SampleRecord {
    /// The prompt as the model saw it.
    pub prompt: String,
    /// The prompt's label, where it has one.
    pub label: Option<String>,
    /// The response, special tokens left out.
    pub response: String,
    /// The sample's score.
    #[serde(deserialize_with = "null_is_nan")]
    pub score: f64,
    /// `stop`, `length` or `abort`.
    pub finish_reason: String,
    /// The response's tokens in order.
    pub tokens: Vec<TokenRecord>,
}

/// One token of a sample.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default)]
pub struct TokenRecord {
    /// The decoded token.
    pub text: String,
    /// Reward after shaping; of the last token with that of the slot after it, where TRL places the score.
    #[serde(deserialize_with = "null_is_nan")]
    pub reward: f64,
    /// Advantage as the loss saw it.
    #[serde(deserialize_with = "null_is_nan")]
    pub advantage: f64,
    /// KL estimate to the reference, nats.
    #[serde(deserialize_with = "null_is_nan")]
    pub kl: f64,
    /// Log-probability under the policy as it was before the step's updates, nats.
    #[serde(deserialize_with = "null_is_nan")]
    pub logprob: f64,
}

/// Something that happened: a resume, a role lost, a divergence.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
pub struct EventRecord {
    /// Seconds since 1970.
    pub time: f64,
    /// Completed steps at the time.
    pub step: u64,
    /// One word, such as `resumed`, `stopped`, `diverged`.
    pub kind: String,
    /// A sentence for the person who watches.
    pub message: String,
    /// At an end of the run, seconds by the name of the stage: what came after the last step, such as its checkpoint, which no step's
    /// report tells of.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stages: BTreeMap<String, f64>,
}

/// JSON has no NaN; it is written as null.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
