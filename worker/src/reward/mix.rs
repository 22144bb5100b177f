//! The score of a sample: the weighted sum of its sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ppo_crds::run_config::Reward as RewardConfig;

use super::alike::Alike;
use super::held::Held;
use super::longest::Unscorable;
use super::remote::{RemoteOptions, RemoteReward};
use super::role::Reward;
use super::rule::Rule;
use super::sample::ScoredSample;
use crate::data::Label;
use crate::native::threads::blocking;
use crate::serving::room::Room;
use crate::telemetry::Live;
use crate::tokenizer::Encoding;

/// Scores of samples, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// One finite number per sample.
    pub scores: Vec<f32>,
    /// What dynamic sampling compares, one per sample: the scores, but of a remote that gives `rewards` and `scores` the latter, as OpenRLHF's
    /// dynamic filtering does.
    pub compared: Vec<f32>,
    /// Further numbers for the logs, one per sample under each name; NaN where a source gave none.
    pub extra: BTreeMap<String, Vec<f32>>,
}

impl Scores {
    /// These, and nothing else.
    pub fn of(scores: Vec<f32>) -> Self {
        Self {
            compared: scores.clone(),
            scores,
            extra: BTreeMap::new(),
        }
    }
}

/// Everything that `roles.reward` names.
pub struct RewardSource {
    sources: Vec<Weighted>,
    alike: Alike,
    /// Room for what rules read at once.
    reading: Encoding,
}

struct Weighted {
    /// `model`, `remote`, or the rule's kind (`exactMatch`, a second one `exactMatch2`).
    name: String,
    weight: f64,
    source: Source,
}

enum Source {
    Model(Reward),
    Rule(Arc<Rule>),
    Remote(RemoteReward),
}

impl RewardSource {
    /// The sources of a run. `model` is the reward model that `reward.model` names, here or behind HTTP.
    ///
    /// # Errors
    /// A rule or URL that is not one; no source at all; a reward model that is named but not given, or the reverse.
    pub fn new(reward: &RewardConfig, model: Option<Reward>) -> Result<Self> {
        let mut sources: Vec<Weighted> = Vec::new();
        match (&reward.model, model) {
            (Some(named), Some(model)) => {
                sources.push(Weighted {
                    name: "model".to_owned(),
                    weight: named.weight,
                    source: Source::Model(model),
                });
            }
            (None, None) => {}
            (Some(_), None) => bail!("reward.model is named, but no reward model was loaded"),
            (None, Some(_)) => bail!("a reward model was loaded, but reward.model names none"),
        }
        for (rule, spec) in Rule::all(&reward.rules)?.into_iter().zip(&reward.rules) {
            let before = sources.iter().filter(|source| source.kind() == rule.name()).count();
            let number = if before == 0 {
                String::new()
            } else {
                (before + 1).to_string()
            };
            let name = format!("{}{number}", rule.name());
            sources.push(Weighted {
                name,
                weight: spec.weight,
                source: Source::Rule(Arc::new(rule)),
            });
        }
        if let Some(spec) = &reward.remote {
            let remote = RemoteReward::new(RemoteOptions::from(spec))?;
            sources.push(Weighted {
                name: "remote".to_owned(),
                weight: spec.weight,
                source: Source::Remote(remote),
            });
        }
        if sources.is_empty() {
            bail!("roles.reward has no source: want model, rules or remote");
        }
        Ok(Self {
            sources,
            alike: Alike::default(),
            reading: Encoding::default(),
        })
    }

    /// From now on `live` is told how far remote servers and a model in this process are.
    pub fn report_to(&mut self, live: &Arc<Live>) {
        for weighted in &mut self.sources {
            match &mut weighted.source {
                Source::Model(Reward::Here(model)) => model.report_to(live.clone()),
                Source::Remote(remote) => remote.report_to(live.clone()),
                // Whoever asks pods tells of them already.
                Source::Model(Reward::There(_)) | Source::Rule(_) => {}
            }
        }
    }

    /// Digest of the reward model. None: there is no model, or no pod of it has said it yet.
    pub fn digest(&self) -> Option<&str> {
        self.sources.iter().find_map(|source| match &source.source {
            Source::Model(model) => model.digest(),
            Source::Rule(_) | Source::Remote(_) => None,
        })
    }

