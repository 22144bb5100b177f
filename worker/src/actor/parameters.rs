//! A model's parameters in one flat buffer.
//!
//! The model's tensors and their gradients are views of two flat buffers, so that clipping, the optimizer and a checkpoint
//! are single operations, and no copy of the weights exists. Models that are updated in turns share the buffer of gradients. Where
//! several ranks train, each has the whole model, and of gradients and master weights the part that it owns.

use std::ops::Range;

use anyhow::Context;
use tch::{Kind, Tensor};

use super::flat::{Flat, Slot};
use super::master::Master;
use super::reducer::{BUCKET, Place, Reducer};
use crate::model::Weights;
use crate::model::marks::{Changed, Marks};
use crate::native::optimizer::set_grad;
use crate::ranks::Ranks;
use crate::shard::Shard;

/// Flat parameters of one trained model.
#[derive(Debug)]
pub struct Parameters {
    slots: Vec<Slot>,
    /// Elements at the front that weight decay applies to: matrices; norms and biases follow.
    decayed: i64,
    /// [n, and up to a multiple of the ranks] in the model's dtype; the model computes with views of it.
    model: Tensor,
    /// The part of this rank: all of it where it is the only one.
    own: Shard,
    ranks: Ranks,
    grads: Gradients,
    /// A loss was not finite: there is nothing to learn from the gradients.
    not_finite: bool,
    /// Of the weights that the optimizer updates, what is not in the model.
    master: Master,
    /// Which of the model's numbers changed; None where nobody asks.
    marks: Option<Marks>,
}

#[derive(Debug)]
enum Gradients {
    /// [n] float32; the gradients of the model's tensors, so that the sum of an update's micro-batches does not depend on how many
    /// there are.
    Whole(Tensor),
    /// The sums over ranks of those that this rank owns, [shard] float32. Of a bfloat16 model what is summed is rounded to bfloat16 once a
    /// micro-batch: autograd hands a hook a gradient of the leaf's own precision.
    Shared(Reducer),
}

impl Parameters {
    /// Moves `weights` into a flat buffer; on return they are trainable views of it.
    ///
    /// # Errors
    /// When a tensor cannot be copied or made a leaf.
    pub fn adopt(weights: &mut Weights) -> anyhow::Result<Self> {
        let alone = Ranks::alone();
        Self::of(Flat::of(weights, &alone)?, &alone)
    }

    /// Makes the tensors of `flat` trainable. Where `ranks` train one model, all have the same weights.
    ///
    /// # Errors
    /// When a tensor cannot be made a leaf, or there is no memory for gradients.
    pub fn of(flat: Flat, ranks: &Ranks) -> anyhow::Result<Self> {
        let _guard = tch::no_grad_guard();
        let Flat {
            slots,
            decayed,
            model,
            own,
        } = flat;
        for slot in &slots {
            let _ = slot.view.f_set_requires_grad(true)?;
        }
        let part = model.f_narrow(0, own.start, own.length)?;
        let mut parameters = Self {
            slots,
            decayed,
            master: Master::of(&part)?,
            marks: None,
            model,
            own,
            ranks: ranks.clone(),
            grads: Gradients::Whole(Tensor::new()),
            not_finite: false,
        };
        if ranks.is_alone() {
            let total = own.elements;
            let grads = Tensor::f_zeros([total], (Kind::Float, parameters.model.device()));
            parameters.attach(grads.with_context(|| format!("no memory for {total} gradients"))?)?;
        } else {
            parameters.watch()?;
        }
        Ok(parameters)
    }

    /// Gathers the gradients of both in the longer of their buffers. Each update leaves it zeroed, so that the two may be updated
    /// in turns: all micro-batches of one, then its optimizer, then the other.
    ///
    /// # Errors
    /// When a gradient cannot be attached.
    pub fn share_gradients(&mut self, other: &mut Self) -> anyhow::Result<()> {
        // Of this rank: the last ranks may own less of a model than of a smaller one.
        let (longer, shorter) = if self.own.length >= other.own.length {
            (self, other)
        } else {
            (other, self)
        };
        match &longer.grads {
            Gradients::Whole(grads) => shorter.attach(grads.f_narrow(0, 0, shorter.own.length)?),
            Gradients::Shared(reducer) => {
                let sums = reducer.sums().f_narrow(0, 0, shorter.own.length)?;
                match &shorter.grads {
                    Gradients::Shared(its) => its.gather_in(sums),
                    Gradients::Whole(_) => {}
                }
                Ok(())
            }
        }
    }

