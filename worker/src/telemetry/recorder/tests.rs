use std::collections::BTreeSet;
use std::time::Duration;

use ppo_crds::run_config::*;
use ppo_crds::spec::*;

use super::*;
use crate::telemetry::tensorboard::tests::read_scalars;
use crate::telemetry::{Metric, Stage, read_lines};

fn config(profile: Profile) -> RunConfig {
    let path = std::path::PathBuf::from("policy");
    RunConfig {
        name: "addition".into(),
        seed: 1,
        length: RunLength::Steps(9),
        model: Model {
            policy: Location::Path(path.clone()),
            critic: None,
            reference: None,
            adapter: None,
            dtype: DType::default(),
            reference_dtype: None,
            activation_checkpointing: false,
        },
        prompts: Prompts {
            path: path.into(),
            prompt_field: "prompt".into(),
            label_field: None,
            chat_template: false,
            chat_template_variables: Default::default(),
            max_length: 64,
            shuffle: true,
        },
        evaluation: None,
        generation: GenerationSpec::default(),
        algorithm: Algorithm {
            profile,
            estimator: Estimator::default(),
            gamma: 1.0,
            lambda: 0.95,
            whiten: true,
            deviation: Deviation::default(),
            kl: Kl {
                coef: 0.0,
                estimator: KlEstimator::default(),
                placement: KlPlacement::default(),
                controller: KlController::Fixed,
                clamp: None,
                stop_above: None,
            },
            clip: Clip {
                policy_low: 0.2,
                policy_high: 0.2,
                dual: None,
                value: None,
            },
            ratio: Ratio::default(),
            surrogate: Surrogate::default(),
            score: Score {
                clip: None,
                scale: 1.0,
                missing_eos_penalty: None,
                whiten_rewards: false,
            },
            value_coef: 0.5,
            entropy_coef: 0.0,
            aggregation: Aggregation::default(),
            mask_truncated: false,
            truncated_importance_sampling: None,
            rollout_correction: None,
        },
        batch: Batch {
            rollout_batch_size: 4,
            n_samples_per_prompt: 1,
            micro_rollout_batch_size: 4,
            train_batch_size: 4,
            micro_train_batch_size: 4,
            ppo_epochs: 1,
            max_draws: None,
        },
        optimizer: OptimizerSpec::default(),
        overlap: Overlap::default(),
        rollout: Rollout {
            engine: Engine::default(),
            replicas: 1,
            min_replicas: 1,
            block_size: 16,
            max_batch_tokens: 1024,
            max_sequences: 8,
            kv_cache_mebibytes: None,
            dtype: None,
        },
        reward: Reward {
            model: None,
            rules: Vec::new(),
            remote: None,
        },
        checkpoint: Checkpoint {
            path: None,
            every_steps: 1,
            keep: 1,
            keep_best: false,
        },
        telemetry: TelemetrySpec {
            samples_every_steps: 4,
            samples: 2,
            tensorboard: true,
        },
    }
}

fn open(folder: &Path, profile: Profile, completed_steps: u64) -> Recorder {
    Recorder::open(
        folder,
        &config(profile),
        Watched::new("run", 1).unwrap(),
        9,
        completed_steps,
        OutputMode::Quiet,
    )
    .unwrap()
}

/// A report in which every metric and every stage has a value of its own.
fn full(step: u64) -> StepReport {
    let mut report = StepReport {
        step,
        total_steps: 9,
        episode: 1,
        policy_version: step,
        samples: 4,
        ..StepReport::default()
    };
    for (index, metric) in Metric::ALL.iter().enumerate() {
        if report.get(*metric).is_none() {
            report.set(*metric, 1.0 + index as f64 / 64.0);
        }
    }
    report.stages = Stage::ALL
        .iter()
        .map(|stage| (*stage, Duration::from_millis(250)))
        .collect();
    report.wall = Duration::from_secs(3);
    report.extra.insert("reward/exact".into(), 0.5);
    report
}

