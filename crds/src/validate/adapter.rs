//! Rules of the adapter that a single field's limits cannot say.

use super::Problem;
use crate::PpoJobSpec;

/// Adds contradictions of an adapter with itself and with the models.
pub fn check(spec: &PpoJobSpec, problems: &mut Vec<Problem>) {
    let Some(adapter) = &spec.model.adapter else { return };
    if spec.model.reference.is_some() {
        problems.push(Problem::new(
            "spec.model.reference",
            "with an adapter the reference is the policy without it; remove it or model.adapter",
        ));
    }
    let dtype = spec.model.dtype;
    if let Some(other) = spec.roles.reference.dtype.filter(|other| *other != dtype) {
        let message = format!(
            "is {}; with an adapter the reference is the policy without it, in the actor's own weights, which are {} (spec.model.dtype); \
             remove it or model.adapter",
            other.name(),
            dtype.name()
        );
        problems.push(Problem::new("spec.roles.reference.dtype", message));
    }
    for (index, target) in adapter.targets.iter().enumerate() {
        if adapter.targets[..index].contains(target) {
            let field = format!("spec.model.adapter.targets[{index}]");
            let message = format!("{} is named twice; name each projection once", target.name());
            problems.push(Problem::new(field, message));
        }
    }
}
