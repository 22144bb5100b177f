//! What can be wrong with the numbers given to the PPO maths.

use ppo_crds::spec::Estimator;

/// A refusal: inputs that do not fit together, or settings under which a quantity is undefined.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tensor has another shape than the rest of its call.
    #[error("{name} has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The argument.
        name: &'static str,
        /// Its shape.
        found: Vec<i64>,
        /// The shape that fits.
        expected: Vec<i64>,
    },
    /// A group has fewer or more samples than it must.
    #[error("group {group} has {found} sample(s), {} needs {needs}: give every sample of the group", .estimator.name())]
    Group {
        /// The group's id.
        group: i64,
        /// Samples with that id.
        found: usize,
        /// What would fit, in words.
        needs: String,
        /// The estimator that needs it.
        estimator: Estimator,
    },
    /// An input that this estimator cannot do without.
    #[error("{name} is missing: {why}")]
    Missing {
        /// The argument.
        name: &'static str,
        /// Why it is needed.
        why: String,
    },
    /// Settings that contradict each other.
    #[error("{0}")]
    Settings(String),
    /// libtorch refused an operation.
    #[error("libtorch: {0}")]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// Refuses `found` unless it is `expected`.
    pub(crate) fn unless_shape(name: &'static str, found: &[i64], expected: &[i64]) -> Result<(), Self> {
        if found == expected {
            return Ok(());
        }
        Err(Self::Shape {
            name,
            found: found.to_vec(),
            expected: expected.to_vec(),
        })
    }
}
