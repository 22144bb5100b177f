//! A name that exists already where an object was to be made.

use kube::api::{DynamicObject, ListParams};
use kube::{Resource, ResourceExt};
use ppo_crds::PpoJob;
use ppo_crds::pod::label;

use super::error::Error;
use super::owner::controller;
use super::subject::Subject;
use crate::context::Context;
use crate::events;
use crate::job::Job;
use crate::plan::undersized;
use crate::world::Kind;

/// What an object is that has the name of one that was to be made.
#[derive(Debug, PartialEq)]
enum Taken {
    /// The job's own, of which no watch has told yet; or a claim that is going, and in a moment to be made after all.
    Soon,
    /// A claim of somebody else, which the job uses.
    Claim,
    /// The job's own, of which no watch tells any more: it has lost these labels.
    Unlabelled(Vec<String>),
    /// An earlier job's of this name, which was deleted: what was its own goes after it.
    Earlier,
    /// Somebody else's: whose.
    Foreign(String),
}

impl Taken {
    fn by(existing: &impl ResourceExt, wanted: &DynamicObject, kind: Kind, job: &Job) -> Self {
        let lost = lost_labels(existing, wanted);
        match controller(existing) {
            // A claim is nobody's.
            _ if kind == Kind::PersistentVolumeClaim => {
                let is_going = existing.meta().deletion_timestamp.is_some();
                if lost.is_empty() || is_going {
                    Self::Soon
                } else {
                    Self::Claim
                }
            }
            Some(owner) if owner.uid == job.uid && lost.is_empty() => Self::Soon,
            Some(owner) if owner.uid == job.uid => Self::Unlabelled(lost),
            Some(owner) if owner.kind == PpoJob::kind(&()) && owner.name == job.key.name => Self::Earlier,
            Some(owner) => Self::Foreign(format!("{} {}", owner.kind, owner.name)),
            None => Self::Foreign("nobody".into()),
        }
    }
}

/// Does what the object calls for that has the name of `wanted`.
///
/// # Errors
/// When the job has to wait until the name is free, or the object has its labels back.
pub(super) async fn settle(job: &Subject, kind: Kind, wanted: &DynamicObject, context: &Context) -> Result<(), Error> {
    let name = wanted.name_any();
    // By a list: no secret may be read.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let existing = job.api(kind, &context.client).list_metadata(&named).await;
    let existing = existing.map_err(Error::request(format!("reading {} {name}", kind.name()), None))?;
    let Some(existing) = existing.items.first() else {
        return Ok(());
    };
    match Taken::by(existing, wanted, kind, &job.checked) {
        Taken::Soon => {
            // Until then it is not asked for at every look.
            context.expected.made(&job.checked.key, kind, &name);
            Ok(())
        }
        Taken::Claim => use_claim(job, &name, context).await,
        Taken::Unlabelled(lost) => Err(Error::Unlabelled { kind, name, lost }),
        Taken::Earlier => Err(Error::Stale),
        Taken::Foreign(owner) => Err(Error::NameTaken { kind, name, owner }),
    }
}

/// The labels of `wanted` by which the watches show an object, and show whose it is, as far as the existing one has not the same.
fn lost_labels(existing: &impl ResourceExt, wanted: &DynamicObject) -> Vec<String> {
    let shown_by = [label::MANAGED_BY, label::JOB, label::ROLE, label::INDEX].into_iter();
    let lost = shown_by.filter_map(|name| {
        let value = wanted.labels().get(name)?;
        (existing.labels().get(name) != Some(value)).then(|| format!("{name}={value}"))
    });
    lost.collect()
}

/// Uses a claim that somebody else has made as it is, and tells of it, and of its size where that is less than what is asked for.
async fn use_claim(job: &Subject, name: &str, context: &Context) -> Result<(), Error> {
    let kind = Kind::PersistentVolumeClaim;
    // By a list: the right to get claims is not among the operator's.
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let claims = job.api(kind, &context.client).list(&named).await;
    let claims = claims.map_err(Error::request(format!("reading {} {name}", kind.name()), None))?;
    let wrong = claims.items.iter().find_map(|claim| undersized(&job.checked, claim));
    context.expected.found(&job.checked.key, kind, name);
    events::claim_found(&job.object, name, wrong.as_deref(), context).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::smallest_job::smallest_object;

    fn object(metadata: Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn a_name_is_taken_by_the_jobs_own_by_an_earlier_jobs_or_by_somebody_elses() {
        let mut job = smallest_object(&json!({}));
        job.metadata.uid = Some("2".into());
        let job = Job::of(&job);
        let labels = json!({"ppojob.dev/job": "a"});
        let wanted = object(json!({"name": "a-actor-0", "labels": labels}));
        let owned = |kind: &str, name: &str, uid: &str, labels: &Value| {
            let owner = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true});
            let existing = object(json!({"labels": labels, "ownerReferences": [owner]}));
            Taken::by(&existing, &wanted, Kind::Pod, &job)
        };
        assert_eq!(owned("PpoJob", "a", "2", &labels), Taken::Soon);
        let lost = vec!["ppojob.dev/job=a".to_string()];
        assert_eq!(owned("PpoJob", "a", "2", &json!({})), Taken::Unlabelled(lost));
        assert_eq!(owned("PpoJob", "a", "1", &labels), Taken::Earlier);
        assert_eq!(owned("Job", "b", "3", &labels), Taken::Foreign("Job b".into()));
        let nobodys = Taken::by(&object(json!({"labels": labels})), &wanted, Kind::Pod, &job);
        assert_eq!(nobodys, Taken::Foreign("nobody".into()));
        let claim = |metadata: Value| Taken::by(&object(metadata), &wanted, Kind::PersistentVolumeClaim, &job);
        assert_eq!(claim(json!({"labels": labels})), Taken::Soon);
        assert_eq!(claim(json!({})), Taken::Claim);
        // Remembered as there it would never be made.
        assert_eq!(claim(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})), Taken::Soon);
    }

    #[test]
    fn an_object_has_lost_the_labels_that_no_watch_shows_it_without_and_others_do_not_matter() {
        let pod = |labels: Value| object(json!({"name": "a-actor-0", "labels": labels}));
        let managed_by = "app.kubernetes.io/managed-by";
        let wanted =
            json!({managed_by: "ppo-operator", "ppojob.dev/job": "a", "ppojob.dev/role": "actor", "team": "rl"});
        let lost = |label: &str, value: Value| {
            let mut labels = wanted.clone();
            match value {
                Value::Null => drop(labels.as_object_mut().unwrap().remove(label)),
                value => labels[label] = value,
            }
            lost_labels(&pod(labels), &pod(wanted.clone()))
        };
        assert_eq!(lost("team", Value::Null), [""; 0]);
        assert_eq!(lost("ppojob.dev/index", json!("0")), [""; 0]);
        assert_eq!(lost("ppojob.dev/job", Value::Null), ["ppojob.dev/job=a"]);
        assert_eq!(lost("ppojob.dev/job", json!("b")), ["ppojob.dev/job=a"]);
        assert_eq!(
            lost(managed_by, Value::Null),
            ["app.kubernetes.io/managed-by=ppo-operator"]
        );
    }
}
