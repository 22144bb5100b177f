//! What keeps two runs apart: one process per folder, one configuration per run.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ppo_crds::RunConfig;
use ppo_crds::run_config::Location;
use serde::Deserialize;
use serde_json::Value;

use crate::actor::checkpoint::Inputs;
use crate::manifest::Invalid;
use crate::telemetry::RunDir;

/// The folders of a run that no other process may write, for as long as it lives.
#[derive(Debug)]
pub struct Locks {
    _folder: File,
    _checkpoints: File,
}

/// Takes a run's folder and that of its checkpoints for this process.
///
/// # Errors
/// When another process has one of them.
pub fn lock(folder: &RunDir, checkpoints: &Path) -> Result<Locks> {
    let checkpoints_words = || {
        format!(
            "another process saves its checkpoints in {}; wait for it, or give another checkpoint.path",
            checkpoints.display()
        )
    };
    let folder_words = || {
        format!(
            "another process runs in {}; wait for it, or give another --run-dir",
            folder.root().display()
        )
    };
    Ok(Locks {
        _folder: take(&folder.root().join(".lock"), folder_words)?,
        // Two names: both may be one folder.
        _checkpoints: take(&checkpoints.join(".checkpoints.lock"), checkpoints_words)?,
    })
}

fn take(path: &Path, taken: impl FnOnce() -> String) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => bail!(taken()),
        Err(std::fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// What a run may do where its folder holds the checkpoints of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Afresh<'a> {
    /// On this machine.
    Here,
    /// In a pod that saves in a folder.
    InPod(&'a Path),
}

impl Afresh<'_> {
    /// In words, after "or".
    pub fn words(self) -> String {
        match self {
            Self::Here => "start anew with --fresh, or give another --run-dir".to_owned(),
            Self::InPod(folder) => format!(
                "move {} away to start anew; on a claim, a job of another name has a folder of its own",
                folder.display()
            ),
        }
    }
}

/// A checkpoint goes on only under the configuration that made it; the job's name, how long it is, how often to look and to save, and what
/// changes memory and speed alone, may change. So may a hub's revision where weights are compared by the digests `known`: a run whose branch
/// moved goes on with the commit that it began with.
///
/// # Errors
/// [`Invalid`], with every block that is another one.
pub fn refuse_other_run((saved, known): (&Value, Option<&Inputs>), now: &RunConfig, afresh: Afresh) -> Result<()> {
    const MAY_CHANGE: [&str; 6] = ["name", "length", "checkpoint", "telemetry", "evaluation", "rollout"];
    // One of an older version of this program lacks newer fields: it was made with what they default to.
    let filled = RunConfig::deserialize(saved).and_then(|mut saved| {
        if let Some(known) = known {
            take_revisions(&mut saved, now, known);
        }
        serde_json::to_value(saved)
    });
    let saved = filled.as_ref().unwrap_or(saved);
    let before = without_memory(saved.clone(), now);
    let after = without_memory(serde_json::to_value(now)?, now);
    let fields = after.as_object().into_iter().flatten();
    let changed: Vec<String> = fields
        .filter(|(name, _)| !MAY_CHANGE.contains(&name.as_str()))
        .filter(|(name, value)| before.get(name) != Some(value))
        .map(|(name, value)| format!("{name}: was {}, is {value}", before.get(name).unwrap_or(&Value::Null)))
        .collect();
    if changed.is_empty() {
        return Ok(());
    }
    let words = format!(
        "it was made under another configuration; restore the manifest, {}\n{}",
        afresh.words(),
        changed.join("\n")
    );
    Err(Invalid::new(words).into())
}

/// Gives the models of `saved` the revisions of `now`, but for those whose weights nobody compares: those of policy and critic are in the
/// checkpoint, or below an adapter and compared.
fn take_revisions(saved: &mut RunConfig, now: &RunConfig, known: &Inputs) {
    take_revision(Some(&mut saved.model.policy), Some(&now.model.policy));
    take_revision(saved.model.critic.as_mut(), now.model.critic.as_ref());
    if known.reference.is_some() {
        take_revision(saved.model.reference.as_mut(), now.model.reference.as_ref());
    }
    if known.reward.is_some() {
        let before = saved.reward.model.as_mut().map(|model| &mut model.source);
        take_revision(before, now.reward.model.as_ref().map(|model| &model.source));
    }
}

