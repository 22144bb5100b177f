//! `kubectl ppo plan`: what a manifest, or a job on the cluster, takes.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use kube::api::ObjectMeta;
use ppo_crds::validate::ValidationErrors;
use ppo_crds::{Environment, Plan, PpoJob, parse_manifest, render_plan};

use super::cli::{ConnectionArgs, PlanArgs};
use super::connection::Connection;
use super::output::Output;
use super::{job, printer};
use crate::job::{at_a_dividing_scale, was_accepted};

/// The manifest, or the arguments, cannot be used: trying again does not help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

/// Prints the plan. A file is planned without a cluster.
pub async fn main(connection: &ConnectionArgs, args: &PlanArgs) -> Result<()> {
    let plan = match (&args.file, &args.name) {
        (Some(file), _) => {
            let (text, origin) = read(file)?;
            let job = parse_manifest(&text, &origin).map_err(|error| Unusable(error.to_string()))?;
            let (plan, refused) = of_file(&job, file.parent().unwrap_or(Path::new("")), &origin)?;
            if let Some(errors) = refused {
                let errors = printer::visible(&errors.to_string());
                anstream::eprintln!("{origin} is a manifest for one machine, no cluster takes it: {errors}");
            }
            plan
        }
        (None, None) => return Err(Unusable("give NAME, or -f FILE".into()).into()),
        (None, Some(name)) => {
            let job = as_it_runs(job::read(&Connection::open(connection).await?, name).await?);
            let plan = Plan::of(&job, &Environment::cluster(), None);
            plan.map_err(|errors| invalid(&format!("PpoJob {name}"), &errors))?
        }
    };
    match args.output {
        Some(Output::Json) => printer::print_json(&plan),
        Some(Output::Yaml) => printer::print_yaml(&plan),
        _ => printer::print(&render_plan(&plan)),
    }
}

/// The plan of a manifest, and why no cluster takes it where it is one for a single machine. Any other is held to what the operator would
/// say of it.
fn of_file(job: &PpoJob, folder: &Path, origin: &str) -> Result<(Plan, Option<ValidationErrors>), Unusable> {
    let errors = match of_cluster(job) {
        Ok(plan) => return Ok((plan, None)),
        Err(errors) => errors,
    };
    match Environment::of_one_machine(job, folder) {
        Some(machine) => match Plan::of(job, &machine, None) {
            Ok(plan) => Ok((plan, Some(errors))),
            Err(errors) => Err(invalid(origin, &errors)),
        },
        None => Err(invalid(origin, &errors)),
    }
}

/// The plan of a job as the API server takes it, which makes a name of `generateName` and five characters. One machine does not.
fn of_cluster(job: &PpoJob) -> Result<Plan, ValidationErrors> {
    let [name, prefix] =
        [&job.metadata.name, &job.metadata.generate_name].map(|given| given.as_deref().unwrap_or_default());
    if !name.is_empty() || prefix.is_empty() {
        return Plan::of(job, &Environment::cluster(), None);
    }
    let mut named = job.clone();
    named.metadata.name = Some(format!("{prefix}{GENERATED}"));
    let mut plan = Plan::of(&named, &Environment::cluster(), None)?;
    plan.manifest.metadata.name = None;
    Ok(plan)
}

/// Stands for those that the API server chooses.
const GENERATED: &str = "xxxxx";

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
    let accepted = was_accepted(&job);
    let job = as_written(job);
    match accepted {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(spec: &str) -> Result<Option<String>, String> {
        let text =
            format!("{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{name: j}}, spec: {{{spec}}}}}");
        let job = parse_manifest(&text, "job.yaml").unwrap();
        let planned = of_file(&job, Path::new(""), "job.yaml").map_err(|error| error.to_string());
        planned.map(|(_, refused)| refused.map(|errors| errors.to_string()))
    }

    const REWARD: &str = "reward: {rules: [{json: {}}]}";

    #[test]
    fn the_least_manifest_is_planned_for_one_machine_with_what_a_cluster_says_of_it() {
        let text = include_str!("../../../configs/minimal.yaml");
        let job = parse_manifest(text, "minimal.yaml").unwrap();
        let (_, refused) = of_file(&job, Path::new("configs"), "minimal.yaml").unwrap();
        let words = refused.unwrap().to_string();
        assert!(
            words.contains("spec.model.policy.path: ") && words.contains("is relative"),
            "{words}"
        );
    }

    #[test]
    fn a_name_that_the_api_server_makes_is_planned_with_others_in_its_place_and_one_machine_needs_one() {
        let planned = |name: &str, folder: &str| {
            let spec = format!(
                "model: {{policy: {{path: {folder}m}}}}, prompts: {{source: {{path: {folder}p.jsonl}}}}, roles: {{{REWARD}}}"
            );
            let text =
                format!("{{apiVersion: ppojob.dev/v1alpha1, kind: PpoJob, metadata: {{{name}}}, spec: {{{spec}}}}}");
            let job = parse_manifest(&text, "job.yaml").unwrap();
            of_file(&job, Path::new(""), "job.yaml").map_err(|error| error.to_string())
        };
        let (plan, refused) = planned("generateName: rloo-", "/").unwrap();
        assert_eq!((plan.name.as_str(), refused), ("rloo-xxxxx", None));
        assert!(plan.pod_names.contains(&"rloo-xxxxx-actor-0".into()), "{plan:?}");
        let metadata = plan.manifest.metadata;
        assert_eq!((metadata.name, metadata.generate_name), (None, Some("rloo-".into())));
        // As the API server does.
        assert_eq!(planned("name: j, generateName: rloo-", "/").unwrap().0.name, "j");
        for (name, folder) in [
            ("generateName: Rloo-", "/"),
            ("generateName: ''", "/"),
            ("generateName: rloo-", ""),
        ] {
            let words = planned(name, folder).unwrap_err();
            assert!(words.contains("metadata.name: "), "{words}");
        }
    }

    #[test]
    fn a_manifest_that_the_operator_would_refuse_is_refused_though_one_machine_would_run_it() {
        let absolute = "model: {policy: {path: /models/p}}, prompts: {source: {path: /data/p.jsonl}}";
        assert_eq!(planned(&format!("{absolute}, roles: {{{REWARD}}}")), Ok(None));
        // No volume is mounted there.
        let checkpoint = planned(&format!(
            "{absolute}, checkpoint: {{path: /nowhere}}, roles: {{{REWARD}}}"
        ))
        .unwrap_err();
        assert!(
            checkpoint.starts_with("job.yaml cannot run: ") && checkpoint.contains("spec.checkpoint.path: "),
            "{checkpoint}"
        );
        // Who gives a template means pods, and a relative path is the mistake.
        let relative = "model: {policy: {path: p}}, prompts: {source: {path: /data/p.jsonl}}";
        let template = format!("roles: {{actor: {{template: {{spec: {{nodeSelector: {{pool: a}}}}}}}}, {REWARD}}}");
        let words = planned(&format!("{relative}, {template}")).unwrap_err();
        assert!(words.contains("is relative"), "{words}");
        assert!(planned(&format!("{relative}, roles: {{{REWARD}}}")).unwrap().is_some());
    }
}
