//! What to write instead, where the mistake is a common one.

use serde_json::Value as Schema;

/// For a field that is missing.
pub(super) fn missing(field: &str) -> &'static str {
    match field {
        "spec.roles" | "spec.roles.reward" => "; give spec.roles.reward one of rules, model, remote",
        _ => "",
    }
}

/// For a text in place of a block that names where a model or data lies.
pub(super) fn place(text: &str, schema: &Schema) -> String {
    let has = |name: &str| schema.get("properties").and_then(|fields| fields.get(name)).is_some();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./~".contains(c);
    if !has("path") || !has("pvc") || text.is_empty() || text.len() > 80 || !text.chars().all(is_plain) {
        return String::new();
    }
    let is_of_the_hub = has("hub") && text.matches('/').count() == 1 && !text.starts_with(['.', '/', '~']);
    match is_of_the_hub && !text.ends_with('/') {
        true => format!(", such as {{hub: {{id: {text}}}}} or {{path: {text}}}"),
        false => format!(", such as {{path: {text}}}"),
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
        _ => "",
    }
}
