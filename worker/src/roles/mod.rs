//! The other roles as the trainer reaches them: in its own process, or over HTTP. Which of the two is chosen in one place,
//! `local::build`; the trainer's line is the same.

mod call;
mod caller;
mod dealer;
mod endpoint;
mod members;
mod reference;
mod reference_pods;
mod rollout;
mod work;

pub use call::CallError;
pub use caller::Caller;
pub use dealer::{Dealer, DealerOptions};
pub use members::{Member, Members};
pub use reference::Reference;
pub use reference_pods::ReferencePods;
pub use rollout::Rollout;
