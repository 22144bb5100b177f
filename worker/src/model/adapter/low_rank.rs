//! What an adapter does to one projection: adds to its output, or goes into its weight.

use anyhow::{Result, anyhow};
use tch::Tensor;

use crate::native::training::{self, Front};

/// `scale (x A^T) B^T`.
#[derive(Debug)]
pub struct LowRank {
    /// `[rank, in]`, float32.
    pub a: Tensor,
    /// `[out, rank]`, float32.
    pub b: Tensor,
    /// alpha / rank.
    pub scale: f64,
}

impl LowRank {
    /// The same tensors: nothing is copied.
    #[must_use]
    pub fn shallow_clone(&self) -> Self {
        Self {
            a: self.a.shallow_clone(),
            b: self.b.shallow_clone(),
            scale: self.scale,
        }
    }

    /// Own copies of both tensors, without gradients.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn deep_clone(&self) -> Result<Self> {
        let copy = Self {
            a: self.a.detach().f_empty_like()?,
            b: self.b.detach().f_empty_like()?,
            scale: self.scale,
        };
        copy.overwrite(self)?;
        Ok(copy)
    }

    /// Writes the values of `from` into these tensors.
    ///
    /// # Errors
    /// When the shapes differ.
    pub fn overwrite(&self, from: &Self) -> Result<()> {
        let _no_grad = tch::no_grad_guard();
        self.a.shallow_clone().f_copy_(&from.a)?;
        self.b.shallow_clone().f_copy_(&from.b)?;
        Ok(())
    }

    /// The weight that does by itself what `weight` and this do together, in the precision of `weight`: the sum is computed in
    /// float32 and rounded once. Every number is summed in one order, so the bits do not depend on who merges (on a GPU, among those of
    /// its kind).
    ///
    /// # Errors
    /// When the shapes do not fit, or memory runs out.
    pub fn merge(&self, weight: &Tensor) -> Result<Tensor> {
        let _no_grad = tch::no_grad_guard();
        training::merge(weight, &self.a, &self.b, self.scale)
    }

    /// `output` with what this adds for `input`, which is in the precision of A.
    fn add(&self, input: &Tensor, output: &Tensor) -> Result<Tensor> {
        let inner = product(input, &self.a)?.f_mul_scalar(self.scale)?;
        let added = output.f_add(&product(&inner, &self.b)?)?;
        Ok(added.f_to_kind(output.kind())?)
    }
}

/// Adds to the outputs of several projections of one input what each one's adapter says.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn add<const N: usize>(
    adapters: [Option<&LowRank>; N],
    input: &Tensor,
    outputs: [Tensor; N],
) -> Result<[Tensor; N]> {
    let Some(first) = adapters.iter().flatten().next() else {
        return Ok(outputs);
    };
    // Once for all of them, which gather its gradient in that precision.
    let input = input.f_to_kind(first.a.kind())?;
    let added: Result<Vec<Tensor>> = adapters
        .into_iter()
        .zip(outputs)
        .map(|(adapter, output)| match adapter {
            Some(adapter) => adapter.add(&input, &output),
            None => Ok(output),
        })
        .collect();
    <[Tensor; N]>::try_from(added?).map_err(|_| anyhow!("{N} projections answer {N} times"))
}

/// `x W^T`.
fn product(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let [output] = training::linears(Front::Rows(input), [weight], None)?;
    Ok(output)
}
