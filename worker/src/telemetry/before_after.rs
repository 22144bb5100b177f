//! Held-out prompts answered before and after training: what the demo ends with and the report shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::SetReport;

/// The comparison. Stored as `before_after.json` in the run's folder.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct BeforeAfter {
    /// What an answer must score to count as passed.
    pub pass_score: f64,
    /// Share of **all** samples of held-out prompts that passed before, 0 to 1 (the rows may be a selection).
    pub accuracy_before: f64,
    /// The same after.
    pub accuracy_after: f64,
    /// With several samples a prompt, of which the rows have the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass_at_n: Option<PassAtN>,
    /// Held-out prompts the accuracies are over.
    pub prompts: u64,
    /// Each test set, by its name. Absent without `evaluation.setField`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, SetBeforeAfter>,
    /// The prompts to show.
    pub rows: Vec<BeforeAfterRow>,
}

/// Shares of held-out prompts of which at least one of several samples passed.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct PassAtN {
    /// Samples of each prompt.
    pub n_samples_per_prompt: u64,
    /// Before, 0 to 1.
    pub before: f64,
    /// After.
    pub after: f64,
}

/// One test set.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct SetBeforeAfter {
    /// Before training.
    pub before: SetReport,
    /// Now.
    pub after: SetReport,
}

/// One held-out prompt.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct BeforeAfterRow {
    /// The prompt.
    pub prompt: String,
    /// The right answer, where there is one.
    pub label: Option<String>,
    /// What the policy said before training.
    pub before: Answer,
    /// What it says now.
    pub after: Answer,
}

/// A response and its score.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct Answer {
    /// The response.
    pub response: String,
    /// Its score.
    pub score: f64,
}

/// Two shares as `34 % -> 78 %`.
pub(super) fn rise(before: f64, after: f64) -> String {
    format!("{:.0} % -> {:.0} %", 100.0 * before, 100.0 * after)
}

impl BeforeAfter {
    /// `accuracy 34 % -> 78 %`, with several samples a prompt `pass@8 60 % -> 90 %` too, and the number of prompts they are over.
    pub fn summary(&self) -> String {
        let pass_at_n = self.pass_at_n.as_ref().map_or(String::new(), |pass| {
            let n = pass.n_samples_per_prompt;
            format!(", pass@{n} {}", rise(pass.before, pass.after))
        });
        format!(
            "accuracy {}{pass_at_n} on {} held-out prompts",
            rise(self.accuracy_before, self.accuracy_after),
            self.prompts
        )
    }

    /// Whether an answer passed.
    pub fn passed(&self, answer: &Answer) -> bool {
        passes(answer.score, self.pass_score)
    }
}

/// Whether a score is at least what an answer must score. A score is a float32: 0.9 as one is below the 0.9 of a manifest.
pub fn passes(score: f64, pass_score: f64) -> bool {
    score as f32 >= pass_score as f32
}
