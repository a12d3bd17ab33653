//! A workload that two connections of one session share, with a model of the file.

use files_spec::attributes::Attributes;
use files_spec::operations::{Operation, SetattrArgs};
use reactors::sim::Seeded;

use crate::{Peer, Slot, at_file, data};

/// Two connections of one session take turns: one writes, and sometimes truncates, and the other one
/// reads what is there. `prepare` is called with the writing connection before each round.
///
/// # Panics
/// A byte is wrong, or a request fails.
pub fn write_and_read_in_turn<P: Peer>(
    connections: &mut [P; 2],
    rounds: usize,
    mut prepare: impl FnMut(&mut P, &mut Seeded),
) {
    let mut slot = Slot::new(&mut connections[0], b"a");
    let mut random = Seeded::at(9);
    let mut model: Vec<u8> = Vec::new();
    for round in 0..rounds {
        let turn = round % 2;
        prepare(&mut connections[turn], &mut random);
        let length = match random.below(4) {
            0 => 1 + random.below(600_000),
            1 => 4096 * (1 + random.below(20)),
            _ => 1 + random.below(9000),
        } as usize;
        let offset = random.below(2 << 20) as usize;
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8).collect();
        let write = slot.write(offset as u64, &bytes);
        slot.call(&mut connections[turn], &write).assert_ok();
        if model.len() < offset + length {
            model.resize(offset + length, 0);
        }
        model[offset..offset + length].copy_from_slice(&bytes);
        if random.below(10) == 0 {
            let size = random.below(model.len() as u64 + 5000);
            let truncate = at_file(Operation::SetAttr(SetattrArgs {
                stateid: slot.stateid,
                obj_attributes: Attributes {
                    size: Some(size),
                    ..Attributes::default()
                },
            }));
            slot.call(&mut connections[turn], &truncate).assert_ok();
            model.resize(size as usize, 0);
        }
        let mut offset = random.below(model.len() as u64 + 1) as usize;
        let end = model.len().min(offset + 1 + random.below(1 << 20) as usize);
        // A read of many ranges may be short.
        while offset < end {
            let read = slot.read(offset as u64, (end - offset) as u32);
            let answer = slot.call(&mut connections[1 - turn], &read);
            let bytes = data(&answer);
            assert!(!bytes.is_empty());
            assert!(
                bytes == &model[offset..offset + bytes.len()],
                "round {round}"
            );
            offset += bytes.len();
        }
    }
}
