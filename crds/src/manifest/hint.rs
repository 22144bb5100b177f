//! What to write instead, where the mistake is a common one.

mod block;
mod data;

pub(super) use self::block::{block, list};
pub(super) use self::data::of_data;

/// For a field that is missing.
pub(super) fn missing(field: &str) -> &'static str {
    match field {
        "spec.roles" | "spec.roles.reward" => "; give spec.roles.reward one of rules, model, remote",
        _ => "",
    }
}

/// For a field of a pod, a container or a Deployment in the block of a role: where that has it, from the block on. KubeRay's groups and
/// Kubeflow's replicas have some of them just there.
pub(super) fn of_pods(name: &str, block: &str) -> Option<String> {
    const OF_CONTAINER: [&str; 7] = [
        "image",
        "imagePullPolicy",
        "resources",
        "env",
        "envFrom",
        "volumeMounts",
        "securityContext",
    ];
    const OF_POD: [&str; 9] = [
        "nodeSelector",
        "tolerations",
        "affinity",
        "serviceAccountName",
        "imagePullSecrets",
        "volumes",
        "initContainers",
        "runtimeClassName",
        "terminationGracePeriodSeconds",
    ];
    let role = block.strip_prefix("spec.roles.")?;
    let template = match role {
        "actor" | "reference" | "rollout" => "template",
        "reward" => "placement.template",
        _ => return None,
    };
    match name {
        "replicas" | "pods" | "workers" if matches!(role, "actor" | "reference") => Some("nodes".into()),
        _ if OF_CONTAINER.contains(&name) => Some(format!("{template}.spec.containers[].{name}")),
        _ if OF_POD.contains(&name) => Some(format!("{template}.spec.{name}")),
        _ => None,
    }
}

/// For a word that is none of a field's.
pub(super) fn word(word: &str, known: &[&str]) -> &'static str {
    match word.to_lowercase().as_str() {
        "ppo" if known.contains(&"gae") => " (PPO with a critic is gae)",
        "bf16" if known.contains(&"bfloat16") => " (did you mean bfloat16?)",
        "fp32" | "f32" if known.contains(&"float32") => " (did you mean float32?)",
        _ => "",
    }
}
