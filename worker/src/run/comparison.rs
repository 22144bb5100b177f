//! Held-out prompts before and after training.

use anyhow::Result;
use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

use super::build::Roles;
use crate::data::Label;
use crate::telemetry::run_dir::write_json;
use crate::telemetry::{BeforeAfter, BeforeAfterRow, RunDir};
use crate::trainer::Evaluated;

/// Rows of the before-and-after table.
const COMPARED: usize = 12;

/// The answers at step 0 in the run's folder, for a run that resumes.
#[derive(Deserialize, Serialize)]
pub struct Before {
    /// What was asked, and how: a run that resumes may ask otherwise, and then there is nothing to compare.
    settings: Evaluation,
    evaluated: Evaluated,
}

impl Before {
    /// What [`write`](Self::write) wrote. None where it is not there, or other prompts were asked: then there is no comparison at
    /// the end, and nothing else is missing.
    pub fn read(folder: &RunDir, settings: &Evaluation) -> Option<Evaluated> {
        let text = std::fs::read(folder.before()).ok()?;
        let before: Self = serde_json::from_slice(&text).ok()?;
        before.settings.asks_the_same(settings).then_some(before.evaluated)
    }

    /// Keeps them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(folder: &RunDir, settings: &Evaluation, evaluated: &Evaluated) -> Result<()> {
        let before = Self {
            settings: settings.clone(),
            evaluated: evaluated.clone(),
        };
        write_json(&folder.before(), &before)
    }
}

/// The comparison; None when one of the two evaluations is missing.
pub fn compare(roles: &Roles, before: Option<&Evaluated>, after: Option<&Evaluated>) -> Option<BeforeAfter> {
    let (before, after, held_out) = (before?, after?, roles.held_out.as_ref()?);
    let answers = before.answers.iter().zip(&after.answers);
    let rows = held_out
        .prompts
        .iter()
        .zip(answers)
        .take(COMPARED)
        .map(|(prompt, (before, after))| BeforeAfterRow {
            prompt: prompt.text.clone(),
            label: prompt.label.as_ref().map(Label::shown),
            before: before.clone(),
            after: after.clone(),
        });
    Some(BeforeAfter {
        pass_score: roles.trainer.config.evaluation.as_ref()?.pass_score,
        accuracy_before: before.report.pass_rate,
        accuracy_after: after.report.pass_rate,
        prompts: after.report.prompts,
        rows: rows.collect(),
    })
}