#[test]
fn every_metric_and_stage_reaches_every_sink() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    let report = full(1);
    recorder.step(&report).unwrap();
    let prometheus = recorder.watched().exposition.text().unwrap();
    let jsonl = std::fs::read_to_string(recorder.dir().metrics()).unwrap();
    let tensorboard: BTreeSet<String> = read_scalars(&recorder.dir().tensorboard())
        .into_iter()
        .map(|(_, tag, _)| tag)
        .collect();
    for metric in Metric::ALL {
        let name = metric.prometheus_name();
        assert!(
            prometheus.contains(&format!("# HELP {name} {}", metric.help())),
            "{name} not in /metrics"
        );
        assert!(
            jsonl.contains(&format!("\"{}\":", metric.name())),
            "{} not in metrics.jsonl",
            metric.name()
        );
        assert!(
            tensorboard.contains(&format!("ppo/{}", metric.name())),
            "{} not in TensorBoard",
            metric.name()
        );
    }
    for stage in Stage::ALL.map(Stage::name) {
        assert!(prometheus.contains(&format!("ppo_stage_seconds_sum{{stage=\"{stage}\"}} 0.25")));
        assert!(tensorboard.contains(&format!("stage_seconds/{stage}")));
    }
    assert_eq!(
        read_lines::<StepReport>(&recorder.dir().metrics()).unwrap().records,
        [report]
    );
}

#[test]
fn without_tensorboard_nothing_is_written_for_it_and_the_rest_as_ever() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(Profile::Default);
    config.telemetry.tensorboard = false;
    let watched = Watched::new("run", 1).unwrap();
    let mut recorder = Recorder::open(folder.path(), &config, watched, 9, 0, OutputMode::Quiet).unwrap();
    recorder.step(&full(1)).unwrap();
    recorder.evaluation(&evaluation_of(&["AIME24"])).unwrap();
    recorder.settle().unwrap();
    assert!(!recorder.dir().tensorboard().exists());
    let steps = read_lines::<StepReport>(&recorder.dir().metrics()).unwrap().records;
    assert_eq!(steps, [full(1)]);
}

#[test]
fn a_profile_adds_the_tags_its_framework_has() {
    let cases = [
        (
            Profile::Verl,
            [
                "actor/pg_loss",
                "critic/score/mean",
                "timing_s/gen",
                "response_length/clip_ratio",
            ],
        ),
        (Profile::Trl, ["objective/kl", "policy/approxkl_avg", "val/ratio", "lr"]),
        (
            Profile::Alpacafarm,
            [
                "ppo/loss/policy",
                "ppo/loss/value",
                "ppo/policy/approxkl",
                "objective/kl_sum_seq",
            ],
        ),
        (
            Profile::Openrlhf,
            [
                "train/policy_loss",
                "train/reward",
                "train/actor_lr",
                "train/response_length",
            ],
        ),
    ];
    for (profile, tags) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = open(folder.path(), profile, 0);
        recorder.step(&full(1)).unwrap();
        let written: BTreeSet<String> = read_scalars(&recorder.dir().tensorboard())
            .into_iter()
            .map(|(_, tag, _)| tag)
            .collect();
        for tag in tags {
            assert!(written.contains(tag), "{tag} missing under {profile:?}");
        }
        assert!(written.contains("ppo/reward"), "our own names stay");
    }
}

