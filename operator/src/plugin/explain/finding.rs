//! One thing that holds a job up.

use serde::Serialize;

/// One thing that holds a job up, or is worth knowing about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What kind of thing; findings are ordered by it.
    pub cause: Cause,
    /// Whether it keeps the job from running, now or soon. Else it is only worth knowing.
    pub blocks: bool,
    /// Pods that it is about; empty: the job.
    pub pods: Vec<String>,
    /// What is the matter, in the words of the scheduler, the kubelet or the process where they have some.
    pub what: String,
    /// What would put it right.
    pub fix: String,
}

/// Kinds of findings, each before those it brings about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Cause {
    /// The job was deleted, and is not gone yet.
    Deleted,
    /// Another controller reconciles the job.
    ManagedElsewhere,
    /// The job ended without success.
    Failed,
    /// No operator looks at the job.
    OperatorAbsent,
    /// The operator refuses the manifest.
    Refused,
    /// Somebody suspended the job.
    Suspended,
    /// The job's scheduler does not run.
    SchedulerAbsent,
    /// The job waits for quota.
    Queued,
    /// An old pod is not gone yet, and its successor needs its name.
    Terminating,
    /// Pods cannot be created.
    PodsMissing,
    /// The gang cannot be placed as a whole.
    Gang,
    /// A pod has no node.
    Unscheduled,
    /// A volume, secret or config map is missing.
    Preparation,
    /// An image cannot be pulled.
    Image,
    /// A process was killed for its memory.
    OutOfMemory,
    /// A process ended with an error.
    Crashed,
    /// A pod was taken away by the cluster.
    Disrupted,
    /// A process runs and is not ready.
    NotReady,
    /// All runs and no stage ends.
    NoProgress,
    /// A drain may take the actor away.
    Evictable,
    /// The operator's words on a role.
    Role,
    /// No restart is left.
    Budget,
    /// A deadline comes nearer.
    Deadline,
}

impl Finding {
    /// A finding that keeps the job from running.
    pub fn blocking(cause: Cause, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            cause,
            blocks: true,
            pods: Vec::new(),
            what: what.into(),
            fix: fix.into(),
        }
    }

    /// A finding that is only worth knowing.
    pub fn note(cause: Cause, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            blocks: false,
            ..Self::blocking(cause, what, fix)
        }
    }

    /// With the names of the job and of its first pod in place of `<job>` and `<pod>`: commands are there to be copied.
    #[must_use]
    pub fn named(mut self, job: &str) -> Self {
        self.fix = self.fix.replace("<job>", job);
        if let Some(pod) = self.pods.first() {
            self.fix = self.fix.replace("<pod>", pod);
        }
        self
    }

    /// The same, about one pod.
    #[must_use]
    pub fn of_pod(mut self, pod: &str) -> Self {
        self.pods.push(pod.into());
        self
    }

    /// Whether both say the same, of whatever pods.
    pub fn says_as(&self, other: &Self) -> bool {
        (self.cause, self.blocks, &self.what, &self.fix) == (other.cause, other.blocks, &other.what, &other.fix)
    }
}

/// Orders findings by cause, blocking ones first, and makes one of those that say the same of several pods.
pub fn group(findings: Vec<Finding>) -> Vec<Finding> {
    let mut grouped: Vec<Finding> = Vec::new();
    for finding in findings {
        match grouped.iter_mut().find(|other| other.says_as(&finding)) {
            // Two containers of one pod may say the same.
            Some(other) => {
                let new = finding.pods.into_iter().filter(|pod| !other.pods.contains(pod));
                other.pods.extend(new.collect::<Vec<_>>());
            }
            None => grouped.push(finding),
        }
    }
    grouped.sort_by_key(|finding| (!finding.blocks, finding.cause));
    grouped
}
