//! A tensor that a decoder calls for, by its Hugging Face name.

use anyhow::{Result, bail, ensure};

use crate::model::MergedWeights;
use crate::model::adapter::merged::Unmerged;

/// The tensor called `name`, which must have that size.
///
/// # Errors
/// When it is missing or of another shape, naming it.
pub(super) fn find<'a>(weights: &'a MergedWeights, name: &str, size: &[i64]) -> Result<Unmerged<'a>> {
    let Some(tensor) = weights.get(name) else {
        bail!("the weights have no tensor {name}")
    };
    ensure!(
        tensor.weight.size() == size,
        "{name} has shape {:?}, the model needs {size:?}",
        tensor.weight.size()
    );
    Ok(tensor)
}
