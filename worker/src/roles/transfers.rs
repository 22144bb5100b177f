//! Published weights from the actor's GPU to those of vLLM engines, by NCCL: they pass through no machine's memory. Each engine has a
//! communicator of its own, of which the actor is rank 0, so that one that dies takes no other with it. The other side is
//! [`vllm::transfer`](crate::vllm::transfer).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};
use tokio::task::{JoinHandle, spawn_blocking};

use super::{Endpoint, Publication};
use crate::native::nccl::{Nccl, UniqueId};
use crate::pods::CallError;
use crate::vllm::transfer::{self, Init, InitInfo, JOIN, Transfer, UpdateInfo};

/// For an engine to say that it has joined: somewhat more than it takes at most.
const JOIN_ANSWER: Duration = JOIN.saturating_add(Duration::from_secs(30));
/// What this process is told when an engine does not.
const NOT_JOINED: &str = "the engine did not join in time";
/// An engine that failed so often in a row gets its weights over HTTP from then on.
const MOST_FAILURES: u32 = 2;

/// The communicators with engines.
#[derive(Debug, Default)]
pub struct Transfers {
    peers: Mutex<HashMap<String, Peer>>,
    /// Engines that join or receive at this moment, by their pods' names.
    under_way: Mutex<HashSet<String>>,
}

/// What is known of an engine, by the name of its pod.
#[derive(Debug, Default)]
struct Peer {
    joined: Option<Joined>,
    /// In a row.
    failures: u32,
}

/// A communicator with an engine's workers.
#[derive(Clone, Debug)]
struct Joined {
    id: String,
    group: Arc<Nccl>,
}

impl Transfers {
    /// Sends the published weights of `version` to an engine; false where they do not go this way: they are not on a GPU, or the engine failed
    /// too often.
    ///
    /// # Errors
    /// When the engine does not take them. It may have none then, until it gets others.
    pub async fn send(
        &self,
        endpoint: &Endpoint,
        publication: &Publication,
        version: u64,
        deadline: Duration,
    ) -> Result<bool> {
        let Some(sending) = Sending::of(publication, version, deadline) else {
            return Ok(false);
        };
        let mut peer = self.take(endpoint);
        if peer.failures >= MOST_FAILURES {
            return Ok(false);
        }
        let _under_way = self.begin(endpoint.name());
        let sent = sending.send(endpoint, &mut peer).await;
        self.peers.lock().insert(endpoint.name().to_owned(), peer);
        sent
    }

    /// What is known of an engine. Its communicator is left to whoever asks: one by which a transfer was given up serves no more.
    fn take(&self, endpoint: &Endpoint) -> Peer {
        let mut peers = self.peers.lock();
        let peer = peers.entry(endpoint.name().to_owned()).or_default();
        Peer {
            joined: peer.joined.take(),
            failures: peer.failures,
        }
    }

    /// Whether the engine in that pod joins or receives at this moment: to break it off would cost the pod.
    pub fn is_under_way(&self, pod: &str) -> bool {
        self.under_way.lock().contains(pod)
    }

    /// The engine in that pod joins or receives for as long as what this gives lives.
    pub(super) fn begin<'a>(&'a self, pod: &'a str) -> UnderWay<'a> {
        self.under_way.lock().insert(pod.to_owned());
        UnderWay(self, pod)
    }
}

/// Whether a transfer failed because the engine knows nothing of its communicator.
fn has_not_joined(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<CallError>();
    refused.is_some_and(|refused| refused.status == Some(409) && refused.cause.contains(transfer::NOT_JOINED))
}

/// See [`Transfers::begin`].
pub(super) struct UnderWay<'a>(&'a Transfers, &'a str);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.lock().remove(self.1);
    }
}

/// Gives the published weights of `version` to an engine: from GPU to GPU where `transfers` can, else over HTTP.
///
/// # Errors
/// When they did not arrive whole and in time.
pub async fn deliver(
    transfers: Option<&Transfers>,
    endpoint: &Endpoint,
    publication: &Publication,
    version: u64,
    deadline: Duration,
) -> Result<(), CallError> {
    if let Some(transfers) = transfers {
        match transfers.send(endpoint, publication, version, deadline).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => tracing::warn!(
                "{}: no weights by NCCL, so they go over HTTP: {error:#}",
                endpoint.name()
            ),
        }
    }
    endpoint.update_weights(publication, version, deadline).await
}

