//! `kubectl ppo status`.

use std::fmt::Write as _;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use ppo_crds::PpoJob;
use ppo_crds::status::{PpoJobStatus, Progress, RoleStatus};
use serde_json::json;

use super::cli::StatusArgs;
use super::connection::Connection;
use super::explain::event_time;
use super::list::significant;
use super::output::Output;
use super::table::Table;
use super::{age, job, pods, printer, situation};

/// Events that are shown.
const EVENTS: usize = 10;

/// Prints one job.
pub async fn main(connection: &Connection, args: &StatusArgs) -> Result<()> {
    let job = job::read(connection, &args.name).await?;
    if args.output == Some(Output::Name) {
        return printer::print(&job::named(&args.name));
    }
    let pods = situation::own(situation::read_pods(connection, &args.name).await?, &job);
    let events = situation::events(connection, &job, &pods).await;
    let objects = || json!({"job": job, "pods": pods, "events": events});
    match args.output {
        Some(Output::Json) => return printer::print_json(&objects()),
        Some(Output::Yaml) => return printer::print_yaml(&objects()),
        Some(Output::Name | Output::Wide) | None => {}
    }
    let shown = (args.output == Some(Output::Wide)).then_some(pods.as_slice());
    printer::print(&render(&job, shown, &events, Timestamp::now()))
}

fn render(job: &PpoJob, pods: Option<&[Pod]>, events: &[Event], now: Timestamp) -> String {
    let status = job.status.clone().unwrap_or_default();
    let mut text = head(job, &status, now);
    if let Some(progress) = &status.progress {
        text.push_str(&measurements(progress));
    }
    section(&mut text, "Roles", status.roles.is_empty(), || roles(&status.roles));
    if let Some(pods) = pods {
        section(&mut text, "Pods", pods.is_empty(), || pod_table(pods, now));
    }
    section(&mut text, "Conditions", status.conditions.is_empty(), || {
        conditions(&status, now)
    });
    section(&mut text, "Events", events.is_empty(), || event_table(events, now));
    text
}

fn head(job: &PpoJob, status: &PpoJobStatus, now: Timestamp) -> String {
    let mut text = String::new();
    let mut field = |name: &str, value: String| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:<13}{value}", format!("{name}:"));
        }
    };
    field("Name", job.name_any());
    field("Namespace", job.namespace().unwrap_or_default());
    let state = status.phase.map_or_else(
        || "not looked at by an operator yet".to_string(),
        |phase| format!("{phase:?}"),
    );
    let attempt = match status.attempt {
        0 => String::new(),
        attempt => format!(
            ", attempt {attempt}, {} of {} restarts used",
            status.restarts, job.spec.failure_policy.max_restarts
        ),
    };
    field("State", format!("{state}{attempt}"));
    if let Some(since) = &job.metadata.deletion_timestamp {
        let finalizers = match job.finalizers() {
            [] => String::new(),
            held => format!(", goes when these finalizers are done: {}", held.join(", ")),
        };
        field("Deleted", format!("{} ago{finalizers}", age::since(since.0, now)));
    }
    field("Queue", job.spec.scheduling.queue.clone());
    let ago = |time: Timestamp| format!("{} ago", age::since(time, now));
    let created = job
        .metadata
        .creation_timestamp
        .as_ref()
        .map(|time| format!("created {}", ago(time.0)));
    let started = status
        .start_time
        .as_ref()
        .map(|time| format!("all roles ready {}", ago(time.0)));
    let ended = status
        .completion_time
        .as_ref()
        .map(|time| format!("ended {}", ago(time.0)));
    field(
        "Times",
        [created, started, ended]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", "),
    );
    if let Some(progress) = &status.progress {
        let eta = progress
            .eta_seconds
            .map(|eta| format!(", ends in {}", age::human_unsigned(eta)))
            .unwrap_or_default();
        let percent = match progress.total {
            0 => String::new(),
            _ => format!(" ({}%)", progress.percent),
        };
        field("Step", format!("{}{percent}{eta}", progress.summary));
    }
    text
}

fn measurements(progress: &Progress) -> String {
    let number = |value: Option<f64>| value.map(significant);
    let measured = [
        ("Reward", number(progress.reward)),
        ("KL", number(progress.kl)),
        (
            "Length",
            number(progress.response_length).map(|length| format!("{length} tokens a response")),
        ),
        ("Evaluation", number(progress.evaluation_score)),
        (
            "Checkpoint",
            progress.last_checkpoint.map(|step| format!("step {step}")),
        ),
    ];
    let known = measured.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known
        .map(|(name, value)| format!("{:<13}{value}\n", format!("{name}:")))
        .collect()
}

/// A titled part; `none` is said where there is nothing.
fn section(text: &mut String, title: &str, is_empty: bool, content: impl FnOnce() -> String) {
    let content = match is_empty {
        true => "  none\n".to_string(),
        false => content(),
    };
    let _ = write!(text, "\n{title}\n{content}");
}

fn roles(roles: &[RoleStatus]) -> String {
    let mut table = Table::new(["ROLE", "DESIRED", "READY", "RESTARTS", "ATTEMPT", "VERSION", "REASON"]);
    for role in roles {
        table.row([
            role.name.name().to_string(),
            role.desired.to_string(),
            role.ready.to_string(),
            role.restarts.to_string(),
            role.attempt.to_string(),
            role.policy_version
                .map(|version| version.to_string())
                .unwrap_or_default(),
            role.reason.clone(),
        ]);
    }
    let mut text = table.render("  ");
    for role in roles.iter().filter(|role| !role.message.is_empty()) {
        let _ = writeln!(text, "  {}: {}", role.name.name(), role.message);
    }
    text
}

