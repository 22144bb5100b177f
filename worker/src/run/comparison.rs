//! Held-out prompts before and after training.

use std::collections::BTreeMap;

use anyhow::Result;
use ppo_crds::run_config::Evaluation;
use serde::{Deserialize, Serialize};

use super::build::Roles;
use crate::data::{Label, Prompt};
use crate::run_state::Inputs;
use crate::telemetry::run_dir::write_json;
use crate::telemetry::{
    Answer, BeforeAfter, BeforeAfterRow, EvaluationReport, PassAtN, RunDir, SetBeforeAfter, SetReport,
};
use crate::tokenizer::Tokenizer;
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
    let answers = (before.answers.as_slice(), after.answers.as_slice());
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
        rows: rows(&held_out.prompts, answers, &roles.trainer.tokenizer),
    })
}

/// The first prompts with their answers before and after.
fn rows(prompts: &[Prompt], (before, after): (&[Answer], &[Answer]), tokenizer: &Tokenizer) -> Vec<BeforeAfterRow> {
    let rows = prompts.iter().zip(before.iter().zip(after)).take(COMPARED);
    rows.map(|(prompt, (before, after))| BeforeAfterRow {
        prompt: shown(prompt, tokenizer),
        label: prompt.label.as_ref().map(Label::shown),
        before: before.clone(),
        after: after.clone(),
    })
    .collect()
}

/// What people read of a prompt: what the user of its chat said last, which stands behind the template's own words; else its text without
/// special tokens.
fn shown(prompt: &Prompt, tokenizer: &Tokenizer) -> String {
    let messages = prompt.messages.as_deref().unwrap_or_default();
    let mut of_user = messages.iter().rev().filter(|message| message["role"] == "user");
    let said = of_user.find_map(|message| message["content"].as_str());
    let text = || {
        tokenizer
            .decode(&prompt.ids, true)
            .unwrap_or_else(|_| prompt.text.clone())
    };
    said.map_or_else(text, str::to_owned)
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
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::telemetry::table;

    /// The prompt that `text` is, or that a template made of `messages`.
    fn prompt(tokenizer: &Tokenizer, text: &str, messages: Option<Vec<Value>>) -> Prompt {
        let ids = tokenizer.encode(text, true).unwrap();
        Prompt {
            text: tokenizer.decode(&ids, false).unwrap(),
            ids: ids.into(),
            messages: messages.map(Into::into),
            ..Prompt::default()
        }
    }

    #[test]
    fn the_table_shows_what_a_chat_asks_and_a_text_without_special_tokens() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/llama2");
        let tokenizer = Tokenizer::load(&folder).unwrap();
        let chat = |messages: Value| {
            let text = "[INST] <<SYS>> You are a helpful assistant that was made by somebody. <</SYS>> .. [/INST]";
            let messages = messages.as_array().unwrap().clone();
            prompt(&tokenizer, text, Some(messages))
        };
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let prompts = [
            prompt(&tokenizer, "What is 2+3?", None),
            chat(json!([message("system", "Be brief."), message("user", "What is 4+5?")])),
            chat(json!([
                message("user", "What is 6+7?"),
                message("assistant", "13"),
                message("user", "And 8 more?"),
                message("assistant", "It is "),
            ])),
            // Nobody asks: the rendering is all there is.
            chat(json!([message("system", "Be brief.")])),
        ];
        assert!(prompts[0].text.starts_with("<s>"), "{}", prompts[0].text);
        let answers: Vec<Answer> = (0..4)
            .map(|number| Answer {
                response: number.to_string(),
                score: 0.0,
            })
            .collect();
        let comparison = BeforeAfter {
            rows: rows(&prompts, (&answers, &answers), &tokenizer),
            ..BeforeAfter::default()
        };
        let asked: Vec<&str> = comparison.rows.iter().map(|row| row.prompt.as_str()).collect();
        assert_eq!(asked[..3], ["What is 2+3?", "What is 4+5?", "And 8 more?"]);
        assert!(asked[3].contains("<<SYS>> You are"), "{}", asked[3]);
        let table = table::render(&comparison, 60);
        let lines: Vec<&str> = table.lines().skip(2).collect();
        for (line, asked) in lines.iter().zip(&asked[..3]) {
            assert!(line.starts_with(asked), "{table}");
        }
    }

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
