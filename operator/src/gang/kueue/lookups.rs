//! What Kueue's other objects say: labels of the flavors that a job was given, the value of its priority class. Asked for
//! only when a Workload or pods are about to be made, so that at rest nothing is asked.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use ppo_crds::pod::pod_name;
use ppo_crds::spec::Role;
use serde_json::{Value, json};

use super::{admission, workload};
use crate::gang::{Admission, Place};
use crate::job::{Job, RolePods};
use crate::world::Children;

/// A flavor that was read is trusted for so long.
const TRUSTED: Duration = Duration::from_secs(60);

/// What was asked for and found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookups {
    /// Flavors of an admitted job whose pods are about to be made.
    pub flavors: BTreeMap<String, Flavor>,
    /// The priority of a job that is about to be queued.
    pub priority: Option<Priority>,
}

/// What a ResourceFlavor does to pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flavor {
    /// Labels of its nodes.
    pub node_labels: BTreeMap<String, String>,
    /// Tolerations that its pods get.
    pub tolerations: Vec<Value>,
}

/// A Workload's priority.
#[derive(Clone, Debug, PartialEq)]
pub enum Priority {
    /// A value, with a reference to the class it is of.
    Of(i32, Option<Value>),
    /// There is no class of the name.
    NoSuchClass,
}

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

/// As Kueue resolves it (`pkg/util/priority`): its own class of the name, else Kubernetes', else the default one.
async fn priority(name: &str, client: &Client) -> kube::Result<Priority> {
    let classes: Api<PriorityClass> = Api::all(client.clone());
    if name.is_empty() {
        let defaults = classes.list(&ListParams::default()).await?;
        let default = defaults.into_iter().filter(|class| class.global_default == Some(true));
        return Ok(default
            .min_by_key(|class| class.value)
            .map_or(Priority::Of(0, None), of));
    }
    if let Some(class) = api("WorkloadPriorityClass", client).get_opt(name).await? {
        let value = class.data["value"].as_i64().and_then(|value| i32::try_from(value).ok());
        let reference = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name});
        return Ok(Priority::Of(value.unwrap_or_default(), Some(reference)));
    }
    Ok(classes.get_opt(name).await?.map_or(Priority::NoSuchClass, of))
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