    /// Sums the gradients of the model's tensors over the ranks.
    fn watch(&mut self) -> anyhow::Result<()> {
        let places = self.places().map(|(name, range)| Place { name, range }).collect();
        let leaves: Vec<&Tensor> = self.slots.iter().map(|slot| &slot.view).collect();
        let reducer = Reducer::new(&self.ranks, &leaves, places, BUCKET, self.model.device())?;
        self.grads = Gradients::Shared(reducer);
        Ok(())
    }

    /// Makes the parts of `grads`, [n] float32, the gradients of the model's tensors.
    fn attach(&mut self, grads: Tensor) -> anyhow::Result<()> {
        let mut offset = 0;
        for Slot { name, view } in &self.slots {
            let length = view.numel() as i64;
            let part = grads.f_narrow(0, offset, length)?.f_view(view.size().as_slice())?;
            set_grad(view, &part).with_context(|| name.clone())?;
            offset += length;
        }
        self.grads = Gradients::Whole(grads);
        Ok(())
    }

    /// Number of parameters.
    pub fn count(&self) -> i64 {
        self.own.elements
    }

    /// The part that this rank's optimizer updates.
    pub fn own(&self) -> Shard {
        self.own
    }

    /// How many of the first parameters weight decay applies to.
    pub fn decayed(&self) -> i64 {
        self.decayed
    }

