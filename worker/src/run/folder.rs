//! A run's folder: which process may run in it, and the checkpoint that a run resumes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use ppo_crds::RunConfig;
use serde_json::Value;

use super::continuation::Continuation;
use super::fresh;
use super::guard::{Afresh, Locks, lock};
use super::records::refuse_to_lose;
use crate::actor::checkpoint::{Checkpoints, Files, hash_share};
use crate::manifest::Invalid;
use crate::place::Owner;
use crate::ranks::Ranks;
use crate::ranks::order::Order;
use crate::run_state::{State, Verified};
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
    /// What an earlier run left is to be deleted.
    fresh: bool,
    /// Outside a cluster.
    pub locks: Option<Locks>,
}

impl Folder {
    /// Takes the folder at `root` for this process: for `owner`, where it is a pod's. A `fresh` run goes on from nothing that an earlier one left,
    /// and [deletes](Self::clear_if_fresh) it.
    ///
    /// # Errors
    /// When another process runs there, the checkpoints are of another configuration, or the records of another job, or of steps whose checkpoints
    /// are elsewhere; when the run reads what it would delete or replace; when the folder cannot be written.
    pub fn take(config: &RunConfig, root: &Path, fresh: bool, owner: Option<Owner>) -> Result<Self> {
        let dir = RunDir::new(root);
        dir.create()?;
        let saved_in = config.checkpoint.path.clone().unwrap_or_else(|| dir.checkpoints());
        let checkpoints = Checkpoints::open(saved_in.clone(), config.checkpoint.keep, config.checkpoint.keep_best)?;
        let checkpoints = checkpoints.good_up_to(config.algorithm.kl.stop_above);
        // A pod that is cut off would keep its successor out of a file system that both mount: there the attempt decides.
        let locks = owner.is_none().then(|| lock(&dir, &saved_in)).transpose()?;
        let mut folder = Self {
            dir,
            checkpoints,
            saved_in,
            fresh,
            locks,
        };
        // Whoever may not go on here does not take the folder from a job that does.
        if fresh {
            fresh::refuse(&folder.dir, &folder.checkpoints, config)?;
        } else {
            fresh::refuse_to_replace(&folder.dir, config, folder.elsewhere())?;
            let newest = folder.checkpoints.newest()?;
            if let Some((checkpoint, state)) = &newest {
                folder.check(config, checkpoint, state)?;
            }
            folder.refuse_other_records(config, newest.as_ref().map(|(_, state)| state))?;
            // What is there may be damaged, and then that is said.
            if folder.checkpoints.folders()?.is_empty() {
                refuse_to_lose(&folder.dir, &folder.saved_in, folder.without_checkpoints())?;
            }
        }
        // A claim may be restored without its records.
        if owner.is_none() {
            fresh::refuse_to_lose_foreign(&folder.dir, folder.elsewhere())?;
        }
        if let Some(owner) = owner {
            folder.checkpoints = folder.checkpoints.fenced(owner)?;
        }
        Ok(folder)
    }

    /// Deletes what an earlier run left, where the run is a fresh one. To be called once everything that it needs is there: whoever mistyped a
    /// name loses nothing.
    ///
    /// # Errors
    /// When the disk refuses, naming what cannot be deleted.
    pub fn clear_if_fresh(&self) -> Result<()> {
        match self.fresh {
            true => fresh::clear(&self.dir, &self.checkpoints),
            false => Ok(()),
        }
    }

    /// The checkpoint that the run goes on from: the newest one that is intact, as all ranks find it. None: the run begins.
    ///
    /// # Errors
    /// As [`Checkpoints::latest`]; when it is of another configuration, or a rank is lost.
    pub fn checkpoint(&self, config: &RunConfig, ranks: &Ranks, live: &Live) -> Result<Option<Verified>> {
        if self.fresh {
            return Ok(None);
        }
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

    /// The same where there is no checkpoint, so that only its records are in the way.
    fn without_checkpoints(&self) -> Afresh<'_> {
        match self.locks {
            Some(_) => Afresh::Here,
            None => Afresh::InPod(self.dir.root()),
        }
    }

