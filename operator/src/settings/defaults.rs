//! The administrator's part of a pod template for the pods of every job. Where a job's own template says something else, the job wins.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Container, EnvVar, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use ppo_crds::pod::{VLLM_CONTAINER, WORKER_CONTAINER};
use ppo_crds::spec::PodTemplate;

use crate::containers::container;

/// What may be one, for whoever gives another field.
const MAY_BE: &str = "metadata.labels and annotations, spec.nodeSelector, tolerations, imagePullSecrets and runtimeClassName, and of the \
                      containers worker and vllm env, resources.requests and resources.limits";

/// Defaults of jobs' pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodDefaults(PodTemplateSpec);

impl PodDefaults {
    /// Those of a YAML file.
    ///
    /// # Errors
    /// When it cannot be read, or has a field that is none.
    pub fn read(file: &Path, gpu_resource: &str) -> anyhow::Result<Self> {
        let name = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("{name} cannot be read"))?;
        Self::parse(&text, gpu_resource).map_err(|why| anyhow::anyhow!("{name} gives no defaults of pods: {why}"))
    }

    /// Those of a text in YAML, or why it has none.
    pub(crate) fn parse(text: &str, gpu_resource: &str) -> Result<Self, String> {
        let given: Option<PodTemplate> = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
        let Some(given) = given else {
            return Ok(Self::default());
        };
        let unknown = given.unknown();
        if !unknown.is_empty() {
            return Err(format!("Kubernetes knows no field {}", unknown.join(", ")));
        }
        if let Some((field, why)) = given.wrong_quantities().into_iter().next() {
            return Err(format!("{field}: {why}"));
        }
        let kept = kept(&given);
        let beyond = given.beyond(&kept);
        if !beyond.is_empty() {
            return Err(format!(
                "{} cannot be a default; these can: {MAY_BE}",
                beyond.join(", ")
            ));
        }
        for (index, container) in kept.spec.iter().flat_map(|spec| &spec.containers).enumerate() {
            let place = format!("spec.containers[{index}]");
            if ![WORKER_CONTAINER, VLLM_CONTAINER].contains(&container.name.as_str()) {
                return Err(format!(
                    "{place}.name is {:?}; the containers that have defaults are {WORKER_CONTAINER} and {VLLM_CONTAINER}",
                    container.name
                ));
            }
            if named(container.resources.as_ref()).contains(gpu_resource) {
                return Err(format!(
                    "{place}.resources asks for {gpu_resource}: how many GPUs a pod has is its job's to say (roles.*.gpusPerNode)"
                ));
            }
        }
        Ok(Self(kept))
    }

    /// A job's template with what it leaves out; the operator adds these containers.
    pub fn beneath(&self, template: Option<&PodTemplateSpec>, containers: &[&str]) -> PodTemplateSpec {
        let mut made = template.cloned().unwrap_or_default();
        if let Some(default) = &self.0.metadata {
            let metadata = made.metadata.get_or_insert_default();
            fill(&mut metadata.labels, default.labels.clone());
            fill(&mut metadata.annotations, default.annotations.clone());
        }
        let spec = made.spec.get_or_insert_default();
        let default = self.0.spec.as_ref();
        for name in containers {
            let into = container(spec, name);
            let defaults = default.into_iter().flat_map(|default| &default.containers);
            defaults
                .filter(|default| default.name == *name)
                .for_each(|default| fill_container(into, default));
        }
        if let Some(default) = default {
            fill(&mut spec.node_selector, default.node_selector.clone());
            append(&mut spec.tolerations, default.tolerations.as_deref());
            append(&mut spec.image_pull_secrets, default.image_pull_secrets.as_deref());
            if spec.runtime_class_name.is_none() {
                spec.runtime_class_name.clone_from(&default.runtime_class_name);
            }
        }
        made
    }
}