    /// Ends a backward pass: the gradients are there.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn finish_backward(&self) -> anyhow::Result<()> {
        match &self.grads {
            Gradients::Whole(_) => Ok(()),
            Gradients::Shared(reducer) => reducer.finish(),
        }
    }

    /// What failed while gradients left backward, such as that a rank was lost.
    pub fn take_failure(&self) -> Option<anyhow::Error> {
        match &self.grads {
            Gradients::Whole(_) => None,
            Gradients::Shared(reducer) => reducer.take_failure(),
        }
    }

    /// A loss was not finite: the next update is not made, on any rank.
    pub fn mark_not_finite(&mut self) {
        self.not_finite = true;
    }

    /// Gradients of the update so far, [own] float32.
    pub fn grads(&self) -> Tensor {
        match &self.grads {
            Gradients::Whole(grads) => grads.shallow_clone(),
            Gradients::Shared(reducer) => reducer.sums(),
        }
    }

    /// Norm of the gradients of all ranks; NaN on all of them where a loss of one was not finite.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn grad_norm(&self) -> anyhow::Result<f64> {
        let squares = match self.not_finite {
            true => f64::NAN,
            false => squares(&self.grads())?,
        };
        if self.ranks.is_alone() {
            return Ok(squares.sqrt());
        }
        let [squares] = self.ranks.sums([squares])?;
        Ok(squares.sqrt())
    }

    /// Changes the float32 weights `start..start + length` of this rank's part, as [`Master::change`].
    ///
    /// # Errors
    /// As that.
    pub fn change_master(
        &mut self,
        start: i64,
        length: i64,
        change: impl FnMut(&Tensor, i64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let _guard = tch::no_grad_guard();
        let own = self.model.f_narrow(0, self.own.start, self.own.length)?;
        let marks = self.marks.as_ref().map(|marks| marks.of_rank(self.ranks.rank()));
        let marks = marks.transpose()?;
        self.master.change(&own, start, length, marks.as_ref(), change)
    }

    /// From now on it is marked which numbers of the model change. All ranks have to ask for it. Of a float32 model nothing is marked: almost
    /// all of them do.
    ///
    /// # Errors
    /// When there is no memory for the marks.
    pub fn mark_changes(&mut self) -> anyhow::Result<()> {
        if let Master::Rest(_) = self.master {
            self.marks = Some(Marks::new(self.own, self.ranks.count(), self.model.device())?);
        }
        Ok(())
    }

    /// Nothing counts as changed so far.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn clear_marks(&self) -> anyhow::Result<()> {
        self.marks.as_ref().map_or(Ok(()), Marks::clear)
    }

    /// What changed since the marks were cleared; None where it is not [marked](Self::mark_changes).
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn changed(&self) -> anyhow::Result<Option<Changed>> {
        let Some(marks) = &self.marks else { return Ok(None) };
        Ok(Some(Changed {
            places: self.places().collect(),
            marks: marks.here()?,
        }))
    }

    /// Where each tensor lies in the flat buffers.
    fn places(&self) -> impl Iterator<Item = (String, Range<i64>)> {
        let mut start = 0;
        self.slots.iter().map(move |Slot { name, view }| {
            let range = start..start + view.numel() as i64;
            start = range.end;
            (name.clone(), range)
        })
    }

    /// What rounding took from the master weights of a bfloat16 model, [own] int16; None where the model's own are float32.
    pub fn master_rest(&self) -> Option<&Tensor> {
        match &self.master {
            Master::Model => None,
            Master::Rest(rest) => Some(rest),
        }
    }

    /// Weights the optimizer updates, [own] float32.
    #[cfg(test)]
    pub fn master(&mut self) -> Tensor {
        let mut pieces = Vec::new();
        let keep = |weights: &Tensor, _| {
            pieces.push(weights.copy());
            Ok(())
        };
        self.change_master(0, self.own.length, keep).unwrap();
        Tensor::cat(&pieces, 0)
    }

    /// Gets the weights that other ranks changed.
    ///
    /// # Errors
    /// When a rank is lost, naming it.
    pub fn gather(&mut self) -> anyhow::Result<()> {
        self.ranks.gather(&self.model)
    }

    /// Gets the marks of what other ranks changed: once a step, when all of its updates are made.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    pub fn gather_marks(&self) -> anyhow::Result<()> {
        let marks = self.marks.as_ref();
        marks.map_or(Ok(()), |marks| self.ranks.gather(marks.bits()))
    }

    /// The model's tensors by name, sharing storage, not tracked.
    pub fn weights(&self) -> Weights {
        Weights(
            self.slots
                .iter()
                .map(|slot| (slot.name.clone(), slot.view.detach()))
                .collect(),
        )
    }
}

/// Sum of the squares of a flat tensor. On a CPU libtorch's norm of one long row adds all of it to a few float32 numbers, and of half a billion
/// gradients misses a twelfth: short rows lose nothing, and their norms are added in float64.
fn squares(flat: &Tensor) -> anyhow::Result<f64> {
    const ROW: i64 = 1 << 12;
    let length = flat.size1()?;
    let (rows, rest) = (length / ROW, length % ROW);
    let part = |start: i64, rows: i64, columns: i64| -> anyhow::Result<Tensor> {
        let part = flat.f_narrow(0, start, rows * columns)?.f_view([rows, columns])?;
        let norms = part.f_norm_scalaropt_dim(2.0, [1i64].as_slice(), false)?; // [rows]
        let squares = norms.f_to_kind(Kind::Double)?.f_square()?;
        Ok(squares.f_sum(Kind::Double)?)
    };
    Ok(f64::try_from(part(0, rows, ROW)?.f_add(&part(
        rows * ROW,
        1,
        rest,
    )?)?)?)
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn squares_of_many_numbers_add_up_as_in_float64() {
        tch::manual_seed(1);
        for length in [0, 1, (1 << 12) - 1, 1 << 12, (1 << 16) - 1, 1 << 16, (1 << 25) + 7] {
            let flat = Tensor::randn([length], (Kind::Float, Device::Cpu)) * 1e-4;
            let exact = f64::try_from(flat.to_kind(Kind::Double).square().sum(Kind::Double)).unwrap();
            let found = squares(&flat).unwrap();
            assert!(
                (found - exact).abs() <= 1e-6 * exact,
                "{length} numbers: {found}, not {exact}"
            );
        }
    }
}
