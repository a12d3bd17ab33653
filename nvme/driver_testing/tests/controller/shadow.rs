//! Shadow doorbells (Base 2.1 §5.2.5, §B.5) and submission queues in the controller memory buffer.

use std::sync::atomic::Ordering;

use hugemem::DmaBuffer;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{ControllerMemoryOptions, EmulatedOptions, ShadowDoorbells};
use nvme_spec::Status;
use nvme_spec::command::{AdminOpcode, Sqe};
use nvme_spec::registers::Cmbmsc;
use reactors::Nanos;
use zerocopy::IntoBytes;

use crate::harness::{Host, PAGE, Pair, create_cq, create_sq};

const CONFIG: u8 = AdminOpcode::DOORBELL_BUFFER_CONFIG.0;

fn options(shadow_doorbells: ShadowDoorbells) -> EmulatedOptions {
    EmulatedOptions {
        shadow_doorbells,
        doorbell_stride: 1,
        ..EmulatedOptions::default()
    }
}

struct Shadow {
    doorbells: DmaBuffer,
    events: DmaBuffer,
}

impl Shadow {
    fn configure(host: &mut Host) -> Self {
        let shadow = Self {
            doorbells: host.buffer(PAGE),
            events: host.buffer(PAGE),
        };
        let prp = (
            host.address(&shadow.doorbells),
            host.address(&shadow.events),
        );
        let status = host.admin_status(Sqe::new(CONFIG, 0).with_prp(prp.0, prp.1));
        assert_eq!(status, Status::SUCCESS);
        shadow
    }

    /// Shadow doorbells are 8 bytes apart at this stride: tails even, heads odd.
    fn tail(&self, pair: &Pair) {
        let at = usize::from(pair.id) * 16;
        self.doorbells.store_u32(at, pair.tail, Ordering::Release);
    }

    fn head(&self, pair: &Pair) {
        let at = usize::from(pair.id) * 16 + 8;
        self.doorbells.store_u32(at, pair.head, Ordering::Release);
    }

    fn tail_event(&self, pair: &Pair) -> u32 {
        let at = usize::from(pair.id) * 16;
        self.events.load_u32(at, Ordering::Acquire)
    }
}

#[test]
fn invalid_doorbell_buffer_configs_are_refused() {
    let mut host = Host::new(options(ShadowDoorbells::Ring));
    let (doorbells, events) = (host.buffer(PAGE), host.buffer(PAGE));
    let (first, second) = (host.address(&doorbells), host.address(&events));
    for (prp1, prp2) in [
        (first + 8, second),
        (first, second + 64),
        (0, second),
        (first, 0),
    ] {
        let status = host.admin_status(Sqe::new(CONFIG, 0).with_prp(prp1, prp2));
        assert_eq!(status, Status::INVALID_FIELD, "{prp1:#x}, {prp2:#x}");
    }
}

#[test]
fn shadow_doorbell_with_register_write_is_processed_immediately() {
    let mut host = Host::new(options(ShadowDoorbells::Ring));
    let shadow = Shadow::configure(&mut host);
    let mut pair = host.pair(2, 5, 5);
    for _ in 0..23 {
        pair.push(&Sqe::flush(1));
        shadow.tail(&pair);
        // The value written to the register is ignored; the write itself counts.
        host.drive.write_u32(0x1000 + 4 * 8, 0);
        assert!(pair.pop().is_some_and(|cqe| cqe.status().is_success()));
        shadow.head(&pair);
        assert_eq!(shadow.tail_event(&pair), pair.tail);
    }
    assert_eq!(host.control.counters().invalid_doorbells, 0);
}

#[test]
fn polling_controller_needs_no_doorbell_writes() {
    let mut host = Host::new(options(ShadowDoorbells::Poll));
    let mut pair = host.pair(2, 6, 4);
    // Existing queues switch to shadow doorbells too.
    let shadow = Shadow::configure(&mut host);
    let rung = host.control.counters().submission_doorbells;
    for _ in 0..30 {
        for _ in 0..5 {
            pair.push(&Sqe::flush(1));
        }
        shadow.tail(&pair);
        assert!(pair.pop().is_none());
        let mut ended = 0;
        while ended < 5 {
            host.tick(Nanos(1));
            while pair.pop().is_some() {
                ended += 1;
            }
            shadow.head(&pair);
        }
    }
    assert_eq!(host.control.counters().submission_doorbells, rung);
    // An invalid tail is ignored and reported.
    shadow.doorbells.store_u32(2 * 16, 6, Ordering::Release);
    host.tick(Nanos(1));
    assert_eq!(host.control.counters().invalid_doorbells, 1);
    // A reset discards the shadow doorbells.
    host.disable();
    host.enable();
    let mut pair = host.pair(2, 6, 4);
    assert!(host.run(&mut pair, Sqe::flush(1)).status().is_success());
}

fn memory(placed_by_host: bool) -> EmulatedOptions {
    EmulatedOptions {
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 2 * PAGE,
            placed_by_host,
            holds_data: false,
        }),
        ..EmulatedOptions::default()
    }
}

#[test]
fn submission_queues_in_the_controller_memory_buffer() {
    for placed_by_host in [true, false] {
        let mut host = Host::new(memory(placed_by_host));
        let buffer = host
            .drive
            .controller_memory(2, 4096, 2 * PAGE as u64)
            .unwrap();
        let base = if placed_by_host {
            0x7000_0000_0000
        } else {
            buffer.bus_address()
        };
        let (cq, mut pair_cq) = (host.buffer(PAGE), 0_u32);
        let status = host.admin_status(create_cq(1, 4, base, None));
        let refused = if placed_by_host {
            Status::SUCCESS
        } else {
            Status::INVALID_USE_OF_CMB
        };
        assert_eq!(status, refused, "completion queues do not lie there");
        if placed_by_host {
            let place = Cmbmsc::new()
                .with_cre(true)
                .with_cmse(true)
                .with_cba(base >> 12);
            host.drive.write_u64(0x50, place.into_bits());
        }
        let at = host.address(&cq);
        assert_eq!(
            host.admin_status(create_cq(2, 4, at, None)),
            Status::SUCCESS
        );
        let beyond = create_sq(2, 80, base + PAGE as u64, 2);
        assert_eq!(host.admin_status(beyond), Status::INVALID_USE_OF_CMB);
        let status = host.admin_status(create_sq(2, 64, base + PAGE as u64, 2));
        assert_eq!(status, Status::SUCCESS);
        for number in 1..=100_u32 {
            let sqe = Sqe::flush(1).with_cid(number as u16);
            let slot = PAGE + ((number - 1) % 64) as usize * 64;
            for (index, word) in sqe.as_bytes().chunks_exact(8).enumerate() {
                let word = u64::from_le_bytes(word.try_into().unwrap());
                buffer.write_u64(slot + index * 8, word.to_le());
            }
            host.drive.write_u32(0x1000 + 4 * 4, number % 64);
            let cid = cq.load_u16(pair_cq as usize * 16 + 12, Ordering::Acquire);
            assert_eq!(u32::from(cid), number);
            pair_cq = (pair_cq + 1) % 4;
            host.drive.write_u32(0x1000 + 5 * 4, pair_cq);
        }
        // Data and lists in the buffer are not supported.
        let sqe = Sqe::identify_structure(nvme_spec::command::Cns::CONTROLLER, 0).with_prp(base, 0);
        assert_eq!(host.admin_status(sqe), Status::INVALID_USE_OF_CMB);
    }
}
