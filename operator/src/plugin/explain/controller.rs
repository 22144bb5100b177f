//! Is there an operator that looks at the job?

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use super::evidence::Evidence;
use super::finding::{Cause, Finding};
use crate::plugin::age;
use crate::plugin::gang::is_of;
use crate::status::NO_LONGER_VALID;

/// Value of `runPolicy.managedBy` that means this operator.
const OPERATOR: &str = "ppojob.dev/operator";
/// Seconds that a working operator may take to look at a change.
const ATTENTION: i64 = 15;
/// The time a Lease without a duration of its own lasts, as client-go's leader election has it.
const LEASE: i64 = 15;

/// The job belongs to another controller.
pub fn elsewhere(evidence: &Evidence) -> Option<Finding> {
    let manager = evidence
        .job
        .spec
        .run_policy
        .managed_by
        .as_deref()
        .filter(|manager| *manager != OPERATOR)?;
    let fix = match manager.contains("multikueue") {
        true => {
            let mut gang = evidence.gang.iter();
            let ask = match gang.find(|object| is_of(object, "kueue.x-k8s.io", "Workload")) {
                Some(workload) => format!("`kubectl describe workloads.kueue.x-k8s.io {}`", workload.name_any()),
                None => "`kubectl get workloads.kueue.x-k8s.io` lists the job's Workload".into(),
            };
            format!("ask Kueue: {ask}; the job runs on the worker cluster that MultiKueue chose")
        }
        false => {
            "ask that controller; the field is fixed at creation, so a job for this operator is a new one without it"
                .into()
        }
    };
    let what = format!(
        "The job belongs to the controller {manager} (spec.runPolicy.managedBy); this cluster's operator leaves it alone."
    );
    // A controller that reports is at work.
    let finding = match evidence.phase() {
        None => Finding::blocking(Cause::ManagedElsewhere, what, fix),
        Some(_) => Finding::note(Cause::ManagedElsewhere, what, fix),
    };
    Some(finding)
}

/// The operator does not run, or has not seen the last change; or it refuses the manifest.
pub fn findings(evidence: &Evidence, now: Timestamp) -> Vec<Finding> {
    let lease = evidence.leases.first().and_then(|lease| expired(lease, now));
    let mut findings = Vec::new();
    if let Some(unseen) = unseen(evidence, now) {
        let lease = lease.unwrap_or_else(|| match evidence.leases.first() {
            Some(_) => "An operator holds its Lease, so it may not watch this namespace (its flag --namespace)".into(),
            None => "No Lease of an operator could be found, or read".into(),
        });
        findings.push(Finding::blocking(
            Cause::OperatorAbsent,
            format!("{unseen} {lease}."),
            START,
        ));
    } else if let Some(lease) = lease {
        // Every word of the job was heard, and one operator alone may do without a Lease: an old one is no proof.
        findings.push(Finding::note(
            Cause::OperatorAbsent,
            format!("{lease}: unless it runs with --leader-election=false, pods that fail now are not replaced."),
            format!("{START}; if it runs with --leader-election=false, delete the Lease"),
        ));
    }
    if let Some(refused) = evidence.condition("Accepted", "False") {
        findings.push(match refused.reason == NO_LONGER_VALID {
            false => Finding::blocking(
                Cause::Refused,
                format!("The operator refuses the manifest: {}", refused.message),
                "correct the manifest and apply it again; a field that is fixed needs a new job (`kubectl ppo plan -f FILE` checks first)",
            ),
            true => Finding::note(
                Cause::Refused,
                format!("The job goes on as it began, but the operator would refuse a new one like it: {}", refused.message),
                "correct the manifest before you make the job again (`kubectl ppo plan -f FILE` checks first)",
            ),
        });
    }
    findings
}

const START: &str =
    "look at the operator's pods: `kubectl get pods -A -l app.kubernetes.io/name=ppo-operator`, and at their logs";

/// The generation that the operator has not seen, in words.
fn unseen(evidence: &Evidence, now: Timestamp) -> Option<String> {
    let metadata = &evidence.job.metadata;
    let observed = evidence
        .job
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    if observed.is_none() {
        // Only an operator makes them. Where many jobs begin at once, the first status of one may come long after its pods, or its gang's object.
        if evidence.has_own_objects() {
            return None;
        }
        let age = age::seconds_since(created?, now);
        return (age > ATTENTION).then(|| {
            format!(
                "No operator has looked at the job in the {} since it was created.",
                age::human(age)
            )
        });
    }
    if observed >= metadata.generation {
        return None;
    }
    // The last write that was not one of the status made the generation that is not seen.
    let writes = metadata
        .managed_fields
        .iter()
        .flatten()
        .filter(|write| write.subresource.is_none());
    let changed = writes
        .filter_map(|write| write.time.as_ref())
        .map(|time| time.0)
        .max()
        .or(created)?;
    let age = age::seconds_since(changed, now);
    (age > ATTENTION).then(|| {
        format!(
            "No operator has looked at the change of the job {} ago.",
            age::human(age)
        )
    })
}

/// Since when the operator acts that holds the only Lease. None where nobody does, or where there are several: whose the job is is not known.
pub(super) fn acting_since(evidence: &Evidence, now: Timestamp) -> Option<Timestamp> {
    let is_held = |lease: &&Lease| {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty()) && expired(lease, now).is_none()
    };
    let mut held = evidence.leases.iter().filter(is_held);
    let lease = held.next().filter(|_| held.next().is_none())?;
    Some(lease.spec.as_ref()?.acquire_time.as_ref()?.0)
}

/// How the Lease ended, in words without a full stop.
fn expired(lease: &Lease, now: Timestamp) -> Option<String> {
    let spec = lease.spec.as_ref()?;
    let renewed = spec.renew_time.as_ref()?.0;
    let silent = age::seconds_since(renewed, now);
    let namespace = lease.metadata.namespace.as_deref().unwrap_or("?");
    if silent <= i64::from(spec.lease_duration_seconds.unwrap_or_default()).max(LEASE) {
        return None;
    }
    let silent = age::human(silent);
    Some(match spec.holder_identity.as_deref().unwrap_or_default() {
        "" => format!("The operator gave its Lease in namespace {namespace} up {silent} ago and nobody took it"),
        holder => format!("The operator {holder} has not renewed its Lease in namespace {namespace} for {silent}"),
    })
}
