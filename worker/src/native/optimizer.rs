//! Gradients in storage of our own, and libtorch's fused AdamW.

use std::ffi::{c_char, c_void};

use anyhow::Context;
use tch::Tensor;

use super::message::checked;

unsafe extern "C" {
    fn ppo_set_grad(parameter: *mut c_void, grad: *mut c_void) -> *mut c_char;
    fn ppo_adamw(
        weights: *mut c_void,
        grads: *mut c_void,
        m: *mut c_void,
        v: *mut c_void,
        step: *mut c_void,
        grad_scale: *mut c_void,
        learning_rate: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        epsilon: f64,
    ) -> *mut c_char;
}

fn pointer(tensor: &Tensor) -> *mut c_void {
    tensor.as_ptr().cast_mut().cast()
}

/// Makes `grad` the gradient of the leaf `parameter`; backward adds to it in place. Both have the same shape; the gradient is of the
/// parameter's dtype or float32.
///
/// # Errors
/// When libtorch refuses the pair (not a leaf).
pub fn set_grad(parameter: &Tensor, grad: &Tensor) -> anyhow::Result<()> {
    // SAFETY: both pointers are live tensors for the length of the call; the shim copies the handle of `grad`.
    checked(unsafe { ppo_set_grad(pointer(parameter), pointer(grad)) }).context("cannot attach a gradient")
}

/// Hyper-parameters of one AdamW update.
#[derive(Clone, Copy, Debug)]
pub struct AdamWStep {
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
}

/// The tensors of one AdamW update: flat float32 of one length, but `step` and `grad_scale`, which are scalars.
#[derive(Debug)]
pub struct AdamWTensors<'a> {
    /// Weights, updated in place.
    pub weights: &'a Tensor,
    /// Gradients; divided by `grad_scale` in place.
    pub grads: &'a Tensor,
    /// First moment.
    pub m: &'a Tensor,
    /// Second moment.
    pub v: &'a Tensor,
    /// Number of this update, from 1.
    pub step: &'a Tensor,
    /// Divisor of the gradients (norm over limit when they are clipped, else 1).
    pub grad_scale: &'a Tensor,
}

/// One decoupled AdamW update (Loshchilov and Hutter 2019, arXiv 1711.05101) in a single pass over memory.
///
/// # Errors
/// When libtorch refuses the tensors.
pub fn adamw(tensors: &AdamWTensors, step: AdamWStep) -> anyhow::Result<()> {
    let AdamWTensors {
        weights,
        grads,
        m,
        v,
        step: count,
        grad_scale,
    } = tensors;
    let AdamWStep {
        learning_rate,
        beta1,
        beta2,
        weight_decay,
        epsilon,
    } = step;
    // SAFETY: every pointer is a live tensor for the length of the call.
    checked(unsafe {
        ppo_adamw(
            pointer(weights),
            pointer(grads),
            pointer(m),
            pointer(v),
            pointer(count),
            pointer(grad_scale),
            learning_rate,
            beta1,
            beta2,
            weight_decay,
            epsilon,
        )
    })
    .context("AdamW update failed")
}
