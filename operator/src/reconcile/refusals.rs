//! What the API server refuses of what jobs need: remembered until it is done, so that whoever waits for a job is told of that first.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::Error;
use crate::gang::ATTENTION_SECONDS;
use crate::world::JobKey;

/// What was last refused of what each job needs.
#[derive(Default)]
pub struct Refusals(Mutex<HashMap<JobKey, Refusal>>);

struct Refusal {
    words: String,
    /// Whether it passes by itself: a webhook did not answer, and may be restarted just now.
    passes: bool,
    /// Whether it is of the disruption budget, for which no pod waits.
    of_budget: bool,
    /// From when on it is told.
    from: Timestamp,
}

impl Refusals {
    /// Notes what was refused of writes that did not all succeed. Of several the same one each time, whichever answer comes first.
    pub fn note(&self, key: &JobKey, answers: &[Result<(), Error>], now: Timestamp) {
        let errors = || answers.iter().filter_map(|answer| answer.as_ref().err());
        let mut jobs = self.0.lock();
        let of_budget = errors().any(Error::is_of_budget);
        if of_budget && jobs.get(key).is_some_and(|known| !known.of_budget) {
            // The budget comes last: all that its pods need is done.
            jobs.remove(key);
        }
        if let Some(words) = errors().filter_map(Error::refused).min() {
            let refusal = Refusal {
                words,
                passes: false,
                of_budget,
                from: now,
            };
            jobs.insert(key.clone(), refusal);
            return;
        }
        // Of the gang's own object the scheduler's silence tells.
        let of_others = errors().filter(|error| !error.is_of_gang());
        let known = jobs
            .get(key)
            .is_some_and(|known| known.passes && known.of_budget == of_budget);
        if let Some(words) = of_others.filter_map(Error::unanswered_webhook).min()
            && !known
        {
            let patience = SignedDuration::from_secs(ATTENTION_SECONDS);
            let refusal = Refusal {
                words,
                passes: true,
                of_budget,
                from: now.checked_add(patience).unwrap_or(now),
            };
            jobs.insert(key.clone(), refusal);
        }
    }

    /// What is to be told of a job by now.
    pub fn words(&self, key: &JobKey, now: Timestamp) -> Option<String> {
        self.due(key, now, |_| true)
    }

    /// The same, where pods wait for it.
    pub fn obstacle(&self, key: &JobKey, now: Timestamp) -> Option<String> {
        self.due(key, now, |refusal| !refusal.of_budget)
    }

    fn due(&self, key: &JobKey, now: Timestamp, of_interest: fn(&Refusal) -> bool) -> Option<String> {
        let jobs = self.0.lock();
        let due = jobs
            .get(key)
            .filter(|refusal| refusal.from <= now && of_interest(refusal))?;
        Some(due.words.clone())
    }

