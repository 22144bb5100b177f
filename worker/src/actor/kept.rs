//! The forward pass of a step's first update. It starts from the weights that the old log-probabilities and values belong to, so
//! their forward pass is kept with its graph and reused.

use tch::Tensor;

/// What a pass gave for its samples, [samples, columns] each: log-probabilities and entropies, or values and nothing.
pub type Pass = (Tensor, Option<Tensor>);

/// A pass with its graph, until the update that it is for.
#[derive(Debug)]
pub struct Kept {
    /// Steps completed before the one that it is of.
    pub step: u64,
    /// Its samples, by their place in the step.
    pub samples: Vec<usize>,
    /// What it gave.
    pub pass: Pass,
}

impl Kept {
    /// The first `columns` of what it gave, if it is the pass of these samples of the step.
    pub fn of(self, step: u64, samples: &[usize], columns: i64) -> Option<Pass> {
        let cut = |whole: Tensor| whole.narrow(1, 0, columns);
        let (first, second) = self.pass;
        (self.step == step && self.samples == samples).then(|| (cut(first), second.map(cut)))
    }
}
