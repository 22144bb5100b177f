use anyhow::bail;
use ppo_crds::report::exit_code;

use super::*;
use crate::actor::fence::Superseded;
use crate::outcome::{self, OtherFormat};
use crate::run_state::Inputs;

fn state(step: u64, quality: Option<f64>) -> State {
    State {
        step,
        draws: None,
        kl_coefficient: 0.1,
        actor_updates: step,
        critic_updates: 0,
        quality,
        kl: None,
        run_config: serde_json::Value::Null,
        inputs: None,
    }
}

fn write(folder: &Path) -> anyhow::Result<Files> {
    fs::create_dir(folder.join("policy"))?;
    fs::write(folder.join("policy/weights"), b"weights")?;
    fs::write(folder.join("optimizer"), b"moments")?;
    Ok(Files::default())
}

fn steps(checkpoints: &Checkpoints) -> Vec<u64> {
    checkpoints.list().unwrap().into_keys().collect()
}

#[test]
fn the_newest_and_the_best_stay_and_the_rest_goes() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().join("checkpoints"), 2, true).unwrap();
    for (step, quality) in [(1, 0.1), (2, 0.9), (3, f64::NAN), (4, 0.3), (5, 0.2)] {
        checkpoints.save(state(step, Some(quality)), write).unwrap();
    }
    assert_eq!(steps(&checkpoints), [2, 4, 5]);
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state, state(5, Some(0.2)));
}

#[test]
fn a_save_that_fails_or_is_killed_leaves_the_old_checkpoint_usable() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    checkpoints.save(state(1, None), write).unwrap();
    let failed = checkpoints.save(state(2, None), |folder| {
        write(folder)?;
        bail!("disk full")
    });
    assert!(format!("{:#}", failed.unwrap_err()).contains("disk full"));
    let left = folder.path().join(".writing-step-00000002-1");
    assert!(!left.exists(), "the disk has its room again");
    // Of one that is killed it stays.
    fs::create_dir(&left).unwrap();
    write(&left).unwrap();
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.step, 1);
    checkpoints.save(state(3, None), write).unwrap();
    assert!(!left.exists());
}

#[test]
fn an_old_checkpoint_that_cannot_be_deleted_counts_for_none_and_ends_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, false).unwrap();
    // As a folder it cannot be deleted, whoever tries.
    fs::write(folder.path().join("step-00000001"), b"no folder").unwrap();
    for step in [2, 3] {
        checkpoints.save(state(step, None), write).unwrap();
        assert_eq!(steps(&checkpoints), [step]);
    }
    let left = folder.path().join(".deleting-step-00000001-1");
    assert!(left.exists());
    assert!(!folder.path().join(".deleting-step-00000002-1").exists());
    fs::remove_file(&left).unwrap();
    fs::create_dir(&left).unwrap();
    checkpoints.save(state(4, None), write).unwrap();
    assert!(!left.exists(), "it is tried again");
}

#[test]
fn what_was_left_half_written_makes_room_before_the_next_checkpoint_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let left = folder.path().join(".writing-step-00000002-1");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("optimizer"), b"mom").unwrap();
    let look = |folder: &Path| {
        assert!(!left.exists());
        write(folder)
    };
    checkpoints.save(state(3, None), look).unwrap();
    assert_eq!(steps(&checkpoints), [3]);
}

#[test]
fn a_damaged_checkpoint_of_a_later_step_does_not_push_out_the_one_just_made() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, false).unwrap();
    let newest = checkpoints.save(state(5, None), write).unwrap();
    fs::write(newest.join("optimizer"), b"momentz").unwrap();
    checkpoints.save(state(3, None), write).unwrap();
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.step, 3);
    checkpoints.save(state(5, None), write).unwrap();
    assert_eq!(steps(&checkpoints), [5]);
}