    /// True when a rule reads responses, which must be told from their prompts then.
    pub fn has_rules(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| matches!(source.source, Source::Rule(_)))
    }

    /// True when a rule counts tokens, so that text alone is not enough.
    pub fn needs_tokens(&self) -> bool {
        self.sources
            .iter()
            .any(|source| matches!(&source.source, Source::Rule(rule) if rule.needs_tokens()))
    }

    /// Refuses a label that a rule cannot compare with; cheap enough to ask for every prompt before a run.
    ///
    /// # Errors
    /// Names the rule and the label.
    pub fn check_label(&self, label: Option<&Label>) -> Result<()> {
        let mut rules = self.sources.iter().filter_map(|source| match &source.source {
            Source::Rule(rule) => Some(rule),
            _ => None,
        });
        rules.try_for_each(|rule| rule.check_label(label))
    }

    /// Refuses texts that are too long for its model to split.
    ///
    /// # Errors
    /// Names the first one by its place.
    pub(super) fn check_texts(&self, texts: &[String]) -> Result<(), Unscorable> {
        for source in &self.sources {
            if let Source::Model(Reward::Here(model)) = &source.source {
                let mut texts = texts.iter().enumerate();
                texts.try_for_each(|(index, text)| model.check_text(index, text.len()))?;
            }
        }
        Ok(())
    }

    /// The score of each sample: the sum of weight times score over the sources, which run side by side. `extra` has each
    /// source's own scores under `reward/<source>` and a remote's further logs under `reward/remote/<name>`.
    ///
    /// # Errors
    /// The first source that fails; or a score that is not finite. Names the sample.
    pub async fn score(&self, samples: &[ScoredSample]) -> Result<Scores> {
        let held = Arc::new(Held::new(samples.to_vec(), Room::default()));
        self.score_held(&held).await
    }

    /// As [`score`](Self::score), of samples that count for memory.
    pub(super) async fn score_held(&self, held: &Arc<Held>) -> Result<Scores> {
        let samples = held.samples();
        if samples.is_empty() {
            return Ok(Scores::default());
        }
        let all = self.sources.iter().map(|source| source.score(held, &self.reading));
        let answers = futures::future::try_join_all(all).await?;
        let (mut sums, mut compared) = (vec![0.0_f64; samples.len()], vec![0.0_f64; samples.len()]);
        let mut mixed = Scores::default();
        for (source, answer) in self.sources.iter().zip(answers) {
            add(&mut sums, source.weight, &answer.scores);
            add(&mut compared, source.weight, &answer.compared);
            for (name, values) in answer.extra {
                mixed.extra.insert(format!("reward/{}/{name}", source.name), values);
            }
            mixed.extra.insert(format!("reward/{}", source.name), answer.scores);
        }
        mixed.scores = sums.into_iter().map(|sum| sum as f32).collect();
        mixed.compared = compared.into_iter().map(|sum| sum as f32).collect();
        check_finite("the weighted sum of all sources", &mixed.scores, samples)?;
        if let Some(words) = self.alike.told(&mixed.scores, samples) {
            tracing::warn!("{words}");
        }
        Ok(mixed)
    }
}

impl Weighted {
    fn kind(&self) -> &str {
        match &self.source {
            Source::Rule(rule) => rule.name(),
            _ => &self.name,
        }
    }

    async fn score(&self, held: &Arc<Held>, reading: &Encoding) -> Result<Scores> {
        let samples = held.samples();
        let scores = match &self.source {
            Source::Remote(remote) => remote.score(samples).await?,
            Source::Model(model) => Scores::of(model.scores(samples).await?),
            Source::Rule(rule) => Scores::of(by_rule(rule, held, reading).await?),
        };
        check_finite(&self.name, &scores.scores, samples)?;
        Ok(scores)
    }
}

/// The scores of a rule. Aside: an expression, or mathematics, takes long enough over long texts to hold up other requests.
async fn by_rule(rule: &Arc<Rule>, held: &Arc<Held>, reading: &Encoding) -> Result<Vec<f32>> {
    let lengths = held.samples().iter().map(|sample| sample.visible_response.len());
    let room = reading.enter(lengths.max().unwrap_or(0)).await?;
    let (rule, held) = (rule.clone(), held.clone());
    let score = move || {
        // It goes on when the client has gone, and has what it takes with it.
        let _room = room;
        let scores = held.samples().iter().map(|sample| rule.score(sample));
        scores.collect::<Result<Vec<f32>>>()
    };
    blocking(score).await.context("the thread of a rule died")?
}

fn add(sums: &mut [f64], weight: f64, scores: &[f32]) {
    for (sum, score) in sums.iter_mut().zip(scores) {
        *sum += weight * f64::from(*score);
    }
}

fn check_finite(source: &str, scores: &[f32], samples: &[ScoredSample]) -> Result<()> {
    for (score, sample) in scores.iter().zip(samples) {
        if !score.is_finite() {
            bail!(
                "reward source {source}: the score of sample {} is {score}, want a finite number",
                sample.index
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
