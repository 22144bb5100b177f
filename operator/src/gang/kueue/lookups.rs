//! What Kueue's other objects say that the next step needs.

use std::collections::BTreeMap;

use serde_json::Value;

/// What was asked for and found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookups {
    /// Flavors of an admitted job whose pods are about to be made.
    pub flavors: BTreeMap<String, Flavor>,
    /// The priority of a job that is about to be queued.
    pub priority: Option<Priority>,
}

/// What a ResourceFlavor does to pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flavor {
    /// Labels of its nodes.
    pub node_labels: BTreeMap<String, String>,
    /// Tolerations that its pods get.
    pub tolerations: Vec<Value>,
}

/// A Workload's priority.
#[derive(Clone, Debug, PartialEq)]
pub enum Priority {
    /// A value, with a reference to the class it is of.
    Of(i32, Option<Value>),
    /// There is no class of the name.
    NoSuchClass,
}
