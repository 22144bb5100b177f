//! Gradients of a model that several ranks train: each leaves backward as soon as it is there, in buckets that are summed over the
//! ranks while backward still runs. A rank keeps the sum of its own shard and no other gradient for longer than its bucket
//! (ZeRO-2: Rajbhandari et al. 2020, arXiv 1910.02054, section 5.2).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, ensure};
use parking_lot::Mutex;
use tch::{Device, Kind, Tensor};

use crate::native::collective::{TakeGradient, on_gradient};
use crate::ranks::{Ranks, Sum};
use crate::shard::Shard;

/// Elements of a bucket: 32 MiB of float32, as much as hides a network's latency.
pub const BUCKET: i64 = 8 << 20;
/// Buckets that are being summed at once.
const AHEAD: usize = 2;

/// Where a parameter lies in the flat tensor.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its elements.
    pub range: Range<i64>,
}

/// Sums gradients over ranks.
#[derive(Debug)]
pub struct Reducer {
    /// Backward's hooks have it, too.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    ranks: Ranks,
    places: Vec<Place>,
    buckets: Vec<Bucket>,
    /// Next bucket to be summed. All ranks take them in the same order, whatever order they fill in.
    next: usize,
    summing: VecDeque<(usize, Sum)>,
    own: Shard,
    /// [shard] float32: the sums of this rank's elements over micro-batches and ranks.
    sums: Tensor,
    /// What ended backward.
    failure: Option<Error>,
}

#[derive(Debug)]
struct Bucket {
    range: Range<i64>,
    owner: usize,
    /// Gradients so far; None before the first.
    gradients: Option<Tensor>,
    /// Elements that have come.
    filled: i64,
}

impl Reducer {
    /// Watches `leaves`, which lie at `places`, one after the other, in a flat tensor.
    ///
    /// # Errors
    /// When there is no memory, or a leaf does not take part in backward.
    pub fn new(ranks: &Ranks, leaves: &[&Tensor], places: Vec<Place>, bucket: i64, device: Device) -> Result<Self> {
        let elements = places.last().map_or(0, |place| place.range.end);
        let own = ranks.shard(elements);
        let sums = Tensor::f_zeros([own.length], (Kind::Float, device)).context("no memory for gradients")?;
        let state = State {
            buckets: plan(&places, ranks.count(), bucket),
            ranks: ranks.clone(),
            places,
            next: 0,
            summing: VecDeque::new(),
            own,
            sums,
            failure: None,
        };
        let state = Arc::new(Mutex::new(state));
        for (parameter, leaf) in leaves.iter().enumerate() {
            on_gradient(leaf, parameter, &state)?;
        }
        Ok(Self { state })
    }

    /// After backward: sums what is left, and waits for all of it.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn finish(&self) -> Result<()> {
        self.state.lock().finish()
    }

    /// What failed in backward, once: libtorch hands on its words alone, and not that a rank was lost.
    pub fn take_failure(&self) -> Option<Error> {
        self.state.lock().failure.take()
    }

    /// [shard] float32: gradients of this rank's elements, summed over micro-batches and ranks.
    pub fn sums(&self) -> Tensor {
        self.state.lock().sums.shallow_clone()
    }

    /// From now on the sums are gathered in `sums`, [shard] float32.
    pub fn gather_in(&self, sums: Tensor) {
        self.state.lock().sums = sums;
    }
}

impl TakeGradient for State {
    fn take(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        self.gather(parameter, gradient).map_err(|error| {
            let words = anyhow!("{error:#}");
            self.failure = Some(error);
            words
        })
    }
}