    /// What gives a run another folder.
    fn elsewhere(&self) -> &'static str {
        match self.locks {
            Some(_) => "give another --run-dir",
            None => "give the checkpoints another place in spec.checkpoint",
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

    /// Records are cut back to the checkpoint that a run goes on from, which may lie elsewhere: those of another job would be lost. The job that
    /// made the `newest` checkpoint goes on under another name.
    fn refuse_other_records(&self, config: &RunConfig, newest: Option<&State>) -> Result<(), Invalid> {
        let name = |config: &Value| Some(config.get("name")?.as_str()?.to_owned());
        let goes_on = newest.and_then(|state| name(&state.run_config));
        let recorded = std::fs::read(self.dir.run_config()).ok();
        let recorded = recorded.and_then(|text| name(&serde_json::from_slice(&text).ok()?));
        let has_some = |path: &PathBuf| path.metadata().is_ok_and(|it| it.is_file() && it.len() > 0);
        let are_some = [self.dir.metrics(), self.dir.evaluation()].iter().any(has_some);
        match recorded {
            Some(other) if are_some && other != config.name && Some(&other) != goes_on.as_ref() => {
                let cure = match self.locks {
                    Some(_) => "give another --run-dir, or let --fresh delete them",
                    None => "move it away, or give the checkpoints another place in spec.checkpoint",
                };
                Err(Invalid::new(format!(
                    "{} holds the records of another job, {other}, which {} would write over: {cure}",
                    self.dir.root().display(),
                    config.name
                )))
            }
            _ => Ok(()),
        }
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
    use ppo_crds::run_config::Location;
    use ppo_crds::{Environment, resolve};
    use serde_json::json;

    use super::*;
    use crate::ranks::tests::together;

    /// Of a job whose manifest lies in `root`.
    fn config(root: &Path, name: &str, checkpoint: Value) -> RunConfig {
        let manifest = json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": name},
            "spec": {"model": {"policy": {"path": "p"}}, "prompts": {"source": {"path": "d.jsonl"}},
                     "checkpoint": checkpoint, "roles": {"reward": {"rules": [{"json": {}}]}}},
        });
        let job = parse_manifest(&manifest.to_string(), "job.json").unwrap();
        let here = Environment::Laptop {
            manifest_folder: root.into(),
        };
        resolve(&job, &here).unwrap()
    }

    /// Of a checkpoint after one step under `run_config`.
    fn state(run_config: Value) -> State {
        State {
            step: 1,
            draws: None,
            kl_coefficient: 0.1,
            actor_updates: 1,
            critic_updates: 1,
            quality: None,
            kl: None,
            run_config,
            inputs: None,
        }
    }

    #[test]
    fn records_of_another_job_stay_unless_its_checkpoint_is_gone_on_from_or_they_are_to_be_deleted() {
        let root = tempfile::tempdir().unwrap();
        let of = |name: &str, saved: &str| config(root.path(), name, json!({"path": saved}));
        let dir = RunDir::new(root.path().join("run"));
        let take = |config: &RunConfig, fresh: bool| Folder::take(config, dir.root(), fresh, None)?.clear_if_fresh();
        let first = of("first", "saved");
        take(&first, false).unwrap();
        let run_config = serde_json::to_value(&first).unwrap();
        std::fs::write(dir.run_config(), run_config.to_string()).unwrap();
        let second = of("second", "apart");
        // It ended before it had recorded anything.
        std::fs::write(dir.metrics(), "").unwrap();
        take(&second, false).unwrap();
        std::fs::write(dir.metrics(), "{}\n").unwrap();
        take(&first, false).unwrap();
        let refused = take(&second, false).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        assert!(
            words.contains("another job, first, which second would write over: give another --run-dir"),
            "{words}"
        );
        let place = root.path().join("saved/first");
        let saved = Checkpoints::open(place.clone(), 3, false).unwrap();
        saved.save(state(run_config), |_| Ok(Files::default())).unwrap();
        let mut renamed = of("renamed", "saved");
        renamed.checkpoint.path = Some(place);
        take(&renamed, false).unwrap();
        take(&second, true).unwrap();
        take(&second, false).unwrap();
    }

    #[test]
    fn records_whose_checkpoints_are_in_another_place_stay_until_the_run_is_begun_anew() {
        let root = tempfile::tempdir().unwrap();
        let of = |saved: &str| config(root.path(), "moved", json!({"path": saved}));
        let dir = RunDir::new(root.path().join("run"));
        let take = |saved: &str, fresh: bool| Folder::take(&of(saved), dir.root(), fresh, None)?.clear_if_fresh();
        take("first", false).unwrap();
        let run_config = serde_json::to_value(of("first")).unwrap();
        std::fs::write(dir.run_config(), run_config.to_string()).unwrap();
        let records = "{\"step\": 1}\n{\"step\": 2}\n";
        std::fs::write(dir.metrics(), records).unwrap();
        // It ended before its first checkpoint.
        take("other", false).unwrap();
        let first = root.path().join("first/moved");
        let saved = Checkpoints::open(first.clone(), 3, false).unwrap();
        saved.save(state(run_config), |_| Ok(Files::default())).unwrap();
        let refused = take("other", false).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        let place = format!("its place again, {}, which has that of step 1", first.display());
        assert!(
            words.contains("records up to step 2") && words.contains(&place) && words.ends_with("another --run-dir"),
            "{words}"
        );
        assert_eq!(std::fs::read_to_string(dir.metrics()).unwrap(), records);
        take("first", false).unwrap();
        take("other", true).unwrap();
        take("other", false).unwrap();
    }

