//! The differentiable functions of a decoder (`native/training_*.cpp`): kernels of ours for CPU tensors of float32 or bfloat16,
//! libtorch's operators for others (a GPU's, float16, float64). Which of the two computes is chosen there, by the tensor.

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};

use anyhow::Result;
use tch::Tensor;

use super::message::{answer, checked, free_message};

/// torch-sys hands `at::Tensor*` around; the C++ side takes it as such.
pub(super) type Handle = *const c_void;
pub(super) type Output = *mut *mut c_void;
type Forward = unsafe extern "C" fn(*mut c_void, *mut c_void, Output) -> *mut c_char;

unsafe extern "C" {
    fn ppo_training_linears(
        layer: i64,
        first: Handle,
        second: Handle,
        eps: f64,
        weights: *const Handle,
        biases: *const Handle,
        count: i64,
        wide: bool,
        outputs: Output,
    ) -> *mut c_char;
    fn ppo_training_embed(weight: Handle, ids: Handle, output: Output) -> *mut c_char;
    fn ppo_training_attention(
        queries: Handle,
        keys: Handle,
        values: Handle,
        lengths: *const i64,
        sequences: i64,
        boundaries: Handle,
        output: Output,
    ) -> *mut c_char;
    fn ppo_training_rms_norm(input: Handle, weight: Handle, eps: f64, output: Output) -> *mut c_char;
    fn ppo_training_rotate(heads: Handle, cosine: Handle, sine: Handle, output: Output) -> *mut c_char;
    fn ppo_training_gate(gate: Handle, up: Handle, output: Output) -> *mut c_char;
    fn ppo_training_merge(weight: Handle, a: Handle, b: Handle, scale: f64, output: Output) -> *mut c_char;
    fn ppo_training_token_logprobs(
        hidden: Handle,
        weight: Handle,
        targets: Handle,
        temperature: f64,
        kept_bytes: i64,
        wants_entropy: bool,
        logprobs: Output,
        entropy: Output,
    ) -> *mut c_char;
    fn ppo_training_checkpoint(
        input: Handle,
        state: *mut c_void,
        forward: Forward,
        drop: unsafe extern "C" fn(*mut c_void),
        free_message: unsafe extern "C" fn(*mut c_char),
        output: Output,
    ) -> *mut c_char;
}

pub(super) fn handle(tensor: &Tensor) -> Handle {
    tensor.as_ptr().cast()
}

pub(super) fn one(call: impl FnOnce(Output) -> *mut c_char) -> Result<Tensor> {
    let mut output = null_mut();
    checked(call(&raw mut output))?;
    // SAFETY: without an error the C++ side wrote a new tensor that is ours.
    Ok(unsafe { Tensor::from_ptr(output.cast()) })
}

/// What linear layers take, `[rows, in]`, or what it is made from: by a layer so cheap that the backward pass computes it again, and
/// nobody keeps what it gave.
#[derive(Clone, Copy, Debug)]
pub enum Front<'a> {
    /// Rows as they are.
    Rows(&'a Tensor),
    /// [`rms_norm`] of rows.
    Norm {
        /// `[rows, in]`.
        rows: &'a Tensor,
        /// `[in]`.
        weight: &'a Tensor,
        /// Added to the mean square.
        eps: f64,
    },
    /// [`gate`] of two, `[rows, in]` each.
    Gate {
        /// What goes through the activation.
        gate: &'a Tensor,
        /// What it is multiplied by.
        up: &'a Tensor,
    },
}

impl Front<'_> {
    /// The rows themselves.
    ///
    /// # Errors
    /// When the shapes do not fit, or memory runs out.
    pub fn rows(&self) -> Result<Tensor> {
        match *self {
            Self::Rows(rows) => Ok(rows.shallow_clone()),
            Self::Norm { rows, weight, eps } => rms_norm(rows, weight, eps),
            Self::Gate { gate, up } => self::gate(gate, up),
        }
    }
}

/// `input` (`[rows, in]`) times each weight (`[out, in]`) transposed, plus its bias (`[out]`): several layers over one input,
/// whose gradient they gather together. All have a bias, or none has.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn linears<const N: usize>(
    input: Front,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
) -> Result<[Tensor; N]> {
    products(input, weights, biases, false)
}

/// One layer over `rows` (`[rows, in]`) whose output, `[rows, out]`, is float32 where the numbers of rows and weight are of 16 bits: it is
/// summed in float32, and not rounded to them afterwards.
///
/// # Errors
/// As [`linears`].
pub fn wide_linear(rows: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let [output] = products(Front::Rows(rows), [weight], bias.map(|bias| [bias]), true)?;
    Ok(output)
}

fn products<const N: usize>(
    input: Front,
    weights: [&Tensor; N],
    biases: Option<[&Tensor; N]>,
    wide: bool,
) -> Result<[Tensor; N]> {
    let mut outputs = [null_mut(); N];
    let (weights, biases) = (weights.map(handle), biases.map(|biases| biases.map(handle)));
    let biases = biases.as_ref().map_or(null(), |biases| biases.as_ptr());
    // The numbers of `Front` in native/training_linear.cpp.
    let (layer, first, second, eps) = match input {
        Front::Rows(rows) => (0, handle(rows), null(), 0.0),
        Front::Norm { rows, weight, eps } => (1, handle(rows), handle(weight), eps),
        Front::Gate { gate, up } => (2, handle(gate), handle(up), 0.0),
    };
    let (weights, count) = (weights.as_ptr(), N as i64);
    // SAFETY: (here and below) the handles are of tensors that live through the call.
    checked(unsafe {
        ppo_training_linears(
            layer,
            first,
            second,
            eps,
            weights,
            biases,
            count,
            wide,
            outputs.as_mut_ptr(),
        )
    })?;
    // SAFETY: without an error the C++ side wrote new tensors that are ours.
    Ok(outputs.map(|output| unsafe { Tensor::from_ptr(output.cast()) }))
}

