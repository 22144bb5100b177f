//! Says everything that is wrong with a job at once, each with its field, what was given and what would fit.

mod adapter;
mod algorithm;
mod batch;
mod error;
mod evaluation;
mod host_memory;
mod kept;
mod limits;
mod optimizer;
mod prompts;
mod roles;
mod sources;
mod templates;
mod warnings;

pub(crate) use limits::out_of_range;

pub use error::{Fix, Problem, ValidationErrors};
pub use host_memory::warnings as short_of_memory;
pub use kept::warning as lost_with_pods;
pub use optimizer::{endless_warmup, optimizer_problems};
pub use warnings::{Warning, warnings};

use crate::PpoJob;
use crate::resolve::Environment;

/// Checks a job against every rule: limits of single fields (those of the CRD's schema), rules over several fields, batch
/// arithmetic, and what `environment` can reach. Never panics, whatever the numbers.
///
/// # Errors
/// All problems at once, in the manifest's order as far as there is one.
pub fn validate(job: &PpoJob, environment: &Environment) -> Result<(), ValidationErrors> {
    let mut problems = Vec::new();
    roles::check_name(job, &mut problems);
    limits::check(&job.spec, &mut problems);
    // A number outside its limits says nothing about the arithmetic.
    let numbers_in_range = problems.iter().all(|problem| !batch::reads(&problem.field));
    sources::check(&job.spec, environment, &mut problems);
    prompts::check(&job.spec, &mut problems);
    evaluation::check(&job.spec, &mut problems);
    adapter::check(&job.spec, &mut problems);
    algorithm::check(&job.spec, &mut problems);
    if numbers_in_range {
        batch::check(job, &mut problems);
    }
    roles::check(&job.spec, &mut problems);
    templates::check(&job.spec.roles, &mut problems);
    if problems.is_empty() {
        Ok(())
    } else {
        Err(ValidationErrors { problems })
    }
}

#[cfg(test)]
mod tests;
