//! The ranks of the actor: processes that hold the same models, share the samples of a step, and keep a part each of the
//! optimizer's state (ZeRO-2: Rajbhandari et al. 2020, arXiv 1910.02054, section 5).
//!
//! Rank 0 leads: it alone talks to other roles, keeps the records and says what comes next (`order`); the others follow
//! (`crate::run::follower`). Collectives are PyTorch's (c10d), each with a deadline; a rank that is lost ends the others with
//! its name and last stage (`pulse`), also where its node vanished (`line`).

pub mod deal;
mod line;
mod link;
mod meeting;
pub mod order;
mod pulse;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use ppo_crds::report::Outcome;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};

use self::link::Link;
pub use self::meeting::{Meeting, Timing};
use self::order::Order;
use crate::native::collective::Pending;
use crate::shard::Shard;
use crate::stop::StopFlag;

const GRADIENTS: &str = "a sum of gradients";

/// A sum over the ranks that was begun.
#[derive(Debug)]
pub enum Sum {
    /// The ranks are at it.
    Pending(Pending),
    /// One rank has nobody to add up with.
    Made(Tensor),
}

/// This process among the ranks of its role; clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    /// None: the only rank.
    link: Option<Arc<Link>>,
}

impl Ranks {
    /// The only rank.
    pub fn alone() -> Self {
        Self::default()
    }

    /// Meets the others.
    ///
    /// # Errors
    /// When a rank does not come in time, by its name; [`Interrupted`](crate::stop::Interrupted).
    pub fn join(meeting: Meeting, stop: &StopFlag) -> Result<Self> {
        Ok(Self {
            link: Some(Arc::new(Link::join(meeting, stop)?)),
        })
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.link.as_ref().map_or(0, |link| link.meeting.rank)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.link.as_ref().map_or(1, |link| link.meeting.count)
    }

    /// What a rank is called.
    pub fn name(&self, rank: usize) -> String {
        let named = |link: &Arc<Link>| link.meeting.name(rank);
        self.link.as_ref().map_or_else(|| format!("rank {rank}"), named)
    }

    /// Whether this is the only one.
    pub fn is_alone(&self) -> bool {
        self.link.is_none()
    }

    /// Whether this rank leads.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// This rank's part of `elements` numbers.
    pub fn shard(&self, elements: i64) -> Shard {
        Shard::of(elements, self.count(), self.rank())
    }

    /// Says what this rank does now; others read it should it be lost.
    pub fn enter(&self, stage: String) {
        if let Some(link) = &self.link {
            link.pulse.enter(stage);
        }
    }

    /// An error of this rank with what it does now, unless that is how it begins.
    pub fn placed(&self, error: anyhow::Error) -> anyhow::Error {
        match self.link.as_ref().map(|link| link.pulse.stage()) {
            Some(stage) if !error.to_string().starts_with(&stage) => error.context(stage),
            _ => error,
        }
    }

    /// Adds up the tensors of all ranks, in place.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn sum(&self, tensor: &Tensor) -> Result<()> {
        self.together("a sum", |link| link.group.sum(tensor))
    }

    /// The sums of numbers over all ranks.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn sums<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N]> {
        self.numbers(numbers, Self::sum)
    }

    /// The greatest of numbers over all ranks.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn greatest<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N]> {
        self.numbers(numbers, |it, tensor| {
            it.together("a maximum", |link| link.group.greatest(tensor))
        })
    }

    fn numbers<const N: usize>(
        &self,
        numbers: [f64; N],
        combine: impl FnOnce(&Self, &Tensor) -> Result<()>,
    ) -> Result<[f64; N]> {
        if self.is_alone() {
            return Ok(numbers);
        }
        let tensor = Tensor::from_slice(&numbers);
        combine(self, &tensor)?;
        let combined = Vec::<f64>::try_from(&tensor.f_to_kind(Kind::Double)?)?;
        combined
            .try_into()
            .map_err(|_| anyhow::anyhow!("a sum over ranks changed its length"))
    }

    /// Rank 0's tensor in place of everybody's.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn broadcast(&self, tensor: &Tensor) -> Result<()> {
        self.together("a broadcast", |link| link.group.broadcast(tensor, 0))
    }

    /// Puts the parts of all ranks together in `whole`, whose length is a multiple of their number; this rank's part is there.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn gather(&self, whole: &Tensor) -> Result<()> {
        self.together("a gathering of weights", |link| {
            let length = whole.numel() as i64 / self.count() as i64;
            let part = whole.f_narrow(0, length * self.rank() as i64, length)?;
            link.group.gather(whole, &part)
        })
    }

    /// Begins to add up the tensors of all ranks in that of `root`.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn begin_sum_at(&self, root: usize, tensor: Tensor) -> Result<Sum> {
        let Some(link) = &self.link else {
            return Ok(Sum::Made(tensor));
        };
        let begun = link.group.begin_sum_at(root, tensor);
        begun.map(Sum::Pending).map_err(|error| link.explain(GRADIENTS, error))
    }

    /// The end of what was begun.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn end_sum(&self, begun: Sum) -> Result<Tensor> {
        match begun {
            Sum::Made(sum) => Ok(sum),
            Sum::Pending(pending) => pending.wait().map_err(|error| match &self.link {
                Some(link) => link.explain(GRADIENTS, error),
                None => error,
            }),
        }
    }

    /// Rank 0 says what all do next.
    ///
    /// # Errors
    /// When it cannot be said.
    pub fn order(&self, order: &Order) -> Result<()> {
        self.link.as_ref().map_or(Ok(()), |link| link.order(order))
    }

    /// What rank 0 says next. It may take as long as rank 0 lives.
    ///
    /// # Errors
    /// When rank 0 is lost.
    pub fn next_order(&self) -> Result<Order> {
        match &self.link {
            Some(link) => link.next_order(),
            None => bail!("the only rank has nobody to follow"),
        }
    }

    /// Tells rank 0 how the last order went, and what came of it.
    ///
    /// # Errors
    /// When rank 0 is gone.
    pub fn reply<T: Serialize>(&self, done: Result<T, &anyhow::Error>) -> Result<()> {
        self.link.as_ref().map_or(Ok(()), |link| link.reply(done))
    }

    /// Waits until all have carried out the last order: what came of it at each, from rank 1.
    ///
    /// # Errors
    /// What failed, by the rank's name; when one is lost or does not answer within `deadline`.
    pub fn replies<T: DeserializeOwned>(&self, deadline: Duration) -> Result<Vec<T>> {
        let link = self.link.as_ref();
        link.map_or_else(|| Ok(Vec::new()), |link| link.replies(deadline))
    }

    /// Tells the others why this rank is about to end, unless it is for one that was lost before: they find it lost, and know why.
    pub fn leave_word(&self, error: &anyhow::Error) {
        let Some(link) = &self.link else { return };
        if let Err(late) = link.leave_word(error) {
            tracing::debug!("nobody hears why this rank ends: {late:#}");
        }
    }

    /// Rank 0 tells the others that the run is over, and how; they are given a moment to hear it.
    pub fn dismiss(&self, outcome: Outcome, code: i32) {
        let Some(link) = &self.link else { return };
        let told = link.order(&Order::End { outcome, code });
        let heard = told.and_then(|()| link.replies::<()>(link.meeting.timing.beat * 5));
        if let Err(error) = heard {
            tracing::debug!("the end of the run: {error:#}");
        }
    }

    fn together(&self, what: &str, call: impl FnOnce(&Link) -> Result<()>) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        call(link).map_err(|error| link.explain(what, error))
    }
}

#[cfg(test)]
pub(crate) mod tests;
