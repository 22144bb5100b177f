//! `kubectl ppo list`.

use anyhow::Result;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use ppo_crds::PpoJobStatus;
use ppo_crds::status::Phase;
use serde_json::{Value, json};

use super::age;
use super::cli::ListArgs;
use super::connection::Connection;
use super::output::Output;
use super::refusal::Request;
use super::table::Table;
use super::{job, printer};
use crate::condition::{get, kind};
use crate::gang::stuck;

/// Prints all jobs of a namespace, or of all.
pub async fn main(connection: &Connection, args: &ListArgs) -> Result<()> {
    // Read as they are: one job that this version cannot decode must not hide the others.
    let api = match args.all_namespaces {
        true => connection.all_jobs(),
        false => connection.jobs(),
    };
    let request = Request {
        verb: "list",
        resource: "ppojobs",
        namespace: if args.all_namespaces { "" } else { &connection.namespace },
        url: &connection.url,
    };
    let list = api.list(&ListParams::default().labels(&args.selector)).await;
    let jobs = list.map_err(|error| request.refused(error))?.items;
    let objects = || json!({"apiVersion": "v1", "kind": "List", "items": jobs});
    match args.output {
        Some(Output::Json) => return printer::print_json(&objects()),
        Some(Output::Yaml) => return printer::print_yaml(&objects()),
        Some(Output::Name | Output::Wide) | None => {}
    }
    if jobs.is_empty() {
        anstream::eprintln!("{}", nothing(args, &connection.namespace));
        return Ok(());
    }
    if args.output == Some(Output::Name) {
        let names = jobs.iter().filter_map(|it| it.metadata.name.as_deref());
        return printer::print(&names.map(job::named).collect::<String>());
    }
    let wide = args.output == Some(Output::Wide);
    printer::print(&render(&jobs, args.all_namespaces, wide, Timestamp::now()))
}

/// Says that there are no jobs, or none with these labels.
fn nothing(args: &ListArgs, namespace: &str) -> String {
    let labelled = match args.selector.as_str() {
        "" => String::new(),
        labels => format!(" with labels {labels}"),
    };
    match args.all_namespaces {
        true => format!("No PpoJobs{labelled} in any namespace."),
        false => format!("No PpoJobs{labelled} in namespace {namespace}; -A looks in all."),
    }
}

fn render(jobs: &[DynamicObject], namespaces: bool, wide: bool, now: Timestamp) -> String {
    let mut head = vec![
        "NAME", "STATE", "STEP", "REWARD", "KL", "READY", "RESTARTS", "QUEUE", "ETA", "AGE",
    ];
    if namespaces {
        head.insert(0, "NAMESPACE");
    }
    if wide {
        head.extend(["ENGINES", "ATTEMPT", "LENGTH", "CHECKPOINT", "GANG", "REASON"]);
    }
    let mut table = Table::new(head);
    for job in jobs {
        table.row(row(job, namespaces, wide, now));
    }
    table.render("")
}

fn row(job: &DynamicObject, namespaces: bool, wide: bool, now: Timestamp) -> Vec<String> {
    let status: PpoJobStatus = job
        .data
        .get("status")
        .cloned()
        .and_then(|status| serde_json::from_value(status).ok())
        .unwrap_or_default();
    let text = |path: &str| {
        job.data
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_string()
    };
    let progress = status.progress.clone().unwrap_or_default();
    let number = |value: Option<f64>| value.map(significant).unwrap_or_default();
    let mut cells = vec![
        job.metadata.name.clone().unwrap_or_default(),
        state(job, &status),
        progress.summary,
        number(progress.reward),
        number(progress.kl),
        status.ready.clone().unwrap_or_default(),
        status.restarts.to_string(),
        text("/spec/scheduling/queue"),
        progress.eta_seconds.map(age::human_unsigned).unwrap_or_default(),
        job.metadata
            .creation_timestamp
            .as_ref()
            .map(|time| age::since(time.0, now))
            .unwrap_or_default(),
    ];
    if namespaces {
        cells.insert(0, job.metadata.namespace.clone().unwrap_or_default());
    }
    if wide {
        // What was asked for came to something when the job last began to want its pods.
        let has = status.active_since.as_ref().map(|_| text("/status/gang"));
        let gang = has
            .filter(|gang| !gang.is_empty())
            .unwrap_or_else(|| text("/spec/scheduling/gang"));
        cells.extend([
            status.rollout_replicas.to_string(),
            status.attempt.to_string(),
            progress
                .response_length
                .map(|length| format!("{length:.0}"))
                .unwrap_or_default(),
            progress
                .last_checkpoint
                .map(|step| step.to_string())
                .unwrap_or_default(),
            gang,
            reason(&status),
        ]);
    }
    cells
}

/// The phase; of one that is being deleted that, as kubectl says of pods: the operator does nothing with it any more.
fn state(job: &DynamicObject, status: &PpoJobStatus) -> String {
    match job::is_going(job) {
        true => "Terminating".into(),
        false => status.phase.map(|phase| format!("{phase:?}")).unwrap_or_default(),
    }
}

/// Why the job does not run: how it failed, what it waits for, else what the pods of a role wait for.
fn reason(status: &PpoJobStatus) -> String {
    let of_condition = |condition| get(&status.conditions, condition).map(|condition| condition.reason.clone());
    let of_job = match status.phase {
        Some(Phase::Failed) => of_condition(kind::FAILED),
        Some(Phase::Queued) => of_condition(kind::GANG_SCHEDULED),
        _ => stuck::reason(status).map(str::to_owned),
    };
    let of_role = || {
        let role = status.roles.iter().find(|role| !role.reason.is_empty())?;
        Some(format!("{}: {}", role.name.name(), role.reason))
    };
    of_job.or_else(of_role).unwrap_or_default()
}