fn take_revision(saved: Option<&mut Location>, now: Option<&Location>) {
    let Some(Location::Hub { id, revision: newer }) = now else {
        return;
    };
    match saved {
        Some(Location::Hub { id: same, revision }) if same == id => revision.clone_from(newer),
        _ => {}
    }
}

/// A configuration without the fields that say how a pass is cut and what of it is kept: they change memory and speed, and of results the
/// rounding. Their defaults depend on the number of ranks.
fn without_memory(mut config: Value, now: &RunConfig) -> Value {
    let fields = [
        ("batch", "microRolloutBatchSize", true),
        ("batch", "microTrainBatchSize", !now.algorithm.means_micro_batches()),
        ("model", "activationCheckpointing", true),
    ];
    for (block, field, may_change) in fields {
        let block = config.get_mut(block).and_then(Value::as_object_mut);
        if let Some(block) = block.filter(|_| may_change) {
            block.remove(field);
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::spec::{Estimator, Overlap, Profile};
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;

    fn config() -> RunConfig {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "guard"},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: "/".into(),
        };
        resolve(&job, &here).unwrap()
    }

    #[test]
    fn a_checkpoint_from_before_a_field_was_there_goes_on_where_the_field_has_its_default() {
        let mut now = config();
        let mut saved = serde_json::to_value(&now).unwrap();
        saved.as_object_mut().unwrap().remove("overlap").unwrap();
        refuse_other_run((&saved, None), &now, Afresh::Here).unwrap();
        now.overlap = Overlap::OneStep;
        let words = refuse_other_run((&saved, None), &now, Afresh::Here)
            .unwrap_err()
            .to_string();
        assert!(words.contains("overlap: was \"none\", is \"oneStep\""), "{words}");
    }

    #[test]
    fn what_changes_memory_and_speed_alone_may_change_and_so_may_the_name() {
        let mut now = config();
        let saved = serde_json::to_value(&now).unwrap();
        now.name = "again".into();
        now.batch.micro_rollout_batch_size += 1;
        now.batch.micro_train_batch_size += 1;
        now.model.activation_checkpointing = !now.model.activation_checkpointing;
        refuse_other_run((&saved, None), &now, Afresh::Here).unwrap();
        // Of these a mean of means depends.
        now.algorithm.profile = Profile::Trl;
        now.algorithm.estimator = Estimator::Gae;
        let mut saved = saved;
        saved["algorithm"] = serde_json::to_value(&now.algorithm).unwrap();
        let refused = refuse_other_run((&saved, None), &now, Afresh::InPod(Path::new("/volumes/c"))).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        assert!(
            words.contains("batch: was") && words.contains("move /volumes/c away"),
            "{words}"
        );
    }

    #[test]
    fn a_revision_may_change_where_weights_are_compared_by_their_digest_and_nowhere_else() {
        let at = |revision: &str| Location::Hub {
            id: "a/b".into(),
            revision: revision.into(),
        };
        let mut now = config();
        now.model.policy = at("main");
        now.model.reference = Some(at("main"));
        let saved = serde_json::to_value(&now).unwrap();
        let known = Inputs {
            reference: Some("1".into()),
            ..Inputs::default()
        };
        let check = |inputs: Option<&Inputs>, now: &RunConfig| refuse_other_run((&saved, inputs), now, Afresh::Here);
        now.model.policy = at("0123abc");
        check(Some(&Inputs::default()), &now).unwrap();
        check(None, &now).unwrap_err();
        now.model.reference = Some(at("0123abc"));
        check(Some(&known), &now).unwrap();
        check(Some(&Inputs::default()), &now).unwrap_err();
        now.model.reference = Some(Location::Path("b".into()));
        check(Some(&known), &now).unwrap_err();
    }
}
