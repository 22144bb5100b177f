//! `ppo-worker math`: the PPO functions on given numbers, so that anyone can check them against their framework.

mod answer;
mod block;
mod correction;
mod losses;
mod names;
mod question;
mod rewards;

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::manifest::Invalid;

/// Arguments of `ppo-worker math`.
#[derive(Clone, Debug, clap::Args)]
pub struct MathArgs {
    /// JSON with the numbers; `-` reads standard input
    #[arg(long = "in", value_name = "FILE", default_value = "-")]
    pub input: PathBuf,
    /// Where the answer goes; `-` writes standard output
    #[arg(long = "out", value_name = "FILE", default_value = "-")]
    pub output: PathBuf,
}

/// What `--help` says.
pub const HELP: &str = r#"Run the PPO maths of a training step on given numbers.

The input is one JSON object. Every block is optional; the answer has a block of the same name. Arrays are [batch][time], a mask holds 0 and 1 (or booleans), scores and groups are [batch].

  {"profile": "default" | "openrlhf" | "verl" | "trl" | "alpacafarm",   (default)
   "dtype": "float64" | "float32",                                       (float64)
   "shape":        {logprobs, refLogprobs, mask, scores, klCoef, klEstimator, scoreClip} -> {rewards, kl}
   "advantage":    {estimator, rewards, values, mask, scores, groups, gamma, lambda, whiten} -> {rawAdvantages, advantages, returns}
   "policyLoss":   {logprobs, oldLogprobs, advantages, mask, clipLow, clipHigh, dualClip, aggregation, ratio, surrogate} -> {loss, clipFraction, approxKl, gradient}
   "valueLoss":    {values, oldValues, returns, mask, clip} -> {loss, clipFraction, gradient}
   "kl":           {logprobs, refLogprobs, estimator} -> {kl, gradient}
   "klController": {coef, target, horizon, observations: [[kl, samples], ...]} -> {coefs}
   "whiten":       {values, mask} -> {whitened}}

A setting left out takes the profile's value. Names: estimator gae, rloo, grpo, drGrpo, reinforcePlusPlus, reinforcePlusPlusBaseline; klEstimator k1, k2, k3, abs, oneSided; aggregation tokenMean, sequenceMeanTokenMean, sequenceMeanTokenSum, sequenceMeanTokenSumNorm, tokenSum, paddedMean; ratio token, sequence (GSPO); surrogate clipped, cispo. Other spellings of these (reinforce++, seq-mean-token-mean, gspo) are understood. verl's k3+, the value of k3 with the gradient of k2, is none of them.

What a block may leave out because another has it: advantage takes rewards, mask and scores from shape; policyLoss takes advantages, mask and estimator from advantage (oldLogprobs and mask from shape); valueLoss takes returns, mask and oldValues from advantage. Scores that are nowhere are the rows' sums of rewards, under trl with the slot after each response, where the score lies.

More settings: shape {klClamp, scoreScale, missingEosPenalty, finished: [bool], lengths: [slots, tool tokens included]}; advantage {whitenRewards, deviation: group | batch, scoreClip, nSamplesPerPrompt, klInReward}; policyLoss {estimator, rolloutLogprobs, truncatedImportanceSampling, rolloutCorrection: {level: token | sequence | geometric, outside: truncate | mask, low, high}, maxResponseLength}; valueLoss {aggregation, maxResponseLength, valueMask}; kl {clamp}; whiten {keepMean}. scoreClip is c for [-c, c], or [least, greatest], or {min, max}. false switches it off, and false or 0 dualClip, valueLoss.clip, klClamp, kl.clamp and truncatedImportanceSampling.

