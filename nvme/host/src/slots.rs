//! The commands in flight: each has a slot, and a command identifier with a generation.
//!
//! A command identifier contains the slot's index in its low bits and a generation in the others,
//! so that a second completion of a command, or a completion of a command that was never sent, is
//! detected (STYLE.md, 13).

use std::ops::{Deref, DerefMut};

/// Maximum number of commands in flight on one queue: leaves at least two bits for the generation.
pub(crate) const SLOTS_MAX: usize = 1 << 14;

/// The identifier that error log entries reserve for "no command" (Base 2.1 §4.1.1, CID).
const CID_RESERVED: u16 = 0xffff;

/// One slot; `T` is the transport's state of its command.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    cid: u16,
    in_flight: bool,
    command: T,
}

impl<T> Slot<T> {
    /// The command identifier.
    pub(crate) fn cid(&self) -> u16 {
        self.cid
    }
}

impl<T> Deref for Slot<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.command
    }
}

impl<T> DerefMut for Slot<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.command
    }
}

/// The table of a queue's commands.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Box<[Slot<T>]>,
    free: Vec<u16>,
    index_bits: u32,
}

impl<T: Default> Slots<T> {
    /// A table for `depth` commands, 1 to [`SLOTS_MAX`].
    pub(crate) fn new(depth: usize) -> Self {
        assert!(
            (1..=SLOTS_MAX).contains(&depth),
            "checked where options are read"
        );
        let index_bits = depth.next_power_of_two().trailing_zeros();
        Self {
            slots: (0..depth as u16)
                .map(|cid| Slot {
                    cid,
                    in_flight: false,
                    command: T::default(),
                })
                .collect(),
            free: (0..depth as u16).rev().collect(),
            index_bits,
        }
    }

    /// Number of commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Maximum number of commands in flight.
    pub(crate) fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Takes a free slot for a new command, with a new generation. Returns its index.
    pub(crate) fn take(&mut self) -> Option<u16> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        let step = 1_u32 << self.index_bits;
        let mut cid = u32::from(slot.cid).wrapping_add(step) as u16;
        if cid == CID_RESERVED {
            cid = u32::from(cid).wrapping_add(step) as u16;
        }
        slot.cid = cid;
        slot.in_flight = true;
        Some(index)
    }

    /// Frees a slot. Returns the transport's state of its command.
    pub(crate) fn release(&mut self, index: u16) -> T {
        self.release_in_place(index);
        std::mem::take(&mut self.slots[usize::from(index)].command)
    }

    /// Frees a slot whose command has nothing to drop. The next command finds the old state in it.
    pub(crate) fn release_in_place(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        debug_assert!(slot.in_flight, "given back twice");
        slot.in_flight = false;
        self.free.push(index);
    }

    /// The index of the command in flight with this identifier.
    pub(crate) fn find(&self, cid: u16) -> Option<u16> {
        let index = u32::from(cid) & ((1 << self.index_bits) - 1);
        match self.slots.get(index as usize) {
            Some(slot) if slot.in_flight && slot.cid == cid => Some(index as u16),
            _ => None,
        }
    }

    /// The slot of a command in flight.
    pub(crate) fn get(&self, index: u16) -> &Slot<T> {
        &self.slots[usize::from(index)]
    }

    /// The slot of a command in flight.
    pub(crate) fn get_mut(&mut self, index: u16) -> &mut Slot<T> {
        &mut self.slots[usize::from(index)]
    }

    /// Index of any command in flight.
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
    fn identifiers_are_not_reused_immediately_and_never_reserved() {
        for depth in [1, 2, 3, 128, 1000, SLOTS_MAX] {
            let mut slots = Slots::<()>::new(depth);
            let mut last = None;
            for _ in 0..70_000 {
                let index = slots.take().expect("a slot is free");
                let cid = slots.get(index).cid();
                assert_ne!(cid, CID_RESERVED);
                assert_ne!(Some(cid), last, "depth {depth}");
                last = Some(cid);
                assert_eq!(slots.find(cid), Some(index));
                slots.release(index);
                assert_eq!(slots.find(cid), None, "it is stale");
            }
        }
    }

    #[test]
    fn every_slot_is_allocated_once() {
        let mut slots = Slots::<()>::new(100);
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
    fn unknown_identifiers_are_refused() {
        let mut slots = Slots::<()>::new(5);
        let mine = slots.take().map(|index| slots.get(index).cid());
        let known = (0..=u16::MAX)
            .filter(|&cid| slots.find(cid).is_some())
            .collect::<Vec<_>>();
        assert_eq!(Some(known), mine.map(|cid| vec![cid]));
    }
}
