//! Tests of data pointers against a model of the drive.

use std::sync::Arc;

use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_spec::command::Psdt;
use nvme_spec::registers::Cap;
use nvme_spec::sgl::Sgl;
use proptest::prelude::*;

use super::*;
use crate::identity::Limits;
use crate::memory::DriveMemory;
use crate::options::DriveOptions;

const DMA_BASE: u64 = 1 << 40;
const SLOTS: u16 = 200;

fn limits() -> Limits {
    let options = DriveOptions {
        queue_depth_max: SLOTS,
        ..DriveOptions::new("test")
    };
    let (page, nvm) = (Default::default(), Default::default());
    let cap = Cap::new().with_mqes_z(1023);
    Limits::new(cap, &page, &nvm, &options, 1 << 20)
}

fn memory() -> Arc<PairMemory> {
    let config = ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let arena = Arena::new(config).unwrap();
    let memory = DriveMemory::new(&arena, 1, &limits(), false).unwrap();
    Arc::clone(&memory.pairs[0])
}

fn pointers(sgl: bool) -> Pointers {
    let mut pointers = Pointers::new(SLOTS, sgl);
    pointers.reset(DMA_BASE);
    pointers
}

/// The ranges of memory that a drive would transfer (Base 2.1 §4.3.1).
fn walk(sqe: &Sqe, memory: &PairMemory, slot: u16, bytes: u64) -> Vec<(u64, u64)> {
    let prp = sqe.dptr.prp();
    let (first, second) = (prp.prp1.get(), prp.prp2.get());
    let head = PAGE.rest(first).min(bytes);
    let mut pieces = vec![(first, head)];
    let mut left = bytes - head;
    if left > 0 && left <= PAGE.bytes() {
        pieces.push((second, left));
        left = 0;
    }
    if left > 0 {
        let (buffer, offset) = memory.list(slot);
        assert_eq!(second, DMA_BASE + (buffer.region_offset() + offset) as u64);
        let entries = left.div_ceil(PAGE.bytes());
        assert!(
            PAGE.list_entries_from(second) >= entries,
            "the list crosses a page"
        );
        for entry in 0..entries {
            let page = buffer.load_u64(offset + entry as usize * 8, Ordering::Relaxed);
            let piece = left.min(PAGE.bytes());
            assert_eq!(PAGE.offset(page), 0);
            pieces.push((page, piece));
            left -= piece;
        }
    }
    pieces
}

/// Whether the pieces form one range from `address` on.
fn is_range(pieces: &[(u64, u64)], address: u64, bytes: u64) -> bool {
    let mut at = address;
    for (start, len) in pieces {
        if *start != at {
            return false;
        }
        at += len;
    }
    at == address + bytes
}

#[test]
fn sgl_descriptor_replaces_a_prp_list() {
    let memory = memory();
    let mut pointers = pointers(true);
    let point = |pointers: &mut Pointers, bytes| {
        pointers.point(Sqe::read(1, 0, 0), &memory, 3, DMA_BASE + 4096, bytes)
    };
    let long = point(&mut pointers, 8193);
    assert_eq!(long.flags.psdt(), Psdt::SGL);
    let expected = Sgl::DataBlock {
        address: DMA_BASE + 4096,
        length: 8193,
    };
    assert_eq!(long.dptr.sgl().decode(), expected);
    for bytes in [512, 4096, 8192] {
        assert_eq!(point(&mut pointers, bytes).flags.psdt(), Psdt::PRP);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A data pointer is correct regardless of the previous contents of the slot's list.
    #[test]
    fn prp_lists_address_the_data(
        uses in prop::collection::vec((0_u16..SLOTS, 0_u64..40, 1_u64..=512, any::<bool>()), 1..60)
    ) {
        let memory = memory();
        let mut pointers = pointers(false);
        for (slot, page, blocks, small) in uses {
            let slot = slot % 3;
            if small {
                pointers.small(&memory, slot, [page, blocks]);
                continue;
            }
            let (address, bytes) = (DMA_BASE + page * 4096, blocks * 512);
            let sqe = pointers.point(Sqe::read(1, 0, 0), &memory, slot, address, bytes);
            let pieces = walk(&sqe, &memory, slot, bytes);
            prop_assert!(is_range(&pieces, address, bytes), "{pieces:x?}");
        }
    }
}
