//! The commands in flight: one fixed slot each, named on the wire by an identifier that carries a
//! generation.
//!
//! A command identifier is the slot's index in its low bits and a generation in the rest, so that a
//! second answer to a finished command, or an answer to one that never was, is found out (STYLE.md,
//! 13).

use crate::error::ProtocolError;
use nvme_spec::tcp::PduType;

/// Most commands in flight on one queue: leaves the generation at least two bits.
pub(crate) const SLOTS_MAX: usize = 1 << 14;

/// An identifier that error log entries reserve for "no command" (Base 2.1 §4.1.1, CID).
const CID_RESERVED: u16 = 0xffff;

/// Which way a command's data moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// No data.
    None,
    /// Read: the target sends all of it.
    FromTarget,
    /// Read: the target may send less.
    FromTargetUpTo,
    /// Write: the host sends, with the capsule.
    InCapsule,
    /// Write: the host sends what R2Ts ask for.
    OnRequest,
}

/// An R2T of which not everything has been queued for sending yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) ttag: u16,
    pub(crate) offset: u32,
    pub(crate) remaining: u32,
}

/// One command in flight.
#[derive(Debug)]
pub(crate) struct Slot<B> {
    cid: u16,
    in_flight: bool,
    pub(crate) direction: Direction,
    /// LAST_PDU was seen.
    pub(crate) last_seen: bool,
    /// A data digest did not match: the command fails when it ends.
    pub(crate) data_damaged: bool,
    /// Bytes of `data` to move.
    pub(crate) expected: u32,
    /// Bytes that data PDUs brought so far, or that R2Ts asked for so far.
    pub(crate) moved: u32,
    pub(crate) grant: Option<Grant>,
    /// Position in the outgoing stream behind the last byte that was queued for this command.
    pub(crate) send_end: u64,
    pub(crate) token: u64,
    pub(crate) data: Option<B>,
}

impl<B> Slot<B> {
    fn free(cid: u16) -> Self {
        Self {
            cid,
            in_flight: false,
            direction: Direction::None,
            last_seen: false,
            data_damaged: false,
            expected: 0,
            moved: 0,
            grant: None,
            send_end: 0,
            token: 0,
            data: None,
        }
    }

    /// The identifier on the wire.
    pub(crate) fn cid(&self) -> u16 {
        self.cid
    }
}

/// The table of a queue's commands.
#[derive(Debug)]
pub(crate) struct Slots<B> {
    slots: Box<[Slot<B>]>,
    free: Vec<u16>,
    index_bits: u32,
}

impl<B> Slots<B> {
    /// A table for `depth` commands, 1 to [`SLOTS_MAX`].
    pub(crate) fn new(depth: usize) -> Self {
        assert!(
            (1..=SLOTS_MAX).contains(&depth),
            "checked where options are read"
        );
        let index_bits = depth.next_power_of_two().trailing_zeros();
        Self {
            slots: (0..depth as u16).map(Slot::free).collect(),
            free: (0..depth as u16).rev().collect(),
            index_bits,
        }
    }

    /// Commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Commands that can be in flight.
    pub(crate) fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot for a new command, under a new generation; gives its index.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        let step = 1_u32 << self.index_bits;
        let mut cid = u32::from(slot.cid).wrapping_add(step) as u16;
        if cid == CID_RESERVED {
            cid = u32::from(cid).wrapping_add(step) as u16;
        }
        *slot = Slot {
            in_flight: true,
            ..Slot::free(cid)
        };
        Some(index)
    }

    /// Gives a slot back, with what its command owned.
    pub(crate) fn release(&mut self, index: u16) -> (u64, Option<B>) {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert!(slot.in_flight, "released twice");
        slot.in_flight = false;
        self.free.push(index);
        (slot.token, slot.data.take())
    }

    /// The index of the command in flight that `kind` names.
    pub(crate) fn find(&self, kind: PduType, cid: u16) -> Result<u16, ProtocolError> {
        let index = u32::from(cid) & ((1 << self.index_bits) - 1);
        match self.slots.get(index as usize) {
            Some(slot) if slot.in_flight && slot.cid == cid => Ok(index as u16),
            _ => Err(ProtocolError::UnknownCommand { kind, cid }),
        }
    }

    /// The slot of a command in flight.
    pub(crate) fn get(&self, index: u16) -> &Slot<B> {
        &self.slots[usize::from(index)]
    }

    /// The slot of a command in flight.
    pub(crate) fn get_mut(&mut self, index: u16) -> &mut Slot<B> {
        &mut self.slots[usize::from(index)]
    }

    /// Any one command in flight.
    pub(crate) fn any_in_flight(&self) -> Option<u16> {
        self.slots
            .iter()
            .position(|slot| slot.in_flight)
            .map(|index| index as u16)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_identifier_is_not_reused_at_once_and_never_the_reserved_one() {
        for depth in [1, 2, 3, 128, 1000, SLOTS_MAX] {
            let mut slots = Slots::<Vec<u8>>::new(depth);
            let mut last = None;
            for _ in 0..70_000 {
                let index = slots.take().expect("a slot is free");
                let cid = slots.get(index).cid();
                assert_ne!(cid, CID_RESERVED);
                assert_ne!(Some(cid), last, "depth {depth}");
                last = Some(cid);
                assert_eq!(slots.find(PduType::CAPSULE_RESP, cid), Ok(index));
                slots.release(index);
                let stale = slots.find(PduType::CAPSULE_RESP, cid);
                let expected = ProtocolError::UnknownCommand {
                    kind: PduType::CAPSULE_RESP,
                    cid,
                };
                assert_eq!(stale, Err(expected));
            }
        }
    }

    #[test]
    fn every_slot_is_taken_once() {
        let mut slots = Slots::<Vec<u8>>::new(100);
        let taken: HashSet<u16> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(
            (taken.len(), slots.in_flight(), slots.depth()),
            (100, 100, 100)
        );
        assert!(slots.take().is_none());
        let cids: HashSet<u16> = taken.iter().map(|&index| slots.get(index).cid()).collect();
        assert_eq!(cids.len(), 100);
    }

    #[test]
    fn any_foreign_identifier_is_refused() {
        let mut slots = Slots::<Vec<u8>>::new(5);
        let mine = slots.take().map(|index| slots.get(index).cid());
        let known = (0..=u16::MAX)
            .filter(|&cid| slots.find(PduType::R2T, cid).is_ok())
            .collect::<Vec<_>>();
        assert_eq!(Some(known), mine.map(|cid| vec![cid]));
    }
}
