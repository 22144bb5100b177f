//! The contract between a user, the operator and the worker: the `PpoJob` custom resource, its validation, and the
//! [`RunConfig`] that pods receive.
//!
//! A manifest goes one way: [`parse_manifest`] reads it into [`spec`] (what the user wrote), [`fill`] adds every default,
//! [`validate`] collects what is wrong, [`resolve`] makes the [`RunConfig`] (what runs). Nothing after that reads the raw
//! spec. All of it is pure; no file is touched.

mod cel;
pub mod convert;
mod crd;
pub mod defaults;
pub mod disk;
mod environment;
mod field;
pub mod geometry;
mod kubernetes;
pub mod listen;
pub mod manifest;
pub mod memory;
mod nesting;
pub mod pattern;
pub mod plan;
pub mod pod;
pub mod quantity;
pub mod report;
pub mod resolve;
pub mod run_config;
pub mod spec;
pub mod status;
pub mod validate;

pub use crd::{CONTRACT_ANNOTATION, contract, crd, crd_yaml, spec_schema};
pub use defaults::fill;
pub use geometry::Geometry;
pub use manifest::{ManifestError, parse_manifest};
pub use plan::{Plan, render_plan};
pub use resolve::{Environment, resolve};
pub use run_config::RunConfig;
pub use spec::{PpoJob, PpoJobSpec};
pub use status::PpoJobStatus;
pub use validate::{ValidationErrors, validate, warnings};
