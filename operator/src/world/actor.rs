//! Whom to ask for a job's training report.

use super::job_key::JobKey;

/// An actor to ask.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Its job.
    pub key: JobKey,
    /// Uid of its job.
    pub uid: String,
    /// Its address.
    pub ip: String,
    /// Its attempt.
    pub attempt: u32,
}
