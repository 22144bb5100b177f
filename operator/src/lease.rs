//! Leader election by a Lease: one process acts, the others wait. As client-go's `leaderelection` does it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// For how long a holder that does not renew is believed.
const DURATION: Duration = Duration::from_secs(15);
/// Between two renewals, and between two looks of those who wait.
const PERIOD: Duration = Duration::from_secs(3);
/// After so long without a renewal the holder stops, before anyone else may begin.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Every Lease of an operator has this label, whatever its name.
pub const LABEL: (&str, &str) = ("app.kubernetes.io/name", "ppo-operator");

/// What came of asking for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// This process has it from when it asked.
    Ours,
    /// Another process has it.
    Theirs,
    /// Somebody wrote it in between, and be it a label: whose it is now is not known.
    Changed,
}

/// Another's last renewal, and when that was first observed: clocks of different machines are never compared.
type Seen = Option<(Option<MicroTime>, Instant)>;

/// A process' leadership.
#[derive(Clone, Debug)]
pub struct Term {
    /// When it was asked for: others count from what that wrote.
    asked: Instant,
    /// The same by the clock, as the Lease says it for as long as this process leads.
    acquired: MicroTime,
}

/// A candidate for leadership.
#[derive(Clone)]
pub struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

impl Candidate {
    /// `identity` is unique among the candidates: the pod's name.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.into(),
            identity: identity.into(),
        }
    }

    /// Waits until this process leads, for [`hold`](Self::hold). Drop it to stop waiting.
    pub async fn lead(&self) -> Term {
        let mut seen: Seen = None;
        loop {
            let (asked, acquired) = (Instant::now(), MicroTime(Timestamp::now()));
            match timeout(PERIOD, self.try_once(&mut seen, &acquired)).await {
                Ok(Ok(Answer::Ours)) => return Term { asked, acquired },
                Ok(Ok(Answer::Theirs | Answer::Changed)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(%error, lease = self.name, "leadership cannot be asked for; trying again")
                }
                Err(_) => tracing::warn!(
                    lease = self.name,
                    "leadership was asked for without an answer; trying again"
                ),
            }
            sleep(PERIOD).await;
        }
    }

    /// Renews a term until that fails for too long or another process leads. Returns why.
    pub async fn hold(&self, term: Term) -> String {
        renew(term.asked, || async { self.try_once(&mut None, &term.acquired).await }).await
    }

    /// Lets another process lead at once.
    pub async fn release(&self) {
        let released = async {
            let mut lease = self.api.get(&self.name).await?;
            if holder(&lease) == Some(self.identity.as_str())
                && let Some(spec) = &mut lease.spec
            {
                spec.holder_identity = None;
                spec.lease_duration_seconds = Some(1);
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match timeout(PERIOD, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the lease could not be given up; it runs out by itself"),
            Err(_) => tracing::warn!("the lease could not be given up: no answer; it runs out by itself"),
        }
    }

    /// Takes or renews the lease, which this process has or will have since `acquired`.
    async fn try_once(&self, seen: &mut Seen, acquired: &MicroTime) -> kube::Result<Answer> {
        let Some(lease) = self.api.get_opt(&self.name).await? else {
            return answer(
                self.api
                    .create(&PostParams::default(), &self.fresh(None, acquired))
                    .await,
            );
        };
        if !may_take(&lease, &self.identity, seen, Instant::now()) {
            return Ok(Answer::Theirs);
        }
        answer(
            self.api
                .replace(&self.name, &PostParams::default(), &self.fresh(Some(lease), acquired))
                .await,
        )
    }

    /// The lease with this process as holder, bound to the version it was read at. Its time of acquisition is when this process began to lead, also
    /// where one before it had the same identity, as a container that was restarted, and where somebody has deleted the Lease since: `kubectl ppo
    /// why` reads from it since when the operator acts.
    fn fresh(&self, before: Option<Lease>, acquired: &MicroTime) -> Lease {
        let old = before.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let same = old.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = old.lease_transitions.unwrap_or_default() + i32::from(before.is_some() && !same);
        let mut metadata = before.map_or_else(ObjectMeta::default, |lease| lease.metadata);
        metadata.name.get_or_insert_with(|| self.name.clone());
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(LABEL.0.into(), LABEL.1.into());
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: Some(acquired.clone()),
                renew_time: Some(MicroTime(Timestamp::now())),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// Renewals from `renewed` on. The others count from what a request wrote, so each counts from when it was sent, not from its answer;
/// and the deadline ends a wait for an answer, too.
async fn renew<F>(mut renewed: Instant, mut ask: impl FnMut() -> F) -> String
where
    F: Future<Output = kube::Result<Answer>>,
{
    loop {
        let renewal = async {
            sleep(PERIOD).await;
            (Instant::now(), timeout(PERIOD, ask()).await)
        };
        match timeout_at(renewed + RENEW_DEADLINE, renewal).await {
            Ok((asked, Ok(Ok(Answer::Ours)))) => renewed = asked,
            Ok((_, Ok(Ok(Answer::Theirs)))) => return "another process leads".into(),
            // The next look tells.
            Ok((_, Ok(Ok(Answer::Changed)))) => {}
            Ok((_, Ok(Err(error)))) => tracing::warn!(%error, "the lease could not be renewed"),
            Ok((_, Err(_))) => tracing::warn!("the lease could not be renewed: no answer"),
            Err(_) => return format!("the lease was not renewed for {} s", RENEW_DEADLINE.as_secs()),
        }
    }
}

/// Whether a candidate may write itself into the lease: it holds it, nobody does, or who does was seen not to renew it for longer than
/// [`DURATION`].
fn may_take(lease: &Lease, identity: &str, seen: &mut Seen, now: Instant) -> bool {
    let whose = holder(lease).unwrap_or_default();
    if whose.is_empty() || whose == identity {
        return true;
    }
    let renewal = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
    match seen {
        Some((known, since)) if *known == renewal => now.duration_since(*since) > DURATION,
        _ => {
            *seen = Some((renewal, now));
            false
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// Losing a race is no error.
fn answer(written: kube::Result<Lease>) -> kube::Result<Answer> {
    match written {
        Ok(_) => Ok(Answer::Ours),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(Answer::Changed),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use axum::routing::get;
    use axum::{Json, Router};

    use super::*;

    /// The candidate `me` for the lease `l` of an API server that answers so.
    fn candidate(server: Router) -> Candidate {
        Candidate::new(Client::new(server, "n"), "n", "l", "me")
    }

    /// A lease that was acquired at the epoch and renewed so long after it.
    fn held_by(identity: &str, renewed: u64) -> Lease {
        let second = i64::try_from(renewed).unwrap();
        Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(identity.into()),
                acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
                renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn a_lease_that_is_renewed_is_never_taken_and_one_that_is_not_when_its_time_is_over() {
        let (began, mut seen) = (Instant::now(), None);
        let after = |seconds: u64| began + Duration::from_secs(seconds);
        for seconds in 0..100 {
            let lease = held_by("other", seconds);
            assert!(!may_take(&lease, "me", &mut seen, after(seconds)), "{seconds}");
        }
        let left = held_by("other", 99);
        assert!(!may_take(&left, "me", &mut seen, after(99 + 15)));
        let over = after(99 + 15) + Duration::from_millis(1);
        assert!(may_take(&left, "me", &mut seen, over));
        // A renewal in the last moment counts from when it is seen.
        assert!(!may_take(&held_by("other", 100), "me", &mut seen, over));
    }

    #[test]
    fn a_lease_that_is_nobodys_or_the_candidates_own_is_taken_at_once() {
        for lease in [Lease::default(), held_by("", 0), held_by("me", 0)] {
            assert!(may_take(&lease, "me", &mut None, Instant::now()), "{lease:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_leads_when_the_holder_was_not_seen_to_renew_for_fifteen_seconds_and_no_sooner() {
        let began = Instant::now();
        // The holder renews every 3 s for a minute.
        let read = move || ready(Json(held_by("other", began.elapsed().as_secs().min(60) / 3)));
        let path = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l";
        let server = Router::new().route(path, get(read).put(ready::<Json<Lease>>));
        let term = candidate(server).lead().await;
        // The look at 75 s finds the last renewal, first seen at 60 s, not older than that.
        assert_eq!(term.asked.duration_since(began), Duration::from_secs(78));
    }

    #[tokio::test]
    async fn a_lease_says_since_when_this_process_leads_whatever_it_said_before() {
        let began = MicroTime(Timestamp::from_second(5).unwrap());
        let before = [
            None,
            Some(held_by("me", 3)),
            Some(held_by("", 3)),
            Some(held_by("other", 3)),
        ];
        for before in before {
            let spec = candidate(Router::new()).fresh(before, &began).spec.unwrap();
            assert_eq!(spec.acquire_time.as_ref(), Some(&began));
            assert!(spec.renew_time > spec.acquire_time && spec.holder_identity.as_deref() == Some("me"));
        }
    }

    async fn answered(number: u32) -> kube::Result<Answer> {
        match number {
            // It takes its time, and that does not lengthen what it grants.
            1 => {
                sleep(Duration::from_secs(2)).await;
                Ok(Answer::Ours)
            }
            2 => Err(kube::Error::LinesCodecMaxLineLengthExceeded),
            _ => std::future::pending().await,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_stops_ten_seconds_after_it_sent_its_last_renewal_whatever_is_answered() {
        let (began, mut asked) = (Instant::now(), 0);
        let why = renew(began, || {
            asked += 1;
            answered(asked)
        })
        .await;
        assert_eq!(began.elapsed(), PERIOD + RENEW_DEADLINE, "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_answered_holds_on_until_another_leads() {
        let (began, mut asked) = (Instant::now(), 0);
        let why = renew(began, || {
            asked += 1;
            // A lease that somebody labels is still ours.
            std::future::ready(Ok(match asked {
                10 => Answer::Theirs,
                2 | 4 => Answer::Changed,
                _ => Answer::Ours,
            }))
        })
        .await;
        assert_eq!((began.elapsed(), why.as_str()), (PERIOD * 10, "another process leads"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_only_ever_finds_the_lease_changed_stops_in_time() {
        let began = Instant::now();
        renew(began, || std::future::ready(Ok(Answer::Changed))).await;
        assert_eq!(began.elapsed(), RENEW_DEADLINE);
    }
}
