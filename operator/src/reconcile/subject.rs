//! A job that is reconciled.

use std::sync::Arc;

use kube::api::DynamicObject;
use kube::{Api, Client};
use ppo_crds::PpoJob;
use ppo_crds::status::PpoJobStatus;

use crate::job::Job;
use crate::world::Kind;

/// A job to work on.
pub struct Subject {
    /// What it says, checked.
    pub checked: Arc<Job>,
    /// The object, as last observed.
    pub object: PpoJob,
    /// Its status.
    pub status: PpoJobStatus,
}

impl Subject {
    /// Objects of a kind in its namespace.
    pub(super) fn api(&self, kind: Kind, client: &Client) -> Api<DynamicObject> {
        Api::namespaced_with(client.clone(), &self.checked.key.namespace, &kind.resource())
    }
}
