//! A job's name on the command line: alone, or behind its kind, as `kubectl ppo list -o name` prints it.

/// What kubectl calls PpoJobs.
const KINDS: [&str; 3] = ["ppojob", "ppojobs", "ppo"];
/// What it takes behind that.
const GROUPS: [&str; 2] = ["ppojob.dev", "v1alpha1.ppojob.dev"];

/// The name in `math`, `ppojob/math` or `ppojobs.ppojob.dev/math`.
///
/// # Errors
/// What fits, where the kind is another one or there is no name.
pub fn parse(text: &str) -> Result<String, String> {
    let name = match text.split_once('/') {
        Some((kind, _)) if !is_of_jobs(kind) => {
            return Err(format!(
                "{kind} is another kind, and what is wanted is a PpoJob, as math or ppojob/math"
            ));
        }
        Some((_, name)) => name,
        None => text,
    };
    match name.is_empty() || name.contains('/') {
        true => Err("what is wanted is the name of a PpoJob, as math or ppojob/math".into()),
        false => Ok(name.into()),
    }
}

fn is_of_jobs(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    match kind.split_once('.') {
        Some((kind, group)) => KINDS.contains(&kind) && GROUPS.contains(&group),
        None => KINDS.contains(&kind.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use kube::{CustomResourceExt as _, Resource as _};
    use ppo_crds::PpoJob;

    use super::*;
    use crate::plugin::job;

    #[test]
    fn a_name_may_stand_behind_every_name_of_its_kind() {
        let group = PpoJob::group(&());
        let version = PpoJob::version(&());
        let mut kinds = vec![PpoJob::kind(&()).to_lowercase(), PpoJob::plural(&()).into_owned()];
        kinds.extend(PpoJob::shortnames().iter().map(|name| (*name).to_owned()));
        for kind in kinds {
            for given in [
                format!("{kind}/math"),
                format!("{kind}.{group}/math"),
                format!("{kind}.{version}.{group}/math"),
            ] {
                assert_eq!(parse(&given).as_deref(), Ok("math"), "{given}");
            }
        }
        for given in ["math", "PpoJob/math", job::named("math").trim()] {
            assert_eq!(parse(given).as_deref(), Ok("math"), "{given}");
        }
    }

    #[test]
    fn another_kind_and_no_name_are_refused_with_what_fits() {
        for (given, words) in [
            ("pod/math", "pod is another kind"),
            ("jobs.batch/math", "jobs.batch is another kind"),
            ("ppojobs.example.com/math", "is another kind"),
            ("/math", "is another kind"),
            ("ppojob/", "the name of a PpoJob"),
            ("ppojob/math/status", "the name of a PpoJob"),
            ("", "the name of a PpoJob"),
        ] {
            let error = parse(given).unwrap_err();
            assert!(
                error.contains(words) && error.contains("as math or ppojob/math"),
                "{given}: {error}"
            );
        }
    }
}
