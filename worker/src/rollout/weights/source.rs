//! The weights of one version, read by several streams: the slow part is done once for all of them.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tch::{Kind, Tensor};

use crate::model::MergedWeights;
use crate::model::digest::{Digest, Hash, Hasher, flat, hash_of};

/// Tensors that are kept for streams that come somewhat later than the first. More than that apart, each makes its own.
const KEPT: usize = 4;

/// Tensors that many streams read. One that has to be merged with an adapter, or lies on a GPU, is made once for those that come to it
/// together, and each is hashed by one of them.
pub struct Source {
    /// In order of names.
    tensors: Vec<Described>,
    /// Streams that are under way.
    readers: AtomicUsize,
    shared: Mutex<Shared>,
}

/// What is known of a tensor without a look at its numbers.
pub(super) struct Described {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) shape: Vec<i64>,
    hash: OnceLock<Hash>,
    /// A stream hashes it on its way.
    is_hashed: AtomicBool,
}

struct Shared {
    weights: MergedWeights,
    /// The tensors made last, by their numbers.
    made: VecDeque<(usize, Tensor)>,
}

impl Source {
    /// Nobody reads them yet.
    pub fn new(weights: MergedWeights) -> Self {
        let tensors = weights.iter().map(|(name, tensor)| Described {
            name: name.clone(),
            kind: tensor.weight.kind(),
            shape: tensor.weight.size(),
            hash: OnceLock::new(),
            is_hashed: AtomicBool::new(false),
        });
        Self {
            tensors: tensors.collect(),
            readers: AtomicUsize::new(0),
            shared: Mutex::new(Shared {
                weights,
                made: VecDeque::new(),
            }),
        }
    }

    /// All tensors, in the order of their numbers.
    pub(super) fn tensors(&self) -> &[Described] {
        &self.tensors
    }

    /// A stream begins.
    pub(super) fn enter(&self) {
        self.readers.fetch_add(1, Ordering::AcqRel);
    }

    /// A stream has ended. Behind the last one no memory is held.
    pub(super) fn leave(&self) {
        if self.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.lock().made.clear();
        }
    }

    /// The tensor of that number, [flat].
    pub(super) fn tensor(&self, number: usize) -> Result<Tensor> {
        let name = &self.tensors.get(number).context("there is no such tensor")?.name;
        // Held while one is made: whoever comes to it meanwhile waits for it.
        let mut shared = self.shared.lock();
        if let Some((_, made)) = shared.made.iter().find(|(made, _)| *made == number) {
            return Ok(made.shallow_clone());
        }
        let made = flat(&shared.weights.tensor(name)?).with_context(|| format!("tensor {name}"))?;
        if self.readers.load(Ordering::Acquire) > 1 {
            if shared.made.len() == KEPT {
                shared.made.pop_front();
            }
            shared.made.push_back((number, made.shallow_clone()));
        }
        Ok(made)
    }

    /// What a stream hashes the tensor of that number with; None where another one does, or did.
    pub(super) fn hasher(&self, number: usize) -> Option<Hasher> {
        let tensor = self.tensors.get(number)?;
        let is_first = !tensor.is_hashed.swap(true, Ordering::Relaxed);
        is_first.then(Hasher::default)
    }

    /// The tensor of that number has this hash.
    pub(super) fn set_hash(&self, number: usize, hash: Hash) {
        if let Some(tensor) = self.tensors.get(number) {
            tensor.hash.get_or_init(|| hash);
        }
    }

    /// Of all tensors. What another stream began to hash and has not ended, as one that broke off, is hashed now.
    pub(super) fn digest(&self) -> Result<Hash> {
        let mut digest = Digest::default();
        for (number, tensor) in self.tensors.iter().enumerate() {
            let hash = match tensor.hash.get() {
                Some(hash) => *hash,
                None => {
                    let hash = hash_of(&self.tensor(number)?)?;
                    *tensor.hash.get_or_init(|| hash)
                }
            };
            digest.insert(&tensor.name, tensor.kind, &tensor.shape, hash);
        }
        Ok(digest.finish())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::frame::{pieces, pieces_of};
    use super::*;
    use crate::model::Weights;

    /// Two tensors, of which the first comes in several pieces.
    fn weights() -> Weights {
        let mut weights = Weights::default();
        let numbers: Vec<f32> = (0..(3 << 18)).map(|number| number as f32).collect();
        weights.0.insert("a".into(), Tensor::from_slice(&numbers));
        weights.0.insert("b".into(), Tensor::from_slice(&[1.0f32, 2.0]));
        weights
    }

    fn whole(pieces: impl Iterator<Item = Result<Vec<u8>>>) -> Vec<u8> {
        pieces.map(Result::unwrap).collect::<Vec<_>>().concat()
    }

    #[test]
    fn streams_that_read_at_once_are_each_as_one_that_reads_alone() {
        let source = Arc::new(Source::new(weights().into()));
        let mut streams: Vec<_> = (0..3).map(|_| pieces_of(source.clone()).unwrap()).collect();
        let mut sent = vec![Vec::new(); 3];
        let mut go_on = true;
        while go_on {
            go_on = false;
            for (stream, sent) in streams.iter_mut().zip(&mut sent) {
                if let Some(piece) = stream.next() {
                    sent.extend(piece.unwrap());
                    go_on = true;
                }
            }
        }
        let alone = whole(pieces(weights()).unwrap());
        assert!(sent.iter().all(|sent| *sent == alone));
        assert!(source.hasher(0).is_none(), "it was hashed by one of them");
    }

    #[test]
    fn what_a_stream_that_broke_off_did_not_hash_is_hashed_for_the_next() {
        let source = Arc::new(Source::new(weights().into()));
        let mut broken = pieces_of(source.clone()).unwrap();
        broken.by_ref().take(2).for_each(|piece| drop(piece.unwrap()));
        drop(broken);
        assert!(whole(pieces_of(source).unwrap()) == whole(pieces(weights()).unwrap()));
    }

    #[test]
    fn a_tensor_is_made_once_for_streams_that_come_to_it_together_and_none_is_held_behind_the_last() {
        let mut weights = Weights::default();
        for name in 0..=KEPT {
            // Apart in memory, so that it has to be made as merged ones have.
            let apart = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0])
                .view([2, 2])
                .transpose(0, 1);
            weights.0.insert(name.to_string(), apart);
        }
        let source = Source::new(weights.into());
        let place = |number| source.tensor(number).unwrap().data_ptr();
        let held = || source.shared.lock().made.len();
        source.enter();
        drop(source.tensor(0).unwrap());
        assert_eq!(held(), 0, "nobody else reads");
        source.enter();
        let first = place(0);
        assert_eq!(place(0), first);
        (1..=KEPT).for_each(|number| drop(source.tensor(number).unwrap()));
        assert_eq!(held(), KEPT);
        source.leave();
        source.leave();
        assert_eq!(held(), 0);
    }
}