/// The part of a template that can be a default. All else is the job's or the operator's to say.
fn kept(given: &PodTemplateSpec) -> PodTemplateSpec {
    let metadata = given.metadata.as_ref().map(|given| ObjectMeta {
        labels: given.labels.clone(),
        annotations: given.annotations.clone(),
        ..ObjectMeta::default()
    });
    let spec = given.spec.as_ref().map(|given| PodSpec {
        node_selector: given.node_selector.clone(),
        tolerations: given.tolerations.clone(),
        image_pull_secrets: given.image_pull_secrets.clone(),
        runtime_class_name: given.runtime_class_name.clone(),
        containers: given.containers.iter().map(kept_of_container).collect(),
        ..PodSpec::default()
    });
    PodTemplateSpec { metadata, spec }
}

fn kept_of_container(given: &Container) -> Container {
    let resources = given.resources.as_ref().map(|given| ResourceRequirements {
        limits: given.limits.clone(),
        requests: given.requests.clone(),
        claims: None,
    });
    Container {
        name: given.name.clone(),
        env: given.env.clone(),
        resources,
        ..Container::default()
    }
}

fn fill_container(into: &mut Container, default: &Container) {
    let own = into.env.take().unwrap_or_default();
    let left_out = |variable: &&EnvVar| own.iter().all(|own| own.name != variable.name);
    // First, so that the job's may refer to them.
    let mut env: Vec<EnvVar> = default.env.iter().flatten().filter(left_out).cloned().collect();
    env.extend(own);
    into.env = (!env.is_empty()).then_some(env);
    let Some(default) = &default.resources else { return };
    // A default limit beside the job's own request, or the other way round, could contradict it.
    let own = named(into.resources.as_ref());
    let left_out = |quantities: &Option<BTreeMap<String, Quantity>>| {
        let quantities = quantities.iter().flatten().filter(|(name, _)| !own.contains(*name));
        quantities
            .map(|(name, quantity)| (name.clone(), quantity.clone()))
            .collect::<BTreeMap<_, _>>()
    };
    let resources = into.resources.get_or_insert_default();
    fill(&mut resources.limits, Some(left_out(&default.limits)));
    fill(&mut resources.requests, Some(left_out(&default.requests)));
}

/// The resources that are asked for.
fn named(resources: Option<&ResourceRequirements>) -> BTreeSet<String> {
    let quantities = resources.into_iter().flat_map(|given| [&given.limits, &given.requests]);
    quantities.flatten().flat_map(|given| given.keys().cloned()).collect()
}

fn fill<V>(into: &mut Option<BTreeMap<String, V>>, from: Option<BTreeMap<String, V>>) {
    for (key, value) in from.into_iter().flatten() {
        into.get_or_insert_default().entry(key).or_insert(value);
    }
}