#[test]
fn a_resumed_run_has_one_line_per_step_in_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let evaluation = |step| EvaluationReport {
        step,
        prompts: 4,
        n_samples_per_prompt: 1,
        score: 0.5,
        pass_rate: 0.5,
        pass_at_n: None,
        response_length: 3.0,
        seconds: 0.1,
        sets: BTreeMap::new(),
    };
    let play = |recorder: &mut Recorder, steps: std::ops::RangeInclusive<u64>| {
        for step in steps {
            recorder.step(&full(step)).unwrap();
            recorder.evaluation(&evaluation(step)).unwrap();
            recorder.samples(step, &[SampleRecord::default()]).unwrap();
        }
    };
    let mut killed = open(folder.path(), Profile::Default, 0);
    play(&mut killed, 1..=6);
    killed.event("stopped", "killed in the middle of a step").unwrap();
    drop(killed);
    let mut resumed = open(folder.path(), Profile::Default, 4);
    resumed.event("resumed", "from the checkpoint of step 4").unwrap();
    let (live, shown) = (
        resumed.watched().live.report(),
        resumed.watched().exposition.text().unwrap(),
    );
    assert_eq!(
        live.progress.evaluation_score,
        Some(0.5),
        "of step 4: it is still the last one"
    );
    assert!(shown.contains("\nppo_evaluation_score 0.5\n"), "{shown}");
    play(&mut resumed, 5..=9);
    for file in [
        resumed.dir().metrics(),
        resumed.dir().evaluation(),
        resumed.dir().samples(),
    ] {
        let steps: Vec<u64> = read_lines::<serde_json::Value>(&file)
            .unwrap()
            .records
            .iter()
            .map(|line| line["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, (1..=9).collect::<Vec<_>>(), "{}", file.display());
    }
    let events = read_lines::<EventRecord>(&resumed.dir().events()).unwrap().records;
    assert_eq!(
        events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(),
        ["stopped", "resumed"]
    );
}

#[test]
fn an_evaluation_is_written_with_pass_at_n_where_a_prompt_has_several_samples_and_else_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    let one = EvaluationReport {
        step: 0,
        prompts: 4,
        n_samples_per_prompt: 1,
        score: 0.5,
        pass_rate: 0.25,
        pass_at_n: None,
        response_length: 3.0,
        seconds: 0.5,
        sets: BTreeMap::new(),
    };
    let eight = EvaluationReport {
        step: 1,
        n_samples_per_prompt: 8,
        pass_at_n: Some(0.75),
        ..one.clone()
    };
    let shown = |recorder: &Recorder| {
        let text = recorder.watched().exposition.text().unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("ppo_evaluation_pass_at_n_ratio "));
        line.map(str::to_owned)
    };
    recorder.evaluation(&one).unwrap();
    assert_eq!(shown(&recorder), None);
    recorder.evaluation(&eight).unwrap();
    assert_eq!(shown(&recorder).unwrap(), "ppo_evaluation_pass_at_n_ratio 0.75");
    let file = recorder.dir().evaluation();
    let text = std::fs::read_to_string(&file).unwrap();
    let before = "{\"step\":0,\"prompts\":4,\"score\":0.5,\"pass_rate\":0.25,\"response_length\":3.0,\"seconds\":0.5}";
    assert_eq!(text.lines().next().unwrap(), before);
    assert_eq!(read_lines::<EvaluationReport>(&file).unwrap().records, [one, eight]);
    let scalars = read_scalars(&recorder.dir().tensorboard());
    let of_n = scalars.iter().filter(|(_, tag, _)| tag == "ppo/evaluation_pass_at_n");
    assert_eq!(of_n.map(|(step, ..)| *step).collect::<Vec<_>>(), [1]);
}

/// Of 8 samples a prompt, with a set for each name.
fn evaluation_of(sets: &[&str]) -> EvaluationReport {
    let of_set = SetReport {
        prompts: 2,
        score: 0.5,
        pass_rate: 0.25,
        pass_at_n: Some(0.75),
        response_length: 3.0,
    };
    EvaluationReport {
        step: 1,
        prompts: 4,
        n_samples_per_prompt: 8,
        score: 0.5,
        pass_rate: 0.25,
        pass_at_n: Some(0.75),
        response_length: 3.0,
        seconds: 0.5,
        sets: sets.iter().map(|name| ((*name).to_owned(), of_set.clone())).collect(),
    }
}

#[test]
fn the_figures_of_each_test_set_are_written_by_its_name_and_without_sets_there_is_no_word_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    let reports = [evaluation_of(&[]), evaluation_of(&["AIME24", "GSM8K"])];
    for report in &reports {
        recorder.evaluation(report).unwrap();
    }
    let file = recorder.dir().evaluation();
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(!lines[0].contains("sets"), "{text}");
    let of_set = r#""AIME24":{"prompts":2,"score":0.5,"pass_rate":0.25,"pass_at_n":0.75,"response_length":3.0}"#;
    assert!(lines[1].contains(&format!("\"sets\":{{{of_set},\"GSM8K\":")), "{text}");
    assert_eq!(read_lines::<EvaluationReport>(&file).unwrap().records, reports);
}

