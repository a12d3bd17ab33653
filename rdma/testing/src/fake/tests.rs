//! The conformance suite on the fabric, and tests of the fabric itself.

mod device_events;
mod device_memory;
mod faults;
pub(crate) mod foreign;
mod limits;
mod steering;
mod stress;
mod suite;
mod work;

use std::time::Duration;

use hugemem::allocation_counter::CountingAllocator;

use crate::conformance::Subject;
use crate::conformance::harness::Harness;
use crate::fake::{Fabric, FabricConfig, Fake};
use suite::{SERVER, machines};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Runs a test on a fabric of two machines, on which every poll of the harness is a tick.
fn on_fabric(config: FabricConfig, test: impl FnOnce(&Fabric, &mut Harness<'_, Fake>)) {
    let (fabric, server, client) = machines(config);
    let clock = fabric.clone();
    let mut subject = Subject {
        server,
        client,
        address: SERVER,
        step: Box::new(move || {
            clock.progress();
        }),
        step_timeout: Duration::from_secs(20),
    };
    test(&fabric, &mut Harness::new(&mut subject, "fabric"));
}

/// The same on an immediate fabric, on which only the polls of a queue or channel are ticks.
fn on_immediate_fabric(test: impl FnOnce(&Fabric, &mut Harness<'_, Fake>)) {
    let (fabric, server, client) = machines(FabricConfig::IMMEDIATE);
    let mut subject = Subject {
        server,
        client,
        address: SERVER,
        step: Box::new(|| {}),
        step_timeout: Duration::from_secs(20),
    };
    test(&fabric, &mut Harness::new(&mut subject, "fabric"));
}