fn append<V: Clone + PartialEq>(into: &mut Option<Vec<V>>, from: Option<&[V]>) {
    for entry in from.into_iter().flatten() {
        let into = into.get_or_insert_default();
        if !into.contains(entry) {
            into.push(entry.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json, to_value};

    use super::*;

    const GPU: &str = "nvidia.com/gpu";

    const GIVEN: &str = "
metadata:
  labels: {team: platform, cost: gpu}
spec:
  nodeSelector: {pool: training}
  tolerations: [{key: nvidia.com/gpu, operator: Exists}]
  imagePullSecrets: [{name: registry}]
  runtimeClassName: nvidia
  containers:
    - name: worker
      env: [{name: HTTPS_PROXY, value: 'http://proxy:3128'}, {name: RUST_LOG, value: info}]
      resources: {requests: {cpu: '8', memory: 32Gi}, limits: {memory: 32Gi}}
    - name: vllm
      env: [{name: VLLM_NO_USAGE_STATS, value: '1'}]
";

    fn beneath(template: Option<Value>, containers: &[&str]) -> Value {
        let defaults = PodDefaults::parse(GIVEN, GPU).unwrap();
        let template: Option<PodTemplateSpec> = template.map(|template| from_value(template).unwrap());
        to_value(defaults.beneath(template.as_ref(), containers)).unwrap()
    }

    #[test]
    fn a_job_that_says_nothing_has_the_defaults_of_the_containers_that_it_has() {
        let made = beneath(None, &["worker"]);
        assert_eq!(made["metadata"]["labels"], json!({"team": "platform", "cost": "gpu"}));
        assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
        assert_eq!(made["spec"]["runtimeClassName"], "nvidia");
        let containers = made["spec"]["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1, "no engine of vLLM in this role: {containers:?}");
        assert_eq!(
            containers[0]["resources"]["requests"],
            json!({"cpu": "8", "memory": "32Gi"})
        );
        assert_eq!(containers[0]["resources"]["limits"], json!({"memory": "32Gi"}));
        let made = beneath(None, &["worker", "vllm"]);
        assert_eq!(made["spec"]["containers"][1]["env"][0]["name"], "VLLM_NO_USAGE_STATS");
    }

    #[test]
    fn what_the_job_says_counts_and_lists_have_both() {
        let worker = json!({
            "name": "worker", "env": [{"name": "RUST_LOG", "value": "debug"}], "resources": {"limits": {"cpu": "2"}},
        });
        let made = beneath(
            Some(json!({
                "metadata": {"labels": {"team": "rl"}},
                "spec": {
                    "nodeSelector": {"pool": "small"}, "runtimeClassName": "kata",
                    "tolerations": [{"key": "spot", "operator": "Exists"}],
                    "containers": [{"name": "sidecar"}, worker],
                },
            })),
            &["worker"],
        );
        assert_eq!(made["metadata"]["labels"], json!({"team": "rl", "cost": "gpu"}));
        let spec = &made["spec"];
        assert_eq!(spec["nodeSelector"], json!({"pool": "small"}));
        assert_eq!(spec["runtimeClassName"], "kata");
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(spec["containers"][0], json!({"name": "sidecar"}));
        let worker = &spec["containers"][1];
        assert_eq!(
            worker["env"],
            json!([{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "RUST_LOG", "value": "debug"}])
        );
        // No request of 8 CPUs beside the limit of 2.
        assert_eq!(worker["resources"]["requests"], json!({"memory": "32Gi"}));
        assert_eq!(worker["resources"]["limits"], json!({"cpu": "2", "memory": "32Gi"}));
    }

    #[test]
    fn what_is_no_default_is_refused_by_name() {
        for (text, words) in [
            ("spec: {nodeSelectors: {a: b}}", "no field spec.nodeSelectors"),
            ("spec: {hostNetwork: true}", "spec.hostNetwork cannot be a default"),
            (
                "spec: {containers: [{name: worker, image: mine}]}",
                "spec.containers[0].image cannot be a default",
            ),
            (
                "spec: {containers: [{name: logs}]}",
                "spec.containers[0].name is \"logs\"",
            ),
            (
                "spec: {containers: [{name: worker, resources: {limits: {nvidia.com/gpu: '8'}}}]}",
                "spec.containers[0].resources asks for nvidia.com/gpu",
            ),
            (
                "spec: {containers: [{name: worker, env: [{name: A, value: 1}]}]}",
                "spec.containers[0].env[0].value",
            ),
            (
                "spec: {containers: [{name: worker, resources: {limits: {memory: 16GB}}}]}",
                "spec.containers[0].resources.limits.memory: \"16GB\" is not a quantity",
            ),
            ("- 1", "invalid type"),
        ] {
            let error = PodDefaults::parse(text, GPU).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert_eq!(PodDefaults::parse("", GPU), Ok(PodDefaults::default()));
        assert_eq!(PodDefaults::parse("{}", GPU), Ok(PodDefaults::default()));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = PodDefaults::read(Path::new("/nowhere/pods.yaml"), GPU).unwrap_err();
        assert!(error.to_string().contains("/nowhere/pods.yaml"), "{error}");
    }
}
