//! The weights that every sample has to be drawn with, as engines get them: piece by piece, copied out while nothing changes
//! the tensors. No copy of all of them is made here: the actor trains in place, and a stream that an update overtakes ends
//! unfinished. Where engines draw during updates, what is published is the dealer's copy. An engine that has the publication before may
//! get what changed since, where that is little.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::body::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio_stream::wrappers::ReceiverStream;

use crate::model::MergedWeights;
use crate::pace;
use crate::rollout::weights::LoadedWeights;
use crate::rollout::weights::attempt::PolicyVersion;
use crate::rollout::weights::delta::Delta;
use crate::rollout::weights::frame;
use crate::rollout::weights::source::Source;

/// Pieces of a stream that wait for the network.
const PIECES_AHEAD: usize = 2;

/// The newest weights of a run; clones are the same ones. A default one is of attempt 0, which no job has.
#[derive(Clone, Default)]
pub struct Publication(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// The actor's, which publishes.
    attempt: u32,
    /// Number of the publication that may be read; None while the tensors change. Held while a piece is copied out, or a tensor merged.
    open: RwLock<Option<u64>>,
    latest: Mutex<Option<Latest>>,
    /// What engines said that they have, by their pods' names.
    held: Mutex<HashMap<String, Held>>,
    /// Pods of engines that were late or failed when all got weights, and have taken none since.
    late: Mutex<BTreeSet<String>>,
    /// Pieces and tensors of any version that went to engines.
    taken: AtomicU64,
}

struct Latest {
    /// Counts publications: a run that goes on from a checkpoint may publish a version twice.
    number: u64,
    version: u64,
    weights: MergedWeights,
    /// They as streams read them.
    source: Arc<Source>,
    /// How they differ from the publication before.
    delta: Option<Delta>,
}

/// What an engine has of what was published.
struct Held {
    number: u64,
    /// As the engine calls it.
    digest: String,
}

/// The weights of a version, to be read while they are published.
pub struct Reading {
    /// Through which they are read.
    pub gate: Gate,
    /// They may be the trained tensors themselves: what they hold is read [while they are open](Gate::while_open).
    pub weights: MergedWeights,
    source: Arc<Source>,
    delta: Option<Delta>,
}

/// Lets one publication be read, and no other.
#[derive(Clone)]
pub struct Gate {
    shared: Arc<Shared>,
    number: u64,
    version: u64,
}