#[test]
fn a_checkpoint_that_is_evaluated_later_may_become_the_best() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    checkpoints.save(state(1, Some(0.2)), write).unwrap();
    checkpoints.save(state(2, None), write).unwrap();
    checkpoints.judge(2, 0.7, |_| ()).unwrap();
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state, state(2, Some(0.7)));
    checkpoints.save(state(3, Some(0.1)), write).unwrap();
    assert_eq!(steps(&checkpoints), [2, 3]);
    assert!(checkpoints.judge(4, 0.7, |_| ()).is_err(), "there is none");
}

#[test]
fn the_newest_policy_within_the_limit_stays_and_those_beyond_it_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let open = |most_kl: f64| {
        let checkpoints = Checkpoints::open(folder.path().into(), 1, false).unwrap();
        checkpoints.good_up_to(Some(most_kl))
    };
    let checkpoints = open(0.5);
    for (step, kl) in [(1, 0.1), (2, 0.4), (3, 0.6)] {
        checkpoints.save(state(step, None), write).unwrap();
        checkpoints.measured(step, kl).unwrap();
    }
    assert_eq!(steps(&checkpoints), [2, 3]);
    let mut told = Vec::new();
    let mut goes_on_from = |most_kl: f64| {
        let latest = open(most_kl).latest(|note| told.push(note.to_owned()));
        latest.map(|found| found.unwrap().state.step)
    };
    assert_eq!(goes_on_from(0.5).unwrap(), 2);
    assert_eq!(goes_on_from(0.7).unwrap(), 3);
    let none = goes_on_from(0.3).unwrap_err().to_string();
    assert!(none.contains("no usable checkpoint is left"), "{none}");
    assert_eq!(told.len(), 3);
    assert!(
        told[0].contains("step-00000003 is passed over")
            && told[0].contains("is 0.600, above algorithm.kl.stopAbove = 0.5"),
        "{told:?}"
    );
    // What is not measured yet is no reason to let the last good one go.
    checkpoints.save(state(4, None), write).unwrap();
    assert_eq!(steps(&checkpoints), [2, 4]);
    assert_eq!(open(0.5).latest(|_| ()).unwrap().unwrap().state.step, 4);
}

#[test]
fn a_policy_beyond_the_limit_is_not_the_best_and_pushes_out_none_that_is_within_it() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    let checkpoints = checkpoints.good_up_to(Some(0.5));
    for (step, quality, kl) in [(1, 0.8, 0.1), (2, 0.3, 0.2), (3, 0.9, 0.6)] {
        // How far a policy is from the reference is known a step later.
        checkpoints.save(state(step, Some(quality)), write).unwrap();
        assert!(steps(&checkpoints).contains(&1), "step {step}");
        checkpoints.measured(step, kl).unwrap();
    }
    assert_eq!(steps(&checkpoints), [1, 2, 3]);
    // What the run's last words name.
    assert_eq!(checkpoints.newest_good(3), Some(2));
    checkpoints.save(state(4, Some(0.4)), write).unwrap();
    assert_eq!(steps(&checkpoints), [1, 2, 4]);
}

#[test]
fn one_whose_samples_are_still_drawn_stays_when_another_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    checkpoints.save(state(1, None), write).unwrap();
    checkpoints.awaits(Some(1));
    checkpoints.save(state(2, None), write).unwrap();
    // The run is broken off, and goes on from the second.
    let mut checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    checkpoints.awaits(Some(1));
    checkpoints.measured(2, 0.1).unwrap();
    assert_eq!(steps(&checkpoints), [1, 2]);
    checkpoints.judge(1, 0.1, |_| ()).unwrap();
    checkpoints.awaits(None);
    checkpoints.judge(2, 0.2, |_| ()).unwrap();
    assert_eq!(steps(&checkpoints), [2]);
}

#[test]
fn a_damaged_checkpoint_is_not_judged_and_ends_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    let damaged = checkpoints.save(state(1, None), write).unwrap();
    fs::write(damaged.join("manifest.json"), b"{").unwrap();
    checkpoints.judge(1, 0.9, |_| ()).unwrap();
    checkpoints.save(state(2, Some(0.1)), write).unwrap();
    assert_eq!(steps(&checkpoints), [2]);
}

