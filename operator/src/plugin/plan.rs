//! `kubectl ppo plan`: what a manifest, or a job on the cluster, takes.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use kube::api::ObjectMeta;
use ppo_crds::validate::ValidationErrors;
use ppo_crds::{Environment, Plan, PpoJob, parse_manifest, render_plan};

use super::cli::{ConnectionArgs, Output, PlanArgs};
use super::connection::Connection;
use super::{job, printer};
use crate::job::at_a_dividing_scale;

/// The manifest, or the arguments, cannot be used: trying again does not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

/// Prints the plan. A file is planned without a cluster.
pub async fn main(connection: &ConnectionArgs, args: &PlanArgs) -> Result<()> {
    let (job, environment, origin) = match (&args.file, &args.name) {
        (Some(file), _) => {
            let (text, origin) = read(file)?;
            let job = parse_manifest(&text, &origin).map_err(|error| Unusable(error.to_string()))?;
            let environment = Environment::meant_by(&job, file.parent().unwrap_or(Path::new("")));
            (job, environment, origin)
        }
        (None, None) => return Err(Unusable("give NAME, or -f FILE".into()).into()),
        (None, Some(name)) => {
            let job = job::read(&Connection::open(connection).await?, name).await?;
            (as_it_runs(job), Environment::cluster(), format!("PpoJob {name}"))
        }
    };
    let plan = match Plan::of(&job, &Environment::cluster(), None) {
        Ok(plan) => plan,
        // Planned as one for a laptop, by its relative paths.
        Err(errors) => {
            let plan = Plan::of(&job, &environment, None).map_err(|errors| invalid(&origin, &errors))?;
            let errors = printer::visible(&errors.to_string());
            eprintln!("{origin} is a manifest for one machine, no cluster takes it: {errors}");
            plan
        }
    };
    match args.output {
        Some(Output::Json) => printer::print_json(&plan),
        _ => printer::print(&render_plan(&plan)),
    }
}

fn read(file: &Path) -> Result<(String, String)> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("cannot read standard input")?;
        return Ok((text, "standard input".into()));
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok((text, file.display().to_string()))
}

fn invalid(origin: &str, errors: &ValidationErrors) -> Unusable {
    Unusable(format!("{origin} cannot run: {errors}"))
}

/// A job of the cluster. One that has begun may have been scaled to a number of engines that would not do at the start: it is planned
/// with the next smaller one that would.
fn as_it_runs(job: PpoJob) -> PpoJob {
    let begun = job.status.as_ref().is_some_and(|status| status.attempt > 0);
    let job = as_written(job);
    match begun {
        true => at_a_dividing_scale(&job),
        false => job,
    }
}

/// A job of the cluster as its user wrote it: without what the API server and the operator added.
fn as_written(job: PpoJob) -> PpoJob {
    let ObjectMeta {
        name,
        namespace,
        labels,
        mut annotations,
        ..
    } = job.metadata;
    if let Some(annotations) = &mut annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    PpoJob {
        metadata: ObjectMeta {
            name,
            namespace,
            labels,
            annotations: annotations.filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        spec: job.spec,
        status: None,
    }
}
