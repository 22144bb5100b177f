//! What a plan does to the cluster.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::Value;

use crate::world::Kind;

/// A write to the API server.
#[derive(Clone, Debug)]
pub enum Action {
    /// Makes the Secret with a new random token.
    CreateToken(Box<DynamicObject>),
    /// Makes an object.
    Create(Kind, Box<DynamicObject>),
    /// Brings an object, the one of that uid, back to what it should be.
    Apply(Kind, Box<DynamicObject>),
    /// Merges into an object's status.
    MergeStatus(Kind, String, Value),
    /// Merges into an object.
    Merge(Kind, String, Value),
    /// Deletes exactly the observed object.
    Delete(Target),
    /// Deletes the job: its time after the end is over.
    DeleteJob,
}

/// What to delete. It is left alone when it is another object by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version; None where any will do.
    pub resource_version: Option<String>,
    /// 0: without waiting for its processes, whose node is lost.
    pub grace_seconds: Option<u32>,
}

impl Action {
    /// Deletes exactly this object, however it has changed, unless it is going already.
    pub fn removal(kind: Kind, object: &DynamicObject) -> Option<Self> {
        let stays = object.metadata.deletion_timestamp.is_none();
        stays.then(|| {
            Self::Delete(Target {
                kind,
                name: object.name_any(),
                uid: object.uid().unwrap_or_default(),
                resource_version: None,
                grace_seconds: None,
            })
        })
    }
}
