//! Held-out prompts answered before and after training: what the demo ends with and the report shows.

use serde::{Deserialize, Serialize};

/// The comparison. Stored as `before_after.json` in the run's folder.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
pub struct BeforeAfter {
    /// What an answer must score to count as passed.
    pub pass_score: f64,
    /// Share of **all** held-out prompts that passed before, 0 to 1 (the rows may be a selection).
    pub accuracy_before: f64,
    /// The same after.
    pub accuracy_after: f64,
    /// Held-out prompts the accuracies are over.
    pub prompts: u64,
    /// The prompts to show.
    pub rows: Vec<BeforeAfterRow>,
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

impl BeforeAfter {
    /// `accuracy 34 % -> 78 %`, with the number of prompts it is over.
    pub fn summary(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        format!(
            "accuracy {} -> {} on {} held-out prompts",
            percent(self.accuracy_before),
            percent(self.accuracy_after),
            self.prompts
        )
    }

    /// Whether an answer passed.
    pub fn passed(&self, answer: &Answer) -> bool {
        answer.score >= self.pass_score
    }
}
