//! The configuration that the pods run, and the token with which they call each other. Both are made once: a run does not change under
//! its pods.

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use ppo_crds::RunConfig;
use ppo_crds::pod::{CONFIG_FILE, config_name, token_name};

use super::action::Action;
use super::images::Images;
use super::object::{metadata, untyped};
use crate::job::Job;
use crate::settings::PodSettings;
use crate::snapshot::Snapshot;
use crate::world::Kind;

/// The ConfigMap and the Secret, where they are missing.
pub fn missing(job: &Job, seen: &Snapshot, settings: &PodSettings) -> Vec<Action> {
    let name = &job.key.name;
    let mut actions = Vec::new();
    if let Ok(config) = &job.config
        && !seen.has_config(job)
    {
        let object = untyped(Kind::ConfigMap, &run_config(job, config, Images::chosen(settings)));
        actions.push(Action::Create(Kind::ConfigMap, Box::new(object)));
    }
    if !seen.exists(Kind::Secret, &token_name(name)) {
        let object = untyped(Kind::Secret, &token(job));
        actions.push(Action::CreateToken(Box::new(object)));
    }
    actions
}

fn run_config(job: &Job, config: &RunConfig, images: Images<'_>) -> ConfigMap {
    // A RunConfig is plain data: it can always be written.
    let text = serde_json::to_string(config).unwrap_or_default();
    let mut metadata = metadata(job, &config_name(&job.key.name));
    metadata.annotations = Some(images.noted());
    ConfigMap {
        metadata,
        data: Some([(CONFIG_FILE.to_string(), text)].into()),
        immutable: Some(true),
        binary_data: None,
    }
}

/// Without its content, which is drawn when it is sent: this function has no randomness.
fn token(job: &Job) -> Secret {
    Secret {
        metadata: metadata(job, &token_name(&job.key.name)),
        immutable: Some(true),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}
