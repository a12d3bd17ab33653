//! Random requests of several clients.

use crate::client::World;
use crate::device::durable_world;
use crate::overlap::{Choices, run};

struct Random(u64);

impl Choices for Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn overlapping_requests_on_a_volatile_volume() {
    for seed in 0..20 {
        assert!(
            run(World::new(), &mut Random(seed), 300) > 200,
            "seed {seed}"
        );
    }
}

#[test]
fn overlapping_requests_on_a_durable_volume() {
    for seed in 0..20 {
        assert!(
            run(durable_world(), &mut Random(seed), 300) > 200,
            "seed {seed}"
        );
    }
}
