//! One step's requests on their way through the engines that are there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use tokio::sync::watch;

use super::DealerOptions;
use super::engines::Engines;
use crate::engine::Completion;
use crate::pods::Member;
use crate::roles::endpoint::Endpoint;
use crate::roles::work::Work;

/// Between two looks for engines that are new or back, and at the clock.
const LOOK: Duration = Duration::from_secs(1);

/// Requests on their way through the engines, all to be drawn by one version.
pub(super) struct Deal {
    pub(super) options: Arc<DealerOptions>,
    pub(super) version: u64,
    pub(super) work: Arc<Work>,
    pub(super) deadline: Duration,
}

impl Deal {
    pub(super) async fn run(self, waited_for: watch::Sender<String>) -> Result<Vec<Vec<Completion>>> {
        let began = Instant::now();
        let work = &self.work;
        let mut changed = work.watch();
        let mut engines = Engines::new(self.options.floor);
        let mut short_since = began;
        // Beside all else: a name that is not answered takes seconds.
        let mut looking = std::pin::pin!(self.look(Duration::ZERO));
        loop {
            if let Some(answers) = work.answers() {
                return Ok(answers);
            }
            if let Some(refusal) = work.refusal() {
                return Err(anyhow!(refusal).context("a request was refused"));
            }
            if engines.crew.borrow().ready >= self.options.floor {
                short_since = Instant::now();
            }
            self.check_time((began, short_since), &engines, *changed.borrow())?;
            let whom = engines.waited_for(&self.options.members);
            waited_for.send_if_modified(|told| std::mem::replace(told, whom) != *told);
            tokio::select! {
                Some(ended) = engines.tasks.join_next() => engines.ended(ended),
                // The sender lives as long as the work.
                _ = changed.changed() => {}
                present = &mut looking => {
                    self.start_rested(&mut engines, present);
                    looking.set(self.look(LOOK));
                }
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// The engines that are there after a wait.
    async fn look(&self, wait: Duration) -> Vec<Member> {
        tokio::time::sleep(wait).await;
        self.options.members.present().await
    }

    /// Starts engines that are new or back.
    fn start_rested(&self, engines: &mut Engines, present: Vec<Member>) {
        engines.expect(present.len().max(self.options.members.count()));
        for member in present {
            if engines.may_start(&member.name) {
                let endpoint = Endpoint::new(member, self.options.caller.clone());
                let published = (self.options.publication.clone(), self.version);
                engines.start(endpoint, published, self.work.clone());
            }
        }
    }

    /// `began` is when the step did, `short_since` since when fewer engines are ready than there have to be.
    fn check_time(&self, (began, short_since): (Instant, Instant), engines: &Engines, left: usize) -> Result<()> {
        let (ready, floor) = (engines.crew.borrow().ready, self.options.floor);
        let late = |limit: Duration, what: String| -> Result<()> {
            bail!(
                "{what} within {} s; {}",
                limit.as_secs(),
                engines.words(&self.options.members)
            )
        };
        if ready < floor && short_since.elapsed() > self.options.floor_deadline {
            return late(
                self.options.floor_deadline,
                format!("only {ready} engines were ready, and roles.rollout.minReplicas is {floor},"),
            );
        }
        if began.elapsed() > self.deadline {
            return late(self.deadline, format!("{left} requests were not answered"));
        }
        Ok(())
    }
}
