//! The other roles as the trainer reaches them: in its own process, or over HTTP. Which of the two is chosen in one place,
//! `run::reach`; the trainer's line is the same.

mod actor;
mod call;
mod caller;
mod dealer;
mod endpoint;
mod members;
mod pending;
mod pool;
mod publication;
pub mod published;
mod reference;
mod reward;
mod rollout;
mod same_model;
mod transfers;
mod work;

pub use actor::Actor;
pub use call::CallError;
pub use caller::Caller;
pub use dealer::{Dealer, DealerOptions};
pub use endpoint::Endpoint;
pub use members::{Member, Members};
pub use pending::{Generated, Pending};
pub use pool::{ANSWERS_WITHIN, Answer, Pool};
pub use publication::Publication;
pub use reference::{Reference, ReferencePods};
pub use reward::Reward;
pub use rollout::Rollout;
pub use same_model::SameModel;
pub use transfers::Transfers;
