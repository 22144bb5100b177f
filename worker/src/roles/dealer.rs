//! Deals a step's requests to the engines that are there: a slow one gets fewer, a dead one's go to others with the same
//! seeds and so come back with the same tokens, and an engine that comes late gets the published weights first.

mod crew;
mod deal;
mod duty;
mod engines;
mod handover;
mod shift;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use self::deal::Deal;
use self::handover::{Handover, PATIENCE};
use super::transfers::Transfers;
use super::work::Work;
use super::{Pending, Publication};
use crate::engine::Request;
use crate::model::MergedWeights;
use crate::model::marks::Changed;
use crate::pods::{Caller, Members};
use crate::rollout::weights::delta::Delta;
use crate::stop::StopFlag;
use crate::telemetry::Live;

/// What a dealer needs to know.
pub struct DealerOptions {
    /// Where the engines are.
    pub members: Members,
    /// Below so many engines no request is dealt (`roles.rollout.minReplicas`).
    pub floor: usize,
    /// For `floor` engines to be ready.
    pub floor_deadline: Duration,
    /// Calls them.
    pub caller: Caller,
    /// Where engines get weights from.
    pub publication: Publication,
    /// For engines that take weights by NCCL. None: all get them over HTTP.
    pub transfers: Option<Transfers>,
    /// Whether engines draw while the trained tensors change: what is published is a copy of them then, so that an engine
    /// which starts in that time gets the version that it is to draw with.
    pub copies: bool,
    /// Told of weights that engines take after a step, and whom that waits for.
    pub live: Arc<Live>,
}

/// The engines of a job, behind HTTP.
pub struct Dealer {
    options: Arc<DealerOptions>,
    runtime: tokio::runtime::Handle,
    stop: StopFlag,
    /// What is published, where that is a copy.
    copy: Option<MergedWeights>,
    /// The version that every sample has to be drawn with.
    version: AtomicU64,
    /// Samples whose engine failed before it answered, since they were last asked for.
    drawn_again: Arc<AtomicU64>,
}

impl Dealer {
    /// A dealer of `weights`, version `version`. Nothing is asked of the engines yet.
    ///
    /// # Errors
    /// When memory does not suffice for a copy.
    pub fn new(
        options: DealerOptions,
        weights: MergedWeights,
        version: u64,
        runtime: tokio::runtime::Handle,
        stop: StopFlag,
    ) -> Result<Self> {
        let copy = options.copies.then(|| weights.deep_clone()).transpose()?;
        let published = copy.as_ref().map_or(weights, MergedWeights::shallow_clone);
        options.publication.publish(published, version);
        Ok(Self {
            options: Arc::new(options),
            runtime,
            stop,
            copy,
            version: AtomicU64::new(version),
            drawn_again: Arc::default(),
        })
    }

    /// Asks for samples for all requests, all drawn by the published version. They do not come when a request is refused, too few engines
    /// are ready in time, or not all is done within `deadline`: the error has what each engine does, and its last failure.
    pub fn start(&self, requests: Vec<Request>, deadline: Duration) -> Pending {
        let work = Arc::new(Work::new(requests, Instant::now() + deadline, self.drawn_again.clone()));
        let deal = Deal {
            options: self.options.clone(),
            version: self.version.load(Ordering::Relaxed),
            work: work.clone(),
            deadline,
        };
        // One that comes late gets the weights first, which may take longer than all else.
        let publication = self.options.publication.clone();
        Pending::start(
            &self.runtime,
            move || work.answered() + publication.taken(),
            |waited_for| deal.run(waited_for),
        )
    }

    /// Gives the weights to every engine that is there, all at once. One that fails, or is late when others have them, gets them before it
    /// is next asked. A process that is asked to stop waits for none. `changed` is what differs from those that were published before.
    ///
    /// # Errors
    /// When the weights are not those of the model; engines that fail are logged.
    pub fn publish(
        &self,
        weights: MergedWeights,
        changed: Option<&Changed>,
        version: u64,
        deadline: Duration,
    ) -> Result<()> {
        let publication = &self.options.publication;
        let delta = self.delta(&weights, changed)?;
        let weights = match &self.copy {
            None => weights,
            Some(copy) => {
                publication.withdraw();
                copy.overwrite(&weights)?;
                copy.shallow_clone()
            }
        };
        publication.publish_with(weights, version, delta);
        self.version.store(version, Ordering::Relaxed);
        let handover = Handover {
            options: &self.options,
            version,
            deadline,
            patience: PATIENCE,
        };
        let handed_over = self.stop.unless_requested(async {
            handover.run().await;
            Ok(())
        });
        if self.runtime.block_on(handed_over).is_err() {
            tracing::info!("asked to stop: engines that lack version {version} are not waited for");
        }
        Ok(())
    }

    /// Whether an engine has what is published now, so that it is of use to know what changes.
    pub fn takes_changes(&self) -> bool {
        self.options.publication.is_held()
    }

    /// What `changed`, for engines that have what is published now; None where too much changed.
    fn delta(&self, weights: &MergedWeights, changed: Option<&Changed>) -> Result<Option<Delta>> {
        let Some(changed) = changed else { return Ok(None) };
        // One of them is held at a time.
        self.options.publication.forget_delta();
        let delta = Delta::of(weights, changed)?;
        if let Some(delta) = &delta {
            let (count, bytes, all) = (delta.count, delta.bytes(), weights.bytes());
            tracing::info!(
                "the new version has {count} other weights: {bytes} bytes of {all} for engines that have the one before"
            );
        }
        Ok(delta)
    }

    /// Samples whose engine failed before it answered, so that another one drew them, since this was last asked for.
    pub fn take_drawn_again(&self) -> u64 {
        self.drawn_again.swap(0, Ordering::Relaxed)
    }

    /// The trained tensors are about to change: engines read them no more. Of a copy they go on reading.
    pub fn withdraw(&self) {
        if self.copy.is_none() {
            self.options.publication.withdraw();
        }
    }
}

#[cfg(test)]
mod tests;
