//! What reservations and ANA states forbid a controller: the devices that its host may not read or
//! write.
//!
//! A device may belong to several subsystems. Its reservations apply to all of them, so restrictions
//! are kept by device.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nvme_reservations::Permissions;
use nvme_spec::Status;

use crate::ana::{self, AnaRestrictions};
use crate::config::DEVICES_MAX;
use crate::status::{Fault, byte};

/// Devices of one word of a set.
const WORD_DEVICES: usize = u64::BITS as usize;
const WORDS: usize = 2;

const _: () = assert!(DEVICES_MAX <= WORDS * WORD_DEVICES);

/// What a host may do with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceAccess {
    /// What these permissions allow.
    Allowed(Permissions),
    /// Nothing, because the reservations of the device are not known.
    Unknown,
}

/// What a command does with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessKind {
    Read,
    /// Changes data, or makes it durable.
    Write,
}

/// A set of devices.
#[derive(Debug, Default)]
struct DeviceSet([AtomicU64; WORDS]);

impl DeviceSet {
    fn set_all(&self, devices: u128) {
        // Each word has half of the bits.
        self.0[0].store(devices as u64, Ordering::Relaxed);
        self.0[1].store((devices >> WORD_DEVICES) as u64, Ordering::Relaxed);
    }

    /// Called only under the registry's lock, so that no set changes meanwhile.
    fn set_union(&self, one: &Self, other: &Self) {
        for (word, (one, other)) in self.0.iter().zip(one.0.iter().zip(&other.0)) {
            let union = one.load(Ordering::Relaxed) | other.load(Ordering::Relaxed);
            word.store(union, Ordering::Relaxed);
        }
    }

    fn set(&self, device: u8, contains: bool) {
        let (word, bit) = Self::place(device);
        if contains {
            self.0[word].fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn contains(&self, device: u8) -> bool {
        let (word, bit) = Self::place(device);
        self.0[word].load(Ordering::Relaxed) & bit != 0
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| word.load(Ordering::Relaxed) == 0)
    }

    #[inline(always)]
    fn place(device: u8) -> (usize, u64) {
        let device = usize::from(device);
        // The number of words is a power of two, so no index is out of bounds.
        (device / WORD_DEVICES % WORDS, 1 << (device % WORD_DEVICES))
    }
}

/// The restrictions of one controller. The controller's gate orders changes and reads.
#[derive(Debug)]
pub(crate) struct Restrictions {
    /// What reservations and ANA states together forbid.
    unreadable: DeviceSet,
    unwritable: DeviceSet,
    /// What reservations forbid.
    reserved_unreadable: DeviceSet,
    reserved_unwritable: DeviceSet,
    unknown: DeviceSet,
    /// Devices without access because of their ANA state, and two kinds of these.
    inaccessible: DeviceSet,
    lost: DeviceSet,
    changing: DeviceSet,
    /// Devices of which earlier commands of the host were aborted.
    aborted: DeviceSet,
    /// By device: the epoch before which they were checked.
    aborted_before: Box<[AtomicU32; DEVICES_MAX]>,
}

impl Default for Restrictions {
    fn default() -> Self {
        Self {
            unreadable: DeviceSet::default(),
            unwritable: DeviceSet::default(),
            reserved_unreadable: DeviceSet::default(),
            reserved_unwritable: DeviceSet::default(),
            unknown: DeviceSet::default(),
            inaccessible: DeviceSet::default(),
            lost: DeviceSet::default(),
            changing: DeviceSet::default(),
            aborted: DeviceSet::default(),
            aborted_before: Box::new([const { AtomicU32::new(0) }; DEVICES_MAX]),
        }
    }
}

impl Restrictions {
    pub(crate) fn set(&self, device: u8, access: DeviceAccess) {
        let (reads, writes) = match access {
            DeviceAccess::Allowed(permissions) => (permissions.read(), permissions.write()),
            DeviceAccess::Unknown => (false, false),
        };
        self.unknown.set(device, access == DeviceAccess::Unknown);
        self.reserved_unreadable.set(device, !reads);
        self.reserved_unwritable.set(device, !writes);
        self.combine();
    }

    /// Sets the devices without access because of their ANA states.
    pub(crate) fn set_ana(&self, ana: AnaRestrictions) {
        self.lost.set_all(ana.lost);
        self.changing.set_all(ana.changing);
        self.inaccessible.set_all(ana.inaccessible);
        self.combine();
    }

    fn combine(&self) {
        let inaccessible = &self.inaccessible;
        self.unreadable
            .set_union(&self.reserved_unreadable, inaccessible);
        self.unwritable
            .set_union(&self.reserved_unwritable, inaccessible);
    }

    /// Aborts the commands for a device that were checked in an epoch before `epoch`.
    pub(crate) fn abort_before(&self, device: u8, epoch: u32) {
        self.aborted_before[usize::from(device)].store(epoch, Ordering::Relaxed);
        self.aborted.set(device, true);
    }

