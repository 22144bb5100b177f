//! Whether the scores tell samples apart. Where they do not, a policy learns nothing from them, and the run ends as if all were well.

use std::sync::atomic::{AtomicU32, Ordering};

use super::sample::ScoredSample;

/// Samples of a call at the least: fewer may well be alike.
const FEWEST: usize = 8;
/// Calls before it is told: of a run the first evaluation and the first steps.
const CALLS: u32 = 3;

/// Calls so far in which all scores were the same; [`CALLS`] where nothing more is to be told.
#[derive(Debug, Default)]
pub(super) struct Alike(AtomicU32);

impl Alike {
    /// What the log is to say when no two samples have differed in the first calls: once.
    pub(super) fn told(&self, scores: &[f32], samples: &[ScoredSample]) -> Option<String> {
        let calls = self.0.load(Ordering::Relaxed);
        let score = *scores.first()?;
        if calls >= CALLS || scores.len() < FEWEST {
            return None;
        }
        let calls = if scores.iter().all(|other| *other == score) {
            calls + 1
        } else {
            CALLS + 1
        };
        self.0.store(calls, Ordering::Relaxed);
        let cut_off = if samples.iter().any(|sample| sample.has_ended) {
            ""
        } else {
            "; no response comes to its end: raise generation.maxNewTokens, or see whether the model writes its end token"
        };
        (calls == CALLS).then(|| {
            format!(
                "every sample has scored {score} so far, so the policy learns nothing from the reward: look in samples.jsonl, in the run's \
                 folder, whether responses have what the reward looks for, and labels are what it compares them with{cut_off}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(has_ended: bool) -> Vec<ScoredSample> {
        let sample = ScoredSample {
            index: 0,
            prompt: String::new(),
            visible_prompt: String::new(),
            messages: None,
            moment: None,
            response: String::new(),
            visible_response: String::new(),
            has_ended,
            tokenizer: None,
            prompt_ids: Vec::new().into(),
            response_ids: Vec::new(),
            label: None,
        };
        vec![sample; FEWEST]
    }

    #[test]
    fn scores_that_never_differ_are_told_of_once() {
        let (alike, ended) = (Alike::default(), samples(true));
        let same = [0.0; FEWEST];
        assert_eq!(alike.told(&same, &ended), None);
        assert_eq!(alike.told(&same, &ended), None);
        let words = alike.told(&same, &ended).unwrap();
        assert!(words.contains("every sample has scored 0 so far"), "{words}");
        assert!(!words.contains("maxNewTokens"), "{words}");
        assert_eq!(alike.told(&same, &ended), None);
    }

    #[test]
    fn where_no_response_ends_the_words_say_that_too() {
        let (alike, cut_off) = (Alike::default(), samples(false));
        let told = [(); 3].map(|()| alike.told(&[1.0; FEWEST], &cut_off));
        let words = told[2].clone().unwrap();
        assert!(words.contains("raise generation.maxNewTokens"), "{words}");
    }

    #[test]
    fn few_samples_and_scores_that_differed_once_are_no_sign() {
        let (alike, ended) = (Alike::default(), samples(true));
        for _ in 0..5 {
            assert_eq!(alike.told(&[0.0; FEWEST - 1], &ended[1..]), None);
        }
        let mut differ = [0.0; FEWEST];
        differ[1] = 1.0;
        assert_eq!(alike.told(&differ, &ended), None);
        for _ in 0..5 {
            assert_eq!(alike.told(&[0.0; FEWEST], &ended), None);
        }
    }
}