/// Rows `ids` (`[rows]`, int64) of `weight` (`[vocab, width]`).
///
/// # Errors
/// When an id is not a row, or memory runs out.
pub fn embed(weight: &Tensor, ids: &Tensor) -> Result<Tensor> {
    one(|output| unsafe { ppo_training_embed(handle(weight), handle(ids), output) })
}

/// Causal softmax attention of sequences packed end to end: `queries` `[rows, heads, head_dim]`, `keys` and `values`
/// `[rows, kv_heads, head_dim]`, to `[rows, heads, head_dim]`. Rows after the last sequence answer zero. `boundaries`
/// (`[sequences + 1]`, int32, where the tensors are) has the first row of each sequence and the one after the last.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn attention(
    queries: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    lengths: &[i64],
    boundaries: &Tensor,
) -> Result<Tensor> {
    let (first, sequences) = (lengths.as_ptr(), lengths.len() as i64);
    one(|output| unsafe {
        ppo_training_attention(
            handle(queries),
            handle(keys),
            handle(values),
            first,
            sequences,
            handle(boundaries),
            output,
        )
    })
}

/// RMSNorm over the last dimension.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn rms_norm(input: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    one(|output| unsafe { ppo_training_rms_norm(handle(input), handle(weight), eps, output) })
}

/// Rotary embedding of `heads` (`[tokens, heads, head_dim]`) by `cosine` and `sine` (`[tokens, head_dim / 2]`, float32).
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn rotate(heads: &Tensor, cosine: &Tensor, sine: &Tensor) -> Result<Tensor> {
    one(|output| unsafe { ppo_training_rotate(handle(heads), handle(cosine), handle(sine), output) })
}

/// `silu(gate) * up`.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn gate(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    one(|output| unsafe { ppo_training_gate(handle(gate), handle(up), output) })
}

/// `weight + scale b a` of `weight` (`[out, in]`) and an adapter's `a` (`[rank, in]`) and `b` (`[out, rank]`), both float32; in
/// the precision of `weight`. Not differentiable.
///
/// # Errors
/// When the shapes do not fit, or memory runs out.
pub fn merge(weight: &Tensor, a: &Tensor, b: &Tensor, scale: f64) -> Result<Tensor> {
    one(|output| unsafe { ppo_training_merge(handle(weight), handle(a), handle(b), scale, output) })
}

/// Log-probability of each row's target and entropy of each row's distribution, both `[rows]` float32, of float32 logits `hidden`
/// (`[rows, width]`) times `weight` (`[vocab, width]`) transposed over `temperature`. Logits of at most `kept_bytes` are kept
/// for the backward pass; more are computed again there. Targets have to be below the vocabulary: on a GPU nobody looks. An entropy that is
/// not wanted may be zero: on a GPU half of the work is for it.
///
/// # Errors
/// When the shapes do not fit, a target of a CPU is outside the vocabulary, or memory runs out.
pub fn token_logprobs(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Tensor,
    temperature: f64,
    kept_bytes: i64,
    wants_entropy: bool,
) -> Result<(Tensor, Tensor)> {
    let mut entropy = null_mut();
    let logprobs = one(|output| unsafe {
        let entropy = &raw mut entropy;
        ppo_training_token_logprobs(
            handle(hidden),
            handle(weight),
            handle(targets),
            temperature,
            kept_bytes,
            wants_entropy,
            output,
            entropy,
        )
    })?;
    // SAFETY: without an error both outputs were written.
    Ok((logprobs, unsafe { Tensor::from_ptr(entropy.cast()) }))
}

type Layer = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send>;

/// Applies `layer` so that only its input is kept for the backward pass, which computes it again. The gradients of tensors
/// that the layer captured are added to by the way; gradients of the result must be asked for with `backward`.
///
/// # Errors
/// When the layer fails.
pub fn checkpoint(input: &Tensor, layer: Layer) -> Result<Tensor> {
    let state: *mut Layer = Box::into_raw(Box::new(layer));
    // SAFETY: the C++ side calls `drop_layer` exactly once, when the graph goes, or on an error.
    one(|output| unsafe {
        ppo_training_checkpoint(handle(input), state.cast(), run_layer, drop_layer, free_message, output)
    })
}

unsafe extern "C" fn run_layer(state: *mut c_void, input: *mut c_void, output: Output) -> *mut c_char {
    // SAFETY: state is the box of `checkpoint`, input a new tensor that is ours, output a place to write.
    let (layer, input) = unsafe { (&*state.cast::<Layer>(), Tensor::from_ptr(input.cast())) };
    answer(layer(&input).map(|tensor| {
        unsafe { *output = tensor.as_ptr().cast_mut().cast() };
        // The C++ side owns it now.
        std::mem::forget(tensor);
    }))
}

unsafe extern "C" fn drop_layer(state: *mut c_void) {
    // SAFETY: as in `checkpoint`.
    drop(unsafe { Box::from_raw(state.cast::<Layer>()) });
}

/// What `compute` gives without the kernels, as on a GPU. Backward of it has to be called in it, too.
#[cfg(test)]
pub(crate) fn without_kernels<T>(compute: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        fn ppo_training_without_kernels(yes: bool);
    }
    // SAFETY: it sets a variable of this thread.
    unsafe { ppo_training_without_kernels(true) };
    let computed = compute();
    unsafe { ppo_training_without_kernels(false) };
    computed
}

#[cfg(test)]
mod tests;
