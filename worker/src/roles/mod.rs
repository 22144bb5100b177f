//! The other roles as the trainer reaches them: in its own process, or over HTTP. Which of the two is chosen in one place,
//! `local::build`; the trainer's line is the same.

mod call;
mod dealer;
mod endpoint;
mod members;
mod reference;
mod rollout;
mod work;

pub use call::CallError;
pub use dealer::{Dealer, DealerOptions};
pub use members::{Member, Members};
pub use reference::Reference;
pub use rollout::Rollout;
