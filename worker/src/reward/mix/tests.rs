use futures::FutureExt;
use ppo_crds::run_config::{Location, RewardModel};
use ppo_crds::spec::{RemoteRewardSpec, RewardRule};
use serde_json::json;

use super::*;
use crate::reward::{ModelReward, SequenceScorer};
use crate::rollout::stand_in::taken;

fn samples(count: usize) -> Vec<ScoredSample> {
    let sample = |index: usize| ScoredSample {
        index,
        prompt: "p".into(),
        visible_prompt: "p".into(),
        messages: None,
        moment: None,
        has_ended: true,
        tokenizer: Some(chatml().fingerprint().unwrap()),
        response: format!("{index}<eos>"),
        visible_response: index.to_string(),
        prompt_ids: vec![1].into(),
        response_ids: vec![index as u32 + 10],
        label: Some("11".into()),
    };
    (10..10 + count).map(sample).collect()
}

fn rules(rules: serde_json::Value) -> RewardConfig {
    let rules: Vec<RewardRule> = serde_json::from_value(rules).unwrap();
    RewardConfig {
        model: None,
        rules,
        remote: None,
    }
}

struct FirstToken;

impl SequenceScorer for FirstToken {
    fn scores(&mut self, sequences: &[Vec<u32>]) -> Result<Vec<f32>> {
        Ok(sequences
            .iter()
            .map(|ids| if ids[1] == 22 { f32::NAN } else { ids[1] as f32 })
            .collect())
    }
}

fn chatml() -> std::sync::Arc<crate::tokenizer::Tokenizer> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer/chatml");
    std::sync::Arc::new(crate::tokenizer::Tokenizer::load(&folder).unwrap())
}

fn model() -> Reward {
    Reward::Here(ModelReward::new(vec![Box::new(FirstToken)], chatml(), 100).unwrap())
}

#[tokio::test]
async fn the_score_is_the_weighted_sum_and_each_source_is_logged() {
    let mut reward = rules(json!([
        {"weight": 0.5, "exactMatch": {}},
        {"weight": -2.0, "regex": {"pattern": "^1"}},
        {"weight": 3.0, "exactMatch": {}, "extract": "nothing"},
    ]));
    reward.model = Some(RewardModel {
        source: Location::Path("unused".into()),
        weight: 0.1,
        dtype: None,
    });
    let source = RewardSource::new(&reward, Some(model())).unwrap();
    let scores = source.score(&samples(2)).await.unwrap();
    assert_eq!(scores.scores, [0.0, 0.6]);
    assert_eq!(scores.compared, scores.scores);
    let names: Vec<&str> = scores.extra.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "reward/exactMatch",
            "reward/exactMatch2",
            "reward/model",
            "reward/regex"
        ]
    );
    assert_eq!(scores.extra["reward/exactMatch"], [0.0, 1.0], "unweighted");
    assert_eq!(source.score(&[]).await.unwrap(), Scores::default());
}

#[tokio::test]
async fn a_score_that_is_not_finite_names_source_and_sample() {
    let mut reward = rules(json!([]));
    reward.model = Some(RewardModel {
        source: Location::Path("unused".into()),
        weight: 1.0,
        dtype: None,
    });
    let source = RewardSource::new(&reward, Some(model())).unwrap();
    let error = source.score(&samples(5)).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "reward source model: the score of sample 12 is NaN, want a finite number"
    );
}

#[tokio::test]
async fn a_forward_of_the_model_in_this_process_counts_as_progress() {
    let mut reward = rules(json!([]));
    reward.model = Some(RewardModel {
        source: Location::Path("unused".into()),
        weight: 1.0,
        dtype: None,
    });
    let mut source = RewardSource::new(&reward, Some(model())).unwrap();
    let live = Arc::new(Live::new("test", 1));
    source.report_to(&live);
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    let asked = std::time::Instant::now();
    source.score(&samples(2)).await.unwrap();
    assert!(live.report().seconds_since_progress < asked.elapsed().as_secs_f64());
}

#[test]
fn rules_are_applied_aside_so_that_probes_are_answered_meanwhile() {
    let source = RewardSource::new(&rules(json!([{"exactMatch": {}}])), None).unwrap();
    let samples = samples(2);
    let (runtime, give_back) = taken();
    runtime.block_on(async {
        let mut scoring = Box::pin(source.score(&samples));
        assert!(scoring.as_mut().now_or_never().is_none());
        drop(give_back);
        assert_eq!(scoring.await.unwrap().scores, [0.0, 1.0]);
    });
}

#[tokio::test]
async fn a_remote_that_fails_fails_the_whole() {
    let mut reward = rules(json!([{"exactMatch": {}}]));
    let remote = json!({"urls": ["http://127.0.0.1:9/get_reward"], "maxRetries": 0});
    reward.remote = Some(serde_json::from_value::<RemoteRewardSpec>(remote).unwrap());
    let mut source = RewardSource::new(&reward, None).unwrap();
    let live = Arc::new(Live::new("test", 1));
    source.report_to(&live);
    let error = source.score(&samples(1)).await.unwrap_err();
    assert_eq!(live.report().waiting_for, "http://127.0.0.1:9/get_reward");
    assert!(
        error
            .to_string()
            .starts_with("remote reward http://127.0.0.1:9/get_reward failed for samples 10 to 10")
    );
}

#[test]
fn labels_can_be_checked_before_the_run() {
    let source = RewardSource::new(&rules(json!([{"numericMatch": {}}])), None).unwrap();
    assert!(source.check_label(Some(&"5".into())).is_ok());
    assert!(
        source
            .check_label(Some(&"five".into()))
            .unwrap_err()
            .to_string()
            .contains("holds no number")
    );
    assert!(
        source
            .check_label(None)
            .unwrap_err()
            .to_string()
            .contains("needs a label")
    );
}

#[test]
fn what_is_named_and_what_is_given_must_agree() {
    let error = |reward: &RewardConfig, model| RewardSource::new(reward, model).err().map(|error| format!("{error:#}"));
    assert!(error(&rules(json!([])), None).unwrap().contains("no source"));
    assert!(
        error(&rules(json!([{"json": {}}])), Some(model()))
            .unwrap()
            .contains("names none")
    );
    let bad = rules(json!([{"json": {}}, {"regex": {"pattern": "("}}]));
    assert!(
        error(&bad, None)
            .unwrap()
            .starts_with("roles.reward.rules[1]: regex.pattern")
    );
}
