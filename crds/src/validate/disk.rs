//! The claim that the operator makes for checkpoints, beside what they are estimated to take.

use super::Warning;
use crate::disk::Disk;
use crate::quantity::amount;
use crate::spec::CheckpointSpec;

/// A claim that is smaller than the estimate.
pub fn warning(checkpoint: &CheckpointSpec, disk: Disk) -> Option<Warning> {
    let storage = &checkpoint.volume_claim.as_ref()?.storage;
    (amount(storage)? < disk.total as f64).then(|| Warning {
        field: "spec.checkpoint.volumeClaim.storage".into(),
        message: format!(
            "is {storage}, and {} checkpoints and the trained model are estimated to take {} GiB: raise it, or keep fewer (checkpoint.keep, \
             checkpoint.keepBest: false)",
            disk.checkpoints,
            disk.total.div_ceil(1 << 30)
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::manifest::tests::job;
    use crate::memory::Shapes;
    use crate::memory::tests::LLAMA_8B;
    use crate::{Environment, Plan};

    #[test]
    fn a_claim_below_what_checkpoints_take_is_warned_of_with_both_sizes() {
        let warned = |checkpoint: &str| -> Vec<String> {
            let job = job(
                &format!("checkpoint: {{{checkpoint}}}"),
                "reward: {rules: [{json: {}}]}",
            );
            let shapes = Shapes {
                policy: LLAMA_8B,
                critic: None,
                reward: None,
            };
            let plan = Plan::of(&job, &Environment::cluster(), Some(&shapes)).unwrap();
            plan.warnings.iter().map(ToString::to_string).collect()
        };
        // Five of 12 bytes for each parameter of the policy and of the critic's trunk, and 2 for each of the policy's.
        let message = "spec.checkpoint.volumeClaim.storage: is 200Gi, and 5 checkpoints and the trained model are estimated to take 884 GiB: \
                       raise it, or keep fewer (checkpoint.keep, checkpoint.keepBest: false)";
        assert_eq!(warned("volumeClaim: {storage: 200Gi}"), [message]);
        assert_eq!(warned("volumeClaim: {storage: 1Ti}"), [""; 0]);
        assert_eq!(
            warned("keep: 1, keepBest: false, volumeClaim: {storage: 400Gi}"),
            [""; 0]
        );
        // How large another's claim is nobody knows here.
        assert_eq!(warned("pvc: checkpoints"), [""; 0]);
    }
}
