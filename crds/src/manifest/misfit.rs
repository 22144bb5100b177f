//! What is told of a field that cannot be read.

use crate::field::Step;

/// A field that cannot be read, and why.
#[derive(Clone)]
pub(super) struct Misfit {
    pub path: Vec<Step>,
    pub message: String,
    /// Where what is given under a name that is not known here most likely belongs, the likeliest first; None: the name is known.
    pub meant: Option<Vec<String>>,
}

impl Misfit {
    pub fn new(path: Vec<Step>, message: String) -> Self {
        Self {
            path,
            message,
            meant: None,
        }
    }
}
