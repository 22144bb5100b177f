//! Float32 numbers in two halves (`native/master.cpp`): the bfloat16 that each rounds to, and the 16 bits that rounding took away.

use std::ffi::{c_char, c_void};

use anyhow::{Context, Result};
use tch::Tensor;

use super::message::checked;
use super::training::handle;

unsafe extern "C" {
    fn ppo_master_join(rounded: *const c_void, rest: *const c_void, whole: *const c_void) -> *mut c_char;
    fn ppo_master_split(whole: *const c_void, rounded: *const c_void, rest: *const c_void) -> *mut c_char;
    fn ppo_master_split_marked(
        whole: *const c_void,
        rounded: *const c_void,
        rest: *const c_void,
        marks: *const c_void,
        first: i64,
    ) -> *mut c_char;
}

/// Writes into `whole`, [n] float32, the numbers of which `rounded`, [n] bfloat16, and `rest`, [n] int16, are the halves.
///
/// # Errors
/// When they are not of these kinds, or of several lengths.
pub fn join(rounded: &Tensor, rest: &Tensor, whole: &Tensor) -> Result<()> {
    // SAFETY: all are live tensors for the length of the call; the shim checks kinds and lengths.
    checked(unsafe { ppo_master_join(handle(rounded), handle(rest), handle(whole)) }).context("joining halves")
}

/// Writes the halves of `whole` into `rounded` and `rest`.
///
/// # Errors
/// As [`join`].
pub fn split(whole: &Tensor, rounded: &Tensor, rest: &Tensor) -> Result<()> {
    // SAFETY: as above.
    checked(unsafe { ppo_master_split(handle(whole), handle(rounded), handle(rest)) }).context("splitting into halves")
}