#[test]
fn a_checkpoint_under_the_name_of_another_step_is_passed_over_with_the_name_that_it_should_have() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let first = checkpoints.save(state(1, None), write).unwrap();
    checkpoints.save(state(2, None), write).unwrap();
    fs::rename(&first, folder.path().join("step-00000005")).unwrap();
    let mut notes = Vec::new();
    let found = checkpoints.latest(|note| notes.push(note.to_owned())).unwrap().unwrap();
    assert_eq!(found.state.step, 2);
    let words = "it holds step-00000001, not step-00000005: name its folder step-00000001";
    assert!(notes[0].ends_with(words), "{notes:?}");
}

#[test]
fn the_best_is_the_best_of_those_that_were_asked_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    let save_of = |held_out: &str, step, quality, every_steps: u64, prompts: u64| {
        let evaluation = serde_json::json!({
            "path": "/held-out.jsonl", "everySteps": every_steps, "maxPrompts": prompts, "temperature": 0.0, "passScore": 1.0,
        });
        let run_config = serde_json::json!({"evaluation": evaluation});
        let inputs = Some(Inputs {
            held_out: Some(held_out.to_owned()),
            ..Inputs::default()
        });
        let state = State {
            run_config,
            inputs,
            ..state(step, quality)
        };
        checkpoints.save(state, write).unwrap();
        steps(&checkpoints)
    };
    let save = |step, quality, every_steps, prompts| save_of("1", step, quality, every_steps, prompts);
    save(1, Some(0.9), 1, 10);
    // How often they are asked is no other question.
    assert_eq!(save(2, Some(0.5), 2, 10), [1, 2]);
    // Nothing is known of other questions yet.
    assert_eq!(save(3, None, 2, 20), [1, 3]);
    assert_eq!(save(4, Some(0.3), 2, 20), [4]);
    assert_eq!(save(5, Some(0.2), 2, 20), [4, 5]);
    // The same file, with other prompts in it.
    assert_eq!(save_of("2", 6, Some(0.15), 2, 20), [6]);
    assert_eq!(save_of("2", 7, Some(0.1), 2, 20), [6, 7]);
    // Without held-out prompts the samples of a step say how good a checkpoint is.
    checkpoints.save(state(8, Some(0.1)), write).unwrap();
    assert_eq!(steps(&checkpoints), [8]);
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    checkpoints.save(state(1, None), write).unwrap();
    let newest = checkpoints.save(state(2, None), write).unwrap();
    fs::write(newest.join("policy/weights"), b"weightz").unwrap();
    let mut notes = Vec::new();
    let found = checkpoints.latest(|note| notes.push(note.to_owned())).unwrap().unwrap();
    assert_eq!(found.state.step, 1);
    assert!(notes[0].contains("policy/weights was changed"), "{notes:?}");

    fs::remove_file(found.folder.join("optimizer")).unwrap();
    let error = checkpoints.latest(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("optimizer cannot be read") && error.contains("no usable checkpoint"),
        "{error}"
    );
}

#[test]
fn a_stale_attempt_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let attempt = |attempt| Owner {
        run: "a".into(),
        attempt,
    };
    let open = || Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let stale = open().fenced(attempt(1)).unwrap();
    stale.save(state(1, None), write).unwrap();
    let overtaken = stale.save(state(2, None), |folder| {
        open().fenced(attempt(2))?;
        write(folder)
    });
    assert!(overtaken.unwrap_err().to_string().contains("has taken over"));
    assert_eq!(stale.latest(|_| ()).unwrap().unwrap().state.step, 1);
}

/// An attempt that is held up right behind a look at the fence, and a newer one that has begun and committed step 3 meanwhile.
fn overtaken(folder: &Path) -> (Checkpoints, Checkpoints) {
    let attempt = |attempt| {
        let run = "a".into();
        let open = Checkpoints::open(folder.into(), 3, false).unwrap();
        open.fenced(Owner { run, attempt }).unwrap()
    };
    let (stale, newer) = (attempt(1), attempt(2));
    newer.save(state(3, Some(0.5)), write).unwrap();
    (stale, newer)
}

