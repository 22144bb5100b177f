//! `ppo-worker math` as a program: what it takes, what it refuses and what it says then.

use ppo_worker::math::{self, MathArgs};
use serde_json::{Value, json};

fn answer(question: Value) -> Value {
    serde_json::from_str(&math::run(&question.to_string()).unwrap()).unwrap()
}

fn complaint(question: Value) -> String {
    format!("{:#}", math::run(&question.to_string()).unwrap_err())
}

#[test]
fn later_blocks_take_what_earlier_ones_made() {
    let chained = answer(json!({
        "shape": {"logprobs": [[-1, -2]], "refLogprobs": [[-1.5, -2]], "mask": [[1, 1]], "scores": [1], "klCoef": 0.1},
        "advantage": {"values": [[0.5, 0.25]], "whiten": false},
        "policyLoss": {"logprobs": [[-1.1, -2]]},
        "valueLoss": {"values": [[0.6, 0.25]]},
    }));
    let rewards = &chained["shape"]["rewards"];
    let apart = answer(json!({
        "advantage": {"rewards": rewards, "values": [[0.5, 0.25]], "mask": [[1, 1]], "whiten": false},
        "policyLoss": {"logprobs": [[-1.1, -2]], "oldLogprobs": [[-1, -2]], "mask": [[true, true]],
                       "advantages": chained["advantage"]["advantages"]},
        "valueLoss": {"values": [[0.6, 0.25]], "oldValues": [[0.5, 0.25]], "mask": [[1, 1]],
                      "returns": chained["advantage"]["returns"]},
    }));
    for block in ["advantage", "policyLoss", "valueLoss"] {
        assert_eq!(chained[block], apart[block], "{block}");
    }
}

#[test]
fn the_answer_has_the_blocks_of_the_question_and_no_others() {
    assert_eq!(answer(json!({})), json!({}));
    let only = answer(json!({"whiten": {"values": [[1, 3]], "mask": [[1, 1]]}}));
    assert_eq!(only.as_object().unwrap().keys().collect::<Vec<_>>(), ["whiten"]);
}

#[test]
fn groups_may_be_told_apart_by_text() {
    let estimate = |groups: Value| {
        let block = json!({"estimator": "rloo", "rewards": [[1], [2], [4], [8]], "mask": [[1], [1], [1], [1]], "groups": groups});
        answer(json!({"advantage": block}))["advantage"].clone()
    };
    assert_eq!(estimate(json!(["b", "a", "b", "a"])), estimate(json!([0, 1, 0, 1])));
    assert_ne!(
        estimate(json!(["b", "a", "b", "a"])),
        estimate(json!(["a", "a", "b", "b"]))
    );
}

#[test]
fn names_are_taken_in_the_spellings_of_the_frameworks() {
    let estimate = |name: &str| {
        let block = json!({"estimator": name, "rewards": [[1], [2]], "mask": [[1], [1]], "groups": [1, 1]});
        answer(json!({"advantage": block}))["advantage"].clone()
    };
    for (ours, theirs) in [
        ("rloo", "RLOO"),
        ("drGrpo", "dr_grpo"),
        ("drGrpo", "Dr. GRPO"),
        ("reinforcePlusPlus", "reinforce++"),
        ("reinforcePlusPlusBaseline", "REINFORCE++-baseline"),
        ("reinforcePlusPlusBaseline", "reinforce_plus_plus_baseline"),
        ("grpo", "group_norm"),
    ] {
        assert_eq!(estimate(ours), estimate(theirs), "{theirs}");
    }
    let aggregate = |name: &str| {
        let block = json!({"logprobs": [[1, 2], [1, 1]], "oldLogprobs": [[1, 1], [1, 1]], "aggregation": name,
                           "advantages": [[1, 2], [3, 4]], "mask": [[1, 1], [1, 0]]});
        answer(json!({"policyLoss": block}))["policyLoss"].clone()
    };
    for (ours, theirs) in [
        ("tokenMean", "token-mean"),
        ("sequenceMeanTokenMean", "seq-mean-token-mean"),
        ("sequenceMeanTokenSumNorm", "seq_mean_token_sum_norm"),
        ("tokenSum", "token-sum"),
    ] {
        assert_eq!(aggregate(ours), aggregate(theirs), "{theirs}");
    }
    let ratio = |name: &str| {
        let block = json!({"logprobs": [[1, 2]], "oldLogprobs": [[1, 1]], "advantages": [[1, 2]], "mask": [[1, 1]], "ratio": name});
        answer(json!({"policyLoss": block}))["policyLoss"].clone()
    };
    assert_eq!(ratio("sequence"), ratio("GSPO"));
    assert_eq!(ratio("token"), ratio("vanilla"));
    let surrogate = |name: &str| {
        let block = json!({"logprobs": [[1, 2]], "oldLogprobs": [[1, 1]], "advantages": [[1, 2]], "mask": [[1, 1]], "surrogate": name});
        answer(json!({"policyLoss": block}))["policyLoss"].clone()
    };
    assert_eq!(surrogate("cispo"), surrogate("CISPO"));
    assert_eq!(surrogate("clipped"), surrogate("vanilla"));
    assert_ne!(surrogate("clipped"), surrogate("cispo"));
    let kl = |name: &str| {
        let block = json!({"logprobs": [[-1, -2, -3]], "refLogprobs": [[-2, -1.5, -3.5]], "estimator": name});
        answer(json!({"kl": block}))["kl"].clone()
    };
    for (ours, theirs) in [
        ("k1", "kl"),
        ("k2", "mse"),
        ("k2", "k2+"),
        ("k3", "low_var_kl"),
        ("oneSided", "one-sided"),
    ] {
        assert_eq!(kl(ours), kl(theirs), "{theirs}");
    }
    let all = ["k1", "k2", "k3", "abs", "oneSided"].map(kl);
    for (place, one) in all.iter().enumerate() {
        assert!(!all[..place].contains(one), "{one} is of two names");
    }
}

