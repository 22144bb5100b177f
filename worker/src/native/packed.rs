//! The weights of the CPU decoder, packed for its products (`worker/native/decoder_weights.cpp`). They are apart from its cache: new ones are
//! packed, rows by rows as they come, beside those that it reads.

use std::ffi::{c_char, c_void};
use std::ptr::NonNull;

use anyhow::{Context, Result, anyhow, ensure};

use super::allocator::keeps_memory;
use super::change::Change;
use super::decoder_shape::DecoderShape;
use super::engine::{RawShape, text};

/// A weight matrix of the decoder, rows are outputs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum Matrix {
    /// Query, key and value projections, three parts.
    Qkv,
    /// Output projection of attention.
    Output,
    /// Gate and up projections, two parts.
    GateUp,
    /// Down projection.
    Down,
    /// Token logits; the token embedding too when tied.
    Head,
    /// Token embedding of an untied model.
    Embedding,
}

/// A weight vector of the decoder.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub enum Vector {
    /// RMSNorm before attention.
    AttentionNorm,
    /// RMSNorm before the MLP.
    MlpNorm,
    /// RMSNorm before the head.
    FinalNorm,
    /// Bias of query, key and value projections, concatenated.
    QkvBias,
    /// RMSNorm over each query head.
    QueryNorm,
    /// RMSNorm over each key head.
    KeyNorm,
}

#[repr(C)]
pub(super) struct RawWeights {
    _opaque: [u8; 0],
}

/// `DecoderChange`.
#[repr(C)]
struct RawChange {
    layer: i32,
    which: Matrix,
    part: i32,
    gaps: *const u8,
    count: i64,
    values: *const u8,
}

/// What changed of a part of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct MatrixChange<'a> {
    /// Of the matrix.
    pub layer: usize,
    /// The matrix and its part.
    pub matrix: (Matrix, usize),
    /// What changed of it.
    pub change: Change<'a>,
}

unsafe extern "C" {
    fn decoder_weights_new(shape: *const RawShape, apart: i32, error: *mut c_char, size: usize) -> *mut RawWeights;
    fn decoder_weights_free(weights: *mut RawWeights);
    fn decoder_weights_set_rows(
        weights: *mut RawWeights,
        layer: i32,
        which: Matrix,
        part: i32,
        first: i64,
        count: i64,
        data: *const c_void,
        threads: i32,
    );
    fn decoder_weights_change(weights: *mut RawWeights, changes: *const RawChange, count: i64, threads: i32);
    fn decoder_weights_set_vector(
        weights: *mut RawWeights,
        layer: i32,
        which: Vector,
        first: i64,
        count: i64,
        data: *const f32,
    );
}

/// Every matrix and vector of a decoder.
#[derive(Debug)]
pub struct PackedWeights {
    handle: NonNull<RawWeights>,
    shape: DecoderShape,
}

// SAFETY: the handle owns plain memory and nothing bound to the thread that made it; methods that write take `&mut self`.
unsafe impl Send for PackedWeights {}

impl PackedWeights {
    /// Memory for them, of the program's heap: one block, or what training left where that [keeps it](super::allocator::keeps_memory). All
    /// of them have to be set.
    ///
    /// # Errors
    /// When the shape is not one the kernels know or memory runs out.
    pub fn new(shape: &DecoderShape) -> Result<Self> {
        let raw = RawShape::of(shape, 1, 1)?;
        let apart = keeps_memory().into();
        let mut message = [0u8; 256];
        // SAFETY: `raw` is checked and outlives the call, which copies.
        let handle = unsafe { decoder_weights_new(&raw, apart, message.as_mut_ptr().cast(), message.len()) };
        let handle = NonNull::new(handle)
            .with_context(|| format!("cannot reserve the decoder's weights: {}", text(&message)))?;
        Ok(Self {
            handle,
            shape: shape.clone(),
        })
    }

    /// What they are the weights of.
    pub fn shape(&self) -> &DecoderShape {
        &self.shape
    }

    pub(super) fn handle(&self) -> *const RawWeights {
        self.handle.as_ptr()
    }

