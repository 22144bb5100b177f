//! A job's name among all jobs.

use kube::ResourceExt;
use ppo_crds::pod::label;

/// Namespace and name of a PpoJob.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobKey {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl JobKey {
    /// The key of a job itself.
    pub fn of(job: &impl ResourceExt) -> Self {
        Self {
            namespace: job.namespace().unwrap_or_default(),
            name: job.name_any(),
        }
    }

    /// The job that an object is labelled with.
    pub fn owning(object: &impl ResourceExt) -> Option<Self> {
        Some(Self {
            namespace: object.namespace()?,
            name: object.labels().get(label::JOB)?.clone(),
        })
    }
}

impl std::fmt::Display for JobKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
