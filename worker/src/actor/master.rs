//! The float32 weights that the optimizer updates. A float32 model's are its own. A bfloat16 model computes with them rounded, and what
//! rounding took away is kept beside it: together they are the float32 weights to the last bit, in two bytes more of each
//! instead of four (Split-SGD-BF16: Kalamkar et al. 2020, arXiv 2005.04680).

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use crate::native::master::{join, split, split_marked};

/// What a model's master weights have beside the model's own.
#[derive(Debug)]
pub enum Master {
    /// Nothing: they are the model's.
    Model,
    /// [own] int16: what rounding to bfloat16 took from each.
    Rest(Tensor),
}

impl Master {
    /// The master weights of `own`, this rank's part of a model, as they stand.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn of(own: &Tensor) -> Result<Self> {
        Ok(match own.kind() {
            Kind::BFloat16 => Self::Rest(Tensor::f_zeros([own.size1()?], (Kind::Int16, own.device()))?),
            _ => Self::Model,
        })
    }

    /// Shows `change` the weights `start..start + length` of `own` as float32, in pieces, each with where it begins. What
    /// `change` leaves is kept; `own` gets it rounded to bfloat16, and what becomes another number there is set in `marks`, the
    /// [marks](crate::model::marks::Marks) of `own`.
    ///
    /// # Errors
    /// When libtorch fails, or `change` does.
    pub fn change(
        &self,
        own: &Tensor,
        start: i64,
        length: i64,
        marks: Option<&Tensor>,
        mut change: impl FnMut(&Tensor, i64) -> Result<()>,
    ) -> Result<()> {
        let piece = piece(own.device()).min(length);
        let room = match self {
            Self::Model => None,
            Self::Rest(rest) => Some((rest, Tensor::f_empty([piece], (Kind::Float, own.device()))?)),
        };
        let mut from = start;
        while from < start + length {
            let count = piece.min(start + length - from);
            let own = own.f_narrow(0, from, count)?;
            match &room {
                None => change(&own, from)?,
                Some((rest, room)) => {
                    let (rest, whole) = (rest.f_narrow(0, from, count)?, room.f_narrow(0, 0, count)?);
                    join(&own, &rest, &whole)?;
                    change(&whole, from)?;
                    match marks {
                        None => split(&whole, &own, &rest)?,
                        Some(marks) => split_marked(&whole, &own, &rest, (marks, from))?,
                    }
                }
            }
            from += count;
        }
        Ok(())
    }
}

/// Weights that are float32 at once: on a CPU as many as stay in its cache, on a GPU enough to keep it busy.
fn piece(device: Device) -> i64 {
    match device {
        Device::Cuda(_) => 1 << 24,
        _ => 1 << 18,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_too_small_for_bfloat16_add_up_over_any_range_in_pieces() {
        let count = piece(Device::Cpu) * 2 + 77;
        for kind in [Kind::Float, Kind::BFloat16] {
            let own = Tensor::ones([count], (kind, Device::Cpu));
            let master = Master::of(&own).unwrap();
            let (start, length) = (5, count - 10);
            for _ in 0..64 {
                let mut seen = 0;
                let add = |weights: &Tensor, from: i64| {
                    assert_eq!(from, start + seen);
                    seen += weights.size1()?;
                    let _ = weights.shallow_clone().f_add_scalar_(1.0 / 4096.0)?;
                    Ok(())
                };
                master.change(&own, start, length, None, add).unwrap();
                assert_eq!(seen, length);
            }
            // 64 / 4096 = 1 / 64 is two units in the last place of bfloat16 at 1; each change is a thirty-second of one.
            let changed = own.narrow(0, start, length);
            assert!(bool::try_from(changed.eq(1.0 + 1.0 / 64.0).all()).unwrap());
            let outside = Tensor::cat(&[own.narrow(0, 0, start), own.narrow(0, count - 5, 5)], 0);
            assert!(bool::try_from(outside.eq(1.0).all()).unwrap());
        }
    }

    #[test]
    fn what_becomes_another_number_in_bfloat16_is_marked_in_every_piece() {
        let count = piece(Device::Cpu) + 100;
        let own = Tensor::ones([count], (Kind::BFloat16, Device::Cpu));
        let master = Master::of(&own).unwrap();
        let marks = Tensor::zeros([count / 8 + 1], (Kind::Uint8, Device::Cpu));
        let last = count - 1;
        let moved = [3, 77, piece(Device::Cpu), piece(Device::Cpu) + 3, last];
        let nudge = |weights: &Tensor, from: i64| {
            let _ = weights.shallow_clone().f_add_scalar_(1e-6)?;
            for number in moved
                .iter()
                .filter(|number| (from..from + weights.size1().unwrap()).contains(*number))
            {
                let _ = weights.narrow(0, number - from, 1).f_add_scalar_(1.0 / 64.0)?;
            }
            Ok(())
        };
        master.change(&own, 3, count - 3, Some(&marks), nudge).unwrap();
        let bits = Vec::<u8>::try_from(&marks).unwrap();
        let found: Vec<i64> = (0..count)
            .filter(|i| bits[(i / 8) as usize] >> (i % 8) & 1 == 1)
            .collect();
        assert_eq!(found, moved);
    }
}