    /// Whether a command for a device that was checked in the epoch `epoch` is aborted.
    pub(crate) fn is_aborted(&self, device: u8, epoch: u32) -> bool {
        let before = self.aborted_before[usize::from(device)].load(Ordering::Relaxed);
        // Epochs wrap around. No work lasts for half of their range.
        let is_earlier = (1..1 << 31).contains(&before.wrapping_sub(epoch));
        self.aborted.contains(device) && is_earlier
    }

    /// Whether the host may read and write every device.
    pub(crate) fn is_empty(&self) -> bool {
        // An unknown device is also unreadable.
        self.unreadable.is_empty() && self.unwritable.is_empty()
    }

    /// Whether no reservation and no ANA state forbids a command.
    #[inline(always)]
    pub(crate) fn allows(&self, device: u8, access: AccessKind) -> bool {
        let forbidden = match access {
            AccessKind::Read => &self.unreadable,
            AccessKind::Write => &self.unwritable,
        };
        !forbidden.contains(device)
    }

    /// Refuses a command for a device without access (Base 2.1 §8.1.1) or that conflicts with a
    /// reservation (Base 2.1 §8.1.22.1).
    pub(crate) fn check(&self, device: u8, access: AccessKind) -> Result<(), Fault> {
        if self.allows(device, access) {
            return Ok(());
        }
        self.check_ready(device)?;
        Err(Fault::new(Status::RESERVATION_CONFLICT).at(byte::NSID))
    }

    /// Refuses every command for a device without access or whose reservations are not known.
    pub(crate) fn check_ready(&self, device: u8) -> Result<(), Fault> {
        if self.inaccessible.contains(device) {
            let (is_lost, is_changing) =
                (self.lost.contains(device), self.changing.contains(device));
            return Err(ana::refusal(is_lost, is_changing));
        }
        if self.unknown.contains(device) {
            // Base 2.1 §4.2.3.1, Namespace Not Ready: only an operator can change it.
            return Err(Fault::new(Status::NAMESPACE_NOT_READY).at(byte::NSID));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use nvme_reservations::CommandGroup;

    use super::*;

    #[test]
    fn devices_are_restricted_independently() {
        let restrictions = Restrictions::default();
        let readable = Permissions::NONE.with(CommandGroup::Read);
        for device in [0, 63, 64, 126] {
            assert!(restrictions.is_empty());
            restrictions.set(device, DeviceAccess::Allowed(readable));
            assert!(!restrictions.is_empty());
            assert!(restrictions.check(device, AccessKind::Read).is_ok());
            let refused = restrictions.check(device, AccessKind::Write).unwrap_err();
            assert!(refused.status.is(Status::RESERVATION_CONFLICT) && refused.status.dnr());
            assert!(restrictions.check(device ^ 1, AccessKind::Write).is_ok());
            restrictions.set(device, DeviceAccess::Allowed(Permissions::ALL));
        }
        assert!(restrictions.is_empty());
    }

    #[test]
    fn ana_states_are_independent_of_reservations() {
        let restrictions = Restrictions::default();
        restrictions.set(70, DeviceAccess::Allowed(Permissions::NONE));
        restrictions.set_ana(AnaRestrictions {
            inaccessible: 1 << 70 | 1 << 2,
            lost: 1 << 2,
            changing: 0,
        });
        for (device, status) in [
            (70, Status::ANA_INACCESSIBLE),
            (2, Status::ANA_PERSISTENT_LOSS),
        ] {
            for access in [AccessKind::Read, AccessKind::Write] {
                assert!(!restrictions.allows(device, access));
                let refused = restrictions.check(device, access).unwrap_err();
                assert!(refused.status.is(status) && !refused.status.dnr());
            }
        }
        assert!(restrictions.check(6, AccessKind::Write).is_ok());
        restrictions.set_ana(AnaRestrictions::default());
        assert!(restrictions.check(2, AccessKind::Write).is_ok());
        let refused = restrictions.check(70, AccessKind::Read).unwrap_err();
        assert!(refused.status.is(Status::RESERVATION_CONFLICT));
        restrictions.set(70, DeviceAccess::Allowed(Permissions::ALL));
        assert!(restrictions.is_empty());
    }

    #[test]
    fn earlier_commands_of_a_device_are_aborted() {
        let restrictions = Restrictions::default();
        assert!(!restrictions.is_aborted(3, 6));
        restrictions.abort_before(3, 7);
        assert!(restrictions.is_aborted(3, 6) && restrictions.is_empty());
        assert!(!restrictions.is_aborted(3, 7) && !restrictions.is_aborted(4, 6));
        restrictions.abort_before(3, 2);
        assert!(restrictions.is_aborted(3, u32::MAX), "epochs wrap around");
    }

    #[test]
    fn a_device_with_unknown_reservations_is_not_ready() {
        let restrictions = Restrictions::default();
        restrictions.set(5, DeviceAccess::Unknown);
        for access in [AccessKind::Read, AccessKind::Write] {
            let refused = restrictions.check(5, access).unwrap_err();
            assert!(refused.status.is(Status::NAMESPACE_NOT_READY));
        }
        restrictions.set(5, DeviceAccess::Allowed(Permissions::NONE));
        let refused = restrictions.check(5, AccessKind::Read).unwrap_err();
        assert!(refused.status.is(Status::RESERVATION_CONFLICT));
    }
}
