//! The score stage: what the reward says of the samples, and with dynamic sampling which groups the step learns from.

use anyhow::{Context, Result};

use super::Trainer;
use crate::outcome::RewardFailed;
use crate::reward::{ScoredSample, Scores};
use crate::stages::{Drawn, Judged, Rollouts, Sample};
use crate::telemetry::Stage;

impl Trainer {
    /// The scores of the step's samples. With `overlap: oneStep` the next step's are asked for beside that; with dynamic sampling when
    /// it is known which draw is the next step's, and nothing that this step still waits for stands behind it.
    pub(super) fn score_and_ask_ahead(&mut self, rollouts: Rollouts) -> Result<Drawn> {
        let Some(most) = self.config.batch.max_draws else {
            self.ask_ahead(1);
            return Ok(Drawn::of(self.timed(Stage::Score, |it| it.rewards(rollouts))?));
        };
        let drawn = self.draw_until_groups_differ(rollouts, most)?;
        self.ask_ahead(drawn.draws);
        Ok(drawn)
    }

    /// Draws on until enough groups differ in score, or it has drawn `most` times (DAPO, arXiv 2503.14476, section 3.2).
    fn draw_until_groups_differ(&mut self, rollouts: Rollouts, most: u64) -> Result<Drawn> {
        let mut all = self.timed(Stage::Score, |it| it.rewards(rollouts))?;
        let (wanted, n) = (
            self.config.batch.rollout_batch_size,
            self.config.batch.n_samples_per_prompt,
        );
        let mut draws = 1;
        while different(&all.compared, n) < wanted && draws < most {
            let more = self.timed(Stage::Generate, |it| it.draw_on(it.draws + draws))?;
            all.append(self.timed(Stage::Score, |it| it.rewards(more))?);
            draws += 1;
        }
        self.rest();
        let found = different(&all.compared, n);
        if found < wanted {
            tracing::warn!(
                "step {}: only {found} of the {wanted} groups that it learns from differ in score after {draws} draws (batch.dynamicSampling): \
                 prompts that are neither always nor never answered rightly are running out",
                self.steps_done + 1
            );
        }
        let groups = chosen(&all.compared, n, wanted);
        let (chosen, left_out) = all.split(&groups, n);
        Ok(Drawn {
            chosen,
            left_out,
            draws,
        })
    }

    fn rewards(&self, Rollouts { samples }: Rollouts) -> Result<Judged> {
        let _no_grad = tch::no_grad_guard();
        let describe = |(index, sample): (usize, &Sample)| {
            let (prompt, ids) = (&sample.prompt, &sample.response);
            ScoredSample::new(&self.tokenizer, index, prompt, ids, sample.finish_reason)
        };
        let described = samples.iter().enumerate().map(describe).collect::<Result<Vec<_>>>()?;
        let Scores {
            scores,
            compared,
            extra,
        } = self.scores(&described)?;
        Ok(Judged {
            samples,
            scores,
            compared,
            extra,
        })
    }

    /// What the reward says of `samples`; it is not waited for by one who was asked to stop.
    pub(super) fn scores(&self, samples: &[ScoredSample]) -> Result<Scores> {
        let scores = async { self.reward.score(samples).await.context(RewardFailed) };
        self.runtime.block_on(self.stop.unless_requested(scores))
    }
}

/// How many of the groups, of `n` samples each, have samples that differ in score.
pub(super) fn different(scores: &[f32], n: usize) -> usize {
    scores.chunks(n).filter(|group| differs(group)).count()
}

fn differs(group: &[f32]) -> bool {
    group.iter().any(|score| *score != group[0])
}

/// The groups that a step learns from, rising: the first `wanted` whose samples differ in score; the first of the others in place of those that
/// are missing.
fn chosen(scores: &[f32], n: usize, wanted: usize) -> Vec<usize> {
    let groups = scores.chunks(n).enumerate();
    let (different, equal): (Vec<_>, Vec<_>) = groups.partition(|(_, group)| differs(group));
    let places = different.into_iter().chain(equal).map(|(place, _)| place);
    let mut chosen: Vec<usize> = places.take(wanted).collect();
    chosen.sort_unstable();
    chosen
}

