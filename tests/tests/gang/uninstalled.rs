//! A gang scheduler that goes while the operator runs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use ppo_crds::status::Phase;
use ppo_tests::{ControlPlane, GangScheduler, Operator, Options};

use crate::world::{create, wait_for_phase, wait_for_words};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduler_that_was_uninstalled_is_chosen_no_more() {
    let options = Options {
        crds: GangScheduler::Kueue.crds().await.unwrap(),
        ..Options::default()
    };
    let cluster = ControlPlane::start(options).await.unwrap();
    let namespace = cluster.namespace("uninstalled").await.unwrap();
    namespace.gpu_nodes(1, 8).await.unwrap();
    let _operator = Operator::start(&namespace);
    create(&namespace, "before", "auto", "rl", 2, 2).await;
    wait_for_phase(&namespace, "before", Phase::Queued).await;

    let crds: Api<CustomResourceDefinition> = Api::all(namespace.client.clone());
    crds.delete("workloads.kueue.x-k8s.io", &Default::default())
        .await
        .unwrap();
    create(&namespace, "after", "auto", "rl", 2, 2).await;
    wait_for_phase(&namespace, "after", Phase::Running).await;
    create(&namespace, "asked", "kueue", "rl", 2, 2).await;
    wait_for_words(&namespace, "asked", "GangSchedulerMissing", "install Kueue").await;
}