    #[test]
    fn a_damaged_checkpoint_that_a_fresh_run_begins_with_is_not_deleted() {
        let root = tempfile::tempdir().unwrap();
        let model = root.path().join("run/checkpoints/.damaged-step-00000001-1/policy");
        std::fs::create_dir_all(&model).unwrap();
        let mut config = config(root.path(), "again", json!({}));
        config.model.policy = Location::Path(model.clone());
        let taken = Folder::take(&config, &root.path().join("run"), true, None);
        assert!(taken.map(drop).unwrap_err().is::<Invalid>());
        assert!(model.is_dir());
    }

    #[test]
    fn what_a_run_trains_does_not_take_the_place_of_what_it_reads() {
        let root = tempfile::tempdir().unwrap();
        let model = root.path().join("model");
        let adapter = root.path().join("adapter");
        for folder in [&model, &adapter] {
            std::fs::create_dir(folder).unwrap();
        }
        let take = |config: &RunConfig, owner: Option<Owner>| Folder::take(config, root.path(), false, owner).map(drop);
        let mut config = config(root.path(), "beside", json!({}));
        config.model.policy = Location::Path(model.clone());
        let refused = take(&config, None).unwrap_err();
        assert!(refused.is::<Invalid>());
        let words = refused.to_string();
        let named = format!("take the place of {}, and model.policy is", model.display());
        assert!(
            words.contains(&named) && words.contains("give another --run-dir"),
            "{words}"
        );
        let (run, attempt) = ("run".to_owned(), 1);
        let words = take(&config, Some(Owner { run, attempt })).unwrap_err().to_string();
        assert!(words.contains("another place in spec.checkpoint"), "{words}");
        // Nothing comes there where all weights are trained.
        config.model.policy = Location::Path(adapter);
        take(&config, None).unwrap();
        config.model.adapter = Some(serde_json::from_value(json!({"rank": 4})).unwrap());
        let words = take(&config, None).unwrap_err().to_string();
        assert!(words.contains("and model.policy is"), "{words}");
        (config.model.policy, config.model.adapter) = (Location::Path("/p".into()), None);
        let data = root.path().join("samples.jsonl");
        std::fs::write(&data, "{}\n").unwrap();
        config.prompts.path = data.into();
        let words = take(&config, None).unwrap_err().to_string();
        assert!(
            words.starts_with("what is recorded would take the place of") && words.contains("prompts.source is"),
            "{words}"
        );
    }

    #[test]
    fn who_cannot_go_on_is_told_to_change_what_says_where_the_checkpoints_lie() {
        let root = tempfile::tempdir().unwrap();
        let advice = |checkpoint: Value| {
            let config = config(root.path(), "folder", checkpoint);
            let folder = Folder::take(&config, &root.path().join("run"), false, None).unwrap();
            folder.afresh().words()
        };
        let (own, named) = (advice(json!({})), advice(json!({"path": "saved"})));
        assert!(own.ends_with("give another --run-dir"), "{own}");
        assert!(
            named.ends_with("give another --run-dir and the checkpoints another place in spec.checkpoint"),
            "{named}"
        );
    }

    #[test]
    fn every_rank_hashes_a_share_of_a_checkpoint_and_what_one_cannot_see_rank_0_looks_at_itself() {
        let root = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::open(root.path().join("checkpoints"), 3, false).unwrap();
        let state = state(Value::Null);
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

    #[test]
    fn a_model_that_no_run_left_stays() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::new(root.path().join("run"));
        std::fs::create_dir_all(dir.model()).unwrap();
        let mine = dir.model().join("mine.py");
        std::fs::write(&mine, "x").unwrap();
        let config = config(root.path(), "first", json!({}));
        for fresh in [false, true] {
            let refused = Folder::take(&config, dir.root(), fresh, None).map(drop).unwrap_err();
            let said = refused.to_string();
            assert!(refused.is::<Invalid>() && said.contains("no run left it"), "{said}");
            assert!(mine.exists());
        }
        std::fs::write(dir.run_config(), "{}").unwrap();
        Folder::take(&config, dir.root(), true, None).map(drop).unwrap();
    }
}