#[test]
fn a_name_with_a_sign_that_may_mean_something_is_no_other_spelling() {
    let kl = |name: &str| json!({"kl": {"logprobs": [[-1]], "refLogprobs": [[-2]], "estimator": name}});
    for (name, value) in [
        ("k3+", "k3"),
        ("low_var_kl+", "low_var_kl"),
        ("kl+", "kl"),
        ("abs+", "abs"),
    ] {
        let complaint = complaint(kl(name));
        let expected = format!("kl.estimator: {name:?} has the value of {value} with k2's gradient");
        assert!(complaint.contains(&expected), "{complaint}");
    }
    for name in ["k3!", "k3++", "+k3", "k", ""] {
        let complaint = complaint(kl(name));
        let expected = format!("kl.estimator: unknown KL estimator {name:?}; expected k1");
        assert!(complaint.contains(&expected), "{complaint}");
    }
    let estimate = |name: &str| json!({"advantage": {"estimator": name, "rewards": [[1], [2]], "mask": [[1], [1]], "groups": [1, 1]}});
    for name in ["RLOO!", "rloo+", "reinforce+", "grpo*"] {
        let complaint = complaint(estimate(name));
        let expected = format!("advantage.estimator: unknown estimator {name:?}");
        assert!(complaint.contains(&expected), "{complaint}");
    }
    let other = complaint(json!({"profile": "verl/fsdp"}));
    assert!(other.contains("unknown profile \"verl/fsdp\""), "{other}");
}

#[test]
fn a_score_clip_is_a_bound_or_a_range() {
    let rewards = |clip: Value| {
        let block =
            json!({"logprobs": [[0], [0]], "mask": [[1], [1]], "scores": [5, -5], "klCoef": 0, "scoreClip": clip});
        answer(json!({"profile": "openrlhf", "shape": block}))["shape"]["rewards"].clone()
    };
    assert_eq!(rewards(json!(2)), json!([[2.0], [-2.0]]));
    assert_eq!(rewards(json!([-1, 3])), json!([[3.0], [-1.0]]));
    assert_eq!(rewards(json!({"min": -1, "max": 3})), json!([[3.0], [-1.0]]));
    assert_eq!(rewards(json!(false)), json!([[5.0], [-5.0]]));
}

