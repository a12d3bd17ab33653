//! Which devices a turn looks at: those that have requests, and one of the others, each in its turn.
//! So a turn costs as much with a hundred devices at rest as with one.

use crate::config::DEVICES_MAX;

/// A set of devices, bit per place.
pub(super) type DeviceSet = u128;

const _: () = assert!(DEVICES_MAX <= DeviceSet::BITS as usize);

/// The devices of one core, by what they may have to do.
#[derive(Debug, Default)]
pub(super) struct Rota {
    /// Those that took a request whose completion has not come.
    busy: DeviceSet,
    /// Those that were looked at or took a request since they were rung last.
    unrung: DeviceSet,
    /// The place that is looked at next, whether or not it is busy.
    next: u8,
}

impl Rota {
    /// A device took a request.
    #[inline]
    pub(super) fn took(&mut self, place: u8) {
        self.busy |= 1 << place;
        self.unrung |= 1 << place;
    }

    /// A device did at once what it was asked.
    #[inline]
    pub(super) fn served(&mut self, place: u8) {
        self.unrung |= 1 << place;
    }

    /// A device has no request any more.
    #[inline]
    pub(super) fn rests(&mut self, place: usize) {
        self.busy &= !(1 << place);
    }

    /// The devices to look at in this turn, of `places`.
    #[inline]
    pub(super) fn begin_turn(&mut self, places: usize) -> DeviceSet {
        if places == 0 {
            return 0;
        }
        let looked_at = self.busy | 1 << self.next;
        self.next = if usize::from(self.next) + 1 < places {
            self.next + 1
        } else {
            0
        };
        self.unrung |= looked_at;
        looked_at
    }

    /// The devices to ring at the end of a turn.
    #[inline]
    pub(super) fn end_turn(&mut self) -> DeviceSet {
        std::mem::take(&mut self.unrung)
    }
}

/// The places of a set, in order.
#[inline]
pub(super) fn places(mut set: DeviceSet) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_device_is_looked_at_in_every_turn_and_each_other_in_its_turn() {
        let mut rota = Rota::default();
        rota.took(2);
        let turns: Vec<Vec<usize>> = (0..4)
            .map(|_| places(rota.begin_turn(4)).collect())
            .collect();
        assert_eq!(turns, [vec![0, 2], vec![1, 2], vec![2], vec![2, 3]]);
        rota.rests(2);
        assert_eq!(places(rota.begin_turn(4)).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn what_was_touched_is_rung_once() {
        let mut rota = Rota::default();
        rota.begin_turn(128);
        rota.took(127);
        rota.rests(127);
        assert_eq!(places(rota.end_turn()).collect::<Vec<_>>(), [0, 127]);
        assert_eq!(rota.end_turn(), 0);
        rota.served(3);
        assert_eq!(places(rota.end_turn()).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn no_device_and_fewer_devices_are_no_trouble() {
        let mut rota = Rota::default();
        assert_eq!(rota.begin_turn(0), 0);
        for _ in 0..130 {
            rota.begin_turn(128);
        }
        assert_eq!(places(rota.begin_turn(128)).collect::<Vec<_>>(), [2]);
    }
}