#[test]
fn a_stale_attempt_puts_a_checkpoint_of_the_newer_one_back_that_it_was_about_to_delete() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, newer) = overtaken(folder.path());
    let discarded = stale.discard(3, &folder.path().join(folder_name(3)));
    assert!(discarded.unwrap_err().is::<Superseded>());
    assert_eq!(newer.latest(|_| ()).unwrap().unwrap().state, state(3, Some(0.5)));
    assert!(newer.hidden(DELETING).unwrap().is_empty());
}

#[test]
fn nor_does_it_write_over_it_or_sweep_what_the_newer_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (stale, newer) = overtaken(folder.path());
    let own = folder.path().join(".writing-step-00000003-a-1");
    let put = |own: &Path| stale.put(own, &folder.path().join(folder_name(3))).unwrap_err();
    assert!(put(&own).is::<Superseded>(), "it was swept");
    fs::create_dir(&own).unwrap();
    assert!(put(&own).is::<Superseded>(), "there is one");
    assert!(stale.sweep().unwrap_err().is::<Superseded>());
    assert!(own.exists());
    assert_eq!(newer.latest(|_| ()).unwrap().unwrap().state, state(3, Some(0.5)));
}

#[test]
fn what_an_earlier_job_of_the_folder_still_writes_is_in_no_checkpoint_of_the_next_and_it_hears_why() {
    let folder = tempfile::tempdir().unwrap();
    let job = |run: &str| {
        let run = run.to_owned();
        let open = Checkpoints::open(folder.path().into(), 3, false).unwrap();
        open.fenced(Owner { run, attempt: 1 }).unwrap()
    };
    let overtaken = job("a").save(state(1, None), |own| {
        job("b").save(state(1, None), |next| {
            fs::create_dir_all(own)?;
            fs::write(own.join("of the earlier job"), b"")?;
            write(next)
        })?;
        write(own)
    });
    let overtaken = overtaken.unwrap_err();
    assert!(overtaken.is::<Superseded>(), "{overtaken:#}");
    let whole = job("b").latest(|_| ()).unwrap().unwrap().folder;
    assert!(!whole.join("of the earlier job").exists());
}

#[test]
fn saving_a_step_again_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    checkpoints.save(state(1, None), write).unwrap();
    checkpoints.save(state(1, Some(1.0)), write).unwrap();
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.quality, Some(1.0));
}

#[test]
fn a_damaged_checkpoint_counts_neither_as_kept_nor_as_the_best_and_its_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, true).unwrap();
    checkpoints.save(state(1, Some(0.5)), write).unwrap();
    checkpoints.save(state(2, Some(0.4)), write).unwrap();
    let damaged = checkpoints.save(state(3, Some(0.9)), write).unwrap();
    fs::write(damaged.join("optimizer"), b"momentz").unwrap();
    let mut notes = Vec::new();
    let found = checkpoints.latest(|note| notes.push(note.to_owned())).unwrap().unwrap();
    assert_eq!(found.state.step, 2);
    assert_eq!(steps(&checkpoints), [1, 2]);
    let aside = folder.path().join(".damaged-step-00000003-1");
    assert!(notes[1].contains(&aside.display().to_string()), "{notes:?}");
    for step in [4, 5, 6] {
        checkpoints.save(state(step, Some(0.1)), write).unwrap();
    }
    assert_eq!(steps(&checkpoints), [1, 4, 5, 6]);
    assert_eq!(fs::read(aside.join("optimizer")).unwrap(), b"momentz");
    checkpoints.clear().unwrap();
    assert!(!aside.exists());
}

#[test]
fn where_no_checkpoint_is_intact_they_stay_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 2, true).unwrap();
    let only = checkpoints.save(state(1, None), write).unwrap();
    fs::remove_file(only.join("optimizer")).unwrap();
    assert!(checkpoints.latest(|_| ()).is_err());
    assert_eq!(steps(&checkpoints), [1]);
}

