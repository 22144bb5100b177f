//! What a job is made of, and that it stays so.

use anyhow::Context;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use ppo_crds::RunConfig;
use ppo_crds::status::Phase;
use serde_json::json;

use crate::job::{Stage, manifest, shares, variable};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_get_their_config_token_services_policy_and_budget() {
    let stage = Stage::running("parts", json!({})).await;
    let configs: Api<ConfigMap> = stage.namespace.api();
    let text = configs.get("parts-config").await.unwrap().data.unwrap()["run-config.json"].clone();
    let config: RunConfig = serde_json::from_str(&text).unwrap();
    assert_eq!((config.name.as_str(), config.batch.rollout_batch_size), ("parts", 32));

    let secrets: Api<Secret> = stage.namespace.api();
    let token = secrets.get("parts-token").await.unwrap().data.unwrap()["token"].clone();
    assert_eq!(token.0.len(), 64);

    let services: Api<Service> = stage.namespace.api();
    for role in ["rollout", "actor", "reference"] {
        let spec = services.get(&format!("parts-{role}")).await.unwrap().spec.unwrap();
        assert_eq!(spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(spec.publish_not_ready_addresses, Some(true));
    }
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    let ingress = policies.get("parts").await.unwrap().spec.unwrap().ingress.unwrap();
    assert_eq!(ingress.len(), 1, "only the job's own pods: {ingress:?}");
    stage.has_budget(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_may_evict_no_rank_of_the_actor_though_there_are_fewer_engines() {
    let four = json!({"actor": {"nodes": 4, "template": shares()}, "rollout": {"replicas": 1}});
    let shared = json!({"path": "/shared/checkpoints"});
    let stage = Stage::running("drained", json!({"spec": {"roles": four, "checkpoint": shared}})).await;
    let budgets: Api<PodDisruptionBudget> = stage.namespace.api();
    let status = stage
        .wait("the budget's count of the ranks", async || {
            let status = budgets.get("drained-actor").await?.status.context("no status")?;
            anyhow::ensure!(status.current_healthy == Some(4), "{status:?}");
            Ok(status)
        })
        .await;
    assert_eq!((status.desired_healthy, status.disruptions_allowed), (Some(4), Some(0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vllm_engine_listens_on_localhost_behind_its_door() {
    let stage = Stage::running(
        "door",
        json!({"spec": {"roles": {"rollout": {"engine": "vllm", "gpusPerReplica": 2, "kvCacheMebibytes": 1024}}}}),
    )
    .await;
    let pod = stage.pod("rollout-0").await;
    assert_eq!(variable(&pod, "PPO_VLLM").unwrap(), "127.0.0.1:8001");
    let containers = pod.spec.unwrap().containers;
    let vllm = containers.iter().find(|container| container.name == "vllm").unwrap();
    let flags = vllm.args.clone().unwrap();
    for flag in [
        "--host=127.0.0.1",
        "--tensor-parallel-size=2",
        "--logprobs-mode=processed_logprobs",
        "--model=/models/policy",
        "--kv-cache-memory-bytes=536870912",
    ] {
        assert!(flags.iter().any(|given| given == flag), "{flag} in {flags:?}");
    }
    assert!(vllm.ports.is_none());
    assert_eq!(
        vllm.resources.as_ref().unwrap().limits.as_ref().unwrap()["nvidia.com/gpu"].0,
        "2"
    );
    let door = containers.iter().find(|container| container.name == "worker").unwrap();
    assert!(
        door.resources
            .as_ref()
            .and_then(|resources| resources.limits.as_ref())
            .is_none()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_changed_or_deleted_by_hand_is_put_back() {
    let stage = Stage::running("drift", json!({})).await;
    let services: Api<Service> = stage.namespace.api();
    let wrong = json!({"spec": {"selector": {"ppojob.dev/role": "nobody"}}});
    services
        .patch("drift-rollout", &PatchParams::default(), &Patch::Merge(&wrong))
        .await
        .unwrap();
    let policies: Api<NetworkPolicy> = stage.namespace.api();
    policies.delete("drift", &DeleteParams::default()).await.unwrap();
    stage
        .wait("the selector to be put back", async || {
            let selector = services
                .get("drift-rollout")
                .await?
                .spec
                .and_then(|spec| spec.selector)
                .unwrap_or_default();
            anyhow::ensure!(selector["ppojob.dev/role"] == "rollout", "{selector:?}");
            policies.get("drift").await?;
            Ok(())
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_job_takes_everything_with_it_but_its_checkpoints() {
    let claim = json!({"spec": {"checkpoint": {"volumeClaim": {"storage": "10Gi"}}}});
    let stage = Stage::applied("gone", claim).await;
    let claims: Api<PersistentVolumeClaim> = stage.namespace.api();
    stage
        .wait("the claim", async || Ok(claims.get("gone-checkpoints").await?))
        .await;
    stage.jobs.delete("gone", &DeleteParams::background()).await.unwrap();
    let services: Api<Service> = stage.namespace.api();
    stage
        .wait("garbage collection", async || {
            let left = services.list(&Default::default()).await?.items.len();
            anyhow::ensure!(left == 0 && stage.pods().await.is_empty(), "{left} services");
            Ok(())
        })
        .await;
    claims.get("gone-checkpoints").await.unwrap();
    // The next job of the name finds them.
    stage
        .jobs
        .create(&Default::default(), &manifest("gone", json!({})))
        .await
        .unwrap();
    stage.phase(Phase::Running).await;
}
