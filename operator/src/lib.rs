//! The parts of the control plane that its binaries share.

pub mod plugin;
