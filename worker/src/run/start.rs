//! What a run starts from, and what surrounds it.

use std::sync::Arc;

use ppo_crds::run_config::Algorithm;
use serde_json::Value;

use super::guard::Afresh;
use crate::place::Peers;
use crate::ppo::controller::KlController;
use crate::ranks::Ranks;
use crate::roles::Publication;
use crate::run_state::{Inputs, Verified};
use crate::stop::StopFlag;
use crate::telemetry::Live;

/// What a run starts from.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The checkpoint that it goes on from, whose weights replace the manifest's; None: it begins.
    pub checkpoint: Option<&'a Verified>,
    /// What it may do where the checkpoint does not fit what it reads.
    pub afresh: Afresh<'a>,
}

impl<'a> Start<'a> {
    /// What was read beside the configuration before the checkpoint was made, as far as it is known.
    pub fn inputs(&self) -> Option<&'a Inputs> {
        self.checkpoint.and_then(|checkpoint| checkpoint.state.inputs.as_ref())
    }

    /// Steps completed.
    pub fn steps_done(&self) -> u64 {
        self.checkpoint.map_or(0, |checkpoint| checkpoint.state.step)
    }

    /// Draws of these steps.
    pub fn draws(&self) -> u64 {
        let known = self.checkpoint.and_then(|checkpoint| checkpoint.state.draws);
        known.unwrap_or_else(|| self.steps_done())
    }

    /// The KL controller: it goes on where it was, unless the manifest gives another coefficient than the one it came from.
    pub fn kl_controller(&self, algorithm: &Algorithm) -> KlController {
        let mut kl = KlController::of(algorithm);
        if let Some(Verified { state, .. }) = self.checkpoint {
            let began_at = state.run_config.pointer("/algorithm/kl/coef").and_then(Value::as_f64);
            if began_at.is_none_or(|coef| coef == algorithm.kl.coef) {
                kl.coef = state.kl_coefficient;
            }
        }
        kl
    }
}

/// What surrounds a run in its process.
pub struct Around<'a> {
    /// Waits for answers of other roles.
    pub runtime: tokio::runtime::Handle,
    /// Set when the process was asked to stop.
    pub stop: StopFlag,
    /// Told what the run does, and whom it waits for.
    pub live: Arc<Live>,
    /// Roles that have pods; None: every role is in this process.
    pub peers: Option<&'a Peers>,
    /// Who trains together.
    pub ranks: &'a Ranks,
    /// Where engines of other processes get weights from.
    pub publication: &'a Publication,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;
    use crate::run_state::State;

    #[test]
    fn the_kl_coefficient_goes_on_where_it_was_unless_the_manifest_gives_another_one() {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "start"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                     "algorithm": {"kl": {"coef": 0.05}}, "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        let mut config = resolve(&job, &here).unwrap();
        let state = State {
            step: 3,
            draws: None,
            kl_coefficient: 0.07,
            actor_updates: 3,
            critic_updates: 3,
            quality: None,
            kl: None,
            run_config: serde_json::to_value(&config).unwrap(),
            inputs: None,
        };
        let checkpoint = Verified {
            folder: Path::new("/c").to_owned(),
            state,
        };
        let coef = |checkpoint: Option<&Verified>, config: &ppo_crds::RunConfig| {
            let afresh = Afresh::Here;
            Start { checkpoint, afresh }.kl_controller(&config.algorithm).coef
        };
        assert_eq!(coef(None, &config), 0.05);
        assert_eq!(coef(Some(&checkpoint), &config), 0.07);
        config.algorithm.kl.coef = 0.2;
        assert_eq!(coef(Some(&checkpoint), &config), 0.2);
    }
}
