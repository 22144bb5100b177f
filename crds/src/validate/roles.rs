//! Rules of the job's name, of the reward and of the rollout engine.

use super::{Problem, those_given};
use crate::pattern::compile;
use crate::spec::{Engine, RewardRule, RewardSpec};
use crate::{PpoJob, PpoJobSpec};

/// Longest job name: pods are named `<job>-<role>-<index>`, a label of at most 63 characters, the longest role is `reference`
/// and 4 digits hold any index.
const LONGEST_NAME: usize = 63 - "-reference-".len() - 4;

/// Tokens per block of the builtin engine's cache: its kernels are made for it.
const BUILTIN_BLOCK: u32 = 16;

/// Adds what is wrong with `metadata.name`.
pub fn check_name(job: &PpoJob, problems: &mut Vec<Problem>) {
    let field = "metadata.name";
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let problem = if name.is_empty() {
        "missing; pods and the run's folder are named after it".to_string()
    } else if name.len() > LONGEST_NAME {
        let length = name.len();
        format!(
            "has {length} characters; at most {LONGEST_NAME} leave room for <job>-<role>-<index> in a pod's name of 63"
        )
    } else if !name.chars().all(letters) || !name.starts_with(|c: char| c.is_ascii_lowercase()) || name.ends_with('-') {
        format!("{name:?} is not a DNS label: lower-case letters, digits and '-', a letter first and no '-' last")
    } else {
        return;
    };
    problems.push(Problem::new(field, problem));
}

/// Adds what is wrong with the reward and the rollout engine.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    let (reward, rollout) = (&spec.roles.reward, &spec.roles.rollout);
    check_presence(reward, problems);
    if rollout.engine == Engine::Builtin && rollout.block_size != BUILTIN_BLOCK {
        let given = rollout.block_size;
        let message = format!("is {given}; the builtin engine's blocks hold {BUILTIN_BLOCK} tokens, leave it out");
        problems.push(Problem::new("spec.roles.rollout.blockSize", message));
    }
    if rollout.engine == Engine::Vllm && rollout.max_batch_tokens < rollout.max_sequences {
        let (tokens, sequences) = (rollout.max_batch_tokens, rollout.max_sequences);
        let message = format!("is {tokens}; vLLM wants at least maxSequences, {sequences}");
        problems.push(Problem::new("spec.roles.rollout.maxBatchTokens", message));
    }
    for (index, rule) in reward.rules.iter().enumerate() {
        check_rule(
            rule,
            &format!("spec.roles.reward.rules[{index}]"),
            spec.prompts.label_field.is_some(),
            problems,
        );
    }
    for (index, url) in reward.remote.iter().flat_map(|remote| &remote.urls).enumerate() {
        if let Some(message) = wrong_url(url) {
            problems.push(Problem::new(format!("spec.roles.reward.remote.urls[{index}]"), message));
        }
    }
}

fn check_presence(reward: &RewardSpec, problems: &mut Vec<Problem>) {
    let model = reward.model.as_ref().map(|model| model.weight);
    let remote = reward.remote.as_ref().map(|remote| remote.weight);
    let weights: Vec<f64> = model
        .into_iter()
        .chain(remote)
        .chain(reward.rules.iter().map(|rule| rule.weight))
        .collect();
    let message = if weights.is_empty() {
        "has no source: give at least one of model, rules, remote"
    } else if weights.iter().all(|&weight| weight == 0.0) {
        "every source has weight 0, so every score would be 0"
    } else {
        return;
    };
    problems.push(Problem::new("spec.roles.reward", message));
}

fn check_rule(rule: &RewardRule, field: &str, has_label: bool, problems: &mut Vec<Problem>) {
    let kinds = [
        ("exactMatch", rule.exact_match.is_some()),
        ("numericMatch", rule.numeric_match.is_some()),
        ("mathMatch", rule.math_match.is_some()),
        ("regex", rule.regex.is_some()),
        ("length", rule.length.is_some()),
        ("json", rule.json.is_some()),
    ];
    if kinds.iter().filter(|(_, given)| *given).count() != 1 {
        let names = kinds.map(|(name, _)| name).join(", ");
        let message = format!("give exactly one of {names}; {}", those_given(&kinds));
        problems.push(Problem::new(field, message));
    }
    if rule.compares() && !has_label {
        problems.push(Problem::new(
            field,
            "compares with the label: give spec.prompts.labelField",
        ));
    }
    let patterns = [
        ("extract", rule.extract.as_ref()),
        ("regex.pattern", rule.regex.as_ref().map(|regex| &regex.pattern)),
    ];
    for (name, pattern) in patterns {
        if let Some(Err(refused)) = pattern.map(|pattern| compile(pattern)) {
            problems.push(Problem::new(format!("{field}.{name}"), refused));
        }
    }
    if let Some(length) = rule.length.as_ref().filter(|length| length.min > length.max) {
        let field = format!("{field}.length.min");
        let message = format!("{} is more than max, {}", length.min, length.max);
        problems.push(Problem::new(&field, message).or(&field, [u64::from(length.max)]));
    }
}

/// What is told where a Python file stands for a remote reward, as others take it: the file, or a function in it (`reward.py:score`).
pub fn in_python(text: &str) -> Option<&'static str> {
    let file = text.rsplit_once(':').map_or(text, |(file, _)| file);
    let is_python = !text.contains("://") && [text, file].iter().any(|name| name.ends_with(".py"));
    is_python.then_some(
        "a reward in Python is called over HTTP: serve it (docs/model-and-reward.md has a small server) and give its address in \
         remote.urls, such as http://127.0.0.1:5000/get_reward",
    )
}

/// An address as messages show it: what stands before its last `@` may be a password.
fn shown(url: &str) -> String {
    let begin = url.find("://").map_or(0, |at| at + 3);
    match url.rfind('@').filter(|at| *at > begin) {
        Some(at) => format!("{}***{}", &url[..begin], &url[at..]),
        None => url.to_owned(),
    }
}

fn wrong_url(url: &str) -> Option<String> {
    let given = shown(url);
    if let Some(words) = in_python(url) {
        return Some(format!("{given:?} is no URL: {words}"));
    }
    match url::Url::parse(url) {
        Err(error) if given != url => Some(format!(
            "{given:?} is not a URL: {error}; in a password / is written %2F, # is %23 and @ is %40"
        )),
        Err(error) => Some(format!(
            "{given:?} is not a URL: {error}; give one such as http://verifier:5000/get_reward"
        )),
        // A parser of URLs takes `http:verifier` and blanks in front of it for one; the API server refuses both.
        Ok(_) => {
            let lower = url.to_ascii_lowercase();
            let is_http = lower.starts_with("http://") || lower.starts_with("https://");
            (!is_http).then(|| format!("{given:?} does not start with http:// or https://"))
        }
    }
}
