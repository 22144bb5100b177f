//! The adapter that a framework's LoRA settings ask for.

use serde_json::json;

use super::draft::{Draft, WrongValue};
use super::row;
use crate::spec::Projection;

/// Names of a framework's settings.
#[derive(Debug)]
pub struct AdapterFlags {
    /// Of its rank; 0 is none.
    pub rank: &'static str,
    /// Of its alpha.
    pub alpha: &'static str,
    /// Of its target modules.
    pub targets: &'static str,
}

/// Sets `model.adapter` where its rank is above 0; then the reference takes no pods.
///
/// # Errors
/// A rank or alpha that is no number.
pub fn adapter(draft: &mut Draft, flags: &AdapterFlags) -> Result<(), WrongValue> {
    let Some(rank) = draft.count(flags.rank)?.filter(|rank| *rank > 0) else {
        return Ok(());
    };
    draft.set("model.adapter.rank", rank, &draft.source(flags.rank));
    if let Some(alpha) = draft.number(flags.alpha)? {
        draft.set("model.adapter.alpha", json!(alpha), &draft.source(flags.alpha));
    }
    targets(draft, flags.targets);
    draft.unset("roles.reference");
    Ok(())
}

/// `all-linear` is the default here; what is no projection of a layer cannot be adapted.
fn targets(draft: &mut Draft, name: &str) {
    let Some((values, source)) = draft.values(name) else {
        return;
    };
    let named: Vec<String> = values.iter().flat_map(|value| row::list(value)).collect();
    if named.iter().any(|target| target == "all-linear") {
        return;
    }
    let known = |target: &&String| Projection::ALL.iter().any(|projection| projection.name() == *target);
    let (known, others): (Vec<&String>, Vec<&String>) = named.iter().partition(known);
    if !others.is_empty() {
        let others: Vec<&str> = others.into_iter().map(String::as_str).collect();
        let ours = Projection::ALL.map(Projection::name).join(", ");
        let message = format!("{} is not adapted; here are {ours}", others.join(", "));
        draft.leave(name, &message);
    }
    if !known.is_empty() {
        draft.set("model.adapter.targets", json!(known), &source);
    }
}
