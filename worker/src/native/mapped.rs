//! Tensors that lie in a mapped file: nothing is copied before somebody reads, and no memory but the page cache's is taken.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use anyhow::{Result, ensure};
use memmap2::MmapMut;
use tch::{Kind, Tensor};

use super::message::checked;

unsafe extern "C" {
    fn ppo_tensor_over(
        data: *mut c_void,
        sizes: *const i64,
        dims: i64,
        kind: i32,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
        output: *mut *mut c_void,
    ) -> *mut c_char;
}

unsafe extern "C" fn release(owner: *mut c_void) {
    // SAFETY: this is what `over` took out of an Arc, given back once.
    drop(unsafe { Arc::from_raw(owner.cast_const().cast::<MmapMut>()) });
}

/// A tensor of the bytes of `map` from `start` on, which keeps the map. What is written to it stays in this process (the map is a private
/// one); where the bytes do not lie on a border of their type, it is a copy.
///
/// # Errors
/// When the bytes are not in the map, or are no floating-point numbers.
pub fn over(map: &Arc<MmapMut>, start: usize, size: &[i64], kind: Kind) -> Result<Tensor> {
    // c10/core/ScalarType.h
    let number = match kind {
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::BFloat16 => 15,
        other => anyhow::bail!("{other:?} is not mapped"),
    };
    let length = size.iter().product::<i64>() as usize * kind.elt_size_in_bytes();
    ensure!(
        start.checked_add(length).is_some_and(|end| end <= map.len()),
        "{length} bytes from {start} on are not in a file of {}",
        map.len()
    );
    let bytes = &map[start..start + length];
    if !(bytes.as_ptr() as usize).is_multiple_of(kind.elt_size_in_bytes()) {
        return Ok(Tensor::f_from_data_size(bytes, size, kind)?);
    }
    let (owner, mut output) = (Arc::into_raw(map.clone()), null_mut());
    // SAFETY: the bytes are in the map (checked above), on a border of their type, and live until `release` gets the map's Arc back.
    checked(unsafe {
        ppo_tensor_over(
            bytes.as_ptr().cast_mut().cast(),
            size.as_ptr(),
            size.len() as i64,
            number,
            owner.cast_mut().cast(),
            release,
            &raw mut output,
        )
    })?;
    // SAFETY: without an error the C++ side wrote a new tensor that is ours.
    Ok(unsafe { Tensor::from_ptr(output.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: &[u8]) -> Arc<MmapMut> {
        let mut map = MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(bytes);
        Arc::new(map)
    }

    #[test]
    fn a_tensor_keeps_its_map_as_long_as_it_lives_and_no_longer() {
        let bytes: Vec<u8> = (0..6u8).flat_map(|number| f32::from(number).to_ne_bytes()).collect();
        let map = map(&bytes);
        let tensor = over(&map, 8, &[2, 2], Kind::Float).unwrap();
        let view = tensor.get(1);
        drop(tensor);
        assert_eq!(Arc::strong_count(&map), 2);
        assert_eq!(Vec::<f32>::try_from(&view).unwrap(), [4.0, 5.0]);
        drop(view);
        assert_eq!(Arc::strong_count(&map), 1);
    }

    #[test]
    fn bytes_on_no_border_are_copied_and_bytes_outside_are_refused() {
        let mut bytes = vec![0];
        bytes.extend(2.5f32.to_ne_bytes());
        let map = map(&bytes);
        let copy = over(&map, 1, &[1], Kind::Float).unwrap();
        assert_eq!(Arc::strong_count(&map), 1);
        assert_eq!(Vec::<f32>::try_from(&copy).unwrap(), [2.5]);
        assert!(over(&map, 4, &[1], Kind::Float).is_err());
        assert!(over(&map, usize::MAX, &[1], Kind::Float).is_err());
    }
}
