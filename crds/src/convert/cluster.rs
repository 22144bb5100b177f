//! What a cluster would refuse of a job that this machine takes. It is told and not mended: no flag says where files of pods are to lie.

use super::draft::Draft;
use crate::validate::Problem;
use crate::{Environment, PpoJob, validate};

/// What to write for checkpoints.
const CLAIM: &str = "`volumeClaim: {storage: 200Gi}` in place of a path has a claim made (docs/first-job.md; templates: docs/cluster.md)";

/// Says what is to be changed before a cluster takes the job, in one note for a field.
pub fn tell(draft: &mut Draft, job: &PpoJob) {
    let Err(errors) = validate(job, &Environment::cluster()) else {
        return;
    };
    for of_field in errors.problems.chunk_by(|one, next| field(one) == field(next)) {
        if let [first, others @ ..] = of_field {
            draft.on_cluster(field(first), &words(first, others.len()));
        }
    }
}

/// The field that a problem is of; of a file in a list the list.
fn field(problem: &Problem) -> &str {
    problem
        .field
        .split_once('[')
        .map_or(problem.field.as_str(), |(list, _)| list)
}

fn words(problem: &Problem, others: usize) -> String {
    let mut words = problem.in_words();
    if others > 0 {
        words += &format!("; the same goes for {others} more");
    }
    if problem.field.starts_with("spec.checkpoint") {
        words += &format!("; {CLAIM}");
    }
    words
}
