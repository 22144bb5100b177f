//! Asks for Kueue's other objects: labels of the flavors that a job was given, the value of its priority class. They are
//! asked for only when a Workload or pods are about to be made, so that at rest nothing is asked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;
use serde_json::json;

use super::lookups::{Flavor, Lookups, Priority};
use super::{admission, workload};
use crate::gang::admission::{Admission, Place};
use crate::job::{Job, RolePods};
use crate::world::Children;

/// A flavor that was read is trusted for so long.
const TRUSTED: Duration = Duration::from_secs(60);

/// Flavors that were read.
#[derive(Default)]
pub struct Flavors(Mutex<BTreeMap<String, (Instant, Flavor)>>);

/// Asks for what the next step needs and the job's own objects do not say.
///
/// # Errors
/// When the API server does not answer.
pub async fn look_up(job: &Job, children: &Children, client: &Client, flavors: &Flavors) -> kube::Result<Lookups> {
    let mut found = Lookups::default();
    let observed = workload::observed(job, children);
    if workload::is_due(job, observed) {
        found.priority = Some(priority(&job.spec.scheduling.priority_class_name, client).await?);
    }
    let Admission::Admitted(places) = admission::admission(job, children, &found) else {
        return Ok(found);
    };
    let Some(observed) = observed.filter(|_| pods_are_missing(job, children, &places)) else {
        return Ok(found);
    };
    for name in admission::flavors(observed) {
        let flavor = flavors.get(&name, client).await?;
        found.flavors.insert(name, flavor);
    }
    Ok(found)
}

fn pods_are_missing(job: &Job, children: &Children, places: &BTreeMap<Role, Place>) -> bool {
    let count = |role: &RolePods| {
        places
            .get(&role.role)
            .map_or(role.pods, |place| place.count.min(role.pods))
    };
    let mut wanted = job
        .roles
        .iter()
        .flat_map(|role| (0..count(role)).map(|index| pod_name(&job.key.name, role.role, index)));
    wanted.any(|name| !children.pods.contains_key(&name))
}

impl Flavors {
    async fn get(&self, name: &str, client: &Client) -> kube::Result<Flavor> {
        if let Some((at, flavor)) = self.0.lock().get(name)
            && at.elapsed() < TRUSTED
        {
            return Ok(flavor.clone());
        }
        // A flavor in use cannot be deleted: Kueue holds it by a finalizer.
        let object = api("ResourceFlavor", client).get(name).await?;
        let flavor = Flavor {
            node_labels: serde_json::from_value(object.data["spec"]["nodeLabels"].clone()).unwrap_or_default(),
            tolerations: serde_json::from_value(object.data["spec"]["tolerations"].clone()).unwrap_or_default(),
        };
        self.0.lock().insert(name.to_string(), (Instant::now(), flavor.clone()));
        Ok(flavor)
    }
}

/// The class of Kueue's that Workloads have which name none, where somebody has made one of this name: `ApplyDefaultWorkloadPriorityClass`
/// in its `pkg/controller/jobframework/defaults.go`. The feature gate WorkloadPriorityClassDefaulting is off in 0.18 and 0.19 and on from
/// 0.20; no object tells which, and before that nobody had a reason to make a class of this name and mean another.
const DEFAULT_CLASS: &str = "default";

/// As Kueue resolves it (`pkg/util/priority`): its own class of the name, else Kubernetes'; without a name its own default one, else
/// Kubernetes'.
async fn priority(name: &str, client: &Client) -> kube::Result<Priority> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    if name.is_empty() {
        if let Some(default) = workload_class(DEFAULT_CLASS, client).await? {
            return Ok(default);
        }
        let defaults = classes.list(&ListParams::default()).await?;
        let default = defaults.into_iter().filter(|class| class.global_default == Some(true));
        return Ok(default
            .min_by_key(|class| class.value)
            .map_or(Priority::Of(0, None), of));
    }
    if let Some(class) = workload_class(name, client).await? {
        return Ok(class);
    }
    Ok(classes.get_opt(name).await?.map_or(Priority::NoSuchClass, of))
}

/// Kueue's own class of that name.
async fn workload_class(name: &str, client: &Client) -> kube::Result<Option<Priority>> {
    let class = api("WorkloadPriorityClass", client).get_opt(name).await?;
    Ok(class.map(|class| {
        let value = class.data["value"].as_i64().and_then(|value| i32::try_from(value).ok());
        let reference = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name});
        Priority::Of(value.unwrap_or_default(), Some(reference))
    }))
}

fn of(class: PriorityClass) -> Priority {
    let reference = json!({"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": class.name_any()});
    Priority::Of(class.value.unwrap_or_default(), Some(reference))
}

fn api(kind: &str, client: &Client) -> Api<DynamicObject> {
    let resource = match kind {
        // `ApiResource` guesses plurals; this guess would be wrong.
        "WorkloadPriorityClass" => ApiResource::from_gvk_with_plural(&gvk(kind), "workloadpriorityclasses"),
        _ => ApiResource::from_gvk(&gvk(kind)),
    };
    Api::all_with(client.clone(), &resource)
}

fn gvk(kind: &str) -> GroupVersionKind {
    GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind)
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::http::{StatusCode, Uri};
    use kube::Config;
    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;

    /// A client of an API server that has these objects, by their paths, and no others.
    async fn client(objects: Vec<(&'static str, Value)>) -> Client {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let answer = move |uri: Uri| {
            let found = objects.iter().find(|(path, _)| *path == uri.path());
            let answer = match found {
                Some((_, object)) => (StatusCode::OK, object.to_string()),
                None => {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "message": "not found", "reason": "NotFound", "code": 404});
                    (StatusCode::NOT_FOUND, status.to_string())
                }
            };
            std::future::ready(answer)
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, Router::new().fallback(answer)).into_future());
        Client::try_from(Config::new(url.parse().unwrap())).unwrap()
    }

    /// A class of Kueue's.
    fn class(name: &str, value: i32) -> Value {
        json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value})
    }

    #[tokio::test]
    async fn a_job_without_a_class_has_kueues_default_else_kubernetes_and_one_with_a_class_has_that() {
        let classes = || {
            let of_pods = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "usual"},
                "value": 5, "globalDefault": true});
            let all = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClassList", "metadata": {}, "items": [of_pods]});
            vec![
                ("/apis/scheduling.k8s.io/v1/priorityclasses", all),
                (
                    "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses/high",
                    class("high", 9),
                ),
            ]
        };
        let said = |priority: Priority| match priority {
            Priority::Of(value, Some(class)) => format!("{value} {} {}", class["kind"], class["name"]),
            other => format!("{other:?}"),
        };
        let without = client(classes()).await;
        let usual = priority("", &without).await.unwrap();
        assert_eq!(said(usual), r#"5 "PriorityClass" "usual""#);

        let default = "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses/default";
        let mut with_default = classes();
        with_default.push((default, class("default", 7)));
        let with_default = client(with_default).await;
        for (name, expected) in [
            ("", r#"7 "WorkloadPriorityClass" "default""#),
            ("high", r#"9 "WorkloadPriorityClass" "high""#),
        ] {
            let found = priority(name, &with_default).await.unwrap();
            assert_eq!(said(found), expected, "{name:?}");
        }
        let none = priority("low", &with_default).await.unwrap();
        assert_eq!(none, Priority::NoSuchClass);
    }
}
