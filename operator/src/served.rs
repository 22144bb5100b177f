//! Which gang schedulers' kinds the API server has. Looked up when it matters, never at rest.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kube::Client;
use parking_lot::Mutex;

use crate::world::Kind;

/// What a discovery found is trusted for so long: a gang scheduler installed later is found with a job made later.
const TRUSTED: Duration = Duration::from_secs(30);

/// Gang schedulers of the cluster.
#[derive(Default)]
pub struct Served(Mutex<Found>);

#[derive(Default)]
struct Found {
    /// Served when they were last looked for.
    kinds: BTreeSet<Kind>,
    /// Served at any time. The watch of a kind that is gone goes on: should it come back, its news do, too.
    watched: BTreeSet<Kind>,
    at: Option<Instant>,
}

impl Served {
    /// The kinds found last.
    pub fn kinds(&self) -> BTreeSet<Kind> {
        self.0.lock().kinds.clone()
    }

    /// Notes that a kind that was found is not served, as after its scheduler was uninstalled: the next look asks again.
    pub fn doubt(&self) {
        self.0.lock().at = None;
    }

    /// Whether the next look asks again.
    pub fn is_doubted(&self) -> bool {
        self.0.lock().at.is_none()
    }

    /// Looks again, unless it was done a moment ago. Returns the kinds that nobody watches yet.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn refresh(&self, client: &Client) -> kube::Result<Vec<Kind>> {
        if self.0.lock().at.is_some_and(|at| at.elapsed() < TRUSTED) {
            return Ok(Vec::new());
        }
        let mut kinds = BTreeSet::new();
        for kind in Kind::GANGS {
            if is_served(client, kind).await? {
                kinds.insert(kind);
            }
        }
        Ok(self.0.lock().note(kinds))
    }
}

impl Found {
    fn note(&mut self, kinds: BTreeSet<Kind>) -> Vec<Kind> {
        let new = kinds.difference(&self.watched).copied().collect();
        self.watched.extend(&kinds);
        self.kinds = kinds;
        self.at = Some(Instant::now());
        new
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheduler_that_is_uninstalled_is_chosen_no_more_and_one_that_comes_back_is_watched_once() {
        let served = Served::default();
        let note = |kinds: &[Kind]| served.0.lock().note(kinds.iter().copied().collect());
        assert_eq!(note(&[Kind::KueueWorkload]), [Kind::KueueWorkload]);
        assert!(!served.is_doubted());
        served.doubt();
        assert!(served.is_doubted());
        assert_eq!(note(&[]), []);
        assert_eq!(served.kinds(), BTreeSet::new());
        assert_eq!(note(&[Kind::KueueWorkload]), []);
        assert_eq!(served.kinds(), [Kind::KueueWorkload].into());
    }
}