/// Published weights on their way from a GPU.
struct Sending {
    publication: Publication,
    version: u64,
    update: UpdateInfo,
    gpu: usize,
    deadline: Duration,
}

impl Sending {
    /// None where the version is not published, or not on a GPU.
    fn of(publication: &Publication, version: u64, deadline: Duration) -> Option<Self> {
        let weights = publication.read(version)?.weights;
        let Device::Cuda(gpu) = weights.iter().next()?.1.weight.device() else {
            return None;
        };
        Some(Self {
            publication: publication.clone(),
            version,
            update: UpdateInfo::of(&weights)?,
            gpu,
            deadline,
        })
    }

    /// To an engine: by the communicator that it has joined, else by a new one. False where one broke once too often.
    async fn send(&self, endpoint: &Endpoint, peer: &mut Peer) -> Result<bool> {
        let failed = peer.failures + 1;
        let mut broke = false;
        if let Some(known) = peer.joined.take() {
            match self.transfer(endpoint, &known).await {
                Ok(()) => {
                    *peer = Peer {
                        joined: Some(known),
                        failures: 0,
                    };
                    return Ok(true);
                }
                // It is another engine by now, under the same name.
                Err(error) if has_not_joined(&error) => tracing::debug!("{error:#}"),
                Err(error) => {
                    broke = true;
                    peer.failures = failed;
                    let name = endpoint.name();
                    tracing::warn!("{name}: the communicator by which it had its weights is given up: {error:#}");
                }
            }
        }
        if peer.failures >= MOST_FAILURES {
            return Ok(false);
        }
        let workers = endpoint.world_size().await?;
        let sent = async {
            let joined = self.join(endpoint, workers + 1).await?;
            self.transfer(endpoint, &joined).await?;
            Ok(joined)
        };
        let sent: Result<Joined> = sent.await;
        // A communicator that broke counts, also where another one can be made: it may break each time.
        peer.failures = if broke || sent.is_err() { failed } else { 0 };
        peer.joined = Some(sent?);
        Ok(true)
    }

    /// Makes a communicator of this process, which is rank 0, and the engine's workers.
    async fn join(&self, endpoint: &Endpoint, ranks: usize) -> Result<Joined> {
        let unique = UniqueId::make()?;
        let id = BASE64_STANDARD.encode(unique.0);
        let init = Init {
            init_info: InitInfo {
                nccl_unique_id_b64: id.clone(),
                rank_offset: 1,
                world_size: ranks,
                packed: false,
            },
        };
        let (gpu, deadline) = (self.gpu, self.deadline);
        let given_up = Arc::new(AtomicBool::new(false));
        let joining = Arc::new(OnceLock::<Arc<Nccl>>::new());
        let (is_given_up, joined) = (given_up.clone(), joining.clone());
        let here = spawn_blocking(move || {
            let ends = Instant::now() + JOIN_ANSWER;
            let goes_on = || Instant::now() < ends && !is_given_up.load(Ordering::Acquire);
            let group = Nccl::meet(unique, (0, ranks), gpu, deadline, goes_on)?;
            let group = joined.get_or_init(|| Arc::new(group)).clone();
            ensure!(goes_on(), NOT_JOINED);
            // vLLM's workers begin with a sum of one number each (`PyNcclCommunicator.from_unique_id_bytes`).
            group.all_reduce(&Tensor::f_zeros([1], (Kind::Float, Device::Cuda(gpu)))?, false)?;
            Ok(group)
        });
        let give_up = || {
            given_up.store(true, Ordering::Release);
            joining.get().into_iter().for_each(|group| group.abort(NOT_JOINED));
        };
        let attempt = self.publication.policy(self.version).attempt;
        let there = endpoint.join(&init, attempt, JOIN_ANSWER);
        let group = both(here, there, give_up).await?;
        tracing::info!("{} gets weights by NCCL, {ranks} ranks", endpoint.name());
        Ok(Joined { id, group })
    }

