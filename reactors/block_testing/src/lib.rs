//! Block devices for tests, and the suite that every block device runs.
//!
//! [`FaultDevice`] wraps a device and fails requests by a plan; [`DelayDevice`] wraps one and completes
//! requests late; [`MemoryUser`] has data of requests in memory of a device. [`conformance`] states the contract of [`block::Device`] and [`block::DeviceQueue`] as
//! tests.
#![forbid(unsafe_code)]

pub mod conformance;
mod delay;
mod device_memory;
mod fault;

pub use delay::{DelayDevice, Latency};
pub use device_memory::{MemoryUser, MemoryUserControl, TestMemory};
pub use fault::{Effect, FaultControl, FaultDevice, FaultPlan, FaultRule, OperationKinds, When};
