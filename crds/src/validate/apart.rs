//! The rules of a job of which some fields could not be read: what is wrong whatever those say.

use std::path::PathBuf;

use super::doubtful::is_within;
use super::{Problem, problems};
use crate::PpoJob;
use crate::environment::Environment;

/// The rules that are broken on a cluster and on one machine alike: where the job is to run may stand in what was not read. A problem that may
/// only come of a field that is left out, or stands in for one, is none.
pub(crate) fn problems_apart_from(unread: &[String], job: &PpoJob) -> Vec<Problem> {
    let laptop = Environment::Laptop {
        manifest_folder: PathBuf::new(),
    };
    let on_cluster = problems(job, &Environment::cluster(), unread);
    let mut found = problems(job, &laptop, unread);
    found.retain(|problem| on_cluster.contains(problem) && !unread.iter().any(|field| comes_of(problem, field)));
    found
}

/// Whether a problem is one of a field, of the block right around it, or tells of it.
fn comes_of(problem: &Problem, field: &str) -> bool {
    let (block, name) = field.rsplit_once('.').unwrap_or(("", field));
    let is_of_block = problem.field == block
        || field
            .strip_suffix(']')
            .is_some_and(|item| is_item_of(item, &problem.field));
    is_within(&problem.field, field)
        || is_of_block
        || mentions(&problem.message, field)
        || (problem
            .field
            .rsplit_once('.')
            .is_some_and(|(beside, _)| beside == block)
            && names(&problem.message, name))
}

fn is_item_of(item: &str, list: &str) -> bool {
    item.rsplit_once('[').is_some_and(|(of, _)| of == list)
}

/// Whether a message has the path of a field, or of one below it, with `spec.` or without.
fn mentions(message: &str, field: &str) -> bool {
    let short = field.strip_prefix("spec.").unwrap_or(field);
    let words = message.split(|c: char| !c.is_alphanumeric() && !".[]".contains(c));
    // The name of a whole block, such as prompts, is a word like others.
    let mut paths = words.filter(|word| word.contains('.'));
    paths.any(|word| is_within(word, field) || is_within(word, short))
}

fn names(message: &str, name: &str) -> bool {
    message.split(|c: char| !c.is_alphanumeric()).any(|word| word == name)
}