#[test]
fn a_checkpoint_whose_samples_are_still_drawn_stays_until_they_are_scored() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    for (step, quality) in [(1_u64, 0.2), (2, 0.7), (3, 0.3)] {
        checkpoints.awaits(step.checked_sub(1));
        checkpoints.save(state(step, None), write).unwrap();
        if let Some(drawer) = step.checked_sub(1).filter(|drawer| checkpoints.has(*drawer)) {
            assert_eq!(steps(&checkpoints).last_chunk(), Some(&[drawer, step]));
            checkpoints.judge(drawer, quality, |_| ()).unwrap();
        }
    }
    // Step 1 got 0.7 and step 2 0.3, which nobody waits for any longer.
    assert_eq!(steps(&checkpoints), [1, 3]);
}

#[test]
fn a_file_that_cannot_be_read_is_no_damage_and_neither_is_another_format() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    checkpoints.save(state(1, None), write).unwrap();
    let newest = checkpoints.save(state(2, None), write).unwrap();
    let optimizer = newest.join("optimizer");
    fs::remove_file(&optimizer).unwrap();
    // A link to itself: what the system says to it is neither that the file is missing nor that it is short.
    std::os::unix::fs::symlink(&optimizer, &optimizer).unwrap();
    let error = checkpoints.latest(|_| ()).unwrap_err();
    assert!(error.to_string().contains("cannot read the checkpoint"), "{error:#}");
    assert_eq!(steps(&checkpoints), [1, 2]);

    fs::write(newest.join("manifest.json"), r#"{"format": 3, "parts": []}"#).unwrap();
    let error = checkpoints.latest(|_| ()).unwrap_err();
    assert!(error.is::<OtherFormat>(), "{error:#}");
    assert_eq!(outcome::code(&error), exit_code::BAD_CONFIGURATION);
    assert_eq!(steps(&checkpoints), [1, 2]);
    // Who only asks what was saved last passes over it.
    assert_eq!(checkpoints.newest().unwrap().unwrap().1.step, 1);
}

#[test]
fn a_checkpoint_whose_quality_cannot_be_read_at_the_moment_may_be_the_best_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    let unread = checkpoints
        .save(state(1, Some(0.9)), write)
        .unwrap()
        .join("manifest.json");
    let kept = fs::read(&unread).unwrap();
    fs::remove_file(&unread).unwrap();
    std::os::unix::fs::symlink(&unread, &unread).unwrap();
    for (step, quality) in [(2, 0.3), (3, 0.4), (4, 0.1)] {
        checkpoints.save(state(step, Some(quality)), write).unwrap();
    }
    assert_eq!(steps(&checkpoints), [1, 3, 4]);

    fs::remove_file(&unread).unwrap();
    fs::write(&unread, kept).unwrap();
    checkpoints.save(state(5, Some(0.2)), write).unwrap();
    assert_eq!(steps(&checkpoints), [1, 5]);
}

#[test]
fn what_another_rank_has_hashed_is_not_hashed_again_but_has_to_be_there() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let hashed = |folder: &Path| Files::of(folder, &[folder.join("optimizer")], || ());
    let saved = checkpoints.save(state(1, None), |folder| {
        write(folder)?;
        let files = hashed(folder)?;
        // As long, and not what was hashed: that it is found shows whose hash the manifest has.
        fs::write(folder.join("optimizer"), b"momentz")?;
        Ok(files)
    });
    assert!(
        checkpoints
            .latest(|_| ())
            .unwrap_err()
            .to_string()
            .contains("optimizer was changed")
    );
    fs::write(saved.unwrap().join("optimizer"), b"moments").unwrap();
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.step, 1);

    let lost = checkpoints.save(state(2, None), |folder| {
        write(folder)?;
        let files = hashed(folder)?;
        fs::remove_file(folder.join("optimizer"))?;
        Ok(files)
    });
    assert!(format!("{:#}", lost.unwrap_err()).contains("lacks [\"optimizer\"]"));
}

