//! One engine at work: it gets the weights if it does not have them yet, and takes requests until none is left. It counts as having a
//! version only after this attempt of the actor has sent it: the weights that an engine starts with, or has from another attempt, may
//! be other weights under the same version number.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;

use super::crew::{Crew, Ready};
use super::duty::{Doing, Duty};
use crate::engine::Completion;
use crate::roles::endpoint::Endpoint;
use crate::roles::work::Work;
use crate::roles::{CallError, Publication};

/// An engine has at most so many requests at once, whatever its share: each is a connection, and a server takes 2048
/// ([`Limits`](crate::serving::Limits)).
const MOST_REQUESTS: usize = 1024;
/// And no further request once it has so many samples: a server takes 16384.
const MOST_SAMPLES: usize = 8192;

/// How an engine's work in a step ended.
pub(super) enum Shift {
    /// Every request is answered.
    Done,
    /// It did not answer when it was asked for its version.
    Absent(CallError),
    /// It answered, and failed later.
    Failed(CallError),
}

/// One engine takes requests until none is left.
pub(super) async fn work_off(
    endpoint: &Endpoint,
    (publication, version): (Publication, u64),
    work: &Work,
    duty: &Duty,
    crew: &watch::Sender<Crew>,
    floor: usize,
) -> Shift {
    let held = match endpoint.policy().await {
        Ok(held) => held,
        Err(error) => return Shift::Absent(error),
    };
    let done = async {
        if held != publication.policy(version) {
            duty.is(Doing::TakesWeights);
            let deadline = publication.deadline();
            tokio::select! {
                updated = endpoint.update_weights(&publication, version, deadline) => updated?,
                gone = endpoint.gone() => return Err(gone),
            }
        }
        take_requests(endpoint, version, work, duty, crew, floor).await
    };
    match done.await {
        Ok(()) => Shift::Done,
        Err(error) => Shift::Failed(error),
    }
}

async fn take_requests(
    endpoint: &Endpoint,
    version: u64,
    work: &Work,
    duty: &Duty,
    crew: &watch::Sender<Crew>,
    floor: usize,
) -> Result<(), CallError> {
    duty.is(Doing::WaitsForOthers);
    let _ready = Ready::count(crew);
    let mut crew = crew.subscribe();
    let mut changed = work.watch();
    tokio::select! {
        // The sender lives as long as the step.
        _ = crew.wait_for(|crew| crew.ready >= floor) => {}
        gone = endpoint.gone() => return Err(gone),
    }
    let mut calls = FuturesUnordered::new();
    let mut held = Held {
        work,
        duty,
        numbers: Vec::new(),
    };
    held.tell();
    // Why it gets no more; what it has it may still answer.
    let mut failed = None;
    let mut gone = std::pin::pin!(endpoint.gone());
    loop {
        let share = crew.borrow_and_update().share(work.count());
        while failed.is_none()
            && calls.len() < share
            && held.has_room()
            && let Some(number) = work.take()
        {
            held.numbers.push(number);
            held.tell();
            calls.push(ask(endpoint, work, number, version));
        }
        if calls.is_empty() {
            if let Some(error) = failed {
                return Err(error);
            }
            if *changed.borrow_and_update() == 0 {
                return Ok(());
            }
        }
        tokio::select! {
            Some((number, answer)) = calls.next() => {
                match answer {
                    Ok(completions) => {
                        held.let_go(number);
                        work.answer(number, completions);
                    }
                    Err(error) if error.may_pass => {
                        held.put_back(number);
                        failed.get_or_insert(error);
                    }
                    Err(error) => {
                        work.refuse(error.clone());
                        return Err(error);
                    }
                }
            }
            // Another engine may have handed requests back, or answered the last one.
            _ = changed.changed(), if failed.is_none() && calls.len() < share => {}
            // With fewer engines the share is larger.
            _ = crew.changed() => {}
            error = &mut gone => return Err(error),
        }
    }
}

/// Requests that an engine has; what it does not answer goes back, however its work ends.
struct Held<'a> {
    work: &'a Work,
    /// Told how many they are.
    duty: &'a Duty,
    numbers: Vec<usize>,
}

impl Held<'_> {
    fn has_room(&self) -> bool {
        let samples = |number: &usize| self.work.request(*number).seeds.len();
        self.numbers.len() < MOST_REQUESTS && self.numbers.iter().map(samples).sum::<usize>() < MOST_SAMPLES
    }

    fn tell(&self) {
        self.duty.is(Doing::Holds(self.numbers.len()));
    }

    fn let_go(&mut self, number: usize) {
        self.numbers.retain(|held| *held != number);
        self.tell();
    }

    fn put_back(&mut self, number: usize) {
        self.let_go(number);
        self.work.put_back(number);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.work.put_back(*number));
    }
}

async fn ask(
    endpoint: &Endpoint,
    work: &Work,
    number: usize,
    version: u64,
) -> (usize, Result<Vec<Completion>, CallError>) {
    let name = format!("v{version}-{number}");
    // An engine may have all of the step's requests at once, and this one may be its last.
    let answer = endpoint.generate(&name, work.request(number), work.time_left()).await;
    // The fence: nothing that another version drew is used.
    let answer = answer.and_then(|completions| {
        let stale = completions
            .iter()
            .flat_map(|completion| &completion.versions)
            .find(|drawn| **drawn != version);
        match stale {
            None => Ok(completions),
            Some(drawn) => Err(endpoint.stale(*drawn, version)),
        }
    });
    (number, answer)
}
