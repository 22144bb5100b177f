//! Reads jobs, and finds the one that a mistyped name meant.

use anyhow::{Result, anyhow};
use kube::api::{DynamicObject, ListParams};
use kube::{Error, Resource as _};
use ppo_crds::PpoJob;
use ppo_crds::status::Phase;
use serde_json::from_value;

use super::connection::Connection;
use super::refusal::{Request, is_not_found};
use super::unreadable;

/// How a request about jobs of this connection's namespace is named in errors.
pub fn request<'a>(connection: &'a Connection, verb: &'static str) -> Request<'a> {
    Request {
        verb,
        resource: "ppojobs",
        namespace: &connection.namespace,
        url: &connection.url,
    }
}

/// The job of this name; else an error with the names nearest to it.
pub async fn read(connection: &Connection, name: &str) -> Result<PpoJob> {
    let object = object(connection, name).await?;
    match unreadable::decode(&object) {
        Ok(job) => Ok(job),
        Err(misfit) => Err(unreadable::explained(connection, name, &misfit).await),
    }
}

/// The same as it is, though it may be one that cannot be decoded.
pub async fn object(connection: &Connection, name: &str) -> Result<DynamicObject> {
    match connection.jobs().get(name).await {
        Ok(object) => Ok(object),
        Err(error) if is_not_found(&error) => Err(not_found(connection, name).await),
        Err(error) => Err(request(connection, "get").refused(error)),
    }
}

/// A job's name as kubectl takes it, a line: `ppojob.ppojob.dev/math`.
pub fn named(name: &str) -> String {
    format!("{}.{}/{name}\n", PpoJob::kind(&()).to_lowercase(), PpoJob::group(&()))
}

/// Whether somebody deleted the job: it goes when its finalizers are done, and no operator does anything with it.
pub fn is_going(object: &DynamicObject) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Where the operator saw such a job in its life.
pub fn phase(object: &DynamicObject) -> Option<Phase> {
    from_value(object.data.pointer("/status/phase")?.clone()).ok()
}

async fn not_found(connection: &Connection, name: &str) -> anyhow::Error {
    let elsewhere = elsewhere(connection, name).await;
    if let Some(first) = elsewhere.first() {
        return anyhow!(
            "namespace {} has no PpoJob {name}, there is one in {}: give -n {first}",
            connection.namespace,
            elsewhere.join(", ")
        );
    }
    match connection.jobs().list_metadata(&ListParams::default()).await {
        Ok(list) => {
            let names: Vec<String> = list.items.into_iter().filter_map(|item| item.metadata.name).collect();
            anyhow!("{}", absent(name, &connection.namespace, &names))
        }
        // The name is what is wrong, and not the right to see others.
        Err(Error::Api(status)) if status.code == 403 => anyhow!(
            "namespace {} has no PpoJob {name}; which there are you may not list",
            connection.namespace
        ),
        Err(error) => request(connection, "list").refused(error),
    }
}

/// Other namespaces that have a job of the name, as far as we may see them.
async fn elsewhere(connection: &Connection, name: &str) -> Vec<String> {
    let of_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let Ok(list) = connection.all_jobs().list_metadata(&of_name).await else {
        return Vec::new();
    };
    let jobs = list.items.into_iter().map(|item| item.metadata);
    let jobs = jobs.filter(|job| job.name.as_deref() == Some(name));
    jobs.filter_map(|job| job.namespace).collect()
}

/// Says that there is no such job, and which were meant.
fn absent(name: &str, namespace: &str, names: &[String]) -> String {
    let mut near: Vec<(f64, &str)> = names
        .iter()
        .map(|other| (likeness(name, other), other.as_str()))
        .filter(|(likeness, _)| *likeness > 0.7)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, name)| name).collect();
    let hint = match (near.as_slice(), names.len()) {
        ([], 0) => "it has no PpoJobs; another one is chosen with -n, `kubectl ppo list -A` shows all".to_string(),
        ([], count) => format!("`kubectl ppo list -n {namespace}` shows the {count} there are"),
        (near, _) => format!("did you mean {}?", near.join(" or ")),
    };
    format!("namespace {namespace} has no PpoJob {name}: {hint}")
}

/// 0 to 1. A part of a name is as good as a typing error.
fn likeness(given: &str, name: &str) -> f64 {
    match name.contains(given) || given.contains(name) {
        true => 0.9,
        false => strsim::jaro_winkler(given, name),
    }
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mistyped_name_is_answered_with_the_nearest_ones() {
        let names = ["rloo-math", "code", "sft-big"].map(String::from);
        assert!(absent("rlo-math", "ml", &names).ends_with("did you mean rloo-math?"));
        assert!(absent("math", "ml", &names).ends_with("did you mean rloo-math?"));
    }

    #[tokio::test]
    async fn who_may_not_list_jobs_is_told_that_there_is_none_of_the_name() {
        let jobs = "/apis/ppojob.dev/v1alpha1/namespaces/n/ppojobs";
        let router = axum::Router::new()
            .route(jobs, get(|| async { (StatusCode::FORBIDDEN, "no") }))
            .route(
                &format!("{jobs}/{{name}}"),
                get(|| async { (StatusCode::NOT_FOUND, "no") }),
            );
        let words = object(&Connection::served(router).await, "zzz")
            .await
            .unwrap_err()
            .to_string();
        assert!(words.contains("namespace n has no PpoJob zzz"), "{words}");
    }

    #[tokio::test]
    async fn a_job_of_another_namespace_is_found_there() {
        let (jobs, meta) = ("/apis/ppojob.dev/v1alpha1", "meta.k8s.io/v1");
        let known = json!({
            "apiVersion": meta, "kind": "PartialObjectMetadataList", "metadata": {},
            "items": [{"apiVersion": meta, "kind": "PartialObjectMetadata", "metadata": {"name": "math", "namespace": "team"}}],
        });
        let router = axum::Router::new()
            .route(&format!("{jobs}/ppojobs"), get(move || async move { Json(known) }))
            .route(
                &format!("{jobs}/namespaces/n/ppojobs/{{name}}"),
                get(|| async { (StatusCode::NOT_FOUND, "no") }),
            );
        let words = object(&Connection::served(router).await, "math")
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(
            words,
            "namespace n has no PpoJob math, there is one in team: give -n team"
        );
    }

    #[test]
    fn a_name_is_printed_as_kubectl_takes_it() {
        assert_eq!(named("math"), "ppojob.ppojob.dev/math\n");
    }

    #[test]
    fn without_a_near_name_the_list_is_offered() {
        assert!(absent("zzz", "ml", &["a".into()]).contains("`kubectl ppo list -n ml` shows the 1 there are"));
        assert!(absent("zzz", "ml", &[]).contains("-A"));
    }
}
