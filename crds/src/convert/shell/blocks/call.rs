//! The body of a function that is called, as a block: where it ends before its end, and what is done in it once it is called.

use super::super::condition::{Truth, and};
use super::super::{Lexer, Word};
use super::{Block, Kind};

impl<'a> Lexer<'a> {
    /// The body of a function that is called.
    pub(in crate::convert::shell) fn begin_call(&mut self, truth: Truth, why: Option<String>) {
        self.open(Kind::Call);
        self.begin(truth, why);
    }

    /// The script ends here, where the present branch is taken. An end that nothing decides is passed by, as nobody converts a script for it:
    /// it is there for arguments that are not.
    pub(in crate::convert::shell) fn leave(&mut self) {
        let is_certain = self.is_taken() == Some(true);
        if let Some(block) = self.blocks.last_mut() {
            block.leaves |= !is_certain || ![Kind::Group, Kind::Call].contains(&block.kind);
        }
    }

    /// A function may end here, with its variables as they are.
    pub(in crate::convert::shell) fn return_here(&mut self, with: Option<&Word>) {
        let runs = and(self.is_taken_here(), self.list.runs());
        // There it ends the subshell alone.
        if self.blocks_here().iter().any(|block| block.kind == Kind::Subshell) {
            return;
        }
        let variables = self.variables.clone();
        let block = self.blocks.iter_mut().rfind(|block| block.kind == Kind::Call);
        let (Some(block), Some(frame)) = (block, self.frames.last_mut()) else {
            return;
        };
        match runs {
            Some(false) => return,
            // Nothing behind it is done.
            Some(true) => {
                block.present = Some(false);
                let status = with.filter(|word| word.unknown.is_none());
                frame.returns = Some(
                    status
                        .and_then(|word| word.text.parse().ok())
                        .map(|status: u8| status == 0),
                );
            }
            None => frame.may_return = true,
        }
        block.ends.push(variables);
    }

    /// The blocks of the function that is being carried out, or of the script outside of any.
    pub(super) fn blocks_here(&self) -> &[Block<'a>] {
        let from = self.blocks.iter().rposition(|block| block.kind == Kind::Call);
        &self.blocks[from.unwrap_or(0)..]
    }

    /// Whether what is read is done once its function is called.
    pub(super) fn is_taken_here(&self) -> Truth {
        let calls = |block: &&Block| block.kind == Kind::Call && block.present != Some(false);
        let inside = self.blocks_here().iter().filter(|block| block.inside && !calls(block));
        inside.map(|block| block.present).fold(Some(true), and)
    }

    /// Whether the function that is being carried out may do several times what is read.
    pub(in crate::convert::shell) fn repeats_here(&self) -> bool {
        self.blocks_here().iter().any(Block::repeats)
    }
}
