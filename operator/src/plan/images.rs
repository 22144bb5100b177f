//! The images of a job's pods whose template names none. They are chosen once, with the configuration: a worker of another release reads
//! another one, and may refuse this, so an upgrade of the operator changes neither under a job that has begun.

use std::collections::BTreeMap;

use kube::ResourceExt;
use ppo_crds::pod::{annotation, config_name};

use crate::job::Job;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// An image for each container that the operator adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Images<'a> {
    /// Of `ppo-worker`.
    pub worker: &'a str,
    /// Of vLLM.
    pub vllm: &'a str,
}

impl<'a> Images<'a> {
    /// Those of jobs that begin now.
    pub fn chosen(settings: &'a PodSettings) -> Self {
        Self {
            worker: &settings.worker_image,
            vllm: &settings.vllm_image,
        }
    }

    /// Those that the job's configuration was made with. One that an older operator made names none.
    pub fn of(job: &Job, seen: &'a Snapshot, settings: &'a PodSettings) -> Self {
        let chosen = Self::chosen(settings);
        let Some(config) = seen.object(Kind::ConfigMap, &config_name(&job.key.name)) else {
            return chosen;
        };
        let noted = |name: &str| config.annotations().get(name).map(String::as_str);
        Self {
            worker: noted(annotation::WORKER_IMAGE).unwrap_or(chosen.worker),
            vllm: noted(annotation::VLLM_IMAGE).unwrap_or(chosen.vllm),
        }
    }

    /// As the configuration says them.
    pub fn noted(self) -> BTreeMap<String, String> {
        [
            (annotation::WORKER_IMAGE, self.worker),
            (annotation::VLLM_IMAGE, self.vllm),
        ]
        .map(|(name, image)| (name.to_owned(), image.to_owned()))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::jiff::Timestamp;
    use kube::api::DynamicObject;
    use serde_json::json;

    use super::*;
    use crate::gang::Gang;
    use crate::plan::{Action, plan};
    use crate::smallest_job::smallest_job;
    use crate::world::Children;

    fn settings(release: &str) -> PodSettings {
        PodSettings {
            worker_image: format!("worker:{release}"),
            vllm_image: format!("vllm:{release}"),
            ..PodSettings::default()
        }
    }

    /// A job whose engines are vLLM's.
    fn job() -> Job {
        smallest_job(&json!({"roles": {"rollout": {"engine": "vllm"}}}))
    }

    /// What an operator of that release makes of a job that has no pods and, or not, this ConfigMap: the ConfigMap it makes, and the
    /// images of an engine's containers.
    fn made(release: &str, config: Option<DynamicObject>) -> (Option<DynamicObject>, Vec<String>) {
        let job = job();
        assert!(job.config.is_ok(), "{:?}", job.config);
        let mut children = Children::default();
        if let Some(config) = config {
            children
                .objects
                .insert((Kind::ConfigMap, config.name_any()), Arc::new(config));
        }
        let now = Timestamp::UNIX_EPOCH;
        let seen = Snapshot::plain(children, Gang::None, now);
        let plan = plan(&job, &seen, &Default::default(), &settings(release), now);
        let (mut config, mut images) = (None, Vec::new());
        for action in plan.waves.into_iter().flatten() {
            match action {
                Action::Create(Kind::ConfigMap, object) => config = Some(*object),
                Action::Create(Kind::Pod, pod) if pod.name_any() == "a-rollout-0" => {
                    let containers = pod.data["spec"]["containers"].as_array().unwrap();
                    images = containers
                        .iter()
                        .map(|container| container["image"].as_str().unwrap().to_owned())
                        .collect();
                }
                _ => {}
            }
        }
        (config, images)
    }

    #[test]
    fn a_pod_that_is_made_anew_after_an_upgrade_has_the_images_of_the_jobs_beginning() {
        let (config, first) = made("1", None);
        assert_eq!(first, ["worker:1", "vllm:1"]);
        let (again, upgraded) = made("2", config);
        assert_eq!(upgraded, first);
        assert!(again.is_none(), "the configuration stays");
        assert_eq!(made("2", None).1, ["worker:2", "vllm:2"], "a job that begins now");
    }

    #[test]
    fn a_configuration_that_names_no_image_leaves_it_to_the_operator() {
        let mut config = made("1", None).0.unwrap();
        config.metadata.annotations = None;
        assert_eq!(made("2", Some(config)).1, ["worker:2", "vllm:2"]);
    }
}
