//! New weights go to all engines at once, and a step does not wait for an engine that is gone or late.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::DealerOptions;
use crate::pods::CallError;
use crate::roles::endpoint::Endpoint;
use crate::roles::transfers::deliver;

/// Once an engine has the weights, the others have as long again as it took, and so long at the least. One that was late the last time, and has
/// taken none since, has no time at all: an engine that hangs costs a run this once.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at what engines have taken, and at transfers that are not broken off.
const LOOK: Duration = Duration::from_millis(200);

/// The weights of a version on their way to the engines.
pub(super) struct Handover<'a> {
    pub(super) options: &'a Arc<DealerOptions>,
    pub(super) version: u64,
    /// For an engine while none has the weights, and for each that gets them by NCCL at that moment: a transfer that is broken off costs a
    /// restart.
    pub(super) deadline: Duration,
    pub(super) patience: Duration,
}

impl Handover<'_> {
    /// Ends when every engine has the weights, or is not waited for any longer.
    pub(super) async fn run(self) {
        let (version, publication) = (self.version, &self.options.publication);
        let late_before = publication.late();
        let (began, mut late_at) = (Instant::now(), None);
        let mut taken = publication.taken();
        let mut deliveries = JoinSet::new();
        let mut without = BTreeSet::new();
        for member in self.options.members.present().await {
            without.insert(member.name.clone());
            let endpoint = Endpoint::new(member, self.options.caller.clone());
            deliveries.spawn(hand(self.options.clone(), endpoint, version, self.deadline));
        }
        loop {
            self.tell(&without, &mut taken);
            let delivered = tokio::select! {
                delivered = deliveries.join_next() => delivered,
                () = sleep(LOOK) => continue,
                () = until(late_at) => {
                    if self.transfers_to(&without) {
                        late_at = Some(Instant::now() + LOOK);
                        continue;
                    }
                    let names = names(&without);
                    tracing::warn!("others have version {version}; {names}: gets it before it is asked again");
                    without.into_iter().for_each(|name| publication.note_late(name));
                    return;
                }
            };
            let (name, delivered) = match delivered {
                None => return,
                Some(Ok(delivered)) => delivered,
                Some(Err(error)) => {
                    tracing::warn!("publishing version {version}: {error}");
                    continue;
                }
            };
            without.remove(&name);
            match delivered {
                Ok(()) => {
                    publication.note_taken(&name);
                    late_at = Some(Instant::now() + began.elapsed().max(self.patience));
                }
                Err(error) => {
                    tracing::warn!("{error}; it gets version {version} before it is asked again");
                    publication.note_late(name);
                }
            }
            if late_at.is_some() && !without.is_empty() && without.is_subset(&late_before) {
                late_at = Some(Instant::now());
            }
        }
    }

    /// Says which engines are waited for, and that it goes on where more was taken than `taken`.
    fn tell(&self, without: &BTreeSet<String>, taken: &mut u64) {
        let before = std::mem::replace(taken, self.options.publication.taken());
        if *taken != before {
            self.options.live.goes_on();
        }
        self.options.live.wait_for(&names(without));
    }

    /// Whether one of the engines gets its weights by NCCL at this moment.
    fn transfers_to(&self, engines: &BTreeSet<String>) -> bool {
        let transfers = self.options.transfers.as_ref();
        transfers.is_some_and(|transfers| engines.iter().any(|name| transfers.is_under_way(name)))
    }
}

fn names(engines: &BTreeSet<String>) -> String {
    let names: Vec<&str> = engines.iter().map(String::as_str).collect();
    names.join(", ")
}

