//! Which checkpoints outlive the newest ones: the best, and the last whose policy is known to be good.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ppo_crds::run_config::Evaluation;
use serde::Deserialize;

use super::manifest::{self, State};

/// The newest step whose policy was measured and found good.
pub(super) fn newest_good(all: &BTreeMap<u64, PathBuf>, most_kl: f64) -> Option<u64> {
    let is_good = |folder: &PathBuf| {
        let measured = manifest::read(folder).ok().and_then(|manifest| manifest.state.kl);
        measured.is_some_and(|kl| kl <= most_kl)
    };
    all.iter()
        .rev()
        .find(|(_, folder)| is_good(folder))
        .map(|(step, _)| *step)
}

/// The step with the highest quality, of equals the newest; and those whose quality cannot be read at the moment: any may be higher. Only
/// what was judged as the newest of the judged ones counts: a score on other held-out prompts says nothing beside its. Where the KL of policies
/// has a limit none counts whose policy is beyond it; and since that is measured a step later, the best of those that are within it stays too.
pub(super) fn best(all: &BTreeMap<u64, PathBuf>, most_kl: Option<f64>) -> BTreeSet<u64> {
    let Some(most) = most_kl else {
        return best_of(all, |_| true);
    };
    let mut stay = best_of(all, |kl| kl.is_none_or(|kl| kl <= most));
    stay.extend(best_of(all, |kl| kl.is_some_and(|kl| kl <= most)));
    stay
}

/// The same of those whose measured KL counts.
fn best_of(all: &BTreeMap<u64, PathBuf>, counts: impl Fn(Option<f64>) -> bool) -> BTreeSet<u64> {
    let mut stay = BTreeSet::new();
    let mut best: Option<(f64, u64)> = None;
    let mut judged_by = None;
    for (&step, folder) in all.iter().rev() {
        match manifest::read(folder) {
            Ok(manifest) => {
                let State {
                    quality,
                    kl,
                    run_config,
                    inputs,
                    ..
                } = manifest.state;
                let Some(quality) = quality.filter(|quality| quality.is_finite() && counts(kl)) else {
                    continue;
                };
                let settings = Evaluation::deserialize(&run_config["evaluation"]).ok();
                let by = (settings, inputs.unwrap_or_default());
                let comparable = match (&by, judged_by.get_or_insert_with(|| by.clone())) {
                    ((Some(one), asked), (Some(other), others)) => {
                        one.asks_the_same(other) && !asked.asks_others(others)
                    }
                    ((one, _), (other, _)) => one.is_none() && other.is_none(),
                };
                if comparable && best.is_none_or(|(known, _)| quality > known) {
                    best = Some((quality, step));
                }
            }
            Err(error) if manifest::is_damage(&error) => {}
            Err(_) => {
                stay.insert(step);
            }
        }
    }
    stay.extend(best.map(|(_, step)| step));
    stay
}
