//! Says everything that is wrong with a job at once, each with its field, what was given and what would fit.

mod adapter;
mod algorithm;
mod apart;
mod batch;
mod cache;
mod disk;
mod doubtful;
mod engine;
mod error;
mod evaluation;
mod host_memory;
mod kept;
mod limits;
mod optimizer;
mod pass_score;
mod prompts;
mod roles;
mod sources;
mod templates;
mod warnings;

pub(crate) use apart::problems_apart_from;
pub(crate) use doubtful::is_within;
pub(crate) use limits::out_of_range;
pub(crate) use roles::in_python;

pub use cache::warning as short_of_cache;
pub use disk::warning as short_of_disk;
pub use engine::warning as engine_without_gpu;
pub use error::{Fix, Problem, ValidationErrors};
pub use host_memory::warnings as short_of_memory;
pub use kept::warning as lost_with_pods;
pub use optimizer::{endless_warmup, optimizer_problems};
pub use warnings::{Warning, warnings};

use self::doubtful::Doubtful;
use crate::PpoJob;
use crate::environment::Environment;

/// Checks a job against every rule: limits of single fields (those of the CRD's schema), rules over several fields, batch
/// arithmetic, and what `environment` can reach. Never panics, whatever the numbers.
///
/// # Errors
/// All problems at once, in the manifest's order as far as there is one.
pub fn validate(job: &PpoJob, environment: &Environment) -> Result<(), ValidationErrors> {
    let problems = problems(job, environment, &[]);
    if problems.is_empty() {
        Ok(())
    } else {
        Err(ValidationErrors { problems })
    }
}

/// Everything that is wrong with a job of which the fields `unread` say nothing.
fn problems(job: &PpoJob, environment: &Environment, unread: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    roles::check_name(job, &mut problems);
    limits::check(&job.spec, &mut problems);
    let doubtful = Doubtful::of(&problems, unread);
    sources::check(&job.spec, environment, &mut problems);
    prompts::check(&job.spec, &mut problems);
    evaluation::check(&job.spec, &mut problems);
    adapter::check(&job.spec, &mut problems);
    algorithm::check(&job.spec, &doubtful, &mut problems);
    batch::check(job, &doubtful, &mut problems);
    roles::check(&job.spec, &mut problems);
    templates::check(&job.spec.roles, &mut problems);
    problems
}

/// Which of several names are given, in words.
fn those_given(names: &[(&str, bool)]) -> String {
    let given: Vec<&str> = names
        .iter()
        .filter(|(_, given)| *given)
        .map(|(name, _)| *name)
        .collect();
    match given.as_slice() {
        [] => "none is given".into(),
        [only] => format!("{only} is given"),
        [first @ .., last] => format!("{} and {last} are given", first.join(", ")),
    }
}

#[cfg(test)]
mod tests;
