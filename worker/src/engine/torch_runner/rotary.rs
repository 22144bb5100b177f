//! Rotary positions in few operators: with the sine's sign in the table, a turned head is `x cos + roll(x) sin`.

use std::cell::OnceCell;

use anyhow::Result;
use tch::{Kind, Tensor};

/// Angles of a pass' rows.
#[derive(Debug)]
pub(super) struct Rotary {
    /// `[rows]`, int64.
    positions: Tensor,
    /// `[head_dim / 2]`, float32.
    frequencies: Tensor,
    /// For the operators, made when the first layer asks.
    table: OnceCell<Table>,
}

/// Cosines and sines, `[rows, 1, head_dim]`, float32. Those of a head's first half are those of its second, but that the first
/// half's sines are negative.
#[derive(Debug)]
struct Table {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// Of rows at `positions` (`[rows]`) under `frequencies` (`[head_dim / 2]`).
    pub fn at(positions: &Tensor, frequencies: &Tensor) -> Self {
        Self {
            positions: positions.shallow_clone(),
            frequencies: frequencies.shallow_clone(),
            table: OnceCell::new(),
        }
    }

    pub fn positions(&self) -> &Tensor {
        &self.positions
    }

    pub fn frequencies(&self) -> &Tensor {
        &self.frequencies
    }

    /// `heads` (`[rows, heads, head_dim]`) turned, in the precision they came in.
    pub fn turn(&self, heads: &Tensor) -> Result<Tensor> {
        let table = match self.table.get() {
            Some(table) => table,
            None => {
                let table = self.table()?;
                self.table.get_or_init(|| table)
            }
        };
        let wide = heads.f_to_kind(Kind::Float)?;
        let crossed = wide.f_roll([self.frequencies.size1()?], [-1])?;
        let turned = wide.f_mul(&table.cos)?.f_addcmul_(&crossed, &table.sin)?;
        Ok(turned.f_to_kind(heads.kind())?)
    }

    fn table(&self) -> Result<Table> {
        let angles = self
            .positions
            .f_to_kind(Kind::Float)?
            .f_view([-1, 1, 1])?
            .f_mul(&self.frequencies)?;
        let (cos, sin) = (angles.f_cos()?, angles.f_sin()?);
        Ok(Table {
            cos: Tensor::f_cat(&[&cos, &cos], -1)?,
            sin: Tensor::f_cat(&[&sin.f_neg()?, &sin], -1)?,
        })
    }
}
