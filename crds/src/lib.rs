//! The contract between a user, the operator and the worker: the `PpoJob` custom resource, its validation, and the
//! [`RunConfig`] that pods receive.
//!
//! A manifest is parsed once into [`spec`] (what the user wrote), then resolved and validated once into [`run_config`]
//! (what runs). Nothing after that reads the raw spec.

pub mod run_config;
pub mod spec;

pub use run_config::RunConfig;
pub use spec::{PpoJob, PpoJobSpec};