impl State {
    /// Puts a gradient into its buckets, and begins to sum those that are full.
    fn gather(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let place = self.places.get(parameter).context("a gradient of no parameter")?;
        let range = place.range.clone();
        let flat = gradient.f_reshape([-1])?;
        for number in 0..self.buckets.len() {
            let bucket = &mut self.buckets[number];
            let (start, end) = (bucket.range.start.max(range.start), bucket.range.end.min(range.end));
            if start >= end {
                continue;
            }
            ensure!(
                number >= self.next,
                "{} has a second gradient in one backward",
                self.places[parameter].name
            );
            let length = bucket.range.end - bucket.range.start;
            let gradients = match &mut bucket.gradients {
                Some(gradients) => gradients,
                none => none.insert(Tensor::f_zeros([length], (Kind::Float, flat.device()))?),
            };
            let part = flat.f_narrow(0, start - range.start, end - start)?;
            gradients
                .f_narrow(0, start - bucket.range.start, end - start)?
                .f_copy_(&part)?;
            bucket.filled += end - start;
            // At once: of an embedding's buckets, however many it has, only those that are being summed and the next are in memory.
            while self.buckets.get(self.next).is_some_and(Bucket::is_full) {
                self.begin_next()?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let _guard = tch::no_grad_guard();
        while self.next < self.buckets.len() {
            self.begin_next()?;
        }
        while !self.summing.is_empty() {
            self.end_first()?;
        }
        self.next = 0;
        Ok(())
    }

    fn begin_next(&mut self) -> Result<()> {
        if self.summing.len() >= AHEAD {
            self.end_first()?;
        }
        let bucket = &mut self.buckets[self.next];
        let length = bucket.range.end - bucket.range.start;
        let gradients = match bucket.gradients.take() {
            Some(gradients) => gradients,
            None => Tensor::f_zeros([length], (Kind::Float, self.sums.device()))?,
        };
        bucket.filled = 0;
        let begun = self.ranks.begin_sum_at(bucket.owner, gradients)?;
        self.summing.push_back((self.next, begun));
        self.next += 1;
        Ok(())
    }

    fn end_first(&mut self) -> Result<()> {
        let Some((number, begun)) = self.summing.pop_front() else {
            return Ok(());
        };
        let sum = self.ranks.end_sum(begun)?;
        let bucket = &self.buckets[number];
        if let Some((start, length)) = self.own.overlap(bucket.range.start, bucket.range.end) {
            let mut own = self.sums.f_narrow(0, start - self.own.start, length)?;
            let _ = own.f_add_(&sum)?;
        }
        Ok(())
    }
}

impl Bucket {
    fn is_full(&self) -> bool {
        self.filled == self.range.end - self.range.start
    }
}

/// Buckets of at most `size` elements that no two ranks own, in the order in which backward fills them: from the last layer to the
/// first.
fn plan(places: &[Place], count: usize, size: i64) -> Vec<Bucket> {
    let elements = places.last().map_or(0, |place| place.range.end);
    let mut buckets = Vec::new();
    for owner in 0..count {
        let shard = Shard::of(elements, count, owner);
        let mut start = shard.start;
        while start < shard.end() {
            let end = shard.end().min(start + size);
            buckets.push(Bucket {
                range: start..end,
                owner,
                gradients: None,
                filled: 0,
            });
            start = end;
        }
    }
    let last_to_come = |bucket: &Bucket| {
        let inside = places
            .iter()
            .filter(|place| place.range.start < bucket.range.end && bucket.range.start < place.range.end);
        inside.map(|place| depth(&place.name)).min()
    };
    buckets.sort_by_key(|bucket| (std::cmp::Reverse(last_to_come(bucket)), bucket.range.start));
    buckets
}

/// How deep in the model a parameter is used, by its name in Hugging Face layout: embeddings first, heads last.
fn depth(name: &str) -> i64 {
    if name.contains("embed_tokens") {
        return -1;
    }
    let layer = name.split("layers.").nth(1).and_then(|rest| rest.split('.').next());
    layer.and_then(|layer| layer.parse().ok()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::RankLost;
    use crate::ranks::tests::together;

    fn places(lengths: &[(&str, i64)]) -> Vec<Place> {
        let mut start = 0;
        let place = |(name, length): &(&str, i64)| {
            let range = start..start + length;
            start += length;
            Place {
                name: (*name).into(),
                range,
            }
        };
        lengths.iter().map(place).collect()
    }

    #[test]
    fn buckets_cover_every_element_once_and_belong_to_one_rank() {
        let places = places(&[("model.layers.0.a", 7), ("model.layers.1.a", 9), ("norm", 3)]);
        for count in [1, 2, 3, 4] {
            let mut buckets = plan(&places, count, 4);
            buckets.sort_by_key(|bucket| bucket.range.start);
            let mut next = 0;
            for bucket in &buckets {
                let owner = Shard::of(19, count, bucket.owner);
                assert_eq!(bucket.range.start, next);
                assert!(bucket.range.start >= owner.start && bucket.range.end <= owner.end());
                assert!(bucket.range.end - bucket.range.start <= 4);
                next = bucket.range.end;
            }
            assert_eq!(next, 19);
        }
    }

    #[test]
    fn the_last_layers_are_summed_first_and_the_embedding_last() {
        let places = places(&[
            ("model.embed_tokens.weight", 4),
            ("model.layers.10.mlp.weight", 4),
            ("model.layers.2.mlp.weight", 4),
            ("model.norm.weight", 4),
        ]);
        let starts: Vec<i64> = plan(&places, 1, 4).iter().map(|bucket| bucket.range.start).collect();
        assert_eq!(starts, [12, 4, 8, 0]);
    }

    #[test]
    fn a_rank_that_is_lost_while_backward_runs_is_named_as_lost() {
        let errors = together(2, |ranks| {
            if ranks.rank() == 1 {
                return None;
            }
            let leaf = Tensor::ones([8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            // Four buckets: the third is begun in backward, when the first has to be summed.
            let reducer = Reducer::new(&ranks, &[&leaf], places(&[("w", 8)]), 2, Device::Cpu).unwrap();
            leaf.sum(Kind::Float).f_backward().unwrap_err();
            reducer.take_failure()
        });
        let error = errors[0].as_ref().unwrap();
        assert!(
            error.is::<RankLost>() && format!("{error:#}").contains("demo-actor-1"),
            "{error:#}"
        );
    }

    #[test]
    fn gradients_leave_backward_and_add_up_over_micro_batches() {
        let leaf = Tensor::from_slice(&[1f32, 2.0, 3.0]).set_requires_grad(true);
        let reducer = Reducer::new(&Ranks::alone(), &[&leaf], places(&[("w", 3)]), 2, Device::Cpu).unwrap();
        for scale in [1.0, 2.0] {
            let loss = (&leaf * Tensor::from_slice(&[1f32, 10.0, 100.0])).sum(Kind::Float) * scale;
            loss.backward();
            assert!(!leaf.grad().defined());
            reducer.finish().unwrap();
        }
        assert_eq!(reducer.sums(), Tensor::from_slice(&[3f32, 30.0, 300.0]));
    }
}
