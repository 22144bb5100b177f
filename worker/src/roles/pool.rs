//! Pods whose answer depends on the request alone: any of them may be asked, and a failed request may be repeated at another.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use ppo_crds::spec::Role;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SameModel;
use crate::backoff::backoff;
use crate::manifest::Invalid;
use crate::pods::{CallError, Caller, Member, Members};
use crate::serving::limits::ANSWERS_WITHIN;
use crate::stop::StopFlag;
use crate::telemetry::Live;

/// For a question from when it has failed: pods may have to start.
const DEADLINE: Duration = Duration::from_secs(1800);
/// For one answer, with what its way takes. One of a pod whose node is lost is not waited for so long, since the connection probes it.
const ONE_ANSWER: Duration = ANSWERS_WITHIN.saturating_add(Duration::from_secs(30));
/// The first wait between two tries lies between 0 and this; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// See [`FIRST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Questions that each rank of a pod has at once: one computes, one waits.
const AHEAD: usize = 2;
/// A pod that so often began to compute an answer and failed (status 500) would fail for ever.
const MOST_FAILURES: u32 = 3;

/// What a pod answers.
pub trait Answer: DeserializeOwned {
    /// Of the model that it was computed with; None where the server does not say it.
    fn digest(&self) -> Option<&str>;
}

/// The pods of a role that computes and holds nothing but a model.
pub struct Pool {
    role: Role,
    model: SameModel,
    members: Members,
    /// Questions that each of them computes at once.
    ranks: usize,
    /// For a question from when it has failed.
    patience: Duration,
    caller: Caller,
    stop: StopFlag,
    live: Arc<Live>,
    /// Questions that each pod has, by its name.
    busy: Mutex<HashMap<String, usize>>,
    /// What the log was last told of a pod in this step, by its name.
    told: Mutex<HashMap<String, String>>,
}

