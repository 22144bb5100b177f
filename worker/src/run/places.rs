//! Where the models and data of a configuration lie. A run that goes on may find them by other paths: from another working directory, or moved.

use std::path::{PathBuf, absolute};

use ppo_crds::RunConfig;
use ppo_crds::run_config::{DataPaths, Location};

use crate::run_state::Inputs;

/// A configuration as a checkpoint keeps it: a path from here leads nowhere from another working directory.
pub fn kept(config: &RunConfig) -> RunConfig {
    let mut kept = config.clone();
    each(&mut kept, |path| {
        if let Ok(whole) = absolute(path.as_path()) {
            *path = whole;
        }
    });
    kept
}

/// A configuration with one name for each place, however its path is written.
pub fn resolved(config: &RunConfig) -> RunConfig {
    let mut resolved = config.clone();
    each(&mut resolved, |path| {
        // What is not there is missed where it is read.
        if let Ok(place) = path.canonicalize().or_else(|_| absolute(path.as_path())) {
            *path = place;
        }
    });
    resolved
}

/// Gives `saved` the places of `now` for what is compared by digests that are `known`. Weights that are all trained are in the checkpoint, and
/// nobody compares those of the manifest: they may move along with a reference that is the same model. A hub's model has a name that says
/// which it is, so its revision may be another one.
pub fn take(saved: &mut RunConfig, now: &RunConfig, known: &Inputs) {
    let in_both = |has: fn(&RunConfig) -> bool| has(saved) && has(now);
    let reference_is_policy = in_both(|config| config.model.reference.as_ref() == Some(&config.model.policy));
    let critic_is_policy = in_both(|config| config.model.critic.as_ref() == Some(&config.model.policy));
    let reference = known.reference.is_some() || (reference_is_policy && known.policy.is_some());
    let policy = known.policy.is_some() || (reference_is_policy && known.reference.is_some());
    let critic = known.critic.is_some() || (critic_is_policy && policy);

    saved.prompts.path.clone_from(&now.prompts.path);
    take_place(Some(&mut saved.model.policy), Some(&now.model.policy), policy);
    take_place(saved.model.critic.as_mut(), now.model.critic.as_ref(), critic);
    if reference {
        take_place(saved.model.reference.as_mut(), now.model.reference.as_ref(), true);
    }
    if known.reward.is_some() {
        let before = saved.reward.model.as_mut().map(|model| &mut model.source);
        take_place(before, now.reward.model.as_ref().map(|model| &model.source), true);
    }
}

fn take_place(saved: Option<&mut Location>, now: Option<&Location>, may_move: bool) {
    match (saved, now) {
        (Some(Location::Path(was)), Some(Location::Path(is))) if may_move => was.clone_from(is),
        (Some(Location::Hub { id: same, revision }), Some(Location::Hub { id, revision: newer })) if same == id => {
            revision.clone_from(newer);
        }
        _ => {}
    }
}

/// Every path on a disk from which a run reads.
fn each(config: &mut RunConfig, change: impl Fn(&mut PathBuf)) {
    let model = &mut config.model;
    let reward = config.reward.model.as_mut().map(|model| &mut model.source);
    let models = [
        Some(&mut model.policy),
        model.critic.as_mut(),
        model.reference.as_mut(),
        reward,
    ];
    for location in models.into_iter().flatten() {
        if let Location::Path(path) = location {
            change(path);
        }
    }
    let held_out = config.evaluation.as_mut().map(|it| &mut it.path);
    for paths in [Some(&mut config.prompts.path), held_out].into_iter().flatten() {
        match paths {
            DataPaths::One(path) => change(path),
            DataPaths::Several(paths) => paths.iter_mut().for_each(&change),
        }
    }
}
