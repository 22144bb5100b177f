//! The CustomResourceDefinition as the real API server enforces it: every rule, every default, every limit, and what
//! kubectl makes of it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its helpers too"
)]

mod batches;
mod defaults;
mod kubectl;
mod leaves;
mod manifest;
mod reach;
mod rules;
mod schema;
mod server;
mod values;
