//! The numbers of a policy's tensors that a step changed, for an engine that has all others: it writes them over those that it has,
//! between two passes.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};

use crate::native::change::Change;

/// What changed, in bfloat16. Whoever makes them has [checked](crate::rollout::weights::delta) that they are numbers of the model.
#[derive(Debug, Default)]
pub struct Changes {
    tensors: Vec<Tensor>,
    /// What the ranges are of.
    body: Vec<u8>,
}

#[derive(Debug)]
struct Tensor {
    name: String,
    gaps: Range<usize>,
    values: Range<usize>,
}

impl Changes {
    /// Of the tensors that [`add`](Self::add) names, in `body`.
    pub fn of(body: Vec<u8>) -> Self {
        Self {
            tensors: Vec::new(),
            body,
        }
    }

    /// `gaps` and `values` are of the tensor `name`; None where the body has no such bytes.
    #[must_use]
    pub fn add(&mut self, name: &str, gaps: Range<usize>, values: Range<usize>) -> Option<Change<'_>> {
        self.body.get(gaps.clone())?;
        self.body.get(values.clone())?;
        self.tensors.push(Tensor {
            name: name.to_owned(),
            gaps,
            values,
        });
        self.iter().next_back()
    }

    /// Tensor by tensor.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Change<'_>> {
        let bytes = |range: &Range<usize>| self.body.get(range.clone()).unwrap_or_default();
        self.tensors.iter().map(move |tensor| Change {
            name: &tensor.name,
            gaps: bytes(&tensor.gaps),
            values: bytes(&tensor.values),
        })
    }

    /// Each with its tensor's place among `places`, which has them by name.
    ///
    /// # Errors
    /// When one has none, naming it.
    pub fn placed<'a, P>(&'a self, places: &'a BTreeMap<String, P>) -> Result<Vec<(&'a P, Change<'a>)>> {
        let placed = self.iter().map(|change| {
            let place = places.get(change.name);
            Ok((
                place.with_context(|| format!("the model has no tensor {}", change.name))?,
                change,
            ))
        });
        placed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_the_body_does_not_have_are_no_change() {
        let mut changes = Changes::of(vec![0, 0, 0x80, 0x3f]);
        assert!(changes.add("w", 0..5, 0..2).is_none() && changes.add("w", 0..1, 2..6).is_none());
        let change = changes.add("w", 0..1, 2..4).unwrap();
        assert_eq!(change.positions().collect::<Vec<_>>(), [0]);
        assert_eq!(change.floats().collect::<Vec<_>>(), [1.0]);
        assert_eq!(changes.iter().count(), 1);
    }
}
