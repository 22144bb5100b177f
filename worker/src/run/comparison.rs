//! Held-out prompts before and after training.

use std::collections::BTreeMap;

use anyhow::Result;
use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

use super::build::Roles;
use crate::actor::checkpoint::Inputs;
use crate::data::Label;
use crate::telemetry::run_dir::write_json;
use crate::telemetry::{BeforeAfter, BeforeAfterRow, EvaluationReport, PassAtN, RunDir, SetBeforeAfter, SetReport};
use crate::trainer::Evaluated;

/// Rows of the before-and-after table.
const COMPARED: usize = 12;

/// The answers at step 0 in the run's folder, for a run that resumes.
#[derive(Deserialize, Serialize)]
pub struct Before {
    /// What was asked, and how: a run that resumes may ask otherwise, and then there is nothing to compare.
    settings: Evaluation,
    /// [`Inputs::held_out`]: the files may hold other prompts by now. None: an earlier version wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    held_out: Option<String>,
    evaluated: Evaluated,
}

impl Before {
    /// What [`write`](Self::write) wrote. None where it is not there, or other prompts were asked: then there is no comparison at
    /// the end, and nothing else is missing. Without its test sets where other ones are counted now.
    pub fn read(folder: &RunDir, settings: &Evaluation, inputs: &Inputs) -> Option<Evaluated> {
        let text = std::fs::read(folder.before()).ok()?;
        let mut before: Self = serde_json::from_slice(&text).ok()?;
        if before.settings.set_field != settings.set_field {
            before.evaluated.report.sets.clear();
        }
        let asked = Inputs {
            held_out: before.held_out,
            ..Inputs::default()
        };
        let same = asked.ask_the_same(&before.settings, (settings, inputs));
        same.then_some(before.evaluated)
    }

    /// Keeps them.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(folder: &RunDir, settings: &Evaluation, inputs: &Inputs, evaluated: &Evaluated) -> Result<()> {
        let before = Self {
            settings: settings.clone(),
            held_out: inputs.held_out.clone(),
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
    let shares = before.report.pass_at_n.zip(after.report.pass_at_n);
    let pass_at_n = shares.map(|(before, passed)| PassAtN {
        n_samples_per_prompt: after.report.n_samples_per_prompt,
        before,
        after: passed,
    });
    Some(BeforeAfter {
        pass_score: roles.trainer.config.evaluation.as_ref()?.pass_score,
        accuracy_before: before.report.pass_rate,
        accuracy_after: after.report.pass_rate,
        pass_at_n,
        prompts: after.report.prompts,
        sets: sets(&before.report, &after.report),
        rows: rows.collect(),
    })
}

/// The test sets that both evaluations have.
fn sets(before: &EvaluationReport, after: &EvaluationReport) -> BTreeMap<String, SetBeforeAfter> {
    let of_set = |(name, after): (&String, &SetReport)| {
        let before = before.sets.get(name)?.clone();
        let after = after.clone();
        Some((name.clone(), SetBeforeAfter { before, after }))
    };
    after.sets.iter().filter_map(of_set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(set_field: Option<&str>) -> Evaluation {
        Evaluation {
            path: std::path::PathBuf::from("e.jsonl").into(),
            every_steps: 2,
            max_prompts: None,
            temperature: 0.0,
            n_samples_per_prompt: 1,
            pass_score: 1.0,
            set_field: set_field.map(str::to_owned),
        }
    }

    fn report(score: f64, sets: &[&str]) -> EvaluationReport {
        let of_set = SetReport {
            prompts: 2,
            score,
            ..SetReport::default()
        };
        EvaluationReport {
            step: 0,
            prompts: 4,
            n_samples_per_prompt: 1,
            score,
            pass_rate: 0.0,
            pass_at_n: None,
            response_length: 3.0,
            seconds: 0.1,
            sets: sets.iter().map(|name| ((*name).to_owned(), of_set.clone())).collect(),
        }
    }

    #[test]
    fn answers_from_before_are_compared_by_set_where_the_sets_are_the_same_ones_and_else_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let folder = RunDir::new(folder.path());
        let by_source = settings(Some("data_source"));
        let evaluated = Evaluated {
            report: report(0.5, &["AIME24"]),
            answers: Vec::new(),
        };
        let inputs = |held_out: Option<&str>| Inputs {
            held_out: held_out.map(str::to_owned),
            ..Inputs::default()
        };
        Before::write(&folder, &by_source, &inputs(Some("1")), &evaluated).unwrap();
        let read_with = |settings: &Evaluation, inputs: Inputs| {
            Before::read(&folder, settings, &inputs).map(|before| before.report)
        };
        let read = |settings: &Evaluation| read_with(settings, inputs(Some("1")));
        assert_eq!(read(&by_source).unwrap(), evaluated.report);
        for other in [None, Some("level")] {
            assert_eq!(read(&settings(other)).unwrap(), report(0.5, &[]), "{other:?}");
        }
        // The file holds other prompts by now.
        assert_eq!(read_with(&by_source, inputs(Some("2"))), None);
        // It was moved, and holds the same.
        let moved = Evaluation {
            path: std::path::PathBuf::from("elsewhere/e.jsonl").into(),
            ..by_source.clone()
        };
        assert_eq!(read(&moved).unwrap(), evaluated.report);
        assert_eq!(read_with(&moved, inputs(None)), None);
        let fewer = Evaluation {
            max_prompts: Some(1),
            ..by_source
        };
        assert_eq!(read(&fewer), None);
    }

    #[test]
    fn a_test_set_is_compared_with_itself() {
        let (before, after) = (report(0.25, &["AIME24", "GSM8K"]), report(0.5, &["AIME25", "GSM8K"]));
        let compared = sets(&before, &after);
        assert_eq!(compared.keys().collect::<Vec<_>>(), ["GSM8K"]);
        let gsm = &compared["GSM8K"];
        assert_eq!((gsm.before.score, gsm.after.score), (0.25, 0.5));
    }
}
