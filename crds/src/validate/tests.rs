//! What is said of a job, by subject.

mod adapter;
mod algorithm;
mod batch;
mod checkpoint;
mod properties;
mod roles;
mod sources;
mod templates;
mod values;
mod warnings;

use super::*;
use crate::manifest::tests::job;

const RULE: &str = "reward: {rules: [{exactMatch: {}}]}";

fn laptop() -> Environment {
    Environment::Laptop {
        manifest_folder: "/home/me".into(),
    }
}

fn problems(job: &PpoJob) -> Vec<Problem> {
    validate(job, &Environment::cluster())
        .err()
        .map(|errors| errors.problems)
        .unwrap_or_default()
}

/// The texts of a job's problems, with further blocks of the spec and the given `roles`.
fn texts(blocks: &str, roles: &str) -> Vec<String> {
    problems(&job(blocks, roles)).iter().map(ToString::to_string).collect()
}

fn one(blocks: &str, roles: &str) -> String {
    let texts = texts(blocks, roles);
    assert_eq!(texts.len(), 1, "{texts:#?}");
    texts.into_iter().next().unwrap()
}

/// The job with a fix applied.
fn fixed(job: &PpoJob, fix: &Fix) -> PpoJob {
    let mut value = serde_json::to_value(job).unwrap();
    let pointer = format!("/{}", fix.field.replace('.', "/"));
    let (block, name) = pointer.rsplit_once('/').unwrap();
    let block = value.pointer_mut(block).unwrap();
    block.as_object_mut().unwrap().insert(name.into(), fix.value.into());
    serde_json::from_value::<PpoJob>(value).unwrap()
}

fn count(problems: &[Problem], field: &str) -> usize {
    problems.iter().filter(|problem| problem.field == field).count()
}

#[test]
fn a_small_job_is_valid_with_its_defaults() {
    assert!(texts("", RULE).is_empty());
}

#[test]
fn errors_are_a_numbered_list() {
    let errors = validate(&job("episodes: 0\n  batch: {ppoEpochs: 0}", RULE), &laptop()).unwrap_err();
    let lines: Vec<String> = errors.to_string().lines().map(str::to_string).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[0], "2 errors in the manifest:");
    assert!(
        lines[1].starts_with("  1. spec.") && lines[2].starts_with("  2. spec."),
        "{lines:?}"
    );
}
