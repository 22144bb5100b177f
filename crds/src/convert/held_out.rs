//! Samples of held-out prompts, which OpenRLHF and verl both count.

use serde_json::Value;

use super::draft::{Draft, WrongValue};

/// Takes as many of each prompt as the flag `count` of the framework says, once the temperature is set. Greedy ones are all equal, so of
/// those it takes one.
///
/// # Errors
/// A value that is no whole number.
pub fn samples(draft: &mut Draft, count: &str) -> Result<(), WrongValue> {
    let Some(samples) = draft.count(count)?.filter(|samples| *samples > 0) else {
        return Ok(());
    };
    let source = draft.source(count);
    let temperature = draft.get("evaluation.temperature").and_then(Value::as_f64);
    if samples > 1 && temperature.unwrap_or_default() <= 0.0 {
        let why = "held-out prompts are answered greedily, and greedy samples of a prompt are all equal: one of each is drawn; for more give \
                   evaluation.temperature and evaluation.nSamplesPerPrompt";
        draft.leave(&source, why);
    } else {
        draft.set("evaluation.nSamplesPerPrompt", samples, &source);
    }
    Ok(())
}