#[test]
fn zero_and_false_switch_a_bound_off_and_without_one_the_profiles_holds() {
    let kl = |profile: &str, estimator: &str, difference: f64, clamp: Value| {
        let block = json!({"logprobs": [[difference]], "refLogprobs": [[0]], "estimator": estimator, "clamp": clamp});
        let answer = answer(json!({"profile": profile, "kl": block}));
        let of = |name: &str| answer["kl"][name][0][0].as_f64().unwrap();
        (of("kl"), of("gradient"))
    };
    for off in [json!(0), json!(false)] {
        assert_eq!(kl("openrlhf", "k1", 30.0, off.clone()), (30.0, 1.0));
        assert_eq!(kl("default", "k1", 30.0, off.clone()), (30.0, 1.0));
        let (unbounded, _) = kl("verl", "k3", -30.0, off);
        assert!((unbounded - (20_f64.exp() - 21.0)).abs() < 1e-3, "{unbounded}");
    }
    assert_eq!(kl("openrlhf", "k1", 30.0, Value::Null), (10.0, 0.0));
    assert_eq!(kl("openrlhf", "k1", 30.0, json!(20)), (20.0, 0.0));
    assert_eq!(kl("openrlhf", "k3", -1000.0, json!(1e6)), (1e6, 0.0));
    assert_eq!(kl("verl", "k3", -30.0, Value::Null), (10.0, 0.0));
    assert_eq!(kl("verl", "k1", -30.0, Value::Null), (-30.0, 1.0));

    let shaped = |clamp: Value| {
        let block = json!({"logprobs": [[30]], "refLogprobs": [[0]], "mask": [[1]], "scores": [0], "klCoef": 1,
                           "klClamp": clamp});
        answer(json!({"profile": "openrlhf", "shape": block}))["shape"]["kl"].clone()
    };
    assert_eq!(
        [shaped(json!(0)), shaped(Value::Null)],
        [json!([[30.0]]), json!([[10.0]])]
    );

    let loss = |cap: Value| {
        let block = json!({"logprobs": [[0]], "oldLogprobs": [[0]], "advantages": [[1]], "mask": [[1]],
                           "rolloutLogprobs": [[-1]], "truncatedImportanceSampling": cap});
        answer(json!({"policyLoss": block}))["policyLoss"]["loss"]
            .as_f64()
            .unwrap()
    };
    assert_eq!(
        [loss(json!(0)), loss(json!(false)), loss(Value::Null), loss(json!(2))],
        [-1.0, -1.0, -1.0, -2.0]
    );
}

#[test]
fn scores_that_are_nowhere_are_taken_from_the_slot_where_the_profile_places_them() {
    let centred = |profile: &str, rewards: Value| {
        let block = json!({"estimator": "reinforcePlusPlusBaseline", "whiten": false, "rewards": rewards,
                           "mask": [[1, 1, 0], [1, 1, 0]], "groups": [0, 0]});
        answer(json!({"profile": profile, "advantage": block}))["advantage"]["advantages"].clone()
    };
    let expected = json!([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]]);
    assert_eq!(centred("default", json!([[0, 1, 0], [0, 3, 0]])), expected);
    assert_eq!(centred("trl", json!([[0, 0, 1], [0, 0, 3]])), expected);
}

