//! The engines of one step: those at work, and those that failed and rest.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use super::crew::Crew;
use super::duty::Duty;
use super::shift::{Ended, Shift};
use crate::backoff::spread;
use crate::pods::{CallError, Members};
use crate::roles::Publication;
use crate::roles::endpoint::Endpoint;
use crate::roles::work::Work;

/// An engine that failed is left alone for so long, [spread]. Each time that it answered and then failed it is twice as long, up to
/// [`LONGEST_REST`]; one that does not answer is still starting, and to ask it costs nothing.
const FIRST_REST: Duration = Duration::from_secs(1);
/// See [`FIRST_REST`].
const LONGEST_REST: Duration = Duration::from_secs(30);

/// The engines of one step.
pub(super) struct Engines {
    pub(super) tasks: JoinSet<(String, Ended)>,
    known: HashMap<String, Engine>,
    floor: usize,
    pub(super) crew: watch::Sender<Crew>,
}

/// What a step knows of an engine.
#[derive(Default)]
struct Engine {
    /// How often it answered and then failed.
    failures: u32,
    /// What the log was last told of why it is absent.
    told: Option<String>,
    /// None while it rests.
    at_work: Option<Arc<Duty>>,
    /// The last one, which may be over.
    rest: Option<Rest>,
}

struct Rest {
    since: Instant,
    until: Instant,
    /// Why.
    error: String,
}

impl Engine {
    /// Whether it is worth telling why it is absent: that it starts, or is made anew, is not, nor what was told before.
    fn is_news(&mut self, error: &CallError) -> bool {
        !error.starts() && self.told.replace(error.cause.clone()).as_ref() != Some(&error.cause)
    }

    fn fail(&mut self, error: &CallError) {
        let doubled = 1 << self.failures.saturating_sub(1).min(8);
        let rest = FIRST_REST.saturating_mul(doubled).min(LONGEST_REST);
        let since = Instant::now();
        self.at_work = None;
        self.rest = Some(Rest {
            since,
            until: since + spread(rest, rand::random()),
            error: error.to_string(),
        });
    }

    /// What it does, and how it failed last. That error has its name.
    fn words(&self, name: &str) -> String {
        let failed = self
            .rest
            .as_ref()
            .map(|rest| format!("{}, {} s ago", rest.error, rest.since.elapsed().as_secs()));
        match (&self.at_work, failed) {
            (None, failed) => failed.unwrap_or_else(|| name.to_owned()),
            (Some(duty), None) => format!("{name} {duty}"),
            (Some(duty), Some(failed)) => format!("{name} {duty} (before: {failed})"),
        }
    }
}

