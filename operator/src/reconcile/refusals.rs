//! What the API server refuses of what jobs need: remembered until it is done, so that whoever waits for a job is told of that first.

use std::collections::HashMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::error::Error;
use crate::gang::ATTENTION_SECONDS;
use crate::world::JobKey;

/// What was last refused of what each job needs.
#[derive(Default)]
pub struct Refusals(Mutex<HashMap<JobKey, Refusal>>);

struct Refusal {
    words: String,
    /// What may pass by itself.
    passing: Option<Passing>,
    /// Whether it is of the disruption budget, for which no pod waits.
    of_budget: bool,
    /// From when on it is told.
    from: Timestamp,
}

/// What may pass by itself, and is told once it has lasted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Passing {
    /// A webhook did not answer, and may be restarted just now.
    Webhook,
    /// A Workload was to change, which may have got quota just now.
    Race,
}

impl Passing {
    /// What passes of an error, and its words.
    fn of(error: &Error) -> Option<(String, Self)> {
        if error.may_be_a_race() {
            return Some((error.words(), Self::Race));
        }
        // Of an unanswered webhook of the gang's own object the scheduler's silence tells.
        let unanswered = error.unanswered_webhook().filter(|_| !error.is_of_gang())?;
        Some((unanswered, Self::Webhook))
    }
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
                passing: None,
                of_budget,
                from: now,
            };
            jobs.insert(key.clone(), refusal);
            return;
        }
        let Some((words, passing)) = errors().filter_map(Passing::of).min() else {
            return;
        };
        let is_same = |known: &Refusal| known.passing == Some(passing) && known.of_budget == of_budget;
        if jobs.get(key).is_some_and(is_same) {
            return;
        }
        let patience = SignedDuration::from_secs(ATTENTION_SECONDS);
        let refusal = Refusal {
            words,
            passing: Some(passing),
            of_budget,
            from: now.checked_add(patience).unwrap_or(now),
        };
        jobs.insert(key.clone(), refusal);
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
    fn a_workload_that_may_not_change_is_told_of_once_it_has_lasted_for_kueue_may_have_reserved_its_quota_just_now() {
        let invalid = || -> Result<(), Error> {
            let status = Status::failure("spec.podSets: field is immutable", "Invalid").with_code(422);
            Err(Error::request("applying Workload a", Kind::KueueWorkload)(
                kube::Error::Api(status.boxed()),
            ))
        };
        let denied = || {
            let words = r#"admission webhook "vworkload.kb.io" denied the request: spec.podSets: field is immutable"#;
            creating(Kind::KueueWorkload, "a", 422, words)
        };
        for refused in [&invalid as &dyn Fn() -> Result<(), Error>, &denied] {
            let refusals = Refusals::default();
            for seconds in [0, 1, 29] {
                refusals.note(&key(), &[refused()], at(seconds));
                assert_eq!(refusals.words(&key(), at(seconds)), None);
            }
            let words = refusals.words(&key(), at(30)).unwrap();
            assert!(words.contains("field is immutable"), "{words}");
            assert_eq!(refusals.obstacle(&key(), at(30)), Some(words));
        }
        // What lasted of a pod is not what is refused of the Workload now.
        let refusals = Refusals::default();
        refusals.note(&key(), &[creating(Kind::Pod, "a-actor-0", 500, UNANSWERED)], at(0));
        refusals.note(&key(), &[invalid()], at(31));
        assert_eq!(refusals.words(&key(), at(31)), None);
        // Nor is a quota of objects or a missing right a race.
        let forbidden = creating(Kind::KueueWorkload, "a", 403, "exceeded quota: objects");
        refusals.note(&key(), &[forbidden], at(32));
        assert!(refusals.words(&key(), at(32)).is_some());
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
