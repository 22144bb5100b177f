//! Whether a job's pods may exist.

use std::collections::BTreeMap;

use ppo_crds::spec::Role;
use serde_json::Value;

/// The gang scheduler's word on a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// Nobody has to be asked.
    Free,
    /// The gang scheduler that was asked for is not there: why, and what would help.
    Missing(String),
    /// Waits for quota, or lost it.
    Waiting {
        /// One word.
        reason: String,
        /// The queue's own words.
        message: String,
    },
    /// Admitted, with places for each role.
    Admitted(BTreeMap<Role, Place>),
}

/// What a queue gave a role.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Place {
    /// Pods.
    pub count: u32,
    /// Labels of the nodes they must go to.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of those nodes that they bear.
    pub tolerations: Vec<Value>,
    /// Labels for them.
    pub labels: BTreeMap<String, String>,
    /// Annotations for them.
    pub annotations: BTreeMap<String, String>,
    /// A node for each pod by its index, where the queue chose nodes.
    pub nodes: Vec<BTreeMap<String, String>>,
}