    /// Rows and columns of one part of a matrix; None where there is no such part.
    pub fn size(&self, which: Matrix, part: usize) -> Option<(usize, usize)> {
        let s = &self.shape;
        let (queries, keys) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        match (which, part) {
            (Matrix::Qkv, 0) => Some((queries, s.hidden)),
            (Matrix::Qkv, 1 | 2) => Some((keys, s.hidden)),
            (Matrix::Output, 0) => Some((s.hidden, queries)),
            (Matrix::GateUp, 0 | 1) => Some((s.intermediate, s.hidden)),
            (Matrix::Down, 0) => Some((s.hidden, s.intermediate)),
            (Matrix::Embedding, 0) if s.tied => None,
            (Matrix::Head | Matrix::Embedding, 0) => Some((s.vocab, s.hidden)),
            _ => None,
        }
    }

    /// Packs rows of a part of a matrix, from row `first` on: `rows` is whole rows in the shape's kind, `threads` compute.
    ///
    /// # Errors
    /// When there is no such part, or it has no such rows.
    pub fn set_rows(
        &mut self,
        layer: usize,
        (which, part): (Matrix, usize),
        first: usize,
        rows: &[u8],
        threads: usize,
    ) -> Result<()> {
        ensure!(layer < self.shape.layers, "layer {layer} of {}", self.shape.layers);
        let size = self.size(which, part);
        let (all, columns) = size.with_context(|| format!("this model's {which:?} has no part {part}"))?;
        let row = columns * self.shape.kind.elt_size_in_bytes();
        let (count, is_whole) = (rows.len() / row, rows.len().is_multiple_of(row));
        ensure!(is_whole, "{which:?}: {} bytes are no rows of {row}", rows.len());
        ensure!(
            first.checked_add(count).is_some_and(|last| last <= all),
            "{which:?}: {count} rows from row {first} of {all}"
        );
        // SAFETY: layer, part and rows are the matrix's by the checks above, and `rows` holds `count` of them.
        unsafe {
            decoder_weights_set_rows(
                self.handle.as_ptr(),
                i32::try_from(layer)?,
                which,
                i32::try_from(part)?,
                i64::try_from(first)?,
                i64::try_from(count)?,
                rows.as_ptr().cast(),
                i32::try_from(threads.max(1))?,
            );
        }
        Ok(())
    }

    /// Writes numbers over those of parts of matrices, each of another part; `threads` compute.
    ///
    /// # Errors
    /// When there is no such part, or it has no such numbers: nothing is written then.
    pub fn change(&mut self, changes: &[MatrixChange], threads: usize) -> Result<()> {
        let raw: Vec<RawChange> = changes
            .iter()
            .map(|change| self.checked(change))
            .collect::<Result<_>>()?;
        // SAFETY: each is checked: its places are the part's and ascend, and it has a value for each. Parts share no byte.
        unsafe {
            decoder_weights_change(
                self.handle.as_ptr(),
                raw.as_ptr(),
                i64::try_from(raw.len())?,
                i32::try_from(threads.max(1))?,
            );
        }
        Ok(())
    }

    fn checked(&self, change: &MatrixChange) -> Result<RawChange> {
        let MatrixChange {
            layer,
            matrix: (which, part),
            change,
        } = *change;
        ensure!(layer < self.shape.layers, "layer {layer} of {}", self.shape.layers);
        let size = self.size(which, part);
        let (rows, columns) = size.with_context(|| format!("this model's {which:?} has no part {part}"))?;
        change
            .check((rows * columns) as i64)
            .map_err(|why| anyhow!("what changed of {which:?} {why}"))?;
        Ok(RawChange {
            layer: i32::try_from(layer)?,
            which,
            part: i32::try_from(part)?,
            gaps: change.gaps.as_ptr(),
            count: i64::try_from(change.gaps.len())?,
            values: change.values.as_ptr(),
        })
    }

