//! `kubectl ppo restart-role`: asks the operator, by an annotation, to replace all pods of a role once.

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use ppo_crds::pod::annotation;
use ppo_crds::spec::Role;
use ppo_crds::status::Phase;
use ppo_crds::{Geometry, PpoJob};
use serde_json::json;

use super::cli::RestartRoleArgs;
use super::connection::Connection;
use super::{checkpoints, job, printer};

/// Sets the annotation that the operator acts on once.
pub async fn main(connection: &Connection, args: &RestartRoleArgs) -> Result<()> {
    let job = job::read(connection, &args.name).await?;
    if let Some(refusal) = refusal(&job, args.role) {
        bail!("{}: {refusal}", args.name);
    }
    let lost = match args.role {
        Role::Actor => {
            let undone = format!("the actor of {} is not restarted", args.name);
            checkpoints::given_up(&job, args.discard_checkpoints, &undone)?
        }
        _ => None,
    };
    // To the microsecond: the same value again would ask for nothing.
    let value = format!("{}={:.6}", args.role.name(), Timestamp::now());
    let patch = json!({"metadata": {"annotations": {annotation::RESTART: value}}});
    let parameters = PatchParams {
        field_manager: Some(super::suspend::MANAGER.into()),
        ..PatchParams::default()
    };
    let patched = connection
        .jobs()
        .patch(&args.name, &parameters, &Patch::Merge(patch))
        .await;
    patched.map_err(|error| job::request(connection, "patch").refused(error))?;
    let note = match (args.role, lost) {
        (Role::Actor, Some(lost)) => format!("; {lost}"),
        (Role::Actor, None) => format!("; {}", goes_on(&job)),
        _ => String::new(),
    };
    let role = args.role.name();
    printer::print(&format!(
        "ppojob {} asked to restart role {role}{note}. `kubectl ppo status {}` shows its attempt.\n",
        args.name, args.name
    ))
}

/// Where an actor goes on that is asked to stop: it saves what it has made, and where it cannot, has what it saved last.
fn goes_on(job: &PpoJob) -> String {
    let progress = job.status.as_ref().and_then(|status| status.progress.as_ref());
    let steps = progress.map_or(0, |progress| progress.step);
    match progress.and_then(|progress| progress.last_checkpoint) {
        _ if steps == 0 => "it has made no step yet, and starts at step 0".into(),
        Some(last) if last < steps => {
            format!("it saves step {steps} first, and goes on from there; its last checkpoint is of step {last}")
        }
        Some(last) => format!("it goes on from the checkpoint of step {last}"),
        None => format!("it saves step {steps} first, and goes on from there; it has no other checkpoint"),
    }
}

/// Why the operator would not act on it.
fn refusal(job: &PpoJob, role: Role) -> Option<String> {
    if job.metadata.deletion_timestamp.is_some() {
        return Some("the job was deleted, and is only waiting for its end".into());
    }
    let phase = job.status.as_ref().and_then(|status| status.phase);
    if phase.is_some_and(Phase::is_finished) {
        return Some("the job has ended; a new run is a new job".into());
    }
    if job.spec.run_policy.suspend {
        return Some(format!(
            "the job is suspended and has no pods; `kubectl ppo resume` starts all its roles ({} too)",
            role.name()
        ));
    }
    let pods = Geometry::of(job).and_then(|geometry| geometry.role(role).map(|role| role.pods));
    let why = match role {
        Role::Reference => "algorithm.kl.coef is 0, or the actor holds the reference: the base of model.adapter",
        Role::Reward => "the actor computes its rewards: there is no reward model",
        Role::Rollout | Role::Actor => "its geometry is empty",
    };
    (pods == Some(0)).then(|| format!("the job has no {} pods ({why})", role.name()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::routing::get;
    use axum::{Json, Router};

    use super::*;

    fn job(status: serde_json::Value, suspend: bool) -> PpoJob {
        serde_json::from_value(json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a"},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}, "runPolicy": {"suspend": suspend}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_role_without_pods_cannot_be_restarted_and_the_reason_is_said() {
        let refusal = refusal(&job(json!({"phase": "Running"}), false), Role::Reward).unwrap();
        assert!(
            refusal.contains("no reward pods") && refusal.contains("no reward model"),
            "{refusal}"
        );
    }

    #[test]
    fn a_job_that_ended_or_is_suspended_has_nothing_to_restart() {
        assert!(
            refusal(&job(json!({"phase": "Succeeded"}), false), Role::Actor)
                .unwrap()
                .contains("ended")
        );
        assert!(
            refusal(&job(json!({"phase": "Suspended"}), true), Role::Actor)
                .unwrap()
                .contains("resume")
        );
    }

    #[test]
    fn a_job_that_was_deleted_restarts_nothing() {
        let mut going = job(json!({"phase": "Running"}), false);
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(refusal(&going, Role::Actor).unwrap().contains("deleted"));
    }

    #[test]
    fn a_running_role_can_be_restarted() {
        assert_eq!(refusal(&job(json!({"phase": "Running"}), false), Role::Actor), None);
    }

    #[test]
    fn an_actor_goes_on_from_the_step_that_it_has_made_where_it_can_save_it() {
        let said =
            |progress: serde_json::Value| goes_on(&job(json!({"phase": "Running", "progress": progress}), false));
        assert!(said(json!({"step": 0})).contains("no step yet"));
        assert!(said(json!({"step": 9})).starts_with("it saves step 9 first"));
        let behind = said(json!({"step": 9, "lastCheckpoint": 5}));
        assert!(
            behind.starts_with("it saves step 9 first") && behind.ends_with("of step 5"),
            "{behind}"
        );
        assert_eq!(
            said(json!({"step": 9, "lastCheckpoint": 9})),
            "it goes on from the checkpoint of step 9"
        );
    }

    #[tokio::test]
    async fn an_actor_whose_checkpoints_go_with_its_pod_is_left_as_it_is_unless_that_is_meant() {
        let patches = Arc::new(AtomicUsize::new(0));
        let (counted, trained) = (
            patches.clone(),
            job(json!({"phase": "Running", "progress": {"step": 3}}), false),
        );
        let patched = trained.clone();
        let of_job = get(move || async move { Json(trained) }).patch(move || async move {
            counted.fetch_add(1, Ordering::SeqCst);
            Json(patched)
        });
        let router = Router::new().route("/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs/a", of_job);
        let connection = Connection::served(router).await;
        let args = |role: Role, discard_checkpoints: bool| RestartRoleArgs {
            name: "a".into(),
            role,
            discard_checkpoints,
        };
        let refused = main(&connection, &args(Role::Actor, false)).await;
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("the actor of a is not restarted: its checkpoints go with its pod"),
            "{error}"
        );
        assert_eq!(patches.load(Ordering::SeqCst), 0);
        main(&connection, &args(Role::Actor, true)).await.unwrap();
        main(&connection, &args(Role::Rollout, false)).await.unwrap();
        assert_eq!(patches.load(Ordering::SeqCst), 2);
    }
}
