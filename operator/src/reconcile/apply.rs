//! Carries a plan's actions out.

use futures::{StreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::pod::TOKEN_KEY;
use ppo_crds::status::{PpoJobStatus, RoleStatus};
use rand::Rng;
use serde_json::json;

use super::error::Error;
use super::subject::Subject;
use super::taken;
use super::write::Writer;
use crate::context::{Context, FIELD_MANAGER};
use crate::gang::Unapproved;
use crate::plan::{Action, Target};
use crate::world::Kind;

/// Writes of one job under way at once.
const CONCURRENT_WRITES: usize = 16;

/// Carries the waves out, one after the other, each wave's actions side by side.
///
/// # Errors
/// The foremost that was refused; the others of its wave are done.
pub async fn all(
    job: &Subject,
    planned: &PpoJobStatus,
    waves: Vec<Vec<Action>>,
    context: &Context,
) -> Result<(), Error> {
    let grave = |action: &Action| {
        matches!(
            action,
            Action::Delete(_) | Action::DeleteJob | Action::Create(Kind::Pod, _)
        )
    };
    if waves.iter().flatten().any(grave) {
        confirm(job, planned, context).await?;
    }
    if !waves.iter().flatten().any(is_of_gang) {
        context.unapproved.lock().remove(&job.checked.key);
    }
    for wave in waves {
        let actions = stream::iter(wave).map(|action| async move {
            // The semaphore is never closed.
            let _turn = context.writes.acquire().await;
            let of_gang = is_of_gang(&action);
            let answer = one(job, action, context).await;
            if of_gang {
                note_approval(job, &answer, context);
            }
            answer
        });
        // One that is refused does not hold up the others.
        let answers: Vec<Result<(), Error>> = actions.buffer_unordered(CONCURRENT_WRITES).collect().await;
        context.refused.note(&job.checked.key, &answers, context.now());
        if let Some(error) = foremost(answers) {
            return Err(error);
        }
    }
    context.refused.forget(&job.checked.key);
    Ok(())
}

/// Of several refusals the same one at every try, whichever answer comes first: in other words it would be another event each time.
fn foremost(answers: Vec<Result<(), Error>>) -> Option<Error> {
    let refused = answers.into_iter().filter_map(Result::err);
    refused.min_by_key(|error| (!error.needs_a_person(), error.words()))
}

fn is_of_gang(action: &Action) -> bool {
    match action {
        Action::Create(kind, _) | Action::Apply(kind, _) | Action::MergeStatus(kind, ..) | Action::Merge(kind, ..) => {
            Kind::GANGS.contains(kind)
        }
        Action::CreateToken(_) | Action::Delete(_) | Action::DeleteJob => false,
    }
}

/// Remembers since when the gang's object cannot be written for want of a webhook's answer. The job waits for that without any
/// other sign, and who asks again gets no other answer.
fn note_approval(job: &Subject, answer: &Result<(), Error>, context: &Context) {
    let key = &job.checked.key;
    match answer.as_ref().err().and_then(Error::unanswered_webhook) {
        Some(words) => {
            let since = context.now();
            let mut jobs = context.unapproved.lock();
            jobs.entry(key.clone()).or_insert(Unapproved { since, words });
        }
        None => drop(context.unapproved.lock().remove(key)),
    }
}

/// Before pods are made or anything is deleted: is the job still what it was planned on, with the same attempts? The cache may be
/// older than the world, after a restart much older; a deletion cannot be taken back, and a pod of an old attempt must not start.
async fn confirm(job: &Subject, planned: &PpoJobStatus, context: &Context) -> Result<(), Error> {
    let key = &job.checked.key;
    let api: Api<PpoJob> = Api::namespaced(context.client.clone(), &key.namespace);
    let now = api
        .get_opt(&key.name)
        .await
        .map_err(Error::request(format!("reading PpoJob {key} again"), None))?;
    let same = now.is_some_and(|now| {
        now.uid().as_deref() == Some(job.checked.uid.as_str())
            && now.metadata.generation == Some(job.checked.generation)
            && now.metadata.deletion_timestamp.is_none()
            && same_attempts(&now.status.unwrap_or_default(), planned)
    });
    if same { Ok(()) } else { Err(Error::Stale) }
}

/// A role that was never written is at its first attempt.
fn same_attempts(now: &PpoJobStatus, planned: &PpoJobStatus) -> bool {
    let same = |role: &RoleStatus| {
        let known = now.roles.iter().find(|known| known.name == role.name);
        let (attempt, alone) = known.map_or((1, &[][..]), |known| (known.attempt, known.pod_attempts.as_slice()));
        attempt == role.attempt && alone == role.pod_attempts
    };
    now.attempt.max(1) == planned.attempt.max(1) && planned.roles.iter().all(same)
}

async fn one(job: &Subject, action: Action, context: &Context) -> Result<(), Error> {
    match action {
        Action::CreateToken(mut secret) => {
            secret.data["stringData"] = json!({TOKEN_KEY: token()});
            create(job, Kind::Secret, &secret, context).await
        }
        Action::Create(kind, object) => create(job, kind, &object, context).await,
        Action::Apply(kind, object) => apply(job, kind, &object, context).await,
        Action::MergeStatus(kind, name, patch) => {
            context.metrics.wrote("patch", kind.name());
            let answer = writer(job, kind, context)
                .patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            gone_is_fine(answer).map_err(Error::request(
                format!("writing the status of {} {name}", kind.name()),
                kind,
            ))
        }
        Action::Merge(kind, name, patch) => {
            context.metrics.wrote("patch", kind.name());
            let answer = writer(job, kind, context)
                .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            gone_is_fine(answer).map_err(Error::request(format!("changing {} {name}", kind.name()), kind))
        }
        Action::Delete(target) => delete(job, &target, context).await,
        Action::DeleteJob => delete_job(job, context).await,
    }
}

async fn create(job: &Subject, kind: Kind, object: &DynamicObject, context: &Context) -> Result<(), Error> {
    let name = object.name_any();
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        dry_run: false,
    };
    context.metrics.wrote("create", kind.name());
    match writer(job, kind, context).create(&params, object).await {
        Ok(()) => {
            context.expected.made(&job.checked.key, kind, &name);
            Ok(())
        }
        Err(kube::Error::Api(status)) if status.is_already_exists() => taken::settle(job, kind, object, context).await,
        Err(error) => Err(writing("creating", kind, &name)(error)),
    }
}