    /// Copies numbers of a vector, from number `first` on.
    ///
    /// # Errors
    /// When the model has no such vector, or it has no such numbers.
    pub fn set_vector(&mut self, layer: usize, which: Vector, first: usize, values: &[f32]) -> Result<()> {
        let s = &self.shape;
        let length = match which {
            Vector::AttentionNorm | Vector::MlpNorm | Vector::FinalNorm => s.hidden,
            Vector::QkvBias if s.qkv_bias => (s.heads + 2 * s.kv_heads) * s.head_dim,
            Vector::QueryNorm | Vector::KeyNorm if s.qk_norm => s.head_dim,
            Vector::QkvBias | Vector::QueryNorm | Vector::KeyNorm => 0,
        };
        ensure!(layer < s.layers, "layer {layer} of {}", s.layers);
        ensure!(
            first.checked_add(values.len()).is_some_and(|last| last <= length),
            "{which:?}: {} values from {first} of {length}",
            values.len()
        );
        // SAFETY: layer and numbers are the vector's by the checks above.
        unsafe {
            decoder_weights_set_vector(
                self.handle.as_ptr(),
                i32::try_from(layer)?,
                which,
                i64::try_from(first)?,
                i64::try_from(values.len())?,
                values.as_ptr(),
            );
        }
        Ok(())
    }
}

impl Drop for PackedWeights {
    fn drop(&mut self) {
        // SAFETY: the handle came from `decoder_weights_new` and is freed once.
        unsafe { decoder_weights_free(self.handle.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::engine::conformance::tiny;

    #[test]
    fn what_the_model_does_not_have_is_refused() {
        let shape = tiny(Kind::Float);
        let mut weights = PackedWeights::new(&shape).unwrap();
        let row = vec![0; shape.hidden * 4];
        let mut refusal = |layer: usize, part: (Matrix, usize), first: usize, rows: &[u8]| {
            weights.set_rows(layer, part, first, rows, 1).unwrap_err().to_string()
        };
        assert!(refusal(2, (Matrix::Qkv, 0), 0, &row).contains("layer 2 of 2"));
        assert!(refusal(0, (Matrix::Qkv, 3), 0, &row).contains("no part 3"));
        assert!(refusal(0, (Matrix::Embedding, 0), 0, &row).contains("no part 0"));
        assert!(refusal(0, (Matrix::Head, 0), 101, &row).contains("1 rows from row 101 of 101"));
        assert!(refusal(0, (Matrix::Head, 0), usize::MAX, &row).contains("of 101"));
        assert!(refusal(0, (Matrix::Head, 0), 0, &row[1..]).contains("no rows of 160"));
        let mut refusal = |layer: usize, part: (Matrix, usize), gaps: &[u8], values: &[u8]| {
            let change = Change {
                name: "w",
                gaps,
                values,
            };
            let changes = [MatrixChange {
                layer,
                matrix: part,
                change,
            }];
            weights.change(&changes, 2).unwrap_err().to_string()
        };
        assert!(refusal(2, (Matrix::Qkv, 0), &[0], &[0; 2]).contains("layer 2 of 2"));
        assert!(refusal(0, (Matrix::Qkv, 3), &[0], &[0; 2]).contains("no part 3"));
        assert!(refusal(0, (Matrix::Qkv, 0), &[0, 0], &[0; 2]).contains("2 bytes of w for 2 numbers"));
        let numbers = 101 * shape.hidden;
        let beyond = [vec![255; numbers / 255], vec![(numbers % 255) as u8]].concat();
        assert!(
            refusal(0, (Matrix::Head, 0), &beyond, &[0; 2])
                .contains(&format!("number {numbers} of w, which has {numbers}"))
        );
        let mut refusal = |layer: usize, vector: Vector, first: usize, length: usize| {
            let values = vec![0.0; length];
            weights
                .set_vector(layer, vector, first, &values)
                .unwrap_err()
                .to_string()
        };
        assert!(refusal(2, Vector::MlpNorm, 0, 40).contains("layer 2 of 2"));
        assert!(refusal(0, Vector::MlpNorm, 1, 40).contains("40 values from 1 of 40"));
        assert!(refusal(0, Vector::QkvBias, 0, 1).contains("of 0"));
    }
}