    /// Forgets a job of which nothing is refused any more, or that was deleted.
    pub fn forget(&self, key: &JobKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;
    use crate::world::Kind;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn key() -> JobKey {
        JobKey {
            namespace: "n".into(),
            name: "a".into(),
        }
    }

    fn creating(kind: Kind, pod: &str, code: u16, message: &str) -> Result<(), Error> {
        let reason = if code == 403 { "Forbidden" } else { "" };
        let status = Status::failure(message, reason).with_code(code);
        Err(Error::request(format!("creating {pod}"), kind)(kube::Error::Api(
            status.boxed(),
        )))
    }

    const UNANSWERED: &str = r#"Internal error occurred: failed calling webhook "mpod.kb.io": connection refused"#;

    #[test]
    fn a_refusal_is_told_at_once_and_until_all_is_done() {
        let refusals = Refusals::default();
        let quota = |pod| creating(Kind::Pod, pod, 403, "exceeded quota: gpus");
        let lost = creating(Kind::Pod, "a-actor-0", 503, "the server is ending");
        refusals.note(&key(), &[Ok(()), quota("a-rollout-1"), quota("a-rollout-0")], at(0));
        let words = Some("creating a-rollout-0: exceeded quota: gpus".to_string());
        assert_eq!(refusals.words(&key(), at(0)), words);
        refusals.note(&key(), &[lost], at(1));
        assert_eq!(refusals.words(&key(), at(1)), words);
        refusals.forget(&key());
        assert_eq!(refusals.words(&key(), at(1)), None);
    }

    #[test]
    fn a_webhook_that_does_not_answer_for_a_pod_is_told_of_once_it_has_lasted() {
        let refusals = Refusals::default();
        for (seconds, pod) in [(0, "a-rollout-0"), (5, "a-actor-0"), (29, "a-actor-0")] {
            refusals.note(&key(), &[creating(Kind::Pod, pod, 500, UNANSWERED)], at(seconds));
            assert_eq!(refusals.words(&key(), at(seconds)), None);
        }
        // Always in the same words, so that they are written once.
        let words = refusals.words(&key(), at(30)).unwrap();
        assert!(words.starts_with("creating a-rollout-0: Internal error"), "{words}");
        let of_gang = Refusals::default();
        of_gang.note(&key(), &[creating(Kind::KueueWorkload, "a", 500, UNANSWERED)], at(0));
        assert_eq!(of_gang.words(&key(), at(60)), None);
    }

    #[test]
    fn a_budget_that_is_refused_is_not_why_pods_wait_and_what_was_refused_before_it_is_done() {
        let refusals = Refusals::default();
        let quota = |kind, name| creating(kind, name, 403, "exceeded quota: objects");
        refusals.note(&key(), &[quota(Kind::Pod, "a-actor-0")], at(0));
        assert!(refusals.obstacle(&key(), at(0)).is_some());
        refusals.note(&key(), &[quota(Kind::PodDisruptionBudget, "a-actor")], at(1));
        assert_eq!(refusals.obstacle(&key(), at(1)), None);
        let taken = Error::NameTaken {
            kind: Kind::PodDisruptionBudget,
            name: "a-actor".into(),
            owner: "nobody".into(),
        };
        refusals.note(&key(), &[Err(taken)], at(2));
        assert_eq!(refusals.obstacle(&key(), at(2)), None);
    }

    #[test]
    fn a_webhook_that_does_not_answer_for_the_budget_alone_is_told_of_and_is_not_why_pods_wait() {
        let refusals = Refusals::default();
        let unanswered = |kind, name| creating(kind, name, 500, UNANSWERED);
        refusals.note(&key(), &[unanswered(Kind::Pod, "a-actor-0")], at(0));
        for seconds in [20, 25, 49] {
            refusals.note(&key(), &[unanswered(Kind::PodDisruptionBudget, "a-actor")], at(seconds));
            // For the budget it has not lasted yet.
            assert_eq!(refusals.words(&key(), at(seconds)), None);
        }
        let words = refusals.words(&key(), at(50)).unwrap();
        assert!(
            words.contains("webhook") && words.contains("a drain may evict"),
            "{words}"
        );
        assert_eq!(refusals.obstacle(&key(), at(50)), None);
    }

    #[test]
    fn a_webhook_that_does_not_answer_for_a_deletion_is_why_pods_wait_unless_it_is_of_the_budget() {
        let refusals = Refusals::default();
        let unanswered = |kind| {
            let status = Status::failure(UNANSWERED, "").with_code(500);
            Err(Error::deleting(kind, "a")(kube::Error::Api(status.boxed())))
        };
        refusals.note(&key(), &[unanswered(Kind::PodDisruptionBudget)], at(0));
        let words = refusals.words(&key(), at(30)).unwrap();
        assert!(
            words.contains("no pod waits") && !words.contains("may evict"),
            "{words}"
        );
        assert_eq!(refusals.obstacle(&key(), at(30)), None);
        // Another scheduler's gang has to go before pods are made.
        refusals.note(&key(), &[unanswered(Kind::KueueWorkload)], at(31));
        let words = refusals.obstacle(&key(), at(61)).unwrap();
        assert!(words.starts_with("deleting KueueWorkload a: "), "{words}");
    }

    #[test]
    fn what_a_person_has_to_do_comes_before_a_webhook_and_what_was_done_is_not_told() {
        let refusals = Refusals::default();
        refusals.note(
            &key(),
            &[creating(Kind::Pod, "a-actor-0", 403, "exceeded quota")],
            at(0),
        );
        refusals.note(&key(), &[creating(Kind::Pod, "a-actor-0", 500, UNANSWERED)], at(1));
        assert_eq!(refusals.words(&key(), at(2)), None);
        assert!(refusals.words(&key(), at(31)).unwrap().contains("webhook"));
    }
}