- shape.kl is 0 outside the mask, and rewards hold the score at the profile's place; under alpacafarm nothing is masked there, either: give equal log-probs at padding. scores given to advantage are before the score clip.
- gradient is the derivative of the loss with respect to logprobs (policyLoss) or values (valueLoss), and of the sum of kl with respect to logprobs (kl).
- approxKl is the mean of oldLogprobs - logprobs; under trl and alpacafarm half the mean square of it over batch x time.
- coefs has one entry for each observation: the coefficient after it, which is the one the next step uses. Without target the coefficient is fixed.
- Under trl the value loss also counts the first slot after each response, as TRL's does; valueMask is taken as it is.
- Under trl with rloo the policy loss is the mean over sequences, one ratio each: policyLoss.aggregation does nothing there.
- With ratio sequence a token has its response's ratio, the exp of the mean of logprobs - oldLogprobs. Under openrlhf and verl the policy loss is sequenceMeanTokenMean then, and under openrlhf truncatedImportanceSampling and rolloutCorrection put rolloutLogprobs in the place of oldLogprobs. Under verl gradient is GSPO-token's. clipFraction and approxKl stay those of tokens.
- With surrogate cispo a token's loss is -advantage x logprob x its ratio between 1 - clipLow and 1 + clipHigh, of which no gradient is taken. clipLow 1 is no lower bound, and there is no dual clip. clipFraction is the share of ratios outside the bounds, under trl of those above with a positive advantage. TRL's epsilon_high is 1 + clipHigh. Not for rloo under trl.
- rolloutCorrection multiplies a token's loss by exp(oldLogprobs - rolloutLogprobs): by its own (token), or by the product of its response's (sequence). Outside low and high it counts as the bound (truncate) or as 0 (mask). With geometric, for mask alone, the bounds are for the geometric mean of the response's, and a token keeps its own. truncatedImportanceSampling: c is {high: c}.
- Under openrlhf sequenceMeanTokenMean is of the policy loss alone, as OpenRLHF's actor.loss_agg_mode: the value loss stays a token mean.
- Under verl returns of reinforcePlusPlusBaseline are rawAdvantages, where verl's are the whitened ones: no update reads them.
- Under alpacafarm tokenMean is AlpacaFarm's mean over batch x time, and nothing is masked: give equal log-probs at padding.
- grpo and drGrpo read scores, not token rewards (except under openrlhf and verl). klInReward adds the reward-to-go of the token KL that the rewards hold, as the trainer does when kl.placement is reward."#;

/// Reads the question, answers it, writes the answer.
///
/// # Errors
/// A file that cannot be read or written; see [`run`].
pub fn main(args: &MathArgs) -> Result<()> {
    let question = read(&args.input)?;
    let place = || shown(&args.input, "standard input");
    let answer = run(&question).map_err(|error| Invalid::new(format!("in {}: {error:#}", place())))?;
    write(&args.output, &answer)
}

/// Answers one question: JSON in, JSON out, as [`MathArgs`]'s help describes.
///
/// # Errors
/// JSON that does not parse, unknown fields, ragged or unequal arrays, numbers that are not finite (in the input or in
/// the answer): each names its block and field and what was found.
pub fn run(input: &str) -> Result<String> {
    let json: serde_json::Value = serde_json::from_str(input).with_context(|| not_json(input))?;
    let answer = question::answer(&json)?;
    Ok(serde_json::to_string(&answer)?)
}

/// Python's `json.dumps` writes numbers that are none in JSON.
fn not_json(input: &str) -> &'static str {
    match ["NaN", "Infinity"].iter().any(|word| input.contains(word)) {
        true => "the input is not JSON, which has neither NaN nor Infinity",
        false => "the input is not JSON",
    }
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok(text);
    }
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, answer: &str) -> Result<()> {
    if path == Path::new("-") {
        return writeln!(std::io::stdout(), "{answer}").context("cannot write standard output");
    }
    fs::write(path, format!("{answer}\n")).with_context(|| format!("cannot write {}", path.display()))
}

fn shown(path: &Path, stream: &str) -> String {
    if path == Path::new("-") {
        stream.into()
    } else {
        path.display().to_string()
    }
}
