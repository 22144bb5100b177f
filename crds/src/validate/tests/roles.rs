//! Rules of the job's name, of the reward and of the engines.

use super::*;

#[test]
fn a_reward_must_exist_weigh_something_and_make_sense() {
    let refused = [
        ("reward: {}", "spec.roles.reward: has no source"),
        (
            "reward: {rules: [{json: {}, weight: 0}]}",
            "spec.roles.reward: every source has weight 0",
        ),
        ("reward: {rules: [{}]}", "; none is given"),
        (
            "reward: {rules: [{json: {}, length: {max: 4}}]}",
            "; length and json are given",
        ),
        (
            "reward: {rules: [{json: {}, weight: .inf}]}",
            "spec.roles.reward.rules[0].weight: is not a finite number",
        ),
        (
            "reward: {rules: [{regex: {pattern: '('}}]}",
            "spec.roles.reward.rules[0].regex.pattern: not a regular expression: unclosed group, in \"(\"",
        ),
        (
            "reward: {rules: [{length: {min: 5, max: 4}}]}",
            "spec.roles.reward.rules[0].length.min: 5 is more than max, 4; use 4",
        ),
        (
            "reward: {remote: {urls: ['verifier:5000']}}",
            "spec.roles.reward.remote.urls[0]: \"verifier:5000\" does not start with http:// or https://",
        ),
        (
            "reward: {remote: {urls: ['http:verifier/get_reward']}}",
            "spec.roles.reward.remote.urls[0]: \"http:verifier/get_reward\" does not start with http:// or https://",
        ),
        (
            "reward: {remote: {urls: [' http://verifier/']}}",
            "spec.roles.reward.remote.urls[0]: \" http://verifier/\" does not start with http:// or https://",
        ),
        (
            "reward: {remote: {urls: ['reward_func.py']}}",
            "spec.roles.reward.remote.urls[0]: \"reward_func.py\" is no URL: a reward in Python is called over HTTP: serve it",
        ),
        (
            "reward: {remote: {urls: ['reward.py:score']}}",
            "spec.roles.reward.remote.urls[0]: \"reward.py:score\" is no URL: a reward in Python",
        ),
        (
            "reward: {remote: {urls: ['http://scorer:p4/ss@host/score']}}",
            "spec.roles.reward.remote.urls[0]: \"http://***@host/score\" is not a URL: invalid port number; in a password / is written %2F",
        ),
        (
            "reward: {remote: {urls: ['verifier']}}",
            "spec.roles.reward.remote.urls[0]: \"verifier\" is not a URL",
        ),
        (
            "reward: {remote: {urls: []}}",
            "spec.roles.reward.remote.urls: is empty",
        ),
        (
            "rollout: {minReplicas: 2}, reward: {rules: [{json: {}}]}",
            "spec.roles.rollout.minReplicas: 2 is more than the 1 replicas",
        ),
    ];
    for (roles, expected) in refused {
        let found = texts("", roles);
        assert!(found.iter().any(|text| text.contains(expected)), "{roles}: {found:?}");
    }
}

#[test]
fn a_rule_that_compares_with_a_label_needs_one() {
    let mut job = job("", RULE);
    job.spec.prompts.label_field = None;
    assert!(problems(&job)[0].to_string().contains("give spec.prompts.labelField"));
}

#[test]
fn a_name_leaves_room_for_the_names_of_pods() {
    let mut job = job("", RULE);
    for (name, fits) in [
        ("a", true),
        ("rloo-math-2", true),
        ("", false),
        ("2a", false),
        ("A", false),
        ("a-", false),
        ("a.b", false),
    ] {
        job.metadata.name = Some(name.into());
        assert_eq!(problems(&job).is_empty(), fits, "{name}");
    }
    job.metadata.name = Some("a".repeat(48));
    let longest = format!("{}-reference-{}", "a".repeat(48), 1023);
    assert!(problems(&job).is_empty() && longest.len() <= 63);
    job.metadata.name = Some("a".repeat(49));
    assert_eq!(problems(&job).len(), 1);
}

#[test]
fn what_vllm_refuses_at_its_start_is_refused_before() {
    let fields = |rollout: &str| -> Vec<String> {
        let job = job(
            "",
            &format!("rollout: {{maxSequences: 512, maxBatchTokens: 256{rollout}}}, {RULE}"),
        );
        problems(&job).into_iter().map(|problem| problem.field).collect()
    };
    assert_eq!(fields(", engine: vllm"), ["spec.roles.rollout.maxBatchTokens"]);
    assert!(fields("").is_empty());
}