impl Judged {
    /// Puts `more` behind these. An extra number that only one of the two has is NaN for the other.
    fn append(&mut self, mut more: Self) {
        let (before, after) = (self.scores.len(), more.scores.len());
        self.samples.append(&mut more.samples);
        self.scores.append(&mut more.scores);
        self.compared.append(&mut more.compared);
        for name in more.extra.keys() {
            let missing = || vec![f32::NAN; before];
            self.extra.entry(name.clone()).or_insert_with(missing);
        }
        for (name, values) in &mut self.extra {
            let added = more.extra.remove(name);
            values.extend(added.unwrap_or_else(|| vec![f32::NAN; after]));
        }
    }

    /// The samples of these groups, which rise, of `n` each, numbered from 0; and the others.
    fn split(self, groups: &[usize], n: usize) -> (Self, Self) {
        let mut parts = (Self::default(), Self::default());
        (parts.0.samples, parts.1.samples) = split(self.samples, groups, n);
        (parts.0.scores, parts.1.scores) = split(self.scores, groups, n);
        (parts.0.compared, parts.1.compared) = split(self.compared, groups, n);
        for (name, values) in self.extra {
            let (of_these, of_others) = split(values, groups, n);
            parts.0.extra.insert(name.clone(), of_these);
            parts.1.extra.insert(name, of_others);
        }
        for (place, sample) in parts.0.samples.iter_mut().enumerate() {
            sample.group = (place / n) as i64;
        }
        parts
    }
}

fn split<T>(items: Vec<T>, groups: &[usize], n: usize) -> (Vec<T>, Vec<T>) {
    let items = items.into_iter().enumerate();
    let (these, others): (Vec<_>, Vec<_>) = items.partition(|(place, _)| groups.binary_search(&(place / n)).is_ok());
    let bare = |numbered: Vec<(usize, T)>| numbered.into_iter().map(|(_, item)| item).collect();
    (bare(these), bare(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_learns_from_the_first_groups_that_differ_and_of_the_others_from_as_many_as_are_missing() {
        let scores = [1., 1., 0., 1., 0., 0., 1., 0., 0.5, 0.25];
        assert_eq!(different(&scores, 2), 3);
        assert_eq!(chosen(&scores, 2, 2), [1, 3]);
        assert_eq!(chosen(&scores, 2, 3), [1, 3, 4]);
        assert_eq!(chosen(&scores, 2, 4), [0, 1, 3, 4]);
        assert_eq!(chosen(&scores, 2, 5), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_left_out_keeps_its_numbers_and_a_number_that_one_draw_has_not_is_nan() {
        let judged = |scores: [f32; 4], name: &str| Judged {
            samples: Vec::new(),
            scores: scores.into(),
            compared: scores.into(),
            extra: [(name.to_owned(), scores.to_vec())].into(),
        };
        let mut all = judged([1., 2., 3., 3.], "a");
        all.append(judged([4., 4., 5., 6.], "b"));
        assert_eq!(all.scores, [1., 2., 3., 3., 4., 4., 5., 6.]);
        let (these, others) = all.split(&[0, 3], 2);
        assert_eq!((&these.compared, &others.compared), (&these.scores, &others.scores));
        assert_eq!(
            (these.scores, others.scores),
            (vec![1., 2., 5., 6.], vec![3., 3., 4., 4.])
        );
        assert_eq!(
            format!("{:?}", these.extra),
            r#"{"a": [1.0, 2.0, NaN, NaN], "b": [NaN, NaN, 5.0, 6.0]}"#
        );
        assert_eq!(
            format!("{:?}", others.extra),
            r#"{"a": [3.0, 3.0, NaN, NaN], "b": [NaN, NaN, 4.0, 4.0]}"#
        );
    }
}
