//! Rules of the evaluation that a single field's limits cannot say.

use super::Problem;
use crate::PpoJobSpec;

const SAMPLES: &str = "spec.evaluation.nSamplesPerPrompt";
const TEMPERATURE: &str = "spec.evaluation.temperature";

/// Adds samples that would say nothing which the first one does not.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    let Some(evaluation) = &spec.evaluation else { return };
    let count = evaluation.n_samples_per_prompt;
    if count > 1 && evaluation.temperature == 0.0 {
        let message = format!("{count} samples of a prompt are all equal at temperature 0, which is greedy");
        problems.push(Problem::new(SAMPLES, message).or(SAMPLES, [1]).or(TEMPERATURE, [1]));
    }
}

#[cfg(test)]
mod tests {
    use crate::manifest::tests::job;
    use crate::resolve::Environment;
    use crate::validate::validate;

    fn texts(fields: &str) -> Vec<String> {
        let evaluation = format!("evaluation: {{source: {{path: /data/e.jsonl}}, {fields}}}");
        let job = job(&evaluation, "reward: {rules: [{exactMatch: {}}]}");
        let errors = validate(&job, &Environment::cluster()).err();
        let problems = errors.into_iter().flat_map(|errors| errors.problems);
        problems.map(|problem| problem.to_string()).collect()
    }

    #[test]
    fn several_samples_of_a_held_out_prompt_need_a_temperature_above_0() {
        let greedy = "spec.evaluation.nSamplesPerPrompt: 4 samples of a prompt are all equal at temperature 0, which is greedy; use 1, or \
                      spec.evaluation.temperature: 1";
        assert_eq!(texts("nSamplesPerPrompt: 4"), [greedy]);
        assert_eq!(texts("nSamplesPerPrompt: 4, temperature: 0"), [greedy]);
        for fine in [
            "nSamplesPerPrompt: 1",
            "temperature: 0.6",
            "nSamplesPerPrompt: 1024, temperature: 0.6",
        ] {
            assert_eq!(texts(fine), [""; 0], "{fine}");
        }
    }

    #[test]
    fn a_number_of_samples_that_is_out_of_range_is_told_its_range() {
        for count in [0, 1025] {
            let text = texts(&format!("nSamplesPerPrompt: {count}, temperature: 1"));
            let range = format!("spec.evaluation.nSamplesPerPrompt: {count} is out of range; it must be 1 to 1024");
            assert_eq!(text, [range]);
        }
    }
}
