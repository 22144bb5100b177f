//! Samples that were asked for and are not there yet: engines draw them while the trainer does something else, or waits.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::engine::Completion;
use crate::stop::{Interrupted, StopFlag};
use crate::telemetry::Live;

/// Between two looks at whether the process was asked to stop.
const LOOK: Duration = Duration::from_millis(200);

/// Between two words in the log on who is waited for, while nothing comes.
const SAID: Duration = Duration::from_secs(60);

/// Samples that engines drew.
#[derive(Debug)]
pub struct Generated {
    /// Of each request in their order, one for each seed.
    pub completions: Vec<Vec<Completion>>,
    /// From asking until the last was there.
    pub took: Duration,
}

/// Samples on their way. Dropped, it withdraws what is not drawn yet.
pub struct Pending {
    /// One task: a set ends its tasks when it is dropped.
    drawing: JoinSet<Result<Generated>>,
    runtime: Handle,
    waited_for: watch::Receiver<String>,
    /// Grows while samples come.
    drawn: Box<dyn Fn() -> u64 + Send>,
}

impl Pending {
    /// Begins on a thread of `runtime`. What `draw` makes ends by a deadline of its own, and tells whom it waits for; the number that
    /// `drawn` gives grows for as long as it goes on.
    pub fn start<F>(
        runtime: &Handle,
        drawn: impl Fn() -> u64 + Send + 'static,
        draw: impl FnOnce(watch::Sender<String>) -> F,
    ) -> Self
    where
        F: Future<Output = Result<Vec<Vec<Completion>>>> + Send + 'static,
    {
        let (tell, waited_for) = watch::channel(String::new());
        let began = Instant::now();
        let completions = draw(tell);
        let generated = async move {
            Ok(Generated {
                completions: completions.await?,
                took: began.elapsed(),
            })
        };
        let mut drawing = JoinSet::new();
        drawing.spawn_on(generated, runtime);
        Self {
            drawing,
            runtime: runtime.clone(),
            waited_for,
            drawn: Box::new(drawn),
        }
    }

    /// Waits until all are there, and once the process is asked to stop no longer than `patience`. `live` is told of every one that comes.
    ///
    /// # Errors
    /// What kept them; [`Interrupted`] when patience is over.
    pub fn collect(mut self, stop: &StopFlag, patience: Duration, live: &Live) -> Result<Generated> {
        let runtime = self.runtime.clone();
        runtime.block_on(self.wait(stop, patience, live))
    }

    async fn wait(&mut self, stop: &StopFlag, patience: Duration, live: &Live) -> Result<Generated> {
        let mut asked_to_stop: Option<Instant> = None;
        let (mut drawn, mut said) = ((self.drawn)(), Instant::now());
        loop {
            let now = (self.drawn)();
            if now != drawn {
                live.goes_on();
                (drawn, said) = (now, Instant::now());
            }
            let whom = self.waited_for.borrow_and_update().clone();
            live.wait_for(&whom);
            if !whom.is_empty() && said.elapsed() >= SAID {
                tracing::info!("waits for samples of {whom}");
                said = Instant::now();
            }
            tokio::select! {
                biased;
                ended = self.drawing.join_next() => {
                    let ended = ended.context("nobody draws these samples")?;
                    return ended.context("the task that draws samples ended without them")?;
                }
                Ok(()) = self.waited_for.changed() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            if stop.requested() && asked_to_stop.get_or_insert_with(Instant::now).elapsed() >= patience {
                return Err(Interrupted.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::hash_runner::{HashRunner, request};
    use crate::engine::{Engine, EngineConfig, Request};
    use crate::roles::Rollout;

    const LONG: Duration = Duration::from_secs(60);

    /// One token takes a millisecond.
    fn engine() -> Engine {
        let make = || {
            let mut runner = HashRunner::new(7000, 16, 100_000);
            runner.pace = Duration::from_millis(1);
            Ok(runner)
        };
        Engine::start(make, EngineConfig::default()).unwrap()
    }

    struct Bench {
        runtime: tokio::runtime::Runtime,
        engine: Engine,
        stop: StopFlag,
        live: Live,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                runtime: tokio::runtime::Runtime::new().unwrap(),
                engine: engine(),
                stop: StopFlag::default(),
                live: Live::new("test", 1),
            }
        }

        fn ask(&self, requests: Vec<Request>, deadline: Duration) -> Pending {
            Rollout::Here(self.engine.clone()).start(requests, deadline, self.runtime.handle())
        }

        fn collect(&self, pending: Pending, patience: Duration) -> Result<Generated> {
            pending.collect(&self.stop, patience, &self.live)
        }

        fn until_running(&self, sequences: usize) {
            let ends = Instant::now() + LONG;
            while self.engine.stats().running != sequences {
                assert!(Instant::now() < ends, "{:?}", self.engine.stats());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn samples_that_are_asked_for_ahead_are_those_that_are_waited_for() {
        let bench = Bench::new();
        let requests: Vec<Request> = (1..9).map(|n| request(n, n as u64..n as u64 + 3, 20 - n)).collect();
        let pending = bench.ask(requests.clone(), LONG);
        let waited_for = bench.engine.generate(requests, LONG).unwrap();
        assert_eq!(bench.collect(pending, Duration::ZERO).unwrap().completions, waited_for);
    }

    #[test]
    fn what_is_dropped_is_withdrawn_from_the_engine() {
        let bench = Bench::new();
        let pending = bench.ask(vec![request(5, 0..4, 50_000)], LONG);
        bench.until_running(4);
        drop(pending);
        bench.until_running(0);
    }

    #[test]
    fn a_process_that_is_asked_to_stop_waits_as_long_as_it_has_patience() {
        let bench = Bench::new();
        bench.stop.request();
        let ended = bench.collect(bench.ask(vec![request(5, 0..2, 50_000)], LONG), Duration::ZERO);
        assert!(ended.unwrap_err().is::<Interrupted>());
        bench.until_running(0);
        let patient = bench
            .collect(bench.ask(vec![request(5, 0..2, 300)], LONG), LONG)
            .unwrap();
        assert_eq!(patient.completions[0].len(), 2);
    }

    #[test]
    fn who_waits_for_samples_shows_that_they_come() {
        let bench = Bench::new();
        let began = Instant::now();
        bench
            .collect(bench.ask(vec![request(5, 0..1, 1000)], LONG), LONG)
            .unwrap();
        // A second of drawing, and a look at it every fifth of one.
        let since = bench.live.report().seconds_since_progress;
        assert!(since + 0.2 < began.elapsed().as_secs_f64(), "{since} s");
    }

    #[test]
    fn samples_that_do_not_come_in_time_are_an_error_that_says_what_was_waited_for() {
        let bench = Bench::new();
        let pending = bench.ask(vec![request(5, 0..2, 50_000)], Duration::from_millis(20));
        let error = format!("{:#}", bench.collect(pending, LONG).unwrap_err());
        assert!(
            error.contains("rollout engine failed: no answer") && error.contains("completions"),
            "{error}"
        );
        bench.until_running(0);
    }
}
