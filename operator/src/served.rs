//! Which gang schedulers' kinds the API server has. Looked up when it matters, never at rest.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;

use crate::world::Kind;

/// What a discovery found is trusted for so long: a gang scheduler installed later is found with a job made later.
const TRUSTED: Duration = Duration::from_secs(30);

/// Gang schedulers of the cluster.
#[derive(Default)]
pub struct Served(Mutex<Found>);

#[derive(Default)]
struct Found {
    kinds: BTreeSet<Kind>,
    at: Option<Instant>,
}

impl Served {
    /// The kinds found last.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        self.lock().kinds.clone()
    }

    /// Looks again, unless it was done a moment ago. Returns the kinds that are new.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn refresh(&self, client: &Client) -> kube::Result<Vec<Kind>> {
        if self.lock().at.is_some_and(|at| at.elapsed() < TRUSTED) {
            return Ok(Vec::new());
        }
        let mut kinds = BTreeSet::new();
        for kind in Kind::GANGS {
            if is_served(client, kind).await? {
                kinds.insert(kind);
            }
        }
        let mut found = self.lock();
        let new = kinds.difference(&found.kinds).copied().collect();
        // A kind that is gone stays: its watch goes on, and its objects are still ours.
        found.kinds.extend(kinds);
        found.at = Some(Instant::now());
        Ok(new)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn is_served(client: &Client, kind: Kind) -> kube::Result<bool> {
    let resource = kind.resource();
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => Ok(list.resources.iter().any(|served| served.name == resource.plural)),
        // The answer for a group that is not there is plain text, without a reason.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}
