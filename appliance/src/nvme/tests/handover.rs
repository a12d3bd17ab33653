//! Drives in a hand-over: shut down and opened by the next process, or by the same one again.

use std::sync::Arc;

use hugemem::Arena;
use nvme_spec::Status;

use super::{
    A, ALL, B, BLOCK_BYTES, Bus, Host, SHORT, Slots, configuration_of, cores, started_on,
    with_writer,
};
use crate::appliance::Environment;

/// The machine with these drives, for the next process.
fn environment(slots: &Slots) -> Environment<'static> {
    let slots = slots.clone();
    let make = move |_: &Arc<Arena>, _| -> Box<dyn Bus> { Box::new(slots) };
    Environment {
        bus: Box::new(make),
        ..Environment::default()
    }
}

#[test]
fn drives_are_opened_by_the_next_process() {
    for count in [1, 2] {
        let config = configuration_of(&cores(count), &ALL, SHORT);
        let (appliance, slots) = started_on(config, |_, _| {});
        let mut host = Host::attach(&appliance);
        let appliance = with_writer(appliance, |mut appliance| {
            for round in 1..=3_u8 {
                let told = appliance.effects_of_upgrade().join("\n");
                assert!(told.contains("2 NVMe drive(s)"), "{told}");
                assert_eq!(host.write(3, 7, round), Status::SUCCESS);
                let next = appliance.hand_over_within(&Default::default(), environment(&slots));
                let failure;
                (appliance, failure) = next;
                assert!(failure.is_none(), "{failure:?}");
                assert_eq!(slots.opened(B), 1 + usize::from(round));
                let mut block = [0; BLOCK_BYTES];
                assert!(slots.control(B).read_durable(1, 7, &mut block));
                assert_eq!(block, [round; BLOCK_BYTES], "the cache was written");
                assert_eq!(host.read(3, 7), Ok(vec![round; BLOCK_BYTES]));
            }
            appliance
        });
        for address in [A, B] {
            assert_eq!(slots.control(address).counters().illegal_accesses, 0);
        }
        drop(host);
        assert!(appliance.stop_quietly(), "with {count} reactors");
    }
}

#[test]
fn drives_are_opened_again_if_the_next_process_fails() {
    let config = configuration_of(&cores(2), &ALL, SHORT);
    let (appliance, slots) = started_on(config, |_, _| {});
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(3, 7, 9), Status::SUCCESS);
    let appliance = with_writer(appliance, |mut appliance| {
        for round in 1..=2 {
            let without_drives = environment(&Slots::default());
            let failure;
            (appliance, failure) = appliance.hand_over_within(&Default::default(), without_drives);
            let failure = failure.expect("it has no drives").to_string();
            assert!(failure.contains("device a1"), "{failure}");
            assert_eq!(slots.opened(A), 1 + round);
            assert_eq!(host.read(3, 7), Ok(vec![9; BLOCK_BYTES]));
        }
        appliance
    });
    drop(host);
    assert!(appliance.stop_quietly());
}