impl Engines {
    pub(super) fn new(floor: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            known: HashMap::new(),
            floor,
            crew: watch::Sender::default(),
        }
    }

    pub(super) fn may_start(&self, name: &str) -> bool {
        match self.known.get(name) {
            None => true,
            Some(Engine { at_work, rest, .. }) => {
                at_work.is_none() && rest.as_ref().is_some_and(|rest| Instant::now() >= rest.until)
            }
        }
    }

    pub(super) fn expect(&self, expected: usize) {
        let news = |crew: &mut Crew| std::mem::replace(&mut crew.expected, expected) != expected;
        self.crew.send_if_modified(news);
    }

    pub(super) fn start(&mut self, endpoint: Endpoint, published: (Publication, u64), work: Arc<Work>) {
        let name = endpoint.name().to_owned();
        let duty = Arc::new(Duty::default());
        self.known.entry(name.clone()).or_default().at_work = Some(duty.clone());
        self.crew.send_modify(|crew| crew.at_work += 1);
        let (publication, version) = published;
        let shift = Shift {
            endpoint,
            publication,
            version,
            work,
            duty,
            crew: self.crew.clone(),
            floor: self.floor,
        };
        self.tasks.spawn(async move { (name, shift.work_off().await) });
    }

    pub(super) fn ended(&mut self, ended: Result<(String, Ended), JoinError>) {
        let (name, how) = match ended {
            Ok(ended) => ended,
            Err(error) => return tracing::error!("an engine's task: {error}"),
        };
        let engine = self.known.entry(name).or_default();
        let error = match how {
            // Nothing is left for anyone.
            Ended::Done => return,
            Ended::Absent(error) => {
                match engine.is_news(&error) {
                    true => tracing::warn!("{error}; it is asked again"),
                    false => tracing::debug!("{error}"),
                }
                error
            }
            Ended::Failed(error) => {
                tracing::warn!("{error}; what it held is drawn again");
                engine.failures += 1;
                error
            }
        };
        engine.fail(&error);
        self.crew.send_modify(|crew| crew.at_work -= 1);
    }

    pub(super) fn waited_for(&self, members: &Members) -> String {
        let at_work = self.known.iter().filter(|(_, engine)| engine.at_work.is_some());
        let mut names: Vec<&str> = at_work.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.is_empty() {
            true => members.words(),
            false => names.join(", "),
        }
    }

    /// What each engine does or did last, and how many of `members` are not there.
    pub(super) fn words(&self, members: &Members) -> String {
        let mut known: Vec<_> = self.known.iter().collect();
        known.sort_unstable_by_key(|(name, _)| *name);
        let mut words: Vec<String> = known.iter().map(|(name, engine)| engine.words(name)).collect();
        let missing = self.crew.borrow().expected.saturating_sub(words.len());
        if words.is_empty() {
            words.push(format!("waited for {}", members.words()));
        } else if missing > 0 {
            words.push(format!("{missing} more of {} had no address", members.words()));
        }
        words.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use ppo_crds::spec::Role;

    use super::*;
    use crate::pods::{Caller, Member};

    struct Bench {
        engines: Engines,
        member: Member,
    }

    impl Bench {
        fn new() -> Self {
            let member = Member {
                name: "math-rollout-0".into(),
                address: "127.0.0.1:1".into(),
            };
            Self {
                engines: Engines::new(1),
                member,
            }
        }

        fn starts(&mut self) {
            let endpoint = Endpoint::new(self.member.clone(), Caller::new("token".into()).unwrap());
            let work = Arc::new(Work::new(Vec::new(), Instant::now(), Arc::default()));
            self.engines.start(endpoint, (Publication::default(), 1), work);
        }

        fn fails(&mut self, how: impl FnOnce(CallError) -> Ended) {
            self.starts();
            assert!(!self.engines.may_start(&self.member.name), "it is at work");
            let error = CallError::new(Role::Rollout, &self.member, "/x", "gone".into(), true);
            self.engines.ended(Ok((self.member.name.clone(), how(error))));
        }

        /// Whether it is left alone for about so many seconds.
        fn rests(&self, seconds: f64) -> bool {
            assert!(!self.engines.may_start(&self.member.name));
            let rest = self.engines.known[&self.member.name].rest.as_ref().unwrap();
            (0.75..=1.25).contains(&((rest.until - rest.since).as_secs_f64() / seconds))
        }
    }

    #[tokio::test]
    async fn an_engine_that_fails_again_and_again_rests_twice_as_long_each_time_up_to_half_a_minute() {
        let mut bench = Bench::new();
        for rest in [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0] {
            bench.fails(Ended::Failed);
            assert!(bench.rests(rest), "{rest}");
        }
    }

    #[tokio::test]
    async fn an_engine_that_still_starts_is_asked_every_second() {
        let mut bench = Bench::new();
        for _ in 0..5 {
            bench.fails(Ended::Absent);
            assert!(bench.rests(1.0));
        }
    }

    #[tokio::test]
    async fn every_engine_is_named_with_what_it_does_or_how_it_failed() {
        let mut bench = Bench::new();
        let pods = Members::of("math", Role::Rollout, 3, "math-rollout.ml.svc:8000").unwrap();
        assert_eq!(bench.engines.words(&pods), "waited for pods math-rollout-*");
        bench.engines.expect(3);
        bench.fails(Ended::Failed);
        let failed = "rollout math-rollout-0 (http://127.0.0.1:1/x): gone, 0 s ago";
        let all = |known: &str, missing: u32| format!("{known}; {missing} more of pods math-rollout-* had no address");
        assert_eq!(bench.engines.words(&pods), all(failed, 2));
        bench.member.name = "math-rollout-1".into();
        bench.starts();
        let at_work = "math-rollout-1 was asked 0 s ago which weights it has";
        assert_eq!(bench.engines.words(&pods), all(&format!("{failed}; {at_work}"), 1));
        bench.member.name = "math-rollout-0".into();
        bench.starts();
        let again = format!("math-rollout-0 was asked 0 s ago which weights it has (before: {failed})");
        assert_eq!(bench.engines.words(&pods), all(&format!("{again}; {at_work}"), 1));
    }

    #[test]
    fn an_engine_is_asked_again_once_it_has_rested() {
        let rest = Rest {
            since: Instant::now(),
            until: Instant::now(),
            error: String::new(),
        };
        let mut bench = Bench::new();
        bench.engines.known.insert(
            bench.member.name.clone(),
            Engine {
                failures: 9,
                rest: Some(rest),
                ..Engine::default()
            },
        );
        assert!(bench.engines.may_start(&bench.member.name));
    }

    #[test]
    fn an_engine_that_refuses_is_told_of_once_and_one_that_starts_is_not() {
        let bench = Bench::new();
        let error = |status: u16, cause: &str| CallError {
            status: Some(status),
            ..CallError::new(Role::Rollout, &bench.member, "/weight_info", cause.into(), false)
        };
        let mut engine = Engine::default();
        let mut is_news = |error: CallError| engine.is_news(&error);
        assert!(!is_news(error(503, "503: the model is still loading")));
        assert!(!is_news(CallError {
            unreachable: true,
            ..error(0, "connection refused")
        }));
        assert!(is_news(error(401, "401: another token")));
        assert!(!is_news(error(401, "401: another token")));
        assert!(is_news(error(404, "404: no such path")));
    }
}
