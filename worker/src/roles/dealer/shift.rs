//! One engine at work: it gets the weights if it does not have them yet, and takes requests until none is left. It counts as having a
//! version only after this attempt of the actor has sent it: the weights that an engine starts with, or has from another attempt, may
//! be other weights under the same version number.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::watch;

use super::crew::{Crew, Ready};
use super::duty::{Doing, Duty};
use crate::engine::Completion;
use crate::pods::CallError;
use crate::roles::Publication;
use crate::roles::endpoint::Endpoint;
use crate::roles::work::Work;

/// An engine has at most so many requests at once, whatever its share: each is a connection, and a server takes 2048
/// ([`Limits`](crate::serving::Limits)).
const MOST_REQUESTS: usize = 1024;
/// And no further request once it has so many samples: a server takes 16384.
const MOST_SAMPLES: usize = 8192;

/// An engine's part in a step.
pub(super) struct Shift {
    pub(super) endpoint: Endpoint,
    /// The weights that it draws with.
    pub(super) publication: Publication,
    pub(super) version: u64,
    pub(super) work: Arc<Work>,
    /// Told what it does.
    pub(super) duty: Arc<Duty>,
    /// All engines of the step.
    pub(super) crew: watch::Sender<Crew>,
    /// So many must be ready before any draws.
    pub(super) floor: usize,
}

/// How it ended.
pub(super) enum Ended {
    /// Every request is answered.
    Done,
    /// The engine did not answer when it was asked for its version.
    Absent(CallError),
    /// It answered, and failed later.
    Failed(CallError),
}

impl Shift {
    /// The engine takes requests until none is left.
    pub(super) async fn work_off(&self) -> Ended {
        let held = match self.endpoint.policy().await {
            Ok(held) => held,
            Err(error) => return Ended::Absent(error),
        };
        let done = async {
            if held != self.publication.policy(self.version) {
                self.bring_weights().await?;
            }
            self.publication.note_taken(self.endpoint.name());
            let _ready = self.await_others().await?;
            self.take_requests().await
        };
        match done.await {
            Ok(()) => Ended::Done,
            Err(error) => Ended::Failed(error),
        }
    }

    async fn bring_weights(&self) -> Result<(), CallError> {
        self.duty.is(Doing::TakesWeights);
        let deadline = self.publication.deadline();
        tokio::select! {
            updated = self.endpoint.update_weights(&self.publication, self.version, deadline) => updated,
            gone = self.endpoint.gone() => Err(gone),
        }
    }

    /// Waits until enough engines are ready; this one counts for as long as what it gives lives.
    async fn await_others(&self) -> Result<Ready<'_>, CallError> {
        self.duty.is(Doing::WaitsForOthers);
        let ready = Ready::count(&self.crew);
        let mut crew = self.crew.subscribe();
        tokio::select! {
            // The sender lives as long as the step.
            _ = crew.wait_for(|crew| crew.ready >= self.floor) => Ok(ready),
            gone = self.endpoint.gone() => Err(gone),
        }
    }

    async fn take_requests(&self) -> Result<(), CallError> {
        let (mut crew, mut changed) = (self.crew.subscribe(), self.work.watch());
        let mut calls = FuturesUnordered::new();
        let mut held = Held::none(&self.work, &self.duty);
        let mut gone = std::pin::pin!(self.endpoint.gone());
        loop {
            let share = crew.borrow_and_update().share(self.work.count());
            while let Some(number) = held.take(share) {
                calls.push(self.ask(number));
            }
            if calls.is_empty() {
                if let Some(error) = held.failed.take() {
                    return Err(error);
                }
                if *changed.borrow_and_update() == 0 {
                    return Ok(());
                }
            }
            tokio::select! {
                Some((number, answer)) = calls.next() => held.settle(number, answer)?,
                // Another engine may have handed requests back, or answered the last one.
                _ = changed.changed(), if held.may_take(share) => {}
                // With fewer engines the share is larger.
                _ = crew.changed() => {}
                error = &mut gone => return Err(error),
            }
        }
    }

    async fn ask(&self, number: usize) -> (usize, Result<Vec<Completion>, CallError>) {
        let name = format!("v{}-{number}", self.version);
        let (request, time_left) = (self.work.request(number), self.work.time_left());
        // An engine may have all of the step's requests at once, and this one may be its last.
        let answer = self.endpoint.generate(&name, request, time_left).await;
        // The fence: nothing that another version drew is used.
        let answer = answer.and_then(|completions| {
            let mut versions = completions.iter().flat_map(|completion| &completion.versions);
            match versions.find(|drawn| **drawn != self.version) {
                None => Ok(completions),
                Some(drawn) => Err(self.endpoint.stale(*drawn, self.version)),
            }
        });
        (number, answer)
    }
}

/// Requests that an engine has; what it does not answer goes back, however its work ends.
struct Held<'a> {
    work: &'a Work,
    /// Told how many they are.
    duty: &'a Duty,
    numbers: Vec<usize>,
    /// Why it gets no more; what it has it may still answer.
    failed: Option<CallError>,
}

impl<'a> Held<'a> {
    fn none(work: &'a Work, duty: &'a Duty) -> Self {
        let held = Self {
            work,
            duty,
            numbers: Vec::new(),
            failed: None,
        };
        held.tell();
        held
    }

    fn tell(&self) {
        self.duty.is(Doing::Holds(self.numbers.len()));
    }

    /// Whether it may have another one of its share.
    fn may_take(&self, share: usize) -> bool {
        self.failed.is_none() && self.numbers.len() < share
    }

    fn has_room(&self) -> bool {
        let samples = |number: &usize| self.work.request(*number).seeds.len();
        self.numbers.len() < MOST_REQUESTS && self.numbers.iter().map(samples).sum::<usize>() < MOST_SAMPLES
    }

    /// Another request, where it may have one and there is one.
    fn take(&mut self, share: usize) -> Option<usize> {
        if !self.may_take(share) || !self.has_room() {
            return None;
        }
        let number = self.work.take()?;
        self.numbers.push(number);
        self.tell();
        Some(number)
    }

    /// Hands an answer on, or the request back.
    ///
    /// # Errors
    /// What no engine answers otherwise: the step ends with it.
    fn settle(&mut self, number: usize, answer: Result<Vec<Completion>, CallError>) -> Result<(), CallError> {
        match answer {
            Ok(completions) => {
                self.let_go(number);
                self.work.answer(number, completions);
            }
            Err(error) if error.may_pass => {
                self.let_go(number);
                self.work.put_back(number);
                self.failed.get_or_insert(error);
            }
            Err(error) => {
                self.work.refuse(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn let_go(&mut self, number: usize) {
        self.numbers.retain(|held| *held != number);
        self.tell();
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.numbers.iter().for_each(|number| self.work.put_back(*number));
    }
}
