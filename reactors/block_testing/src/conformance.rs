//! The conformance suite for block devices, which every implementation runs.
//!
//! A crate with its own device calls [`run`] with a function that creates a fresh device. The suite
//! panics if the device violates the contract of [`Device`] and
//! [`DeviceQueue`](block::DeviceQueue), and prints the case and the seed.
//!
//! Every case also checks that each request completes exactly once, that
//! [`in_flight`](block::DeviceQueue::in_flight) is always exact, that a queue with requests in
//! flight always has completions ready or a descriptor that wakes, and that at the end every lease
//! has returned to the arena.

mod cases;
mod harness;
mod random;

use std::any::Any;
use std::sync::Arc;

use hugemem::{Arena, ArenaConfig, PagePolicy};

use block::Device;
use harness::Harness;

/// Minimum size of a device for the suite, in blocks.
pub const BLOCKS_MIN: u64 = 600;

/// A fresh device of at least [`BLOCKS_MIN`] blocks, and its environment.
pub struct Subject {
    /// The device, used by the suite alone. Its initial content does not matter.
    pub device: Arc<dyn Device>,
    /// Arena for the suite's leases, see [`arena`]. Used by the suite alone while a case runs.
    pub arena: Arc<Arena>,
    /// Called before each poll: advances a virtual clock or an emulated controller.
    pub step: Box<dyn FnMut()>,
    /// Dropped after the device, for example a temporary directory.
    pub keep: Box<dyn Any>,
    /// Whether requests of a dropped queue may continue after the drop: their leases then return
    /// while a later queue is polled.
    pub ends_late: bool,
}

impl Subject {
    /// A device without further environment.
    #[must_use]
    pub fn new(device: impl Device + 'static, arena: Arc<Arena>) -> Self {
        Self {
            device: Arc::new(device),
            arena,
            step: Box::new(|| {}),
            keep: Box::new(()),
            ends_late: false,
        }
    }
}

/// Creates an arena for the suite.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("16 MiB for the suite's arena")
}

type Case = (&'static str, fn(&mut Harness));

const CASES: &[Case] = &[
    ("the geometry makes sense", cases::geometry_makes_sense),
    ("depths out of bounds", cases::depths_out_of_bounds),
    ("round trips at the edges", cases::round_trips_at_the_edges),
    (
        "ranges outside the device",
        cases::ranges_outside_the_device,
    ),
    ("borrows", cases::borrows),
    ("inline borrows", cases::inline_borrows),
    ("writing at once", cases::writing_at_once),
    ("filling at once", cases::filling_at_once),
    ("zeroes and holes", cases::zeroes_and_holes),
    ("a whole device of zeroes", cases::a_whole_device_of_zeroes),
    ("compare", cases::compare),
    ("flush", cases::flush),
    ("a full queue", cases::a_full_queue),
    ("small batches", cases::small_batches),
    ("giving up", cases::giving_up),
    ("drain", cases::drain),
    ("a queue dropped in use", cases::a_queue_dropped_in_use),
    ("two queues", cases::two_queues),
    ("health", cases::health),
    ("random requests against a model", random::against_a_model),
];

/// Runs the suite, each case on its own device.
///
/// # Panics
/// If the device violates the contract.
pub fn run(make: impl Fn() -> Subject) {
    for (name, case) in CASES {
        println!("conformance: {name}");
        let mut harness = Harness::new(make());
        case(&mut harness);
        harness.finish();
    }
}

/// Runs the cases for a read-only device.
///
/// # Panics
/// If the device violates the contract.
pub fn run_read_only(make: impl Fn() -> Subject) {
    let mut harness = Harness::new(make());
    cases::read_only(&mut harness);
    harness.finish();
}

#[cfg(test)]
mod tests;
