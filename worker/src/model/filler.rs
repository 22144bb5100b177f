//! Rows of zeros after those of a batch, which products on a CPU want to be so many of. Where none are wanted, as on a GPU, nothing is copied
//! or launched for them.

use anyhow::Result;
use tch::Tensor;

/// `tensor` (`[rows, ...]`) with `filler` rows of zeros after its own.
///
/// # Errors
/// When memory runs out.
pub fn filled(tensor: &Tensor, filler: i64) -> Result<Tensor> {
    if filler == 0 {
        return Ok(tensor.shallow_clone());
    }
    // From the last dimension to the first, before and after.
    let mut padding = vec![0; 2 * tensor.dim()];
    if let Some(after) = padding.last_mut() {
        *after = filler;
    }
    Ok(tensor.f_constant_pad_nd(padding)?)
}

/// The first `rows` of such a tensor.
///
/// # Errors
/// When there are fewer.
pub fn without_filler(tensor: &Tensor, rows: i64) -> Result<Tensor> {
    match tensor.size().first() {
        Some(all) if *all == rows => Ok(tensor.shallow_clone()),
        _ => Ok(tensor.f_narrow(0, 0, rows)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_from_their_filler_whatever_their_dimensions() {
        for dims in [&[3][..], &[3, 2], &[3, 2, 4]] {
            let rows = Tensor::ones(dims, (tch::Kind::Float, tch::Device::Cpu));
            for filler in [0, 2] {
                let all = filled(&rows, filler).unwrap();
                assert_eq!(all.size()[0], 3 + filler);
                assert_eq!(all.sum(tch::Kind::Float), rows.sum(tch::Kind::Float));
                assert_eq!(without_filler(&all, 3).unwrap(), rows);
            }
            assert!(without_filler(&rows, 4).is_err());
        }
    }
}
