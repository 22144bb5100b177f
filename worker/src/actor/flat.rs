//! The flat buffer of a model that will be trained. It is made from names and shapes, before the weights are read, so that each
//! weight is read straight into its place and no second copy of the model exists while it loads.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use tch::Tensor;

use crate::model::{Target, Weights};
use crate::ranks::Ranks;
use crate::shard::Shard;

/// A model's tensors as views of one buffer.
#[derive(Debug)]
pub struct Flat {
    pub(super) slots: Vec<Slot>,
    /// Elements at the front that weight decay applies to: matrices; norms and biases follow.
    pub(super) decayed: i64,
    /// [n, and up to a multiple of the ranks] in the model's dtype.
    pub(super) model: Tensor,
    /// The part of this rank.
    pub(super) own: Shard,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) view: Tensor,
}

impl Flat {
    /// Zeros with a place for each tensor of `shapes`, which all of `ranks` have.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn zeros(shapes: &BTreeMap<String, Vec<i64>>, target: Target, ranks: &Ranks) -> anyhow::Result<Self> {
        let _guard = tch::no_grad_guard();
        ensure!(!shapes.is_empty(), "a model without parameters cannot be trained");
        let mut order: Vec<(&String, &Vec<i64>)> = shapes.iter().collect();
        // Stable: by name among matrices, and among the others.
        order.sort_by_key(|(_, dims)| dims.len() < 2);
        let elements = |dims: &[i64]| dims.iter().product::<i64>();
        let total: i64 = order.iter().map(|(_, dims)| elements(dims)).sum();
        let matrices = order.iter().filter(|(_, dims)| dims.len() >= 2);
        let decayed: i64 = matrices.map(|(_, dims)| elements(dims)).sum();
        let own = ranks.shard(total);
        let padded = own.padded(ranks.count());
        let model = Tensor::f_zeros([padded], (target.kind, target.device))
            .with_context(|| format!("no memory for {total} parameters"))?;

        let mut slots = Vec::with_capacity(order.len());
        let mut offset = 0;
        for (name, dims) in order {
            let length = elements(dims);
            slots.push(Slot {
                name: name.clone(),
                view: model.f_narrow(0, offset, length)?.f_view(dims.as_slice())?,
            });
            offset += length;
        }
        Ok(Self {
            slots,
            decayed,
            model,
            own,
        })
    }

    /// Moves `weights` here; on return they are views of the buffer. Each is copied and then freed, one after the other.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn of(weights: &mut Weights, ranks: &Ranks) -> anyhow::Result<Self> {
        let _guard = tch::no_grad_guard();
        let first = weights.0.values().next();
        let first = first.context("a model without parameters cannot be trained")?;
        let target = Target::from((first.kind(), first.device()));
        let flat = Self::zeros(&weights.shapes(), target, ranks)?;
        for (name, mut place) in flat.places().0 {
            let Some(tensor) = weights.0.get_mut(&name) else {
                continue;
            };
            place.f_copy_(tensor).with_context(|| format!("cannot place {name}"))?;
            *tensor = place;
        }
        Ok(flat)
    }

    /// The places by name: what is written to them is in the buffer.
    pub fn places(&self) -> Weights {
        let named = |slot: &Slot| (slot.name.clone(), slot.view.shallow_clone());
        Weights(self.slots.iter().map(named).collect())
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn what_is_written_to_the_places_lies_in_one_buffer_matrices_first() {
        let shapes = [("a.bias", vec![2]), ("b.weight", vec![2, 3]), ("norm", vec![3])];
        let shapes: BTreeMap<String, Vec<i64>> = shapes.map(|(name, dims)| (name.to_owned(), dims)).into();
        let flat = Flat::zeros(&shapes, Kind::Float.into(), &Ranks::alone()).unwrap();
        let places = flat.places();
        for (number, name) in (1..).zip(["b.weight", "a.bias", "norm"]) {
            let _ = places.get(name).unwrap().shallow_clone().fill_(f64::from(number));
        }
        let numbers = Vec::<f32>::try_from(&flat.model).unwrap();
        assert_eq!(numbers, [1., 1., 1., 1., 1., 1., 2., 2., 3., 3., 3.]);
        assert_eq!(flat.decayed, 6);
    }

    #[test]
    fn weights_that_are_moved_are_views_of_the_buffer() {
        let mut weights = Weights::default();
        let given = Tensor::from_slice(&[1.5f32, 2.0]).to_kind(Kind::BFloat16);
        weights.0.insert("w".into(), given.shallow_clone());
        let flat = Flat::of(&mut weights, &Ranks::alone()).unwrap();
        assert_eq!((flat.model.kind(), flat.model.device()), (Kind::BFloat16, Device::Cpu));
        assert!(flat.model.equal(&given));
        assert_eq!(weights.0["w"].data_ptr(), flat.model.data_ptr());
        let none = Flat::of(&mut Weights::default(), &Ranks::alone()).unwrap_err();
        assert!(none.to_string().contains("without parameters"));
    }
}
