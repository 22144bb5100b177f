//! What a run shows to the outside (metrics, health, report), from before its ranks have met and its models load.

use anyhow::Result;

use super::opening::Options;
use crate::roles::{Publication, published};
use crate::telemetry::{Server, Watched};

/// How a run is seen from outside.
pub struct Seen {
    /// Its metrics, and what it does right now.
    pub watched: Watched,
    /// Who serves them, where somebody does.
    pub server: Option<Server>,
    /// Where engines of other processes get weights from.
    pub publication: Publication,
}

impl Seen {
    /// A run of a job of this name, whose metrics are served from now on.
    ///
    /// # Errors
    /// When the address cannot be listened at.
    pub fn open(name: &str, options: &Options) -> Result<Self> {
        let attempt = options.owner.as_ref().map_or(1, |owner| owner.attempt);
        let watched = Watched::new(name, attempt)?;
        let publication = Publication::new(attempt);
        let weights = options.peers.as_ref();
        let weights = weights.map(|peers| published::router(publication.clone(), &peers.token));
        let serve = |address| {
            let (exposition, live) = (watched.exposition.clone(), Some(watched.live.clone()));
            Server::start(address, exposition, live, weights.unwrap_or_default())
        };
        let server = options.metrics_address.map(serve).transpose()?;
        if let Some(server) = &server {
            tracing::info!("metrics on http://{}/metrics", server.address());
        }
        Ok(Self {
            watched,
            server,
            publication,
        })
    }
}
