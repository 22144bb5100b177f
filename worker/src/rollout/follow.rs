//! An engine whose weights are out of date fetches the published version itself: when it starts, when it joins a running job, and when
//! the actor could not reach it.

use std::time::Duration;

use axum::body::Bytes;
use futures::Stream;

use super::actor::Actor;
use super::weights::attempt::PolicyVersion;
use crate::backoff::spread;
use crate::serving::error::ApiError;

/// Between two looks at what the actor has published, [spread]: engines that lost it together do not all come back at once.
const LOOK: Duration = Duration::from_secs(2);

/// Something that has weights and takes others.
pub trait Follower {
    /// Which weights it has; None while it can take none, or takes some already.
    fn policy(&self) -> impl Future<Output = Option<PolicyVersion>> + Send;

    /// Takes the weights `policy`. A failure before the last byte leaves the old ones.
    fn take<S, E>(&self, policy: PolicyVersion, stream: S) -> impl Future<Output = Result<(), ApiError>> + Send
    where
        S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
        E: std::fmt::Display + Send;
}

/// Looks and fetches for ever. What the actor publishes it brings itself, to all engines at once: one is behind when it is so
/// at two looks in a row, or at the first. So is one that has weights of the same number which this attempt of the actor has not given it.
pub async fn follow(engine: &impl Follower, actor: &Actor) {
    let mut was_behind = true;
    loop {
        match look(engine, actor).await {
            Some((own, published)) if own == published => was_behind = false,
            Some((_, published)) if was_behind => fetch(engine, actor, published).await,
            Some(_) => was_behind = true,
            None => {}
        }
        tokio::time::sleep(spread(LOOK, rand::random())).await;
    }
}

/// The engine's weights and the published ones; None when one of the two has none now.
async fn look(engine: &impl Follower, actor: &Actor) -> Option<(PolicyVersion, PolicyVersion)> {
    let own = engine.policy().await?;
    match actor.policy().await {
        Ok(published) => Some((own, published)),
        Err(error) => {
            // An actor that starts or updates is no news.
            tracing::debug!("{error}");
            None
        }
    }
}

async fn fetch(engine: &impl Follower, actor: &Actor, policy: PolicyVersion) {
    let taken = match actor.weights(policy).await {
        Ok(stream) => engine.take(policy, stream).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let version = policy.version;
    match taken {
        Ok(()) => tracing::info!("fetched version {version} from the actor"),
        Err(error) => tracing::info!("version {version} could not be fetched: {error}"),
    }
}
