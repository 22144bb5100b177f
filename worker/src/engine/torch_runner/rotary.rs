//! Rotary positions in few operators: with the sine's sign in the table, a turned head is `x cos + roll(x) sin`.

use anyhow::Result;
use tch::{Kind, Tensor};

/// Cosines and sines of a pass, `[rows, 1, head_dim]`, float32. Those of a head's first half are those of its second, but that
/// the first half's sines are negative.
#[derive(Debug)]
pub(super) struct Rotary {
    cos: Tensor,
    sin: Tensor,
    half: i64,
}

impl Rotary {
    /// Of rows at `positions` (`[rows]`) under `frequencies` (`[head_dim / 2]`).
    pub fn at(positions: &Tensor, frequencies: &Tensor) -> Result<Self> {
        let angles = positions
            .f_to_kind(Kind::Float)?
            .f_view([-1, 1, 1])?
            .f_mul(frequencies)?;
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        Ok(Self {
            half: frequencies.size1()?,
            cos: Tensor::f_cat(&[&cos, &cos], -1)?,
            sin: Tensor::f_cat(&[&sin.f_neg()?, &sin], -1)?,
        })
    }

    /// `heads` (`[rows, heads, head_dim]`) turned, in the precision they came in.
    pub fn turn(&self, heads: &Tensor) -> Result<Tensor> {
        let wide = heads.f_to_kind(Kind::Float)?;
        let crossed = wide.f_roll([self.half], [-1])?;
        let turned = wide.f_mul(&self.cos)?.f_addcmul_(&crossed, &self.sin)?;
        Ok(turned.f_to_kind(heads.kind())?)
    }
}