/// A number with four significant digits: 0.03125 and 123.4, never 0.0 for what is only small.
pub fn significant(value: f64) -> String {
    const DIGITS: usize = 4;
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let magnitude = value.abs().log10().floor();
    // Beyond these no column is wide enough for all the zeros.
    if !(-5.0..9.0).contains(&magnitude) {
        return format!("{value:.*e}", DIGITS - 1);
    }
    let decimals = (DIGITS as f64 - 1.0 - magnitude).max(0.0) as usize;
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(value: Value) -> DynamicObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_job_is_one_row_with_queue_and_time_to_the_end() {
        let running = job(json!({
            "metadata": {"name": "rloo", "namespace": "ml", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"scheduling": {"queue": "research"}},
            "status": {"phase": "Running", "ready": "5/6", "restarts": 1,
                       "progress": {"summary": "40/150", "reward": 0.51239, "kl": 0.00312, "etaSeconds": 5400}},
        }));
        let text = render(&[running], false, false, "2026-01-01T03:00:00Z".parse().unwrap());
        assert_eq!(
            text.lines().nth(1).unwrap().split_whitespace().collect::<Vec<_>>(),
            [
                "rloo", "Running", "40/150", "0.5124", "0.00312", "5/6", "1", "research", "90m", "3h"
            ]
        );
    }

    #[test]
    fn the_gang_is_the_one_that_the_job_has_and_before_it_has_one_the_one_that_it_asks_for() {
        let shown = |status: Value| {
            let job = job(json!({
                "metadata": {"name": "rloo"}, "spec": {"scheduling": {"gang": "auto"}}, "status": status,
            }));
            row(&job, false, true, Timestamp::UNIX_EPOCH)[14].clone()
        };
        assert_eq!(
            shown(json!({"gang": "volcano", "activeSince": "2026-01-01T00:00:00Z"})),
            "volcano"
        );
        // Suspended: the next pods may be another scheduler's.
        assert_eq!(shown(json!({"gang": "volcano"})), "auto");
        assert_eq!(shown(json!({})), "auto");
    }

    #[test]
    fn the_reason_is_how_a_job_failed_or_what_it_waits_for_before_what_a_role_says() {
        let shown = |phase: &str, condition: &str, status: &str, reason: &str| {
            let condition = json!({"type": condition, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let role = json!({"name": "rollout", "desired": 1, "ready": 0, "reason": "Unscheduled"});
            let job = job(json!({
                "metadata": {"name": "rloo"}, "status": {"phase": phase, "conditions": [condition], "roles": [role]},
            }));
            row(&job, false, true, Timestamp::UNIX_EPOCH)[15].clone()
        };
        assert_eq!(shown("Failed", "Failed", "True", "OOMKilled"), "OOMKilled");
        assert_eq!(
            shown("Queued", "GangScheduled", "False", "QueueMissing"),
            "QueueMissing"
        );
        assert_eq!(
            shown("Queued", "GangScheduled", "False", "Inadmissible"),
            "Inadmissible"
        );
        assert_eq!(
            shown("Scheduling", "GangScheduled", "False", "SchedulerSilent"),
            "SchedulerSilent"
        );
        // What the scheduler says of a pod is more than that some have no node.
        assert_eq!(
            shown("Scheduling", "GangScheduled", "False", "WaitsForNodes"),
            "rollout: Unscheduled"
        );
    }

    #[test]
    fn a_job_that_is_being_deleted_is_not_called_running() {
        let going = job(
            json!({"metadata": {"name": "rloo", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                               "status": {"phase": "Running"}}),
        );
        assert_eq!(row(&going, false, false, Timestamp::UNIX_EPOCH)[1], "Terminating");
    }

    #[test]
    fn a_job_that_this_version_cannot_decode_is_still_listed() {
        let strange = job(json!({"metadata": {"name": "new"}, "spec": {"colour": 1}, "status": {"phase": "Dreaming"}}));
        let text = render(&[strange], true, true, Timestamp::UNIX_EPOCH);
        assert!(text.contains("new"), "{text}");
    }

    #[test]
    fn every_row_has_as_many_cells_as_the_head() {
        let empty = job(json!({"metadata": {"name": "a", "namespace": "b"}}));
        for (namespaces, wide) in [(false, false), (true, false), (false, true), (true, true)] {
            let text = render(std::slice::from_ref(&empty), namespaces, wide, Timestamp::UNIX_EPOCH);
            let mut widths = text.lines().map(|line| line.split_whitespace().count());
            assert_eq!(widths.next(), widths.next(), "{text}");
        }
    }

    #[test]
    fn numbers_keep_their_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.5, "0.5"),
            (123.456, "123.5"),
            (-0.03125, "-0.03125"),
            (1e-9, "1.000e-9"),
            (12345.6, "12346"),
        ];
        for (value, text) in cases {
            assert_eq!(significant(value), text);
        }
    }

    #[test]
    fn that_no_job_has_the_labels_is_not_said_as_if_there_were_none() {
        let said = |selector: &str, all_namespaces: bool| {
            let args = ListArgs {
                all_namespaces,
                selector: selector.into(),
                output: None,
            };
            nothing(&args, "ml")
        };
        assert_eq!(said("", false), "No PpoJobs in namespace ml; -A looks in all.");
        let mistyped = "No PpoJobs with labels team=mth in namespace ml; -A looks in all.";
        assert_eq!(said("team=mth", false), mistyped);
        assert_eq!(
            said("team=mth", true),
            "No PpoJobs with labels team=mth in any namespace."
        );
    }
}
