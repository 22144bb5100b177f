//! Scores so large that the squares of what they come to are no numbers: a lower learning rate, which a loss asks for, helps nothing.

use anyhow::Error;
use ppo_crds::run_config::Score;

use crate::outcome::Diverged;
use crate::ppo::shape::clip;

/// Rewards of this size still learn, if badly; those of a server that divides by nothing are far beyond.
const SENSIBLE: f64 = 1e6;

/// Names the largest of `scores` where a step [`Diverged`] and it is out of any sensible range, as `settings` place it.
pub(super) fn named(mut error: Error, scores: &[f32], settings: &Score) -> Error {
    if let (Some(diverged), Some(words)) = (error.downcast_mut::<Diverged>(), words(scores, settings)) {
        diverged.what.push_str(&words);
    }
    error
}

fn words(scores: &[f32], settings: &Score) -> Option<String> {
    let placed = |score: f32| clip(settings, f64::from(score) * settings.scale).abs();
    let numbered = scores.iter().copied().enumerate();
    let (sample, score) = numbered.max_by(|(_, a), (_, b)| placed(*a).total_cmp(&placed(*b)))?;
    (placed(score) > SENSIBLE).then(|| {
        format!(
            "; but first look at the reward: the score of sample {sample} is {score:e}; bring scores to the order of 1, or bound them by \
             algorithm.score.clip"
        )
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_score_beyond_any_range_is_named_where_a_loss_is_no_number() {
        let said = |scores: &[f32], clip: Option<(f64, f64)>| {
            let settings = Score {
                clip,
                scale: 1.0,
                missing_eos_penalty: None,
                whiten_rewards: false,
            };
            let what = "the value loss is inf; lower optimizer.criticLearningRate".to_owned();
            let error = Err::<(), _>(Diverged { step: 2, what }).context("update").unwrap_err();
            let error = named(error, scores, &settings);
            assert!(error.is::<Diverged>());
            format!("{error:#}")
        };
        let words = said(&[1.0, -1e30, 3.0], None);
        for part in [
            "update: diverged in step 2: the value loss is inf",
            "sample 1 is -1e30",
            "algorithm.score.clip",
        ] {
            assert!(words.contains(part), "{words}");
        }
        assert!(!said(&[1.0, -1e30], Some((-10.0, 10.0))).contains("sample"));
        assert!(!said(&[1.0, 500.0], None).contains("sample"));
        let other = named(
            anyhow!("disk"),
            &[1e30],
            &Score {
                clip: None,
                scale: 1.0,
                missing_eos_penalty: None,
                whiten_rewards: false,
            },
        );
        assert_eq!(other.to_string(), "disk");
    }
}
