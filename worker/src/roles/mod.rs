//! The other roles as the trainer reaches them: in its own process, or over HTTP. Which of the two is chosen in one place,
//! `run::reach`; the trainer's line is the same.

mod dealer;
mod endpoint;
mod pending;
mod pool;
mod publication;
pub mod published;
mod reference;
mod rollout;
mod same_model;
mod transfers;
mod work;

pub use dealer::{Dealer, DealerOptions};
pub use endpoint::Endpoint;
pub use pending::{Generated, Pending};
pub use pool::{Answer, Pool};
pub use publication::Publication;
pub use reference::{Reference, ReferencePods};
pub use rollout::Rollout;
pub use same_model::SameModel;
pub use transfers::Transfers;
