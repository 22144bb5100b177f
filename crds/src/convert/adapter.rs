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
    draft.set_number("model.adapter.alpha", flags.alpha)?;
    targets(draft, flags.targets);
    draft.unset("roles.reference");
    Ok(())
}

/// Says that a critic which `framework` trains whole beside the policy's adapter gets one too.
pub fn whole_critic(draft: &mut Draft, framework: &str) {
    if draft.has("model.adapter") && draft.has_critic() {
        let why = format!("{framework} trains all weights of the critic beside it; here it gets an adapter too");
        draft.leave("model.adapter", &why);
    }
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
    let (known, others): (Vec<&String>, Vec<&String>) = named.iter().partition(|name| !projections(name).is_empty());
    if !others.is_empty() {
        let others: Vec<&str> = others.into_iter().map(String::as_str).collect();
        let ours = Projection::ALL.map(Projection::name).join(", ");
        let message = format!("{} is not adapted; here are {ours}", others.join(", "));
        draft.leave(name, &message);
    }
    let known = known.into_iter().flat_map(|name| projections(name));
    let known: Vec<&str> = known.map(Projection::name).collect();
    if !known.is_empty() {
        draft.set("model.adapter.targets", json!(known), &source);
    }
}

/// The projections that a name of Hugging Face or of Megatron stands for; none for what is no projection of a layer.
fn projections(name: &str) -> Vec<Projection> {
    use Projection::{Down, Gate, Key, Output, Query, Up, Value};
    match name {
        "linear_qkv" => vec![Query, Key, Value],
        "linear_q" => vec![Query],
        "linear_k" => vec![Key],
        "linear_v" => vec![Value],
        "linear_proj" => vec![Output],
        "linear_fc1" => vec![Gate, Up],
        "linear_fc1_gate" => vec![Gate],
        "linear_fc1_up" => vec![Up],
        "linear_fc2" => vec![Down],
        other => {
            let named = |projection: &Projection| projection.name() == other;
            Projection::ALL.into_iter().filter(named).collect()
        }
    }
}
