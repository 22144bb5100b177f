//! Which checkpoints stay: the newest, the best, and the last whose policy is known to be good.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ppo_crds::run_config::Evaluation;
use serde::Deserialize;

use super::manifest;
use crate::run_state::{Inputs, State};

/// What a run keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retention {
    /// So many of the newest, at least one.
    pub(super) newest: usize,
    /// The one with the highest quality, too.
    pub(super) best: bool,
    /// `algorithm.kl.stopAbove`: no policy beyond it is the best, and the newest that was measured within it stays.
    pub(super) most_kl: Option<f64>,
}

/// What a manifest says.
enum Said {
    State(Box<State>),
    /// Nothing, and it never will.
    Damaged,
    /// Nothing at the moment, as while the storage is away.
    Unreadable,
}

impl Said {
    fn by(folder: &Path) -> Self {
        match manifest::read(folder) {
            Ok(manifest) => Self::State(Box::new(manifest.state)),
            Err(error) if manifest::is_damage(&error) => Self::Damaged,
            Err(_) => Self::Unreadable,
        }
    }
}

impl Retention {
    /// The steps of `all` that stay. No manifest is read where nothing is old.
    pub(super) fn steps(&self, all: &BTreeMap<u64, PathBuf>) -> BTreeSet<u64> {
        let newest = all.keys().rev().take(self.newest).copied().collect();
        let asks = self.best || self.most_kl.is_some();
        if all.len() <= self.newest || !asks {
            return newest;
        }
        let said: BTreeMap<u64, Said> = all.iter().map(|(step, folder)| (*step, Said::by(folder))).collect();
        let mut stay: BTreeSet<u64> = newest;
        if self.best {
            stay.extend(best(&said, self.most_kl));
        }
        stay.extend(self.most_kl.and_then(|most| newest_good(&said, most)));
        stay
    }
}

/// The newest step whose policy was measured and found good.
fn newest_good(said: &BTreeMap<u64, Said>, most_kl: f64) -> Option<u64> {
    let is_good = |said: &Said| matches!(said, Said::State(state) if state.kl.is_some_and(|kl| kl <= most_kl));
    said.iter().rev().find(|(_, said)| is_good(said)).map(|(step, _)| *step)
}

/// The step with the highest quality, of equals the newest; and those whose quality cannot be read at the moment: any may be higher. Where
/// the KL of policies has a limit none counts whose policy is beyond it; and since that is measured a step later, the best of those that
/// are within it stays too.
fn best(said: &BTreeMap<u64, Said>, most_kl: Option<f64>) -> BTreeSet<u64> {
    let unread = said.iter().filter(|(_, said)| matches!(said, Said::Unreadable));
    let mut stay: BTreeSet<u64> = unread.map(|(step, _)| *step).collect();
    match most_kl {
        None => stay.extend(highest(said, |_| true)),
        Some(most) => {
            stay.extend(highest(said, |kl| kl.is_none_or(|kl| kl <= most)));
            stay.extend(highest(said, |kl| kl.is_some_and(|kl| kl <= most)));
        }
    }
    stay
}

/// The step with the highest quality of those whose measured KL counts. Only what was judged as the newest of the judged ones is compared: a
/// score on other held-out prompts says nothing beside its.
fn highest(said: &BTreeMap<u64, Said>, counts: impl Fn(Option<f64>) -> bool) -> Option<u64> {
    let judged = said.iter().rev().filter_map(|(step, said)| match said {
        Said::State(state) if counts(state.kl) => Some((*step, state.quality?, Judge::of(state))),
        _ => None,
    });
    let judged: Vec<(u64, f64, Judge)> = judged.filter(|(_, quality, _)| quality.is_finite()).collect();
    let (_, _, newest) = judged.first()?;
    let comparable = judged.iter().rev().filter(|(_, _, judge)| judge.is_as(newest));
    // Of equals `max_by` gives the last, which is the newest.
    comparable
        .max_by(|(_, one, _), (_, other, _)| one.total_cmp(other))
        .map(|(step, ..)| *step)
}

/// What a quality was judged by.
struct Judge {
    /// None: no held-out prompts, but the samples that the policy drew.
    evaluation: Option<Evaluation>,
    inputs: Inputs,
}

impl Judge {
    fn of(state: &State) -> Self {
        Self {
            evaluation: Evaluation::deserialize(&state.run_config["evaluation"]).ok(),
            inputs: state.inputs.clone().unwrap_or_default(),
        }
    }

    fn is_as(&self, other: &Self) -> bool {
        match (&self.evaluation, &other.evaluation) {
            (Some(own), Some(others)) => self.inputs.ask_the_same(own, (others, &other.inputs)),
            (own, others) => own.is_none() && others.is_none(),
        }
    }
}
