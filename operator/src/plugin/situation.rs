//! Gathers what [`explain`](super::explain::explain) reads. What the user has no right to read is left out: the job itself
//! and its pods are all that is needed.

use std::collections::BTreeMap;

use anyhow::Result;
use futures::{StreamExt as _, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, ListParams, LogParams};
use kube::{Resource as _, ResourceExt as _};
use ppo_crds::PpoJob;

use super::connection::Connection;
use super::explain::evidence::{self, Evidence};
use super::refusal::Request;
use super::{gang, job, pods};
use crate::lease::LABEL;

/// Pods whose own events are read, those in trouble first: a job of a thousand pods has the same trouble many times.
const PODS: usize = 16;
/// Requests in flight at once.
const REQUESTS: usize = 8;

/// All evidence about the job of this name.
pub async fn read(connection: &Connection, name: &str) -> Result<Evidence> {
    let job = job::read(connection, name).await?;
    let pods = own(read_pods(connection, name).await?, &job);
    let (mut events, (gang, of_gang), leases) = tokio::join!(
        events(connection, &job, &pods),
        gang(connection, name),
        leases(connection)
    );
    events.extend(of_gang);
    Ok(Evidence {
        last_lines: last_lines(connection, &pods).await,
        job,
        pods,
        events,
        gang,
        leases,
    })
}

/// The job's pods, in the order in which they are shown.
pub async fn read_pods(connection: &Connection, job: &str) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let request = Request {
        verb: "list",
        resource: "pods",
        namespace: &connection.namespace,
        url: &connection.url,
    };
    let list = api.list(&ListParams::default().labels(&pods::selector(job))).await;
    let mut pods = list.map_err(|error| request.refused(error))?.items;
    pods.sort_by_key(pods::order);
    Ok(pods)
}

/// Those that are the job's: orphans of an earlier job of its name have its labels, and nobody looks after them. One that is being deleted
/// stays, whoever had it: the job needs its name.
pub fn own(mut pods: Vec<Pod>, job: &PpoJob) -> Vec<Pod> {
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_some() || pods::is_of(pod, job));
    pods
}

/// The gang's objects, and the events of Kueue's Workloads among them.
async fn gang(connection: &Connection, job: &str) -> (Vec<DynamicObject>, Vec<Event>) {
    let gang = gang::read(connection, job).await;
    let workloads = gang
        .iter()
        .filter(|object| gang::is_of(object, "kueue.x-k8s.io", "Workload"));
    let named = workloads.map(|object| ("Workload".to_string(), object.name_any(), object.uid()));
    let events = events_of(connection, named.collect()).await;
    (gang, events)
}

/// Events of the job and of its pods in trouble, of this job and not of an earlier one of the same name; oldest first.
pub async fn events(connection: &Connection, job: &PpoJob, pods: &[Pod]) -> Vec<Event> {
    let of_job = [(PpoJob::kind(&()).into_owned(), job.name_any(), job.uid())];
    let troubled = pods
        .iter()
        .filter(|pod| !pods::is_ready(pod) && pods::phase(pod) != "Succeeded")
        .take(PODS);
    let of_pods = troubled.map(|pod| ("Pod".to_string(), pod.name_any(), pod.uid()));
    events_of(connection, of_job.into_iter().chain(of_pods).collect()).await
}

/// Events of objects by kind, name and uid, oldest first.
async fn events_of(connection: &Connection, objects: Vec<(String, String, Option<String>)>) -> Vec<Event> {
    let api: Api<Event> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let lists = stream::iter(objects).map(|(kind, name, uid)| {
        let api = &api;
        async move {
            let fields = format!("involvedObject.kind={kind},involvedObject.name={name}");
            let events = api
                .list(&ListParams::default().fields(&fields))
                .await
                .map(|list| list.items);
            let is_its_own = |event: &Event| uid.is_none() || event.involved_object.uid == uid;
            events
                .unwrap_or_default()
                .into_iter()
                .filter(is_its_own)
                .collect::<Vec<_>>()
        }
    });
    let mut events: Vec<Event> = lists.buffered(REQUESTS).concat().await;
    events.sort_by_key(evidence::time);
    events
}

/// As [`Evidence::leases`].
async fn leases(connection: &Connection) -> Vec<Lease> {
    let api: Api<Lease> = Api::all(connection.client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let mut leases = api.list(&ours).await.map(|list| list.items).unwrap_or_default();
    let renewed = |lease: &Lease| -> Option<Timestamp> { Some(lease.spec.as_ref()?.renew_time.as_ref()?.0) };
    leases.sort_by_key(|lease| std::cmp::Reverse(renewed(lease)));
    leases
}

/// Last log line of containers that ended with an error and left no message.
async fn last_lines(connection: &Connection, pods: &[Pod]) -> BTreeMap<String, String> {
    let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let lines = stream::iter(pods.iter().filter_map(silent).take(PODS)).map(|(pod, container, previous)| {
        let api = &api;
        async move {
            let parameters = LogParams {
                container: Some(container),
                previous,
                tail_lines: Some(1),
                limit_bytes: Some(4096),
                ..LogParams::default()
            };
            let text = api.logs(&pod, &parameters).await.ok()?;
            let line = text.lines().next_back()?.trim().to_string();
            (!line.is_empty()).then_some((pod, line))
        }
    });
    lines.buffered(REQUESTS).filter_map(std::future::ready).collect().await
}

/// Pod and container that ended without a word, and whether its log is that of a previous container.
fn silent(pod: &Pod) -> Option<(String, String, bool)> {
    pods::containers(pod).find_map(|status| {
        let now = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        let before = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
        let end = now.or(before)?;
        let says_nothing = end.message.as_deref().unwrap_or_default().trim().is_empty();
        (end.exit_code != 0 && says_nothing).then(|| (pod.name_any(), status.name.clone(), now.is_none()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn pods_that_an_earlier_job_of_the_name_left_are_not_the_jobs_but_those_that_are_going_hold_their_names() {
        let job: PpoJob = serde_json::from_value(json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "two", "namespace": "n", "uid": "2"},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                "roles": {"reward": {"rules": [{"json": {}}]}}},
        }))
        .unwrap();
        let pod = |name: &str, owner: Value, going: Value| -> Pod {
            let metadata = json!({"name": name, "ownerReferences": owner, "deletionTimestamp": going});
            serde_json::from_value(json!({"metadata": metadata})).unwrap()
        };
        let owner = |uid: &str, controller: bool| {
            let api_version = "ppojob.dev/v1alpha1";
            json!([{"apiVersion": api_version, "kind": "PpoJob", "name": "two", "uid": uid, "controller": controller}])
        };
        let going = json!("2026-01-01T00:00:00Z");
        let pods = vec![
            pod("own", owner("2", true), Value::Null),
            pod("orphan", Value::Null, Value::Null),
            pod("of-the-first", owner("1", true), Value::Null),
            pod("mentions-it", owner("2", false), Value::Null),
            pod("orphan-that-goes", Value::Null, going),
        ];
        let left: Vec<String> = own(pods, &job).iter().map(Pod::name_any).collect();
        assert_eq!(left, ["own", "orphan-that-goes"]);
    }
}