    /// Sends all tensors, one by one.
    async fn transfer(&self, endpoint: &Endpoint, joined: &Joined) -> Result<()> {
        let (group, publication, version) = (joined.group.clone(), self.publication.clone(), self.version);
        let here = spawn_blocking(move || {
            let reading = publication.read(version).context("it is no longer published")?;
            reading.weights.iter().try_for_each(|(name, tensor)| {
                let gate = &reading.gate;
                gate.while_open(|| group.broadcast(&tensor.merge()?, 0))
                    .inspect(|()| gate.count_taken())
                    .with_context(|| format!("sending {name}"))
            })
        });
        let transfer = Transfer {
            nccl_unique_id_b64: joined.id.clone(),
            update_info: self.update.clone(),
        };
        let there = endpoint.receive(self.publication.policy(version), &transfer, self.deadline);
        both(here, there, || {
            joined.group.abort("the engine does not take the weights")
        })
        .await
    }
}

/// What this process does and what an engine does at the same time; when one of the two fails the other is given up.
async fn both<T>(
    here: JoinHandle<Result<T>>,
    there: impl Future<Output = Result<(), CallError>>,
    give_up: impl FnOnce(),
) -> Result<T> {
    let mut unless_done = GiveUp(Some(give_up));
    let here = async { here.await? };
    let there = async { Ok(there.await?) };
    let (made, ()) = futures::future::try_join(here, there).await?;
    unless_done.0 = None;
    Ok(made)
}

/// Gives up what is not done when it is dropped, as when nobody waits for it any more: what this process does would hold the weights.
struct GiveUp<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for GiveUp<F> {
    fn drop(&mut self) {
        if let Some(give_up) = self.0.take() {
            give_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::Role;

    use super::*;
    use crate::model::Weights;
    use crate::pods::{Caller, Member};

    fn member() -> Member {
        Member {
            name: "job-rollout-0".into(),
            address: "127.0.0.1:1".into(),
        }
    }

    #[tokio::test]
    async fn weights_in_this_machines_memory_go_another_way_and_no_engine_is_asked() {
        let mut weights = Weights::default();
        weights.0.insert("w".into(), Tensor::from_slice(&[1.0f32]));
        let publication = Publication::default();
        publication.publish(weights, 3);
        // Nobody listens there.
        let endpoint = Endpoint::new(member(), Caller::new("token".into()).unwrap());
        let transfers = Transfers::default();
        for version in [3, 4] {
            let sent = transfers.send(&endpoint, &publication, version, JOIN).await;
            assert!(!sent.unwrap(), "version {version}");
        }
    }

    #[tokio::test]
    async fn when_the_engine_refuses_what_this_process_waits_for_is_given_up() {
        let given_up = Arc::new(AtomicBool::new(false));
        let waits_for = given_up.clone();
        let here = spawn_blocking(move || {
            while !waits_for.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        });
        let refused = CallError::new(Role::Rollout, &member(), "/update_weights", "409: no".into(), true);
        let there = std::future::ready(Err(refused));
        let error = both(here, there, || given_up.store(true, Ordering::Relaxed)).await;
        assert!(error.unwrap_err().to_string().contains("409: no"));
    }

    #[test]
    fn an_engine_that_has_not_joined_is_another_one_and_one_that_is_busy_or_broken_is_not() {
        let refused = |status: u16, cause: &str| {
            let error = CallError::new(Role::Rollout, &member(), "/update_weights", cause.into(), true);
            anyhow::Error::from(CallError {
                status: Some(status),
                ..error
            })
        };
        assert!(has_not_joined(&refused(
            409,
            "409 Conflict: vLLM has not joined this communicator"
        )));
        assert!(!has_not_joined(&refused(
            409,
            "409 Conflict: another update of the weights is running"
        )));
        assert!(!has_not_joined(&refused(500, "500: vLLM: out of memory")));
        assert!(!has_not_joined(&anyhow::anyhow!("NCCL: unhandled system error")));
    }

    #[tokio::test]
    async fn when_nobody_waits_for_the_engine_any_longer_it_is_given_up_too() {
        let given_up = AtomicBool::new(false);
        let here = spawn_blocking(|| Ok(()));
        let waits = both(here, std::future::pending(), || given_up.store(true, Ordering::Relaxed));
        let late = tokio::time::timeout(Duration::from_millis(50), waits).await;
        assert!(late.is_err() && given_up.load(Ordering::Relaxed));
    }
}
