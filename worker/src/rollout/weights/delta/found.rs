//! Finds what changed, tensor by tensor: threads look through the marks, and where numbers lie in this machine's memory they are copied
//! at once.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use anyhow::{Result, bail};
use tch::{Device, Tensor};

use crate::model::marks::{Bits, Changed};
use crate::native::bytes::bytes_of;
use crate::native::change::{Gaps, positions};

/// Numbers that a device is asked for at a time.
const FETCHED: usize = 1 << 22;

/// Numbers whose marks are worth another thread: with fewer it comes too late, as where a core is busy.
const WORTH_A_THREAD: usize = 1 << 24;

/// What changed of a tensor.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Numbers.
    pub(super) count: usize,
    /// Where they are, as [`Gaps`] has it.
    pub(super) gaps: Vec<u8>,
    /// What they are now, once those of a device are [fetched](Self::fetch).
    pub(super) values: Vec<[u8; 2]>,
}

impl Found {
    /// In `range` of the flat buffer; `numbers` are the tensor's, where they lie in this machine's memory.
    fn of(bits: Bits, range: Range<i64>, numbers: Option<&[[u8; 2]]>) -> Result<Self> {
        let (mut found, mut gaps) = (Self::default(), Gaps::default());
        bits.each(range, |places| {
            found.count += places.len();
            gaps.extend(places);
            if let Some(numbers) = numbers {
                // There are as many as the range has.
                let number = |place: &i64| numbers.get(*place as usize).copied().unwrap_or_default();
                found.values.extend(places.iter().map(number));
            }
        })?;
        found.gaps = gaps.bytes;
        found.gaps.shrink_to_fit();
        found.values.shrink_to_fit();
        Ok(found)
    }

    /// Brings the numbers of `tensor` here that lie on a device.
    pub(super) fn fetch(&mut self, tensor: &Tensor) -> Result<()> {
        let mut positions = positions(&self.gaps).peekable();
        while self.values.len() < self.count && positions.peek().is_some() {
            let block: Vec<i64> = positions.by_ref().take(FETCHED).collect();
            let block = Tensor::from_slice(&block).f_to_device(tensor.device())?;
            let values = tensor.f_index_select(0, &block)?.f_to_device(Device::Cpu)?;
            self.values.extend_from_slice(bytes_of(&values)?.as_chunks().0);
        }
        Ok(())
    }
}

/// What changed of each of `tensors`, whose places are those of `changed`.
pub(super) fn find(changed: &Changed, tensors: &[Tensor]) -> Result<Vec<Found>> {
    let bits = changed.marks.read()?;
    let numbers = tensors.iter().map(|tensor| match tensor.device() {
        Device::Cpu => bytes_of(tensor).map(|bytes| Some(bytes.as_chunks::<2>().0)),
        _ => Ok(None),
    });
    let numbers: Vec<Option<&[[u8; 2]]>> = numbers.collect::<Result<_>>()?;
    let places = &changed.places;
    let next = AtomicUsize::new(0);
    let look = || -> Result<Vec<(usize, Found)>> {
        let mut all = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(((_, range), numbers)) = places.get(number).zip(numbers.get(number)) else {
                return Ok(all);
            };
            all.push((number, Found::of(bits, range.clone(), *numbers)?));
        }
    };
    let most = usize::try_from(tch::get_num_threads()).unwrap_or(1).max(1);
    let numbers: i64 = places.iter().map(|(_, range)| range.end - range.start).sum();
    let threads = most.min(1 + usize::try_from(numbers)? / WORTH_A_THREAD);
    let shares = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(look)).collect();
        let mut shares = vec![look()];
        let joined = |other: ScopedJoinHandle<_>| other.join().unwrap_or_else(|_| bail!("a thread panicked"));
        shares.extend(others.into_iter().map(joined));
        shares
    });
    let mut found: Vec<Found> = tensors.iter().map(|_| Found::default()).collect();
    for share in shares {
        for (number, of_one) in share? {
            if let Some(place) = found.get_mut(number) {
                *place = of_one;
            }
        }
    }
    Ok(found)
}