#[test]
fn a_checkpoint_of_a_version_before_says_nothing_of_inputs_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let saved = checkpoints.save(state(1, None), write).unwrap();
    assert!(
        !fs::read_to_string(saved.join("manifest.json"))
            .unwrap()
            .contains("inputs")
    );
    assert_eq!(checkpoints.latest(|_| ()).unwrap().unwrap().state.inputs, None);
}

#[test]
fn every_file_is_in_one_ranks_share_and_what_others_found_as_it_was_written_is_not_hashed_again() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 3, false).unwrap();
    let saved = checkpoints.save(state(1, None), write).unwrap();
    let share = |rank: usize| hash_share(&saved, (rank, 3), || ());
    let names: Vec<String> = (0..3).flat_map(|rank| share(rank).0.into_keys()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let found = || {
        let mut all = share(0);
        (1..3).for_each(|rank| all.extend(share(rank)));
        all
    };
    let intact = found();
    let optimizer = saved.join("optimizer");
    fs::write(&optimizer, b"momentz").unwrap();
    let latest = |found: &Files| checkpoints.latest_by(|_| Ok(found.clone()), |_| ());
    assert_eq!(latest(&intact).unwrap().unwrap().state.step, 1);
    let changed = found();
    let error = latest(&changed).unwrap_err().to_string();
    assert!(error.contains("optimizer was changed"), "{error}");
    // This process sees it whole: that another one does not is no damage.
    fs::write(&optimizer, b"moments").unwrap();
    assert_eq!(latest(&changed).unwrap().unwrap().state.step, 1);
    assert_eq!(
        hash_share(&folder.path().join("elsewhere"), (0, 1), || ()),
        Files::default()
    );
}

#[test]
fn one_that_was_passed_over_is_not_let_in_by_what_is_known_of_other_weights_under_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoints = Checkpoints::open(folder.path().into(), 1, true).unwrap();
    let checkpoints = checkpoints.good_up_to(Some(0.5));
    for (step, kl) in [(5, 0.1), (7, 0.6)] {
        checkpoints.save(state(step, None), write).unwrap();
        checkpoints.measured(step, kl).unwrap();
    }
    let goes_on_from = || checkpoints.latest(|_| ()).unwrap().unwrap().state.step;
    assert_eq!(goes_on_from(), 5);
    // It has, and saves every fifth step: what it finds out in step 8 is of weights of its own.
    checkpoints.measured(7, 0.2).unwrap();
    checkpoints.judge(7, 0.9, |_| ()).unwrap();
    assert_eq!((steps(&checkpoints), goes_on_from()), (vec![5, 7], 5));
    checkpoints.save(state(10, Some(0.3)), write).unwrap();
    assert_eq!(steps(&checkpoints), [5, 10]);
}

#[test]
fn what_is_judged_later_says_by_what_and_what_was_judged_stays_so() {
    let asked = |prompts: u64| {
        serde_json::json!({"evaluation": {
            "path": "/held-out.jsonl", "everySteps": 2, "maxPrompts": prompts, "temperature": 0.0, "passScore": 1.0,
        }})
    };
    let of = |step, quality, prompts| State {
        run_config: asked(prompts),
        ..state(step, quality)
    };
    let by_others = |state: &mut State| state.run_config = asked(20);
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| Checkpoints::open(folder.path().join(name), 1, true).unwrap();

    let checkpoints = open("later");
    checkpoints.save(of(1, Some(0.3), 10), write).unwrap();
    checkpoints.save(of(2, None, 10), write).unwrap();
    checkpoints.judge(2, 0.9, by_others).unwrap();
    checkpoints.save(of(3, Some(0.7), 20), write).unwrap();
    assert_eq!(
        steps(&checkpoints),
        [2, 3],
        "the best of those that were asked the same"
    );

    let checkpoints = open("before");
    checkpoints.save(of(1, Some(0.8), 10), write).unwrap();
    checkpoints.save(of(2, Some(0.3), 10), write).unwrap();
    checkpoints.judge(2, 0.9, by_others).unwrap();
    assert_eq!(steps(&checkpoints), [1, 2]);
}
