//! The driver and emulated controllers, which fail, delay, lie and are removed.

mod conformance;
mod copying;
mod copying_across;
mod faults;
mod in_device;
mod neighbours;
mod random;
mod sleepers;
mod start;
mod stops;
mod support;
mod threads;