#[test]
fn a_test_set_has_tags_of_its_own_and_the_one_that_the_profiles_framework_gives_its_mean_score() {
    let cases = [
        (Profile::Default, None),
        (Profile::Verl, Some("val-core/AIME24/reward/mean@8")),
        (Profile::Openrlhf, Some("eval/eval_AIME24_pass1")),
        (Profile::Trl, None),
    ];
    for (profile, theirs) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = open(folder.path(), profile, 0);
        recorder.evaluation(&evaluation_of(&["AIME24"])).unwrap();
        let scalars = read_scalars(&recorder.dir().tensorboard());
        let of_set = scalars.iter().filter(|(_, tag, _)| tag.contains("AIME24"));
        let of_set: BTreeMap<&str, f32> = of_set.map(|(_, tag, value)| (tag.as_str(), *value)).collect();
        let ours = [
            ("ppo/evaluation_score/AIME24", 0.5),
            ("ppo/evaluation_pass_rate/AIME24", 0.25),
            ("ppo/evaluation_pass_at_n/AIME24", 0.75),
            ("ppo/evaluation_response_length/AIME24", 3.0),
        ];
        let wanted: BTreeMap<&str, f32> = ours.into_iter().chain(theirs.map(|tag| (tag, 0.5))).collect();
        assert_eq!(of_set, wanted, "{profile:?}");
        assert!(scalars.iter().any(|(_, tag, _)| tag == "ppo/evaluation_score"));
    }
}

#[test]
fn an_end_tells_how_long_what_came_after_the_last_step_took() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    let seconds = Duration::from_secs;
    // A step that was broken off has no report, and all of it is made anew.
    let stages = [
        (Stage::Checkpoint, seconds(2)),
        (Stage::Evaluate, seconds(1)),
        (Stage::Generate, seconds(5)),
    ];
    recorder.ended("stopped", "after step 3", &stages).unwrap();
    recorder.event("changed", "nothing took time").unwrap();
    let events = read_lines::<serde_json::Value>(&recorder.dir().events())
        .unwrap()
        .records;
    assert_eq!(
        events[0]["stages"],
        serde_json::json!({"checkpoint": 2.0, "evaluate": 1.0})
    );
    assert!(events[1].get("stages").is_none());
}

#[test]
fn a_resumed_run_shows_how_far_it_is_before_its_next_step_ends() {
    let folder = tempfile::tempdir().unwrap();
    let resumed = open(folder.path(), Profile::Default, 4);
    let prometheus = resumed.watched().exposition.text().unwrap();
    for line in ["ppo_step 4", "ppo_total_steps 9"] {
        assert!(
            prometheus.lines().any(|found| found == line),
            "{line} not in\n{prometheus}"
        );
    }
}

#[test]
fn the_report_says_how_long_the_steps_to_come_take() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    recorder.step(&full(1)).unwrap();
    let progress = recorder.watched().live.report().progress;
    // Eight more of three seconds.
    assert_eq!(progress.eta_seconds, Some(24));
}

#[test]
fn the_comparison_of_an_end_goes_when_the_run_goes_on_to_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let ended = open(folder.path(), Profile::Default, 9);
    ended.before_after(Some(&BeforeAfter::default())).unwrap();
    drop(ended);
    let same_end = open(folder.path(), Profile::Default, 9);
    assert!(same_end.dir().before_after().exists());
    drop(same_end);
    let later_end = open(folder.path(), Profile::Default, 8);
    assert!(!later_end.dir().before_after().exists());
}

#[test]
fn samples_are_wanted_at_the_ends_and_at_every_interval() {
    let folder = tempfile::tempdir().unwrap();
    let mut recorder = open(folder.path(), Profile::Default, 0);
    let wanted: Vec<u64> = (1..=9).filter(|step| recorder.wants_samples(*step)).collect();
    assert_eq!(wanted, [1, 4, 8, 9]);
    recorder.telemetry.samples_every_steps = 0;
    assert!((1..=9).all(|step| !recorder.wants_samples(step)));
}

#[test]
fn the_run_config_is_kept_beside_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = open(&folder.path().join("a/new/folder"), Profile::Default, 0);
    let text = std::fs::read_to_string(recorder.dir().run_config()).unwrap();
    assert_eq!(
        serde_json::from_str::<RunConfig>(&text).unwrap(),
        config(Profile::Default)
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = Recorder::open(
        &file.join("run"),
        &config(Profile::Default),
        Watched::new("run", 1).unwrap(),
        9,
        0,
        OutputMode::Quiet,
    );
    let error = format!("{:#}", refused.err().unwrap());
    assert!(error.contains("file/run"), "{error}");
}
