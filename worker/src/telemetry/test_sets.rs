//! The figures of each test set in Prometheus' words: gauges with the label `set`, beside those of all held-out prompts, which have none.

use std::collections::BTreeMap;

use anyhow::Result;
use prometheus::{GaugeVec, Opts, Registry};

use super::SetReport;
use super::exposition::register;

/// A family for each figure, a series in it for each set.
pub(super) struct SetFamilies {
    score: GaugeVec,
    pass_rate: GaugeVec,
    pass_at_n: GaugeVec,
    response_length: GaugeVec,
}

impl SetFamilies {
    pub fn register(registry: &Registry) -> Result<SetFamilies> {
        let gauge = |name: &str, help: &str| register(registry, GaugeVec::new(Opts::new(name, help), &["set"])?);
        Ok(SetFamilies {
            score: gauge(
                "ppo_evaluation_set_score",
                "Mean score on the held-out prompts of a test set; only with `evaluation.setField`.",
            )?,
            pass_rate: gauge(
                "ppo_evaluation_set_pass_rate_ratio",
                "Share of the samples of a test set's prompts that passed (pass@1); only with `evaluation.setField`.",
            )?,
            pass_at_n: gauge(
                "ppo_evaluation_set_pass_at_n_ratio",
                "Share of a test set's prompts of which at least one sample passed (pass@n); only with `evaluation.setField`, and \
                 `evaluation.nSamplesPerPrompt` above 1.",
            )?,
            response_length: gauge(
                "ppo_evaluation_set_response_length_tokens",
                "Mean length of the responses to a test set's prompts; only with `evaluation.setField`.",
            )?,
        })
    }

    pub fn set(&self, sets: &BTreeMap<String, SetReport>) {
        for (name, report) in sets {
            let figures = [
                (&self.score, Some(report.score)),
                (&self.pass_rate, Some(report.pass_rate)),
                (&self.pass_at_n, report.pass_at_n),
                (&self.response_length, Some(report.response_length)),
            ];
            for (family, value) in figures {
                if let Some(value) = value {
                    family.with_label_values(&[name.as_str()]).set(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::telemetry::{EvaluationReport, Exposition, SetReport};

    #[test]
    fn a_test_set_is_a_label_of_gauges_of_its_own_and_of_none_that_is_of_all_prompts() {
        let exposition = Exposition::new("run").unwrap();
        let evaluate = |sets: &[(&str, SetReport)]| {
            let report = EvaluationReport {
                step: 1,
                prompts: 3,
                n_samples_per_prompt: 1,
                score: 0.5,
                pass_rate: 0.25,
                pass_at_n: None,
                response_length: 3.0,
                seconds: 0.1,
                sets: sets
                    .iter()
                    .map(|(name, report)| ((*name).to_owned(), report.clone()))
                    .collect(),
            };
            exposition.evaluation(&report).unwrap();
            exposition.text().unwrap()
        };
        let none = evaluate(&[]);
        assert!(!none.contains("ppo_evaluation_set"), "{none}");
        let aime = SetReport {
            prompts: 1,
            score: 0.125,
            ..SetReport::default()
        };
        let gsm = SetReport {
            prompts: 2,
            pass_rate: 1.0,
            pass_at_n: Some(1.0),
            ..SetReport::default()
        };
        let text = evaluate(&[("AIME24", aime), ("openai/gsm8k \"main\"", gsm)]);
        for line in [
            "ppo_evaluation_score 0.5",
            "ppo_evaluation_pass_rate_ratio 0.25",
            "ppo_evaluation_set_score{set=\"AIME24\"} 0.125",
            "ppo_evaluation_set_pass_rate_ratio{set=\"openai/gsm8k \\\"main\\\"\"} 1",
            "ppo_evaluation_set_pass_at_n_ratio{set=\"openai/gsm8k \\\"main\\\"\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} not in\n{text}");
        }
        assert!(!text.contains("pass_at_n_ratio{set=\"AIME24\"}"), "{text}");
    }
}