fn pod_table(pods: &[Pod], now: Timestamp) -> String {
    let mut table = Table::new(["POD", "STATE", "READY", "ATTEMPT", "NODE", "AGE"]);
    for pod in pods {
        let state = match pod.metadata.deletion_timestamp {
            Some(_) => "Terminating",
            None => pods::phase(pod),
        };
        table.row([
            pod.name_any(),
            state.to_string(),
            if pods::is_ready(pod) { "yes" } else { "no" }.to_string(),
            pod.annotations()
                .get(ppo_crds::pod::annotation::ATTEMPT)
                .cloned()
                .unwrap_or_default(),
            pods::node(pod).unwrap_or_default().to_string(),
            pod.metadata
                .creation_timestamp
                .as_ref()
                .map(|time| age::since(time.0, now))
                .unwrap_or_default(),
        ]);
    }
    table.render("  ")
}

fn conditions(status: &PpoJobStatus, now: Timestamp) -> String {
    let mut table = Table::new(["TYPE", "STATUS", "REASON", "AGE", "MESSAGE"]);
    for condition in &status.conditions {
        table.row([
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            age::since(condition.last_transition_time.0, now),
            condition.message.clone(),
        ]);
    }
    table.render("  ")
}

fn event_table(events: &[Event], now: Timestamp) -> String {
    let mut table = Table::new(["AGE", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
    for event in events.iter().skip(events.len().saturating_sub(EVENTS)) {
        let times = event
            .series
            .as_ref()
            .and_then(|series| series.count)
            .or(event.count)
            .unwrap_or(1);
        let age = event_time(event).map(|time| age::since(time, now)).unwrap_or_default();
        table.row([
            if times > 1 { format!("{age} (x{times})") } else { age },
            event.type_.clone().unwrap_or_default(),
            event.reason.clone().unwrap_or_default(),
            event.involved_object.name.clone().unwrap_or_default(),
            event.message.clone().unwrap_or_default(),
        ]);
    }
    table.render("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T03:00:00Z";

    fn job(status: serde_json::Value) -> PpoJob {
        serde_json::from_value(json!({
            "apiVersion": "ppojob.dev/v1alpha1", "kind": "PpoJob",
            "metadata": {"name": "rloo", "namespace": "ml", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"model": {"policy": {"path": "/m"}}, "prompts": {"source": {"path": "/p.jsonl"}},
                     "roles": {"reward": {"rules": [{"json": {}}]}}, "scheduling": {"queue": "research"}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_running_job_shows_progress_roles_and_conditions_with_their_age() {
        let job = job(json!({
            "phase": "Running", "attempt": 2, "restarts": 1, "startTime": "2026-01-01T00:30:00Z",
            "progress": {"step": 40, "total": 150, "summary": "40/150", "percent": 26, "etaSeconds": 5400,
                         "reward": 0.5123, "kl": 0.0031, "responseLength": 212.5, "lastCheckpoint": 40},
            "roles": [{"name": "rollout", "desired": 2, "ready": 1, "reason": "CrashLoopBackOff", "message": "exit code 1"}],
            "conditions": [{"type": "RolesReady", "status": "False", "reason": "Restarting", "message": "wait",
                            "lastTransitionTime": "2026-01-01T02:55:00Z"}],
        }));
        let text = render(&job, None, &[], NOW.parse().unwrap());
        for expected in [
            "State:       Running, attempt 2, 1 of 3 restarts used",
            "Queue:       research",
            "Times:       created 3h ago, all roles ready 150m ago",
            "Step:        40/150 (26%), ends in 90m",
            "Reward:      0.5123",
            "Length:      212.5 tokens a response",
            "Checkpoint:  step 40",
            "  rollout: exit code 1",
            "  RolesReady   False    Restarting   5m    wait",
            "Events\n  none",
        ] {
            assert!(text.contains(expected), "{expected} is not in\n{text}");
        }
    }

    #[test]
    fn a_job_that_no_operator_has_seen_says_so() {
        let text = render(&job(json!({})), Some(&[]), &[], NOW.parse().unwrap());
        assert!(text.contains("State:       not looked at by an operator yet"), "{text}");
        assert!(
            text.contains("Roles\n  none") && text.contains("Pods\n  none"),
            "{text}"
        );
    }

    #[test]
    fn a_job_that_is_being_deleted_says_since_when_and_what_it_waits_for() {
        let mut going = job(json!({"phase": "Running"}));
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T02:55:00Z")).unwrap();
        going.metadata.finalizers = Some(vec!["foregroundDeletion".into()]);
        let text = render(&going, None, &[], NOW.parse().unwrap());
        assert!(
            text.contains("Deleted:     5m ago, goes when these finalizers are done: foregroundDeletion"),
            "{text}"
        );
    }

    #[test]
    fn only_the_last_events_are_shown_newest_at_the_bottom() {
        let event = |second: usize| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {"name": "rloo"}, "type": "Normal", "reason": format!("R{second}"),
                "count": 3, "lastTimestamp": format!("2026-01-01T02:59:{second:02}Z")
            }))
            .unwrap()
        };
        let events: Vec<Event> = (0..15).map(event).collect();
        let text = event_table(&events, NOW.parse().unwrap());
        assert!(!text.contains("R4 ") && text.contains("R5 "), "{text}");
        assert!(text.lines().last().unwrap().contains("46s (x3)"), "{text}");
    }
}
