//! What becomes of a job's checkpoints.

use anyhow::{Result, bail};
use ppo_crds::PpoJob;

/// What the end of the actor's pod costs a job that has made steps, in words that follow a sentence; None where its checkpoints outlive it.
fn lost(job: &PpoJob) -> Option<&'static str> {
    let progress = job.status.as_ref()?.progress.as_ref()?;
    let is_lost = progress.step > 0 && !job.spec.outlives_pods();
    is_lost.then_some(
        "its checkpoints go with its pod (spec.checkpoint names no claim and no mounted volume): it starts at step 0",
    )
}

/// The same, for who has agreed to it.
///
/// # Errors
/// That cost, behind what is `undone` for it, for who has not.
pub fn given_up(job: &PpoJob, is_agreed: bool, undone: &str) -> Result<Option<&'static str>> {
    match lost(job) {
        Some(lost) if !is_agreed => bail!("{undone}: {lost}. Give --discard-checkpoints where that is meant"),
        lost => Ok(lost),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn job(status: Value) -> PpoJob {
        from_value(json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob", "metadata": {"name": "a"},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}}, "roles": {"reward": {}}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn steps_whose_checkpoints_go_with_the_pod_are_given_up_by_agreement_alone() {
        let mut trained = job(json!({"phase": "Running", "progress": {"step": 3}}));
        let error = given_up(&trained, false, "a is not suspended").unwrap_err().to_string();
        for words in [
            "a is not suspended: its checkpoints",
            "spec.checkpoint names no claim",
            "--discard-checkpoints",
        ] {
            assert!(error.contains(words), "{error}");
        }
        let agreed = given_up(&trained, true, "").unwrap().unwrap();
        assert!(agreed.contains("step 0"), "{agreed}");
        trained.spec.checkpoint.volume_claim = from_value(json!({"storage": "1Gi"})).unwrap();
        assert_eq!(given_up(&trained, false, "").unwrap(), None);
    }

    #[test]
    fn a_job_without_a_step_has_nothing_to_lose() {
        for status in [
            json!({}),
            json!({"phase": "Pending"}),
            json!({"phase": "Running", "progress": {"step": 0}}),
        ] {
            assert_eq!(given_up(&job(status.clone()), false, "").unwrap(), None, "{status}");
        }
    }
}