impl Gate {
    /// Runs `read` while nothing changes the tensors.
    ///
    /// # Errors
    /// When something else is published by now; what `read` says.
    pub fn while_open<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let open = self.shared.open.read();
        ensure!(
            *open == Some(self.number),
            "version {} is no longer published",
            self.version
        );
        read()
    }

    /// A piece of the weights, or a tensor, went to an engine.
    pub fn count_taken(&self) {
        self.shared.taken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Reading {
    /// The engine in `pod` has them by now, and says what that is.
    pub fn note_held(&self, pod: &str, loaded: LoadedWeights) {
        let mut held = self.gate.shared.held.lock();
        match loaded.digest.filter(|_| loaded.takes_delta) {
            Some(digest) => held.insert(
                pod.to_owned(),
                Held {
                    number: self.gate.number,
                    digest,
                },
            ),
            None => held.remove(pod),
        };
    }

    /// How they differ from what the engine in `pod` has, and the digest of that. None where it has not the publication before, or too much
    /// differs. What it has is in doubt until it [says](Self::note_held) so again.
    pub fn delta_for(&self, pod: &str) -> Option<(Delta, String)> {
        let delta = self.delta.clone()?;
        let held = self.gate.shared.held.lock().remove(pod);
        let held = held.filter(|held| held.number + 1 == self.gate.number)?;
        Some((delta, held.digest))
    }

    /// A delta for the network.
    pub fn pieces(&self, delta: &Delta) -> impl Iterator<Item = Bytes> + Send + use<> {
        let gate = self.gate.clone();
        delta.pieces().inspect(move |_| gate.count_taken())
    }

    /// All of them, as [`frame`] has them.
    ///
    /// # Errors
    /// When a tensor is of a kind that is not sent.
    pub fn stream(&self) -> Result<PieceStream> {
        let (gate, mut pieces) = (self.gate.clone(), frame::pieces_of(self.source.clone())?);
        let (sender, receiver) = tokio::sync::mpsc::channel(PIECES_AHEAD);
        // Tensors are read where blocking is allowed; a receiver that is gone ends it.
        tokio::task::spawn_blocking(move || {
            while let Some(piece) = gate.while_open(|| pieces.next().transpose()).transpose() {
                let is_last = piece.is_err();
                if sender.blocking_send(piece.map_err(std::io::Error::other)).is_err() || is_last {
                    return;
                }
                gate.count_taken();
            }
        });
        Ok(ReceiverStream::new(receiver))
    }
}

/// A stream of pieces for the network.
pub type PieceStream = ReceiverStream<std::io::Result<Vec<u8>>>;

impl Publication {
    /// For an attempt of the actor, which has published nothing yet.
    pub fn new(attempt: u32) -> Self {
        Self(Arc::new(Shared {
            attempt,
            ..Shared::default()
        }))
    }

    /// What an engine has that has `version` of what this attempt published.
    pub fn policy(&self, version: u64) -> PolicyVersion {
        PolicyVersion {
            attempt: Some(self.0.attempt),
            version,
        }
    }

    /// From now on these are the weights. They may be the trained tensors themselves.
    pub fn publish(&self, weights: impl Into<MergedWeights>, version: u64) {
        self.publish_with(weights.into(), version, None);
    }

    /// The same; `delta` is how they differ from what was published before.
    pub fn publish_with(&self, weights: MergedWeights, version: u64, delta: Option<Delta>) {
        let mut latest = self.0.latest.lock();
        let number = latest.as_ref().map_or(0, |latest| latest.number + 1);
        *latest = Some(Latest {
            number,
            version,
            source: Arc::new(Source::new(weights.shallow_clone())),
            weights,
            delta,
        });
        self.set_open(Some(number));
    }

    /// The tensors are about to change: when this returns nobody reads them any more.
    pub fn withdraw(&self) {
        self.set_open(None);
    }

    fn set_open(&self, open: Option<u64>) {
        *self.0.open.write() = open;
    }

    fn open(&self) -> Option<u64> {
        *self.0.open.read()
    }

    /// The version that may be read; None while the tensors change, and before the first is published.
    pub fn version(&self) -> Option<u64> {
        self.open()?;
        let latest = self.0.latest.lock();
        latest.as_ref().map(|latest| latest.version)
    }

    /// The weights of `version`. None when they are not what is published.
    pub fn read(&self, version: u64) -> Option<Reading> {
        let open = self.open()?;
        let latest = self.0.latest.lock();
        let latest = latest.as_ref()?;
        (latest.version == version && latest.number == open).then(|| Reading {
            gate: Gate {
                shared: self.0.clone(),
                number: open,
                version,
            },
            weights: latest.weights.shallow_clone(),
            source: latest.source.clone(),
            delta: latest.delta.clone(),
        })
    }

    /// What was published last is no longer sent as what differs from the publication before.
    pub fn forget_delta(&self) {
        if let Some(latest) = self.0.latest.lock().as_mut() {
            latest.delta = None;
        }
    }

    /// Whether an engine has what was published last, so that it is of use to know how the next differs.
    pub fn is_held(&self) -> bool {
        let number = self.0.latest.lock().as_ref().map(|latest| latest.number);
        self.0.held.lock().values().any(|held| Some(held.number) == number)
    }

    /// The engine in `pod` did not take the weights when the others did.
    pub fn note_late(&self, pod: String) {
        self.0.late.lock().insert(pod);
    }

    /// The engine in `pod` has them, whoever brought them.
    pub fn note_taken(&self, pod: &str) {
        self.0.late.lock().remove(pod);
    }

    /// Pods of engines that were [late](Self::note_late), and have [taken](Self::note_taken) none since.
    pub fn late(&self) -> BTreeSet<String> {
        self.0.late.lock().clone()
    }

    /// Grows while engines take weights, whoever brings them.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How long an engine may take for what is published, or was.
    pub fn deadline(&self) -> Duration {
        let latest = self.0.latest.lock();
        pace::deadline(latest.as_ref().map_or(0, |latest| latest.weights.bytes()))
    }

    /// The weights of `version` as [`frame`] has them. None when they are not what is published.
    ///
    /// # Errors
    /// When a tensor is of a kind that is not sent.
    pub fn stream(&self, version: u64) -> Result<Option<PieceStream>> {
        self.read(version).map(|reading| reading.stream()).transpose()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tch::Tensor;

    use super::*;
    use crate::model::Weights;

    fn weights(value: f32) -> Weights {
        let mut weights = Weights::default();
        // More pieces than wait for the network, so that an update can overtake the stream.
        let numbers = vec![value; 8 << 18];
        weights.0.insert("w".into(), Tensor::from_slice(&numbers));
        weights
    }

    #[tokio::test]
    async fn only_what_is_published_can_be_read() {
        let publication = Publication::default();
        assert!(publication.version().is_none() && publication.stream(0).unwrap().is_none());
        publication.publish(weights(1.0), 3);
        assert_eq!(publication.version(), Some(3));
        assert!(publication.stream(2).unwrap().is_none());
        let bytes: usize = publication
            .stream(3)
            .unwrap()
            .unwrap()
            .map(|piece| piece.unwrap().len())
            .fold(0, |sum, length| async move { sum + length })
            .await;
        assert!(bytes > 4 * (8 << 18));
        publication.withdraw();
        assert!(publication.version().is_none() && publication.stream(3).unwrap().is_none());
    }

    #[tokio::test]
    async fn every_piece_that_an_engine_takes_is_counted() {
        let publication = Publication::default();
        publication.publish(weights(1.0), 3);
        assert_eq!(publication.taken(), 0);
        let pieces = publication.stream(3).unwrap().unwrap().count().await;
        assert!(pieces > PIECES_AHEAD);
        assert_eq!(publication.taken(), pieces as u64);
    }

    #[test]
    fn what_changed_is_for_engines_that_have_the_publication_before_and_for_no_others() {
        let of = |version: u64, takes_delta: bool| LoadedWeights {
            digest: Some(format!("digest of {version}")),
            takes_delta,
            ..LoadedWeights::of(Publication::default().policy(version))
        };
        let publication = Publication::default();
        publication.publish(weights(1.0), 3);
        assert!(!publication.is_held());
        let third = publication.read(3).unwrap();
        third.note_held("job-rollout-0", of(3, true));
        third.note_held("job-rollout-1", of(3, false));
        assert!(publication.is_held());
        let delta = || {
            let places = vec![("w".to_owned(), 0..0)];
            let own = crate::shard::Shard::of(0, 1, 0);
            let marks = crate::model::marks::Marks::new(own, 1, tch::Device::Cpu).unwrap();
            let changed = crate::model::marks::Changed { marks, places };
            let mut halves = weights(1.0);
            let tensor = halves.0["w"].to_kind(tch::Kind::BFloat16);
            halves.0.insert("w".into(), tensor);
            Delta::of(&halves.into(), &changed).unwrap()
        };
        publication.publish_with(weights(2.0).into(), 4, delta());
        let fourth = publication.read(4).unwrap();
        let base = |pod: &str| fourth.delta_for(pod).map(|(_, base)| base);
        assert_eq!(base("job-rollout-0").unwrap(), "digest of 3");
        assert_eq!(base("job-rollout-1"), None, "it takes none");
        assert_eq!(base("job-rollout-2"), None, "nobody knows what it has");
        assert!(!publication.is_held());
        // The first misses a version.
        publication.publish_with(weights(3.0).into(), 5, delta());
        assert!(publication.read(5).unwrap().delta_for("job-rollout-0").is_none());
        // It is not known any more how they differ.
        publication.read(5).unwrap().note_held("job-rollout-0", of(5, true));
        publication.publish(weights(4.0), 6);
        assert!(publication.read(6).unwrap().delta_for("job-rollout-0").is_none());
    }

    #[test]
    fn the_more_there_is_to_send_the_longer_it_may_take() {
        let publication = Publication::default();
        assert_eq!(publication.deadline(), pace::LEAST);
        // 20 GB that lie in four bytes.
        let mut large = Weights::default();
        let tensor = Tensor::from_slice(&[1.0f32]).expand([5_000_000_000], false);
        large.0.insert("w".into(), tensor);
        publication.publish(large, 3);
        assert_eq!(publication.deadline(), pace::LEAST + Duration::from_secs(1000));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stream_that_an_update_overtakes_ends_with_an_error_even_when_the_same_version_is_published_again() {
        let publication = Publication::default();
        publication.publish(weights(1.0), 3);
        let mut stream = publication.stream(3).unwrap().unwrap();
        assert!(stream.next().await.unwrap().is_ok());
        publication.withdraw();
        publication.publish(weights(2.0), 3);
        let mut last = None;
        while let Some(piece) = stream.next().await {
            last = Some(piece);
        }
        let error = last.unwrap().unwrap_err().to_string();
        assert!(error.contains("no longer published"), "{error}");
    }
}
