//! PodGroups and Workloads of whichever gang schedulers the cluster has, read without knowing their types.

use futures::StreamExt as _;
use futures::stream;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, discovery};
use serde_json::Value;

use super::connection::Connection;
use super::pods;

/// API groups with PodGroups or Workloads. Kubernetes' own serves them at other versions than the preferred one, and three
/// kinds are named PodGroup: group and version are always given.
const GROUPS: [&str; 4] = [
    "kueue.x-k8s.io",
    "scheduling.volcano.sh",
    "scheduling.x-k8s.io",
    "scheduling.k8s.io",
];

/// The objects that carry the job's label. What the cluster lacks, or the user may not read, is left out: the operator's
/// status says the same in fewer words.
pub async fn read(connection: &Connection, job: &str) -> Vec<DynamicObject> {
    let selected = ListParams::default().labels(&pods::selector(job));
    let lists = stream::iter(resources(connection).await).map(|resource| {
        let selected = &selected;
        async move {
            let api: Api<DynamicObject> =
                Api::namespaced_with(connection.client.clone(), &connection.namespace, &resource);
            let mut objects = api.list(selected).await.map(|list| list.items).unwrap_or_default();
            for object in &mut objects {
                // Items of a list come without their type.
                object.types.get_or_insert_with(|| kube::api::TypeMeta {
                    api_version: resource.api_version.clone(),
                    kind: resource.kind.clone(),
                });
            }
            objects
        }
    });
    lists.buffered(4).concat().await
}

async fn resources(connection: &Connection) -> Vec<ApiResource> {
    let served = connection
        .client
        .list_api_groups()
        .await
        .map(|list| list.groups)
        .unwrap_or_default();
    let groups = served.into_iter().filter(|group| GROUPS.contains(&group.name.as_str()));
    let found = stream::iter(groups).map(|group| async move {
        let group = discovery::group(&connection.client, &group.name).await.ok()?;
        let of_version = |version: &str| -> Vec<ApiResource> {
            let kinds = group
                .versioned_resources(version)
                .into_iter()
                .map(|(resource, _)| resource);
            kinds
                .filter(|resource| ["PodGroup", "Workload"].contains(&resource.kind.as_str()))
                .collect()
        };
        let preferred = of_version(group.preferred_version_or_latest());
        match preferred.is_empty() {
            false => Some(preferred),
            true => group.versions().map(of_version).find(|kinds| !kinds.is_empty()),
        }
    });
    let found: Vec<Option<Vec<ApiResource>>> = found.buffered(4).collect().await;
    found.into_iter().flatten().flatten().collect()
}

/// Whether an object is of this group and kind, at any version.
pub fn is_of(object: &DynamicObject, group: &str, kind: &str) -> bool {
    let types = object.types.as_ref();
    types.is_some_and(|types| {
        types.kind == kind && types.api_version.split_once('/').is_some_and(|(its, _)| its == group)
    })
}

/// A field's text; empty when it is absent.
pub fn text(object: &DynamicObject, path: &str) -> String {
    object
        .data
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_string()
}

/// Reason and message of a condition, when it has this status.
pub fn condition<'a>(object: &'a DynamicObject, kind: &str, status: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array)?;
    let field = |condition: &'a Value, name: &str| condition.get(name).and_then(Value::as_str).unwrap_or_default();
    let found = conditions
        .iter()
        .find(|it| field(it, "type") == kind && field(it, "status") == status)?;
    Some((field(found, "reason"), field(found, "message")))
}
