//! Which logs the flags choose.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use ppo_crds::status::Phase;

use crate::plugin::cli::LogsArgs;
use crate::plugin::pods;

/// Whether the pod is of the role and index that are asked for.
pub fn is_chosen(pod: &Pod, args: &LogsArgs) -> bool {
    args.role.is_none_or(|role| pods::role(pod) == Some(role))
        && args.index.is_none_or(|index| pods::index(pod) == Some(index))
}

/// Whether the container of this name is asked for.
pub fn is_wanted(container: &str, args: &LogsArgs) -> bool {
    args.all_containers || container == args.container
}

/// The containers that are asked for, there or to come, each with its pod.
pub fn sources<'a>(pods: &'a [Pod], args: &LogsArgs) -> Vec<(&'a Pod, &'a str)> {
    let chosen = pods.iter().filter(|pod| is_chosen(pod, args));
    let containers = chosen.flat_map(|pod| container_names(pod).map(move |container| (pod, container)));
    containers.filter(|(_, container)| is_wanted(container, args)).collect()
}

/// What stands before the lines of a container: its pod, with its own name where there may be several.
pub fn shown(pod: &Pod, container: &str, args: &LogsArgs) -> String {
    match args.all_containers {
        true => format!("{}/{container}", pods::short_name(pod)),
        false => pods::short_name(pod),
    }
}

/// Why the flags choose none of the pods there are, without a full stop; None where they choose some, or there are no pods.
pub fn unfit(args: &LogsArgs, phase: Phase, pods: &[Pod]) -> Option<String> {
    let (name, container) = (&args.name, &args.container);
    let chosen: Vec<&Pod> = pods.iter().filter(|pod| is_chosen(pod, args)).collect();
    if chosen.is_empty() && !pods.is_empty() {
        let role = args.role.map(|role| format!(" --role {}", role.name()));
        let index = args.index.map(|index| format!(" --index {index}"));
        let flags = [role, index].map(Option::unwrap_or_default).concat();
        return Some(format!(
            "None of the {} pods of {name} ({phase:?}) is chosen by{flags}",
            pods.len()
        ));
    }
    let there: BTreeSet<&str> = chosen.iter().copied().flat_map(container_names).collect();
    if chosen.is_empty() || there.iter().any(|there| is_wanted(there, args)) {
        return None;
    }
    let there: Vec<&str> = there.into_iter().collect();
    Some(format!(
        "None of the {} chosen pods of {name} ({phase:?}) has a container {container}, they have {}",
        chosen.len(),
        there.join(", ")
    ))
}

/// Why there is no log to print, as an error.
pub fn none(args: &LogsArgs, phase: Phase, pods: &[Pod]) -> String {
    let name = &args.name;
    if let Some(unfit) = unfit(args, phase, pods) {
        return unfit;
    }
    match phase {
        Phase::Succeeded | Phase::Failed => format!(
            "{name} has ended ({phase:?}) and its pods are gone, their logs with them: what is left is what a log collector of the \
             namespace has kept"
        ),
        Phase::Suspended => format!("{name} is suspended and has no pods; `kubectl ppo resume {name}` makes them"),
        _ => format!("{name} has no pods yet ({phase:?}); `kubectl ppo why {name}` says why"),
    }
}

/// Containers that the pod has or will have.
fn container_names(pod: &Pod) -> impl Iterator<Item = &str> {
    let spec = pod.spec.iter();
    let containers = spec
        .clone()
        .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let of_debugging = spec.flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let names = containers.map(|container| container.name.as_str());
    names.chain(of_debugging.map(|container| container.name.as_str()))
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::Role;
    use serde_json::json;

    use super::*;

    fn args(container: &str, role: Option<Role>) -> LogsArgs {
        LogsArgs {
            name: "a".into(),
            role,
            index: None,
            follow: false,
            tail: None,
            since: None,
            since_time: None,
            container: container.into(),
            all_containers: false,
            previous: false,
            timestamps: false,
        }
    }

    fn pod(role: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": format!("a-{role}-0"), "labels": {"ppojob.dev/role": role, "ppojob.dev/index": "0"}},
            "spec": {"containers": [{"name": "worker"}], "ephemeralContainers": [{"name": "debugger"}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn who_gets_no_log_is_told_whether_the_flags_the_end_or_the_suspension_is_the_cause() {
        let said = |args: &LogsArgs, phase: Phase, pods: &[Pod]| none(args, phase, pods);
        let actor = [pod("actor")];
        let other = said(&args("worker", Some(Role::Reward)), Phase::Running, &actor);
        assert!(
            other.contains("None of the 1 pods of a (Running) is chosen by --role reward"),
            "{other}"
        );
        let vllm = said(&args("vllm", None), Phase::Running, &actor);
        assert!(
            vllm.contains("has a container vllm, they have debugger, worker"),
            "{vllm}"
        );
        let ended = said(&args("worker", None), Phase::Succeeded, &[]);
        assert!(ended.contains("has ended (Succeeded) and its pods are gone"), "{ended}");
        let suspended = said(&args("worker", None), Phase::Suspended, &[]);
        assert!(suspended.contains("`kubectl ppo resume a`"), "{suspended}");
        let waiting = said(&args("worker", None), Phase::Pending, &[]);
        assert!(waiting.contains("`kubectl ppo why a`"), "{waiting}");
    }

    #[test]
    fn a_container_for_debugging_can_be_chosen_like_any_other_and_is_among_all() {
        let pods = [pod("actor")];
        let chosen = |args: &LogsArgs| {
            let chosen = sources(&pods, args).into_iter();
            chosen
                .map(|(pod, container)| shown(pod, container, args))
                .collect::<Vec<_>>()
        };
        assert_eq!(chosen(&args("debugger", None)), ["actor-0"]);
        assert!(chosen(&args("vllm", None)).is_empty());
        let all = LogsArgs {
            all_containers: true,
            ..args("worker", None)
        };
        assert_eq!(chosen(&all), ["actor-0/worker", "actor-0/debugger"]);
        assert_eq!(unfit(&all, Phase::Running, &pods), None);
    }
}