impl Pool {
    /// The pods of `role` at `members`, which hold `model` and each compute `ranks` questions at once; nothing is asked yet.
    pub fn new(
        (role, model): (Role, SameModel),
        (members, ranks): (Members, usize),
        caller: Caller,
        stop: StopFlag,
        live: Arc<Live>,
    ) -> Self {
        Self {
            role,
            model,
            members,
            ranks,
            patience: DEADLINE,
            caller,
            stop,
            live,
            busy: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Waits for pods that have to start as long as the job has to be ready, where that is longer than usual.
    #[must_use]
    pub fn patient(mut self, ready_deadline: Duration) -> Self {
        self.patience = self.patience.max(ready_deadline);
        self
    }

    /// Digest of the model that the pods hold. None: none of them has answered yet.
    pub fn digest(&self) -> Option<&str> {
        self.model.digest()
    }

    /// Answers to all questions, in order. The pods share them: each question goes to the one that has the fewest.
    /// `read` checks the answer to a question, by its number.
    ///
    /// # Errors
    /// When a question is refused or its answer is wrong, a pod fails at it several times, or none answers in time, naming role, pod, URL
    /// and cause; [`Invalid`] where an answer was computed with another model; [`Interrupted`](crate::stop::Interrupted).
    pub async fn ask_all<Q, A, T>(
        &self,
        path: &str,
        questions: &[Q],
        read: impl Fn(usize, A) -> Result<T, String> + Sync,
    ) -> Result<Vec<T>>
    where
        Q: Serialize + Sync,
        A: Answer,
    {
        self.told.lock().clear();
        let at_once = self.members.present().await.len().max(1) * self.ranks * AHEAD;
        // Not a closure: the compiler cannot prove that one over borrowed questions may be sent to another thread.
        let mut calls = Vec::with_capacity(questions.len());
        for (number, question) in questions.iter().enumerate() {
            calls.push(self.ask(path, number, question, &read));
        }
        let answers = stream::iter(calls).buffered(at_once).try_collect();
        self.stop.unless_requested(answers).await
    }

    async fn ask<Q, A, T>(
        &self,
        path: &str,
        number: usize,
        question: &Q,
        read: &(impl Fn(usize, A) -> Result<T, String> + Sync),
    ) -> Result<T>
    where
        Q: Serialize + Sync,
        A: Answer,
    {
        let mut last: Option<CallError> = None;
        // How long the others took is of no matter: a stage may be long.
        let mut failing_since: Option<Instant> = None;
        let mut failures: HashMap<String, u32> = HashMap::new();
        for tries in 0.. {
            let members = self.members.present().await;
            let failed = last.as_ref().map(|error| error.pod.as_str());
            if let Some(member) = self.choose(&members, number, failed) {
                let _busy = Busy::count(self, &member.name);
                let answer: Result<A, CallError> =
                    self.caller.post(self.role, member, path, question, ONE_ANSWER).await;
                let wrong = |cause| CallError::new(self.role, member, path, cause, false);
                if let Ok(answer) = &answer {
                    let same = self.model.check(answer.digest());
                    same.map_err(|cause| Invalid::new(wrong(cause).to_string()))?;
                }
                match answer.and_then(|answer| read(number, answer).map_err(wrong)) {
                    Ok(answer) => {
                        self.live.goes_on();
                        if failing_since.is_some() {
                            self.live.wait_for("");
                        }
                        return Ok(answer);
                    }
                    Err(error) if !error.may_pass => return Err(error.into()),
                    Err(error) => {
                        let failures = failures.entry(error.pod.clone()).or_default();
                        *failures += u32::from(error.status == Some(500));
                        if *failures == MOST_FAILURES {
                            return Err(error).with_context(|| format!("{MOST_FAILURES} tries failed"));
                        }
                        self.tell(&error);
                        self.live.wait_for(&error.pod);
                        last = Some(error);
                    }
                }
            } else {
                let whom = self.members.words();
                self.live.wait_for(&whom);
                if self.told.lock().insert(whom.clone(), String::new()).is_none() {
                    let seconds = self.patience.as_secs();
                    tracing::info!("waits for {whom}, which had no address yet, for {seconds} s at most");
                }
            }
            if failing_since.get_or_insert_with(Instant::now).elapsed() >= self.patience {
                break;
            }
            tokio::time::sleep(backoff(FIRST_PAUSE, LONGEST_PAUSE, tries, rand::random())).await;
        }
        let seconds = self.patience.as_secs();
        match last {
            Some(error) => Err(error).with_context(|| format!("no answer within {seconds} s")),
            None => bail!("{} had no address within {seconds} s", self.members.words()),
        }
    }

    /// The pod with the fewest questions; one that has just failed only where there is no other.
    fn choose<'a>(&self, members: &'a [Member], number: usize, failed: Option<&str>) -> Option<&'a Member> {
        let busy = self.busy.lock();
        let load = |member: &Member| busy.get(&member.name).copied().unwrap_or(0);
        let (after, before) = members.split_at(number % members.len().max(1));
        let in_turn = before.iter().chain(after);
        in_turn.min_by_key(|member| (Some(member.name.as_str()) == failed, load(member)))
    }

    /// Says once what keeps an answer away. That a pod starts, or is made anew, is nothing to worry about unless it was something else before.
    fn tell(&self, error: &CallError) {
        let before = self.told.lock().insert(error.pod.clone(), error.cause.clone());
        match before {
            Some(before) if before == error.cause => {}
            None if error.starts() => {
                tracing::info!("{error}; it is waited for, for {} s at most", self.patience.as_secs());
            }
            _ => tracing::warn!("{error}; it is asked again"),
        }
    }
}

/// Counts a question of a pod for as long as it lives.
struct Busy<'a>(&'a Pool, &'a str);

impl<'a> Busy<'a> {
    fn count(pool: &'a Pool, pod: &'a str) -> Self {
        *pool.busy.lock().entry(pod.to_owned()).or_default() += 1;
        Self(pool, pod)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0.busy.lock().get_mut(self.1) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
