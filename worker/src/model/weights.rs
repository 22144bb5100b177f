//! Named tensors of a model, in Hugging Face names.

use std::collections::BTreeMap;

use tch::Tensor;

/// Tensors by Hugging Face name.
#[derive(Debug, Default)]
pub struct Weights(pub BTreeMap<String, Tensor>);
