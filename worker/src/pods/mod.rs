//! The pods of a role as other roles reach them: by name, over HTTP, with the job's token.

mod call;
mod caller;
mod members;

pub use call::CallError;
pub use caller::Caller;
pub use members::{Member, Members};
