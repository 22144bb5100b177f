//! What the audit log says of who asked what.

use std::collections::BTreeMap;

use ppo_tests::AuditEvent;

/// Numbers of requests by verb and resource, such as `create pods`.
pub type Counts = BTreeMap<String, usize>;

/// Requests of the user agents that hold one of `agents`.
pub fn of(events: &[AuditEvent], agents: &[&str]) -> Counts {
    let own = events
        .iter()
        .filter(|event| agents.iter().any(|agent| event.user_agent.contains(agent)));
    let own: Vec<AuditEvent> = own.cloned().collect();
    let counted = AuditEvent::count(&own, "").0.into_iter();
    counted
        .map(|((verb, resource), count)| (format!("{verb} {resource}"), count))
        .collect()
}

/// Those that are none of a resting operator's: neither its lease nor a watch that is renewed.
pub fn besides_leases_and_watches(counts: &Counts) -> usize {
    let other = counts
        .iter()
        .filter(|(what, _)| !what.starts_with("watch ") && !what.ends_with(" leases"));
    other.map(|(_, count)| count).sum()
}

/// Those that change something, leases left out.
pub fn writes(counts: &Counts) -> Counts {
    let reads = ["get ", "list ", "watch "];
    let changes = |what: &str| !reads.iter().any(|read| what.starts_with(read)) && !what.ends_with(" leases");
    let writes = counts.iter().filter(|(what, _)| changes(what));
    writes.map(|(what, count)| (what.clone(), *count)).collect()
}

/// Everybody's, by user agent and verb.
pub fn by_agent(events: &[AuditEvent]) -> BTreeMap<String, Counts> {
    let mut agents: BTreeMap<String, Vec<AuditEvent>> = BTreeMap::new();
    for event in events {
        agents.entry(agent(&event.user_agent)).or_default().push(event.clone());
    }
    let verbs = |events: Vec<AuditEvent>| {
        let mut verbs = Counts::new();
        for ((verb, _), count) in AuditEvent::count(&events, "").0 {
            *verbs.entry(verb).or_default() += count;
        }
        verbs
    };
    agents
        .into_iter()
        .map(|(agent, events)| (agent, verbs(events)))
        .collect()
}

/// `kube-controller-manager/v1.36.3 (linux/amd64) kubernetes/abc/job-controller` is `kube-controller-manager job-controller`.
fn agent(header: &str) -> String {
    let program = header.split('/').next().unwrap_or_default();
    if program.is_empty() {
        return "the bench itself".to_owned();
    }
    match header.rsplit_once('/') {
        Some((before, part)) if before.contains(' ') && part.contains('-') => {
            format!("{program} {part}")
        }
        _ => program.to_owned(),
    }
}
