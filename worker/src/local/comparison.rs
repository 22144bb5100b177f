//! Held-out prompts before and after training.

use super::build::Roles;
use crate::telemetry::{BeforeAfter, BeforeAfterRow};
use crate::trainer::Evaluated;

/// Rows of the before-and-after table.
const COMPARED: usize = 12;

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
            label: prompt.label.clone(),
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