/// Never, where there is no such moment.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// To one engine, unless its probe fails first: a node that is lost closes no connection.
async fn hand(
    options: Arc<DealerOptions>,
    endpoint: Endpoint,
    version: u64,
    deadline: Duration,
) -> (String, Result<(), CallError>) {
    let (transfers, publication) = (options.transfers.as_ref(), &options.publication);
    let delivered = tokio::select! {
        delivered = deliver(transfers, &endpoint, publication, version, deadline) => delivered,
        gone = endpoint.gone() => Err(gone),
    };
    (endpoint.name().to_owned(), delivered)
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use axum::routing::post;
    use axum::{Json, Router};
    use tch::Tensor;

    use super::*;
    use crate::model::Weights;
    use crate::pods::{Caller, Member, Members};
    use crate::roles::{Publication, Transfers};
    use crate::rollout::weights::LoadedWeights;
    use crate::telemetry::Live;

    /// An engine that takes weights, or takes their bytes and never answers.
    async fn engine(name: &str, answers: bool) -> Member {
        let take = move |_: Bytes| async move {
            if !answers {
                std::future::pending::<()>().await;
            }
            Json(LoadedWeights::of(Publication::default().policy(3)))
        };
        Member::serving(name, Router::new().route("/update_weights", post(take))).await
    }

    async fn options(engines: &[(&str, bool)], transfers: Option<Transfers>) -> Arc<DealerOptions> {
        let mut members = Vec::new();
        for (name, answers) in engines {
            members.push(engine(name, *answers).await);
        }
        let mut weights = Weights::default();
        weights.0.insert("w".into(), Tensor::from_slice(&[1.0f32]));
        let publication = Publication::default();
        publication.publish(weights, 3);
        Arc::new(DealerOptions {
            members: Members::Fixed(members),
            floor: 1,
            floor_deadline: Duration::from_secs(1),
            caller: Caller::new("token".into()).unwrap(),
            publication,
            transfers,
            copies: false,
            live: Arc::new(Live::new("test", 1)),
        })
    }

    /// Whether the hand-over ends before a deadline that it need not wait for.
    async fn ends_early(engines: &[(&str, bool)], transfers: Option<Transfers>) -> bool {
        let handover = Handover {
            options: &options(engines, transfers).await,
            version: 3,
            deadline: Duration::from_secs(600),
            patience: Duration::from_millis(100),
        };
        let limit = Duration::from_secs(if engines.len() > 1 { 20 } else { 1 });
        tokio::time::timeout(limit, handover.run()).await.is_ok()
    }

    #[tokio::test]
    async fn an_engine_that_never_answers_is_not_waited_for_once_another_one_has_the_weights() {
        assert!(ends_early(&[("job-rollout-0", true), ("job-rollout-1", false)], None).await);
    }

    #[tokio::test]
    async fn nor_is_one_that_might_get_them_by_nccl_and_gets_them_over_http() {
        let transfers = Some(Transfers::default());
        assert!(ends_early(&[("job-rollout-0", true), ("job-rollout-1", false)], transfers).await);
    }

    #[tokio::test]
    async fn one_whose_transfer_by_nccl_is_under_way_is_waited_for_until_that_is_over() {
        let engines = [("job-rollout-0", true), ("job-rollout-1", false)];
        let options = options(&engines, Some(Transfers::default())).await;
        let under_way = options.transfers.as_ref().unwrap().begin("job-rollout-1");
        let handover = Handover {
            options: &options,
            version: 3,
            deadline: Duration::from_secs(600),
            patience: Duration::from_millis(100),
        };
        let mut running = Box::pin(handover.run());
        let early = tokio::time::timeout(Duration::from_secs(1), &mut running).await;
        assert!(early.is_err());
        drop(under_way);
        tokio::time::timeout(Duration::from_secs(20), running).await.unwrap();
    }

    #[tokio::test]
    async fn one_that_was_late_is_waited_for_again_only_after_it_has_taken_weights() {
        let options = options(&[("job-rollout-0", true), ("job-rollout-1", false)], None).await;
        let patience = Duration::from_secs(2);
        let is_waited_for = async || {
            let began = Instant::now();
            let handover = Handover {
                options: &options,
                version: 3,
                deadline: Duration::from_secs(600),
                patience,
            };
            handover.run().await;
            began.elapsed() >= patience
        };
        assert!(is_waited_for().await);
        assert!(!is_waited_for().await);
        options.publication.note_taken("job-rollout-1");
        assert!(is_waited_for().await);
    }

    #[tokio::test]
    async fn while_none_has_them_it_is() {
        assert!(!ends_early(&[("job-rollout-0", false)], None).await);
    }

    #[tokio::test]
    async fn the_report_says_that_an_engine_takes_weights_and_which_one_is_waited_for() {
        let options = options(&[("job-rollout-0", false)], None).await;
        sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        let handover = Handover {
            options: &options,
            version: 3,
            deadline: Duration::from_secs(600),
            patience: Duration::from_millis(100),
        };
        let waits = tokio::time::timeout(Duration::from_secs(1), handover.run()).await;
        let report = options.live.report();
        assert!(waits.is_err() && report.seconds_since_progress < began.elapsed().as_secs_f64());
        assert_eq!(report.waiting_for, "job-rollout-0");
    }
}
