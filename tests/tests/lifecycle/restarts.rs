//! What fails is restarted: no more of it than has to be, and no more often than was allowed.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use ppo_crds::spec::Role;
use ppo_crds::status::{Phase, PpoJobStatus};
use ppo_tests::PodFailure;
use serde_json::json;

use crate::job::{Stage, condition, role, shares, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_fails_is_replaced_alone_and_counted() {
    let stage = Stage::running("engine", json!({})).await;
    let (failed, other, actor) = (
        stage.uid("rollout-1").await,
        stage.uid("rollout-0").await,
        stage.uid("actor-0").await,
    );
    stage.fail("rollout-1", &PodFailure::exit(1)).await;
    let new = stage.replaced("rollout-1", &failed).await;
    assert_eq!(variable(&new, "PPO_ATTEMPT").unwrap(), "2");
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Rollout).restarts), (1, 1));
    assert_eq!(
        (stage.uid("rollout-0").await, stage.uid("actor-0").await),
        (other, actor)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_actor_rank_that_fails_takes_the_actor_role_with_it_and_nothing_else() {
    let stage = Stage::running(
        "ranks",
        json!({"spec": {"roles": {"actor": {"nodes": 2, "template": shares()}}, "checkpoint": {"path": "/shared/checkpoints"}}}),
    )
    .await;
    let (first, second, engine) = (
        stage.uid("actor-0").await,
        stage.uid("actor-1").await,
        stage.uid("rollout-0").await,
    );
    let lost = PodFailure::exit(1).saying("rank 1 lost rank 0");
    stage.fail("actor-1", &lost).await;
    for (pod, uid) in [("actor-0", &first), ("actor-1", &second)] {
        let new = stage.replaced(pod, uid).await;
        assert_eq!(variable(&new, "PPO_ATTEMPT").unwrap(), "2", "{pod}");
    }
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Actor).attempt), (1, 2));
    assert_eq!(stage.uid("rollout-0").await, engine);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_restart_is_an_event_in_its_own_words() {
    let stage = Stage::running("words", json!({})).await;
    for (pod, said) in [("rollout-0", "the engine's words"), ("actor-0", "the actor's words")] {
        let uid = stage.uid(pod).await;
        let failure = PodFailure::exit(1).saying(said);
        stage.fail(pod, &failure).await;
        stage.replaced(pod, &uid).await;
        stage.phase(Phase::Running).await;
    }
    for said in ["the engine's words", "the actor's words"] {
        stage.tells(said).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_deleted_comes_anew_and_so_do_all_pods_uncounted_and_the_job_says_why() {
    let stage = Stage::running("token", json!({})).await;
    let secrets: Api<Secret> = stage.namespace.api();
    let token = async || secrets.get("token-token").await.unwrap().data.unwrap()["token"].clone();
    let before = token().await;
    let mut pods = Vec::new();
    for pod in ["actor-0", "reference-0", "rollout-0", "rollout-1"] {
        pods.push((pod, stage.uid(pod).await));
    }
    secrets.delete("token-token", &Default::default()).await.unwrap();
    for (pod, uid) in pods {
        stage.replaced(pod, &uid).await;
    }
    let again = |status: &PpoJobStatus| status.attempt == 2 && status.phase == Some(Phase::Running);
    let status = stage.status("a second attempt that runs", again).await;
    assert_eq!(status.restarts, 0);
    assert_ne!(token().await, before);
    stage
        .tells("Secret token-token, with the token that its pods ask of each other, is gone")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preemption_and_deletion_are_not_counted() {
    let stage = Stage::running("taken", json!({"spec": {"failurePolicy": {"maxRestarts": 0}}})).await;
    let preempted = stage.uid("rollout-0").await;
    stage.fail("rollout-0", &PodFailure::preempted()).await;
    stage.replaced("rollout-0", &preempted).await;
    let deleted = stage.uid("actor-0").await;
    stage
        .namespace
        .pods()
        .delete(&stage.pod_name("actor-0"), &Default::default())
        .await
        .unwrap();
    stage.replaced("actor-0", &deleted).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Actor).attempt), (0, 2));
    // Its processes may still run where nobody can see them: they must not write beside its successor's.
    let removed = stage.uid("actor-0").await;
    let actor = stage.pod_name("actor-0");
    let by_force = ["delete", "pod", &actor, "--force", "--grace-period=0"];
    stage.namespace.kubectl(&by_force).await.unwrap().success().unwrap();
    stage.replaced("actor-0", &removed).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Actor).attempt), (0, 3));
    assert_eq!(variable(&stage.pod("actor-0").await, "PPO_ATTEMPT").unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_keeps_failing_ends_the_job_with_its_last_words_and_the_budget() {
    let policy = json!({"maxRestarts": 9, "maxRestartsPerRole": {"reference": 1}});
    let stage = Stage::running("budget", json!({"spec": {"failurePolicy": policy}})).await;
    let first = stage.uid("reference-0").await;
    stage.fail("reference-0", &PodFailure::exit(1)).await;
    stage.replaced("reference-0", &first).await;
    stage.phase(Phase::Running).await;
    let last = PodFailure::exit(1).saying("loading /models/policy: no config.json");
    stage.fail("reference-0", &last).await;
    let status = stage.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "RestartsExhausted");
    for part in [
        "budget-reference-0",
        "no config.json",
        "1 of 1",
        "failurePolicy.maxRestartsPerRole.reference",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_configuration_and_divergence_end_the_job_without_another_try() {
    let bad = Stage::running("bad", json!({})).await;
    let failure = PodFailure::exit(2).saying("/data/train.jsonl: no such file");
    bad.fail("actor-0", &failure).await;
    let status = bad.phase(Phase::Failed).await;
    assert!(condition(&status, "Failed").2.contains("no such file"));

    let diverged = Stage::running("diverged", json!({})).await;
    let outcome = json!({"reason": "Diverged", "message": "the KL is 120 at step 12; algorithm.kl.stopAbove is 100"});
    let failure = PodFailure::exit(3).saying(&outcome.to_string());
    diverged.fail("actor-0", &failure).await;
    let status = diverged.phase(Phase::Failed).await;
    let (_, reason, message) = condition(&status, "Failed");
    assert_eq!(reason, "Diverged");
    assert!(message.contains("the KL is 120"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_users_rules_come_first() {
    let rules = json!([
        // For none of the failures that come.
        {"action": "FailJob", "exitCodes": [9]},
        {"action": "FailJob", "roles": ["rollout"], "reasons": ["OOMKilled"]},
        {"action": "Ignore", "roles": ["reference"], "exitCodes": [7]},
        {"action": "RestartJob", "exitCodes": [8]},
    ]);
    let stage = Stage::running(
        "rules",
        json!({"spec": {"failurePolicy": {"maxRestarts": 1, "rules": rules}}}),
    )
    .await;
    let reference = stage.uid("reference-0").await;
    stage.fail("reference-0", &PodFailure::exit(7)).await;
    stage.replaced("reference-0", &reference).await;
    assert_eq!(stage.phase(Phase::Running).await.restarts, 0);

    let (engine, actor) = (stage.uid("rollout-0").await, stage.uid("actor-0").await);
    stage.fail("rollout-0", &PodFailure::exit(8)).await;
    stage.replaced("rollout-0", &engine).await;
    stage.replaced("actor-0", &actor).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, status.attempt), (1, 2));

    stage.fail("rollout-1", &PodFailure::out_of_memory()).await;
    let status = stage.phase(Phase::Failed).await;
    assert_eq!(condition(&status, "Failed").1, "OOMKilled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_hangs_on_a_lost_node_is_replaced() {
    let stage = Stage::running("lost", json!({"spec": {"roles": {"rollout": {"minReplicas": 1}}}})).await;
    stage.namespace.gpu_nodes(1, 8).await.unwrap();
    let name = stage.pod_name("rollout-0");
    let pod = stage.pod("rollout-0").await;
    stage.namespace.hold_stop(&name).await.unwrap();
    let grace = kube::api::DeleteParams::default().grace_period(1);
    stage.namespace.pods().delete(&name, &grace).await.unwrap();
    let node = pod.spec.unwrap().node_name.unwrap();
    stage
        .namespace
        .cluster
        .kubectl(&["delete", "node", &node])
        .await
        .unwrap()
        .success()
        .unwrap();
    stage.replaced("rollout-0", &pod.metadata.uid.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_is_restarted_once_for_each_request() {
    let stage = Stage::running("asked", json!({})).await;
    let engine = stage.uid("rollout-0").await;
    let actor = stage.uid("actor-0").await;
    let request = |time: &str| {
        let value = format!("rollout=2026-01-01T{time}Z");
        json!({"metadata": {"annotations": {"ppojob.dev/restart": value}}})
    };
    stage.patch(request("00:00:00")).await;
    stage.replaced("rollout-0", &engine).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Rollout).attempt), (0, 2));
    // The request stays where it is, and is none any more.
    let engine = stage.uid("rollout-0").await;
    stage.looked_at_anew().await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!(role(&status, Role::Rollout).attempt, 2);
    assert_eq!(stage.uid("rollout-0").await, engine);
    stage.patch(request("00:00:01")).await;
    stage.replaced("rollout-0", &engine).await;
    let status = stage.phase(Phase::Running).await;
    assert_eq!((status.restarts, role(&status, Role::Rollout).attempt), (0, 3));
    assert_eq!(stage.uid("actor-0").await, actor);
}