#[test]
fn a_complaint_names_the_block_the_field_and_what_was_found() {
    let policy = |changed: Value| {
        let mut block =
            json!({"logprobs": [[0, 0]], "oldLogprobs": [[0, 0]], "advantages": [[1, 1]], "mask": [[1, 1]]});
        block
            .as_object_mut()
            .unwrap()
            .extend(changed.as_object().unwrap().clone());
        json!({"policyLoss": block})
    };
    for (question, expected) in [
        (json!([]), "input: expected an object, found an array of 0"),
        (json!({"polcyLoss": {}}), "unknown field \"polcyLoss\""),
        (
            json!({"profile": "rllib"}),
            "unknown profile \"rllib\"; expected default, openrlhf",
        ),
        (json!({"dtype": "int8"}), "unknown dtype \"int8\""),
        (
            policy(json!({"clip": 0.2})),
            "policyLoss: unknown field \"clip\"; it may have logprobs",
        ),
        (
            policy(json!({"mask": [[1, 2]]})),
            "policyLoss.mask[0][1]: expected 0 or 1, found 2",
        ),
        (
            policy(json!({"mask": [[1]]})),
            "policyLoss.logprobs is 1 x 2, but policyLoss.mask is 1 x 1",
        ),
        (
            policy(json!({"logprobs": [[0, 0], [0]]})),
            "policyLoss.logprobs[1] has 1 numbers, policyLoss.logprobs[0] has 2",
        ),
        (
            policy(json!({"logprobs": [[0, "NaN"]]})),
            "policyLoss.logprobs[0][1]: expected a number, found \"NaN\"",
        ),
        (
            policy(json!({"logprobs": [[0, null]]})),
            "policyLoss.logprobs[0][1]: expected a number, found null",
        ),
        (policy(json!({"logprobs": []})), "policyLoss.logprobs is empty"),
        (policy(json!({"advantages": null})), "policyLoss.advantages is missing"),
        (
            policy(json!({"aggregation": "mean"})),
            "policyLoss.aggregation: unknown aggregation \"mean\"",
        ),
        (
            policy(json!({"ratio": "word"})),
            "policyLoss.ratio: unknown ratio \"word\"; expected token or sequence",
        ),
        (
            policy(json!({"surrogate": "sapo"})),
            "policyLoss.surrogate: unknown surrogate \"sapo\"; expected clipped or cispo",
        ),
        (
            policy(json!({"surrogate": "cispo", "dualClip": 3})),
            "policyLoss.dualClip: cispo has no dual clip",
        ),
        (
            policy(json!({"dualClip": 0.9})),
            "policyLoss.dualClip: expected a number above 1",
        ),
        (
            policy(json!({"truncatedImportanceSampling": -1})),
            "policyLoss.truncatedImportanceSampling: expected a number above 0, or 0 for off, found -1",
        ),
        (
            policy(json!({"truncatedImportanceSampling": 2})),
            "policyLoss.rolloutLogprobs is missing: truncatedImportanceSampling",
        ),
        (
            policy(json!({"rolloutCorrection": {}})),
            "policyLoss.rolloutLogprobs is missing: rolloutCorrection",
        ),
        (
            policy(json!({"rolloutCorrection": {"low": 3}})),
            "policyLoss.rolloutCorrection: expected bounds from 0 to 1000, low below high, found low 3 and high 2",
        ),
        (
            policy(json!({"rolloutCorrection": {"level": "word"}})),
            "policyLoss.rolloutCorrection.level: unknown level \"word\"; expected token, sequence or geometric",
        ),
        (
            policy(json!({"rolloutCorrection": {"level": "geometric"}})),
            "policyLoss.rolloutCorrection: level geometric is for outside mask",
        ),
        (
            policy(json!({"rolloutCorrection": {}, "truncatedImportanceSampling": 2})),
            "policyLoss.rolloutCorrection excludes truncatedImportanceSampling",
        ),
        (
            json!({"shape": {"logprobs": [[0]], "refLogprobs": [[0]], "mask": [[1]], "scores": [1, 2]}}),
            "shape.scores has 2 element(s), the batch has 1",
        ),
        (
            json!({"shape": {"logprobs": [[0]], "mask": [[1]], "scores": [1]}}),
            "shape.refLogprobs is missing: the KL coefficient is 0.01",
        ),
        (
            json!({"advantage": {"rewards": [[1]], "mask": [[1]]}}),
            "advantage: values is missing: gae needs the critic's values",
        ),
        (
            json!({"advantage": {"estimator": "rloo", "rewards": [[1], [2], [3]], "mask": [[1], [1], [1]], "groups": [4, 4, 6]}}),
            "advantage: group 6 has 1 sample(s), rloo needs at least 2",
        ),
        (
            json!({"advantage": {"rewards": [[1]], "values": [[1]], "mask": [[1]], "gamma": 1.01}}),
            "advantage.gamma: expected a number from 0 to 1, found 1.01",
        ),
        (
            json!({"shape": {"logprobs": [[0]], "mask": [[1]], "scores": [1], "klCoef": -0.1}}),
            "shape.klCoef: expected a number of at least 0, found -0.1",
        ),
        (
            json!({"klController": {"coef": -1, "observations": []}}),
            "klController.coef: expected a number of at least 0, found -1",
        ),
        (
            json!({"klController": {"coef": 0.1, "target": 1, "horizon": 10, "observations": [[1]]}}),
            "klController.observations[0]: expected [kl, samples], found an array of 1",
        ),
        (
            json!({"klController": {"coef": 0.1, "target": 1, "horizon": 10, "observations": 5}}),
            "klController.observations: expected [[kl, samples], ...], found 5",
        ),
    ] {
        let complaint = complaint(question);
        assert!(complaint.contains(expected), "{complaint:?} should say {expected:?}");
    }
}

#[test]
fn a_number_that_is_not_finite_is_never_written() {
    let block = json!({"logprobs": [[1000]], "oldLogprobs": [[0]], "advantages": [[-1]], "mask": [[1]]});
    let complaint = complaint(json!({"profile": "trl", "policyLoss": block}));
    assert!(complaint.contains("policyLoss: the result loss is inf"), "{complaint}");
    let huge = math::run(r#"{"dtype": "float32", "whiten": {"values": [[1e39]], "mask": [[1]]}}"#).unwrap_err();
    assert!(
        format!("{huge:#}").contains("whiten.values[0][0]: expected a finite number"),
        "{huge:#}"
    );
    assert!(math::run(r#"{"whiten": {"values": [[NaN]], "mask": [[1]]}}"#).is_err());
    assert!(math::run(r#"{"whiten": {"values": [[1e999]], "mask": [[1]]}}"#).is_err());
}

#[test]
fn the_command_reads_and_writes_files_and_names_one_it_cannot_read() {
    let folder = tempfile::tempdir().unwrap();
    let args = MathArgs {
        input: folder.path().join("in.json"),
        output: folder.path().join("out.json"),
    };
    let missing = format!("{:#}", math::main(&args).unwrap_err());
    assert!(
        missing.contains("cannot read") && missing.contains("in.json"),
        "{missing}"
    );
    let question = r#"{"klController": {"coef": 0.1, "observations": [[9, 1]]}}"#;
    std::fs::write(&args.input, question).unwrap();
    math::main(&args).unwrap();
    let written = std::fs::read_to_string(&args.output).unwrap();
    assert_eq!(written, "{\"klController\":{\"coefs\":[0.1]}}\n");
}