/// As [`split`]; in `marks`, uint8, bit `first + i` is set, counted from the lowest of byte 0, for every number `i` whose bfloat16 half
/// becomes another one.
///
/// # Errors
/// As [`join`], and when `marks` has too few bits.
pub fn split_marked(whole: &Tensor, rounded: &Tensor, rest: &Tensor, (marks, first): (&Tensor, i64)) -> Result<()> {
    let (whole, rounded, rest, marks) = (handle(whole), handle(rounded), handle(rest), handle(marks));
    // SAFETY: as above.
    checked(unsafe { ppo_master_split_marked(whole, rounded, rest, marks, first) }).context("splitting into halves")
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::native::training::without_kernels;

    /// Numbers of every exponent and sign, those half-way between two of bfloat16 among them.
    fn numbers() -> Tensor {
        let bits = (0..1u32 << 20).map(|i| i.wrapping_mul(4099) & 0xff7f_ffff);
        let halfway = (0..1u32 << 12).map(|i| (i << 20 & 0xff7f_ffff) | 0x8000);
        let values: Vec<f32> = bits.chain(halfway).map(f32::from_bits).collect();
        Tensor::from_slice(&values)
    }

    fn halves(whole: &Tensor) -> [Tensor; 2] {
        let of = |kind| Tensor::empty([whole.numel() as i64], (kind, Device::Cpu));
        let [rounded, rest] = [of(Kind::BFloat16), of(Kind::Int16)];
        split(whole, &rounded, &rest).unwrap();
        [rounded, rest]
    }

    fn bits(tensor: &Tensor) -> Tensor {
        tensor.view_dtype(Kind::Int)
    }

    #[test]
    fn no_bit_is_lost_and_one_half_is_the_nearest_bfloat16() {
        let whole = numbers();
        let check = || {
            let [rounded, rest] = halves(&whole);
            let joined = whole.zeros_like();
            join(&rounded, &rest, &joined).unwrap();
            assert_eq!(bits(&joined), bits(&whole));
            // libtorch rounds halves to even, this away from zero.
            let is_half = bits(&whole).bitwise_and(0xffff).eq(0x8000);
            let nearest = whole.to_kind(Kind::BFloat16);
            let is_nearest = rounded
                .view_dtype(Kind::Int16)
                .eq_tensor(&nearest.view_dtype(Kind::Int16));
            assert!(bool::try_from(is_nearest.logical_or(&is_half).all()).unwrap());
            assert!(bool::try_from(is_half.any()).unwrap());
            [rounded, rest]
        };
        let [ours, stock] = [check(), without_kernels(check)];
        assert_eq!(ours[0].view_dtype(Kind::Int16), stock[0].view_dtype(Kind::Int16));
        assert_eq!(ours[1], stock[1]);
    }

    #[test]
    fn every_number_whose_bfloat16_half_changes_is_marked_and_no_other() {
        let count = 3000i64;
        // Every seventh moves by one unit in the last place of bfloat16, the others by far less.
        let shift = |i: i64| if i % 7 == 3 { 1.0 / 128.0 } else { 1e-6 };
        let shifts = Tensor::from_slice(&(0..count).map(shift).collect::<Vec<f64>>()).to_kind(Kind::Float);
        let check = || {
            for first in [0, 1, 7, 8, 13, 1001] {
                let ones = Tensor::ones([count], (Kind::Float, Device::Cpu));
                let [rounded, rest] = halves(&ones);
                let bytes = (first + count + 7) / 8 + 1;
                let marks = Tensor::zeros([bytes], (Kind::Uint8, Device::Cpu));
                // What is marked stays so.
                let _ = marks.narrow(0, bytes - 1, 1).fill_(0b101);
                split_marked(&(ones + &shifts), &rounded, &rest, (&marks, first)).unwrap();
                let bits = Vec::<u8>::try_from(&marks).unwrap();
                let is_marked = |i: i64| bits[(i / 8) as usize] >> (i % 8) & 1 == 1;
                for i in 0..bytes * 8 {
                    let inside = (first..first + count).contains(&i);
                    let wanted = match inside {
                        true => (i - first) % 7 == 3,
                        false => i == (bytes - 1) * 8 || i == (bytes - 1) * 8 + 2,
                    };
                    assert_eq!(is_marked(i), wanted, "bit {i} of {count} numbers from {first}");
                }
            }
        };
        check();
        without_kernels(check);
    }

    #[test]
    #[ignore = "needs a GPU: make test-gpu"]
    fn a_gpu_splits_marks_and_joins_to_the_bits_of_a_cpu() {
        let gpu = crate::device::here().unwrap();
        let before = numbers();
        let after = &before * 1.001;
        for first in [0, 1, 7, 13] {
            let on = |device: Device| {
                let [rounded, rest] = halves(&before).map(|half| half.to_device(device));
                let marks = Tensor::zeros([before.numel() as i64 / 8 + 4], (Kind::Uint8, device));
                let whole = after.to_device(device);
                split_marked(&whole, &rounded, &rest, (&marks, first)).unwrap();
                let joined = whole.zeros_like();
                join(&rounded, &rest, &joined).unwrap();
                let all = [rounded.view_dtype(Kind::Int16), rest, marks, bits(&joined)];
                all.map(|tensor| tensor.to_device(Device::Cpu))
            };
            assert_eq!(on(gpu), on(Device::Cpu), "from bit {first}");
        }
    }

    #[test]
    fn halves_of_other_kinds_or_lengths_are_refused() {
        let whole = Tensor::from_slice(&[1f32, 2.0]);
        let [rounded, rest] = halves(&whole);
        assert!(join(&whole, &rest, &whole).is_err());
        assert!(join(&rounded.narrow(0, 0, 1), &rest, &whole).is_err());
        assert!(split(&whole, &rounded, &rest.narrow(0, 0, 1)).is_err());
        let marks = Tensor::zeros([1], (Kind::Uint8, Device::Cpu));
        for first in [-1, 7] {
            assert!(
                split_marked(&whole, &rounded, &rest, (&marks, first)).is_err(),
                "{first}"
            );
        }
    }
}
