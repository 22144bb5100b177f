//! Models of the hub that ppo-worker does not load, by what they are called. A name is no proof, so the job keeps it, and it is told.

use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use super::draft::{Draft, Setting};

/// What is loaded (`FAMILIES` in worker/src/model/config.rs).
const LOADED: &str = "Llama, Mistral, Qwen2 and Qwen3";

/// What names of these have in them.
const OURS: &str = "(?i)llama|mistral|qwen|smollm";

/// What is not loaded whatever else a name says: words of names, and what a model looks like that has them.
#[rustfmt::skip]
const KINDS: &[(&str, &str)] = &[
    (r"vl\d*|\w*vlm\d*|vision|qwen[\d.]*-(?:omni|audio)|qvq|llava\w*|idefics\d*|internvl\w*|pixtral|minicpm-[vo]|glm-[\d.]+v",
     "a model of pictures or sound"),
    (r"a\d+(?:\.\d+)?b|\d+x\d+(?:\.\d+)?b|\w*moe\w*|mixtral", "a mixture of experts"),
    (r"\w*mamba\w*", "a Mamba model"),
    (r"llama-?4", "a Llama 4 model"),
    (r"smollm3", "a SmolLM3 model"),
    // Of the hybrid attention that came after Qwen3.
    (r"qwen-?3\.\d+|qwen3-next", "a model newer than Qwen3"),
    // Qwen-7B-Chat, not what was distilled into a Qwen-7B.
    (r"^qwen-\d+(?:_\d+)?b(?:-chat)?$", "a model older than Qwen2"),
];

/// Other families. One beside ours is what a model was distilled from, or turned into ours (DeepSeek-R1-Distill-Qwen-7B,
/// Baichuan2-7B-Base-LLaMAfied).
#[rustfmt::skip]
const OTHERS: &[(&str, &str)] = &[
    (r"pythia|gpt-?neo-?x\w*|dolly-v2", "a GPT-NeoX model"),
    (r"(?:distil)?gpt-?2\w*|dialogpt|cerebras-gpt", "a GPT-2 model"),
    (r"gpt-?neo|gpt-?j", "a GPT-Neo or GPT-J model"),
    (r"gpt-?oss\w*", "a gpt-oss model"),
    (r"opt-\d+(?:\.\d+)?[mb]", "an OPT model"),
    (r"\w*gemma\w*", "a Gemma model"),
    (r"phi-?\d\w*", "a Phi model"),
    // Falcon3 is of Llama's family.
    (r"falcon-(?:\d+b|rw|h1)", "a Falcon model"),
    (r"bloomz?", "a BLOOM model"),
    (r"mpt-\d+b", "an MPT model"),
    (r"(?:chat)?glm-?z?\d\w*", "a GLM model"),
    (r"internlm\w*", "an InternLM model"),
    (r"baichuan\w*", "a Baichuan model"),
    // deepseek-llm-7b and its like are of Llama's.
    (r"deepseek-(?:coder-)?v[2-4]|^deepseek-r1(?:-zero|-0528)?$", "one of DeepSeek's mixtures of experts"),
    (r"olmo\w*", "an OLMo model"),
    (r"granite-[34]\.\d", "a Granite model"),
    (r"stablelm\w*", "a StableLM model"),
    (r"starcoder\w*|santacoder", "a StarCoder model"),
    (r"command-[ra]\w*|c4ai|aya-(?:23|expanse)", "a Command model"),
    (r"(?:flan-|m|code)?t5", "a T5 model"),
    (r"(?:distil|modern|al)?bert|(?:xlm-)?roberta|deberta", "a BERT model"),
    (r"minicpm\d*", "a MiniCPM model"),
    (r"mimo-\d+b", "a MiMo model"),
    (r"seed-oss", "a Seed-OSS model"),
    (r"lfm\d\w*", "an LFM model"),
];

/// The expressions of a table, each of whole words.
fn set(table: &[(&str, &str)]) -> Option<RegexSet> {
    let whole = |(words, _): &(&str, &str)| format!("(?i)(?:^|[^a-z0-9])(?:{words})(?:[^a-z0-9]|$)");
    RegexSet::new(table.iter().map(whole)).ok()
}

/// What a model of the hub looks like that is not loaded.
fn other(id: &str) -> Option<&'static str> {
    static OF_KINDS: LazyLock<Option<RegexSet>> = LazyLock::new(|| set(KINDS));
    static OF_OTHERS: LazyLock<Option<RegexSet>> = LazyLock::new(|| set(OTHERS));
    static OF_OURS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(OURS).ok());
    // An owner may be called after one family and have models of others.
    let name = id.rsplit('/').next().unwrap_or(id);
    let is_ours = || OF_OURS.as_ref().is_some_and(|ours| ours.is_match(name));
    let kind = first(OF_KINDS.as_ref(), KINDS, name);
    kind.or_else(|| first(OF_OTHERS.as_ref(), OTHERS, name).filter(|_| !is_ours()))
}

/// What the first expression says that a name matches.
fn first(names: Option<&RegexSet>, table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let found = names?.matches(name).into_iter().next()?;
    table.get(found).map(|(_, looks_like)| *looks_like)
}

/// Says of each model of the hub once that it does not look like one that is loaded.
pub fn tell(draft: &mut Draft) {
    let settings = draft.settings.clone();
    let of_hub = |setting: &&Setting| setting.field.ends_with(".hub.id");
    let mut told = Vec::new();
    for setting in settings.iter().filter(of_hub) {
        let Some(id) = setting.value.as_str().filter(|id| !told.contains(id)) else {
            continue;
        };
        if let Some(looks_like) = other(id) {
            let why = format!("{id} looks like {looks_like}, which is not available: ppo-worker loads {LOADED}");
            draft.leave(&setting.field, &why);
        }
        told.push(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_tables_is_an_expression() {
        assert!(set(KINDS).is_some() && set(OTHERS).is_some() && Regex::new(OURS).is_ok());
    }
}
