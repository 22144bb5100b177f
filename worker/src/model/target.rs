//! Where tensors that are read go, and as what.

use tch::{Device, Kind};

/// Precision and device of tensors that are read. A precision alone means this machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Precision.
    pub kind: Kind,
    /// Device.
    pub device: Device,
}

impl From<Kind> for Target {
    fn from(kind: Kind) -> Self {
        let device = Device::Cpu;
        Self { kind, device }
    }
}

impl From<(Kind, Device)> for Target {
    fn from((kind, device): (Kind, Device)) -> Self {
        Self { kind, device }
    }
}
