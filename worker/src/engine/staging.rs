//! New weights as they arrive, beside those that the engine is using. Where the runner has packed weights, the rows of a matrix are
//! packed from the bytes as they come: no tensor of them is made, and the engine only has to swap one set for the other.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use tch::{Kind, Tensor};

use super::changes::Changes;
use super::places::{Place, Slot, places};
use crate::model::{MergedWeights, Weights};
use crate::native::filled::Filled;
use crate::native::packed::{Matrix, PackedWeights};

/// Rows that are packed at a time: a whole number of every processor's vectors.
const GROUP: usize = 16;

/// Weights for an engine to take.
#[derive(Debug)]
pub enum NewWeights {
    /// Tensors, which it packs or copies itself.
    Tensors(MergedWeights),
    /// Packed already, in what the engine [gave for it](super::Engine::stage).
    Packed(PackedWeights),
    /// What changed of those that it has.
    Changes(Changes),
}

impl<T: Into<MergedWeights>> From<T> for NewWeights {
    fn from(tensors: T) -> Self {
        Self::Tensors(tensors.into())
    }
}

/// Where weights gather tensor by tensor until they are whole.
#[derive(Debug)]
pub struct Staging(Gathering);

#[derive(Debug)]
enum Gathering {
    /// Kept in that kind.
    Tensors(Weights, Kind),
    Packed(PackedWeights, BTreeMap<String, Place>),
}

impl Staging {
    /// Nothing is there yet. `packed` is the engine's memory for it, if it has such; tensors are kept in `kind`.
    pub fn new(packed: Option<PackedWeights>, kind: Kind) -> Self {
        Self(match packed {
            None => Gathering::Tensors(Weights::default(), kind),
            Some(packed) => {
                let places = places(packed.shape());
                Gathering::Packed(packed, places)
            }
        })
    }

    /// Takes one tensor, whose bytes come out of `next`, piece by piece of any length.
    ///
    /// # Errors
    /// When the model has no such tensor, `next` fails, or memory runs out.
    pub fn take<B: AsRef<[u8]>>(
        &mut self,
        name: &str,
        shape: &[i64],
        stored: Kind,
        mut next: impl FnMut() -> Result<B>,
    ) -> Result<()> {
        if let Gathering::Packed(packed, places) = &mut self.0
            && let Some(place) = places.get(name)
            && let Slot::Rows(matrix, part) = place.slot
            && stored == packed.shape().kind
        {
            let (count, columns) = packed.size(matrix, part).context("the model has no such matrix")?;
            ensure!(
                shape == [count as i64, columns as i64],
                "{shape:?} is not [{count}, {columns}]"
            );
            let mut rows = Rows::new(packed, place.layer, (matrix, part));
            let mut left = count * rows.length;
            while left > 0 {
                let piece = next()?;
                left = left
                    .checked_sub(piece.as_ref().len())
                    .context("more bytes than the tensor has")?;
                rows.extend(piece.as_ref())?;
            }
            return rows.end();
        }
        let mut filled = Filled::new(shape, stored)?;
        while filled.left() > 0 {
            filled.extend(next()?.as_ref())?;
        }
        self.put(name, filled.tensor()?)
    }

    fn put(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        match &mut self.0 {
            Gathering::Tensors(tensors, kind) => {
                tensors.0.insert(name.to_owned(), tensor.f_to_kind(*kind)?);
                Ok(())
            }
            Gathering::Packed(packed, places) => {
                let place = places.get(name).context("the model has no such tensor")?;
                place.set(packed, &tensor, 1)
            }
        }
    }

    /// All tensors of the model are there.
    pub fn finish(self) -> NewWeights {
        match self.0 {
            Gathering::Tensors(tensors, _) => tensors.into(),
            Gathering::Packed(packed, _) => NewWeights::Packed(packed),
        }
    }
}

/// A part of a matrix on its way into packed weights.
struct Rows<'a> {
    packed: &'a mut PackedWeights,
    layer: usize,
    part: (Matrix, usize),
    /// Bytes of one.
    length: usize,
    /// Packed so far.
    count: usize,
    /// The first bytes of a group whose last have not come.
    begun: Vec<u8>,
}

impl<'a> Rows<'a> {
    fn new(packed: &'a mut PackedWeights, layer: usize, part: (Matrix, usize)) -> Self {
        let columns = packed.size(part.0, part.1).map_or(0, |(_, columns)| columns);
        Self {
            length: columns * packed.shape().kind.elt_size_in_bytes(),
            packed,
            layer,
            part,
            count: 0,
            begun: Vec::new(),
        }
    }

    fn extend(&mut self, mut bytes: &[u8]) -> Result<()> {
        let group = GROUP * self.length;
        if !self.begun.is_empty() {
            let (rest, others) = bytes.split_at(bytes.len().min(group - self.begun.len()));
            self.begun.extend_from_slice(rest);
            bytes = others;
            if self.begun.len() == group {
                self.set_begun()?;
            }
        }
        let (whole, rest) = bytes.split_at(bytes.len() / group * group);
        self.set(whole)?;
        self.begun.extend_from_slice(rest);
        Ok(())
    }

    /// The last group may be shorter.
    fn end(mut self) -> Result<()> {
        self.set_begun()
    }

    fn set_begun(&mut self) -> Result<()> {
        let begun = std::mem::take(&mut self.begun);
        self.set(&begun)?;
        self.begun = begun;
        self.begun.clear();
        Ok(())
    }

    fn set(&mut self, rows: &[u8]) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.packed.set_rows(self.layer, self.part, self.count, rows, 1)?;
        self.count += rows.len() / self.length;
        Ok(())
    }
}