async fn apply(job: &Subject, kind: Kind, object: &DynamicObject, context: &Context) -> Result<(), Error> {
    let name = object.name_any();
    let params = PatchParams::apply(FIELD_MANAGER).force();
    context.metrics.wrote("apply", kind.name());
    let answer = writer(job, kind, context)
        .patch(&name, &params, &Patch::Apply(object))
        .await;
    answer.map_err(writing("applying", kind, &name))
}

async fn delete(job: &Subject, target: &Target, context: &Context) -> Result<(), Error> {
    let params = DeleteParams {
        grace_period_seconds: target.grace_seconds,
        preconditions: Some(Preconditions {
            uid: Some(target.uid.clone()),
            resource_version: target.resource_version.clone(),
        }),
        ..DeleteParams::background()
    };
    context.metrics.wrote("delete", target.kind.name());
    let answer = job
        .api(target.kind, &context.client)
        .delete(&target.name, &params)
        .await;
    gone_is_fine(answer.map(drop)).map_err(Error::deleting(target.kind, &target.name))
}

async fn delete_job(job: &Subject, context: &Context) -> Result<(), Error> {
    let key = &job.checked.key;
    let api: Api<PpoJob> = Api::namespaced(context.client.clone(), &key.namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(job.checked.uid.clone()),
            resource_version: job.object.metadata.resource_version.clone(),
        }),
        ..DeleteParams::background()
    };
    context.metrics.wrote("delete", "PpoJob");
    let answer = api.delete(&key.name, &params).await;
    gone_is_fine(answer.map(drop)).map_err(Error::request(
        format!("deleting PpoJob {key}, whose time after its end is over"),
        None,
    ))
}

fn writer<'a>(job: &Subject, kind: Kind, context: &'a Context) -> Writer<'a> {
    Writer::of(&context.client, kind, &job.checked.key.namespace)
}

fn gone_is_fine(answer: kube::Result<()>) -> kube::Result<()> {
    match answer {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other,
    }
}

fn writing(verb: &str, kind: Kind, name: &str) -> impl FnOnce(kube::Error) -> Error {
    Error::request(format!("{verb} {} {name}", kind.name()), kind)
}

/// 256 random bits.
fn token() -> String {
    let bits: [u8; 32] = rand::rng().random();
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn of_several_refusals_the_same_is_told_whichever_answer_comes_first() {
        let creating = |pod: &str, code: u16, reason: &str| {
            let status = Status::failure("exceeded quota: gpus", reason).with_code(code);
            let refused = Error::request(format!("creating Pod {pod}"), Kind::Pod);
            Err(refused(kube::Error::Api(status.boxed())))
        };
        let quota = |pod| creating(pod, 403, "Forbidden");
        let conflict = || creating("a-actor-0", 409, "Conflict");
        for answers in [
            vec![Ok(()), quota("a-rollout-1"), quota("a-rollout-0"), conflict()],
            vec![conflict(), quota("a-rollout-0"), quota("a-rollout-1"), Ok(())],
        ] {
            let words = foremost(answers).unwrap().words();
            assert_eq!(words, "creating Pod a-rollout-0: exceeded quota: gpus");
        }
        assert!(foremost(vec![Ok(())]).is_none());
    }
}
