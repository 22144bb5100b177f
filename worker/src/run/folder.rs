//! A run's folder: which process may run in it, and the checkpoint that a run resumes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;

use super::continuation::Continuation;
use super::fresh;
use super::guard::{Afresh, Locks, lock};
use crate::actor::checkpoint::{Checkpoints, Files, State, Verified, hash_share};
use crate::actor::fence::Owner;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::telemetry::{EventRecord, Live, RunDir, read_lines};

/// For the other ranks to hash their shares of a checkpoint, on whatever file system it lies. One that is lost is found long before.
const VERIFY_DEADLINE: Duration = Duration::from_secs(6 * 3600);

/// The folder of a run, which belongs to this process.
pub struct Folder {
    /// Where it is.
    pub dir: RunDir,
    /// Its checkpoints.
    pub checkpoints: Checkpoints,
    /// Where those lie.
    saved_in: PathBuf,
    /// Outside a cluster.
    pub locks: Option<Locks>,
}

impl Folder {
    /// Takes the folder at `root` for this process: for `owner`, where it is a pod's. A `fresh` run deletes what an earlier one left.
    ///
    /// # Errors
    /// When another process runs there, or the checkpoints are of another configuration; when the folder cannot be written.
    pub fn take(config: &RunConfig, root: &Path, fresh: bool, owner: Option<Owner>) -> Result<Self> {
        let dir = RunDir::new(root);
        dir.create()?;
        let saved_in = config.checkpoint.path.clone().unwrap_or_else(|| dir.checkpoints());
        let checkpoints = Checkpoints::open(saved_in.clone(), config.checkpoint.keep, config.checkpoint.keep_best)?;
        // A pod that is cut off would keep its successor out of a file system that both mount: there the attempt decides.
        let locks = owner.is_none().then(|| lock(&dir, &saved_in)).transpose()?;
        let mut folder = Self {
            dir,
            checkpoints,
            saved_in,
            locks,
        };
        // Whoever may not go on here does not take the folder from a job that does.
        if !fresh && let Some((checkpoint, state)) = folder.checkpoints.newest()? {
            folder.check(config, &checkpoint, &state)?;
        }
        if let Some(owner) = owner {
            folder.checkpoints = folder.checkpoints.fenced(owner)?;
        }
        if fresh {
            fresh::clear(&folder.dir, &folder.checkpoints, config)?;
        }
        Ok(folder)
    }

    /// The checkpoint that the run goes on from: the newest one that is intact, as all ranks find it. None: the run begins.
    ///
    /// # Errors
    /// As [`Checkpoints::latest`]; when it is of another configuration, or a rank is lost.
    pub fn checkpoint(&self, config: &RunConfig, ranks: &Ranks, live: &Live) -> Result<Option<Verified>> {
        let hash = |folder: &Path| hash_together(folder, ranks, live);
        let found = self
            .checkpoints
            .latest_by(hash, |problem| tracing::warn!("{problem}"))?;
        if let Some(Verified { folder, state }) = &found {
            self.check(config, folder, state)?;
        }
        Ok(found)
    }

    /// What a run may do that cannot go on here.
    pub fn afresh(&self) -> Afresh<'_> {
        match self.locks {
            Some(_) if self.saved_in == self.dir.checkpoints() => Afresh::Here,
            Some(_) => Afresh::HereApart,
            None => Afresh::InPod(&self.saved_in),
        }
    }

    /// A run with this `config` that goes on from a checkpoint.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn continuation<'a>(&self, state: &'a State, config: &'a RunConfig) -> Result<Continuation<'a>> {
        let events = read_lines::<EventRecord>(&self.dir.events())?.records;
        Ok(Continuation {
            state,
            now: config,
            diverged: events
                .iter()
                .any(|event| event.kind == "diverged" && event.step >= state.step),
        })
    }

    fn check(&self, config: &RunConfig, checkpoint: &Path, state: &State) -> Result<()> {
        let continuation = self.continuation(state, config)?;
        let checked = continuation.check(self.afresh());
        checked.with_context(|| format!("cannot go on from {}", checkpoint.display()))
    }
}

/// What all ranks find of a checkpoint's files, each in its share of them: a disk of each node reads, and no rank waits for the first one.
fn hash_together(folder: &Path, ranks: &Ranks, live: &Live) -> Result<Files> {
    ranks.enter("verifying a checkpoint".into());
    ranks.order(&Order::Verify { folder: folder.into() })?;
    let mut files = hash_share(folder, (ranks.rank(), ranks.count()), || live.goes_on());
    for others in ranks.replies::<Files>(VERIFY_DEADLINE)? {
        files.extend(others);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use ppo_crds::manifest::parse_manifest;
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;
    use crate::ranks::tests::together;

    #[test]
    fn who_cannot_go_on_is_told_to_change_what_says_where_the_checkpoints_lie() {
        let root = tempfile::tempdir().unwrap();
        let advice = |checkpoint: serde_json::Value| {
            let manifest = json!({
                "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "folder"},
                "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                         "checkpoint": checkpoint, "roles": {"reward": {"rules": [{"json": {}}]}}},
            });
            let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
            let here = Environment::Laptop {
                manifest_folder: root.path().into(),
            };
            let config = resolve(&job, &here).unwrap();
            let folder = Folder::take(&config, &root.path().join("run"), false, None).unwrap();
            folder.afresh().words()
        };
        let (own, named) = (advice(json!({})), advice(json!({"path": "saved"})));
        assert!(own.ends_with("give another --run-dir"), "{own}");
        assert!(
            named.ends_with("give the checkpoints another place in spec.checkpoint"),
            "{named}"
        );
    }

    #[test]
    fn every_rank_hashes_a_share_of_a_checkpoint_and_what_one_cannot_see_rank_0_looks_at_itself() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(root.path().join("checkpoints"), 3, false).unwrap();
        let state = State {
            step: 1,
            draws: None,
            kl_coefficient: 0.1,
            actor_updates: 1,
            critic_updates: 1,
            quality: None,
            run_config: serde_json::Value::Null,
            inputs: None,
        };
        let write = |folder: &Path| {
            for number in 0..6 {
                std::fs::write(folder.join(format!("part-{number}")), [number; 100])?;
            }
            Ok(Files::default())
        };
        let saved = checkpoints.save(state.clone(), write).unwrap();
        let found = together(3, |ranks| {
            if ranks.leads() {
                let hash = |folder: &Path| hash_together(folder, &ranks, &Live::new("test", 1));
                return checkpoints.latest_by(hash, |_| ()).unwrap();
            }
            let Order::Verify { folder } = ranks.next_order().unwrap() else {
                return None;
            };
            assert_eq!(folder, saved);
            let folder = match ranks.rank() {
                1 => folder,
                _ => root.path().join("not mounted here"),
            };
            let place = (ranks.rank(), ranks.count());
            ranks.reply(Ok(hash_share(&folder, place, || ()))).unwrap();
            None
        });
        assert_eq!(found[0].as_ref().unwrap().state, state);
    }
}
